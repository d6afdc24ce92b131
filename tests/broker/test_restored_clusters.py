"""Brokers on a restored cut: what goes on there, and what the old cluster has of it: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.cuts.taking import Places, Taking
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.access import RULES, client_with, token
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.broker.test_copied_cuts import values
from tests.broker.test_cuts import PARTITIONS, SlowCluster, no_cuts, nothing_left, torn, under_load
from tests.broker.test_two_phase import begun
from tests.virtual_time import virtual_sources
from tests.waiting import until
from tests.worlds.restoring import restore_into


async def restored_from(cluster: Cluster, cut: str) -> MemoryStore:
    target = MemoryStore("new", virtual_sources(71))
    await restore_into(cluster.store, cut, target)
    checked = await check_root(target, await read_cluster(target), run_blocking=run_inline)
    assert checked.worst in (None, Severity.NOTE), checked.problems
    return target


async def read(client: ledgermq.Client, count: int, group: str = "g") -> list[bytes]:
    """The next values of a group, committed."""
    async with client.consumer("t", group=group, commit="manual") as consumer:
        found = [await anext(consumer) for _ in range(count)]
        await consumer.commit(found)
    return [message.value or b"" for message in found]


@in_cluster("a:1", "b:1", kind=SlowCluster)
async def test_brokers_go_on_with_a_cut_that_was_taken_under_load(cluster: Cluster) -> None:
    async with under_load(cluster) as client:
        await client.cuts.take("c")
        target = await restored_from(cluster, "c")
        old = (await client.describe_cluster()).cluster_id
        async with cluster_of("c:1", "d:1", store=target) as other, other.client() as second:
            assert (await second.describe_cluster()).cluster_id != old
            before = await values(second)
            assert before[0]
            assert not torn(before)
            async with second.transactions("id0") as transactions, transactions.begin() as transaction:
                for partition in range(PARTITIONS):
                    transaction.send("t", b"in the new one", partition=partition)
            expected = [[*part, b"in the new one"] for part in before]

            async def is_there() -> bool:
                return await values(second) == expected

            await until(is_there)
            await until(lambda: no_cuts(second), 60)
            assert await nothing_left(other)
            await second.cuts.take("c")
        assert not any(b"in the new one" in part for part in await values(client)), "it is not in the old cluster"
        assert [cut.name for cut in await client.cuts.list()] == ["c"]


@in_cluster("a:1")
async def test_groups_go_on_at_their_offsets_and_a_later_cut_is_another_restore(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            for number in range(6):
                await producer.send("t", b"%d" % number)
        assert await read(client, 2) == [b"0", b"1"]
        await client.cuts.take("c")
        assert await read(client, 3) == [b"2", b"3", b"4"]
        target = await restored_from(cluster, "c")
        await client.delete_topic("t", now=True)
    async with cluster_of("c:1", store=target) as other, other.client() as client:
        assert await read(client, 2) == [b"2", b"3"]
        async with client.producer() as producer:
            assert (await producer.send("t", b"new")).offset == 6
        assert await read(client, 3) == [b"4", b"5", b"new"]


@in_cluster("a:1", "b:1", bundles=4)
async def test_open_transactions_are_aborted_and_prepared_ones_wait(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster.client())
        await client.create_topic("t", 3)
        open_one, prepared = await begun(client, "open"), await begun(client, "prepared")
        await prepared.tpc_prepare()
        await client.cuts.take("c")
        target = await restored_from(cluster, "c")
        await prepared.tpc_rollback()
        await open_one.tpc_rollback()
        assert await cluster.read_all("t", 0) == []
    async with cluster_of("c:1", "d:1", store=target, bundles=4) as other, other.client() as client:
        branch = client.transactions.two_phase()
        assert (await client.transactions.outcome(branch.xid(1, "prepared"))).state == "prepared"
        await asyncio.sleep(300)
        async with client.producer() as producer:
            for partition in range(3):
                await producer.send("t", b"plain", partition=partition)
        assert await other.read_all("t", 0) == [b"plain"]
        [left] = await branch.tpc_recover()
        await branch.tpc_commit(left)

        async def is_there() -> bool:
            return [await other.read_all("t", partition) for partition in range(3)] == [
                [b"plain", b"prepared/%d" % partition] for partition in range(3)
            ]

        await until(is_there, 30)


@pytest.mark.parametrize("last", [1, 2, 3])
def test_what_is_prepared_while_a_cut_is_taken_is_in_it_whole_or_not_at_all(
    last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches are staged when two bundles are placed already; the third may be the coordinator's."""

    @in_cluster("a:1", "b:1", bundles=4)
    async def run(cluster: Cluster) -> None:
        preparing: list[asyncio.Task[object]] = []
        original = Taking._all

        async def one_after_the_other(
            self: Taking, cut: int, bundles: Sequence[int], step: pb.CutStep, places: Places
        ) -> None:
            if step == pb.CUT_PLACE and last in bundles:
                await original(self, cut, [bundle for bundle in bundles if bundle != last], step, places)
                preparing.append(asyncio.create_task(prepare()))
                await asyncio.sleep(1)
                bundles = [last]
            await original(self, cut, bundles, step, places)

        monkeypatch.setattr(Taking, "_all", one_after_the_other)

        async def prepare() -> None:
            for partition in range(3):
                branch.send("t", b"staged", partition=partition)
            await branch.tpc_prepare()

        async with cluster.client() as client:
            await client.create_topic("t", 3)
            branch = client.transactions.two_phase()
            await branch.tpc_begin(branch.xid(1, "both"))
            await client.cuts.take("c")
            await asyncio.gather(*preparing)
            target = await restored_from(cluster, "c")
            await branch.tpc_commit()
        async with cluster_of("c:1", store=target, bundles=4) as other, other.client() as client:
            left = client.transactions.two_phase()
            state = (await client.transactions.outcome(left.xid(1, "both"))).state  # aborts it unless it is prepared
            if state == "prepared":
                await left.tpc_commit(left.xid(1, "both"))
            await asyncio.sleep(60)
            lengths = {len(await other.read_all("t", partition)) for partition in range(3)}
            assert lengths == ({1} if state == "prepared" else {0})
            listed = await client.transactions.list(open_only=True)
            assert (listed.transactions, listed.staged) == ((), ())

    run()


@in_cluster("a:1", bundles=3)
async def test_timed_messages_come_in_both_clusters(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            await producer.send("t", b"soon", delay=30)
            await producer.send("t", b"late", delay=300)
        await client.cuts.take("c")
        target = await restored_from(cluster, "c")
        await asyncio.sleep(60)
        assert await cluster.read_all("t", 0) == [b"soon"]
    async with cluster_of("c:1", store=target, bundles=3) as other:
        await asyncio.sleep(30)
        assert await other.read_all("t", 0) == [b"soon"], "what was due meanwhile is due at once"
        await asyncio.sleep(300)
        assert await other.read_all("t", 0) == [b"soon", b"late"]


@in_cluster("a:1", **RULES)
async def test_tokens_and_rules_are_those_of_the_cut(cluster: Cluster) -> None:
    root, alice, bob = [await token(cluster, name) for name in ("root", "alice", "bob")]
    async with client_with(cluster, root.text) as client:
        await client.create_topic("t", 1)
        await client.access.grant("user:alice", "produce", "t")
        await client.access.grant("user:bob", "consume", "t")
        await client.cuts.take("c")
        await client.access.grant("user:bob", "produce", "t")
        target = await restored_from(cluster, "c")
        await client.access.grant("user:alice", "consume", "t")
    async with cluster_of("c:1", store=target, **RULES) as other:
        async with client_with(other, alice.text) as client, client.producer() as producer:
            await producer.send("t", b"by alice")
        async with client_with(other, bob.text) as client:
            assert (await client.read_arrow("t")).column("value").to_pylist() == [b"by alice"]
            async with client.producer() as producer:
                with pytest.raises(errors.Unauthorized):
                    await producer.send("t", b"by bob")
