"""Cuts of a cluster under load: what they promise, what is left of them, and who may take them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

import ledgermq
from ledgermq.errors import (
    CutExists,
    InvalidRequest,
    LedgerMQError,
    ResourceExhausted,
    RetriableError,
    Unavailable,
    UnknownCut,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.bundle.committing.decision_hold import HOLD_S
from ledgermq_broker.cluster import heartbeat
from ledgermq_broker.cuts import taking
from ledgermq_broker.cuts.taking import Places, Taking
from ledgermq_broker.transactions.coordinating.term import Coordinating
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.cuts import names, pins
from ledgermq_ledger.cuts.reading.root import open_named
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from tests.broker.cluster import Cluster, PausableStore, in_cluster
from tests.virtual_time import virtual_sources
from tests.waiting import until
from tests.worlds.reading import read_to_end

PARTITIONS = 4

T = TypeVar("T")


class SlowStore(PausableStore):
    """Each operation takes a while, so that transactions are half complete at most moments."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._draw = random.Random(7)

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self._draw.uniform(0.001, 0.008))
        return await super().run(operation, what, bytes_known, step)


class SlowCluster(Cluster):
    def view_of_store(self, address: str) -> ObjectStore:
        view = self.views[address] = SlowStore(self.store)
        return view


async def read_cut(cluster: Cluster, name: str, topic: str = "t") -> list[list[bytes]]:
    """The values of each partition of a topic at a cut, from the store alone."""
    at = await open_named(cluster.store, await read_cluster(cluster.store), name)
    found, read = at.catalog.topics_by_name[topic], []
    for partition, bundle in enumerate(found.bundles):
        ledger = FollowedLedger(LedgerRef(at.store, bundle, at.cluster, virtual_sources(9)), run_blocking=run_inline)
        await ledger.open()
        rows = await read_to_end(ledger.reader, PartitionId(found.id, partition))
        read.append([rows[offset] for offset in sorted(rows)])
    return read


async def nothing_left(cluster: Cluster) -> bool:
    left = [info.key async for info in cluster.store.list("") if info.key.startswith((names.HELD, names.CUTS))]
    pins = [pin for bundle in range(3) for pin in (await newest_checkpoint(cluster.store, bundle)).pins]
    return not left and not pins


async def transfers(client: ledgermq.Client, name: str, seed: int) -> None:
    """Transactions, each with one record for every partition, all with the same value, without end."""
    number, draw = 0, random.Random(seed)
    async with client.transactions(name) as transactions:
        while True:
            number += 1
            await asyncio.sleep(draw.uniform(0.03, 0.08))
            try:
                async with transactions.begin() as transaction:
                    for partition in draw.sample(range(PARTITIONS), PARTITIONS):
                        transaction.send("t", f"{name}-{number}".encode(), partition=partition)
            except LedgerMQError:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def under_load(cluster: Cluster, programs: int = 2) -> AsyncIterator[ledgermq.Client]:
    async with cluster.client() as client:
        await client.create_topic("t", PARTITIONS)
        running = [asyncio.create_task(transfers(client, f"id{i}", i)) for i in range(programs)]
        await asyncio.sleep(1)
        try:
            yield client
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def torn(parts: list[list[bytes]]) -> set[bytes]:
    """The transactions that some partitions have, and others not."""
    sets = [set(values) for values in parts]
    return set.union(*sets) - set.intersection(*sets)


@in_cluster("a:1", "b:1", kind=SlowCluster)
async def test_a_transaction_is_in_a_cut_whole_or_not_at_all(cluster: Cluster) -> None:
    async with under_load(cluster) as client:
        before = 0
        for number in range(4):
            await client.cuts.take(f"c{number}")
            await asyncio.sleep(0.3)
        for number in range(4):
            parts = await read_cut(cluster, f"c{number}")
            assert not torn(parts)
            assert len(parts[0]) > before, "writing goes on"
            before = len(parts[0])


async def has_a_torn_cut(cluster: Cluster, cuts_max: int = 40) -> bool:
    """Whether one of so many cuts has a transaction in part."""
    async with under_load(cluster, programs=3) as client:
        for number in range(cuts_max):
            await client.cuts.take(f"c{number}")
            if torn(await read_cut(cluster, f"c{number}")):
                return True
            await client.cuts.drop(f"c{number}")
            await asyncio.sleep(0.05)
    return False


@in_cluster("a:1", "b:1", kind=SlowCluster)
async def test_without_quiet_bundles_a_cut_has_parts_of_transactions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of the model's quiet-without-drain."""

    async def drained(self: Coordinating) -> None:
        pass

    monkeypatch.setattr(Coordinating, "is_quiet", True)
    monkeypatch.setattr(Coordinating, "drained", drained)
    assert await has_a_torn_cut(cluster)


@in_cluster("a:1", "b:1")
async def test_what_was_acknowledged_before_is_in_it_and_what_was_sent_after_is_not(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", PARTITIONS)
        async with client.producer() as producer:
            for number in range(20):
                await producer.send("t", b"before", partition=number % PARTITIONS)
            taken = await client.cuts.take("c")
            for number in range(20):
                await producer.send("t", b"after", partition=number % PARTITIONS)
    assert taken.state == "taken"
    assert taken.until is not None
    assert await read_cut(cluster, "c") == [[b"before"] * 5] * PARTITIONS


@in_cluster("a:1", "b:1")
async def test_the_life_of_a_cut(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 2)
        await cluster.produce("t", 0, b"1", b"2")
        taken = await client.cuts.take("eod", keep_s=None)
        assert taken.until is None
        with pytest.raises(CutExists, match="ledgermq cut drop eod"):
            await client.cuts.take("eod")
        shown = await client.cuts.show("eod")
        assert [each.bundle for each in shown.bundles] == [0, 1, 2]
        assert [(each.name, each.state) for each in await client.cuts.list()] == [("eod", "taken")]
        parts = await client.cuts.files("eod", "t")
        assert [(part.start, part.end, part.missing) for part in parts] == [(0, 2, 2), (0, 0, 0)]
        kept = await client.cuts.keep("eod", 3600)
        assert kept.until is not None
        assert (await client.cuts.drop("eod")).state == "dropped"
        await until(lambda: nothing_left(cluster), 60)
        await until(lambda: no_cuts(client), 60)
        with pytest.raises(UnknownCut, match="ledgermq cut list"):
            await client.cuts.show("eod")
        again = await client.cuts.take("eod")
        assert again.id > taken.id


async def no_cuts(client: ledgermq.Client) -> bool:
    return not await client.cuts.list()


@in_cluster("a:1")
async def test_a_cut_goes_when_its_time_is_over(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.cuts.take("short", keep_s=30)
        await asyncio.sleep(20)
        assert [each.state for each in await client.cuts.list()] == ["taken"]
        await until(lambda: no_cuts(client), 600)
        assert await nothing_left(cluster)


@in_cluster("a:1")
async def test_bad_input_is_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        for name in ("", "a b", "x" * 101, "a/b", "."):
            with pytest.raises(InvalidRequest, match="is no name of a cut"):
                await client.cuts.take(name)
        for keep_s in (0, -1, 10**12):
            with pytest.raises(InvalidRequest, match="a cut is kept for"):
                await client.cuts.take("c", keep_s=keep_s)
        for call in (client.cuts.show, client.cuts.drop, lambda name: client.cuts.keep(name, 5)):
            with pytest.raises(UnknownCut):
                await call("never")
        assert await client.cuts.list() == []
        await client.cuts.take("c")
        with pytest.raises(LedgerMQError, match="has no topic 'nothing'"):
            await client.cuts.files("c", "nothing")


@in_cluster("a:1")
async def test_a_broker_of_an_earlier_release_prevents_cuts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    old = heartbeat.Heartbeat("old", "old:1", 1, "s", release="0.1.0")
    controller = cluster.brokers["a:1"].controller
    async with cluster.client(timeout_s=2) as client:
        monkeypatch.setattr(controller, "_lacking", lambda feature: [old] if feature == heartbeat.PINS else [])
        with pytest.raises(Unavailable, match=r"cuts of the cluster need every broker, but broker old"):
            await client.cuts.take("c")
        assert await client.cuts.list() == []
        assert await nothing_left(cluster)


@in_cluster("a:1", "b:1", kind=SlowCluster)
async def test_a_hold_ends_by_itself_and_the_cut_that_relied_on_it_fails(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3, I4: a controller that is slow between the last place and the confirmation."""
    original = Taking._all

    async def slow(self: Taking, cut: int, bundles: list[int], step: pb.CutStep, places: object) -> None:
        if step == pb.CUT_CONFIRM:
            await asyncio.sleep(HOLD_S + 0.1)
        await original(self, cut, bundles, step, places)  # type: ignore[arg-type]

    monkeypatch.setattr(Taking, "_all", slow)
    async with under_load(cluster) as client:
        with pytest.raises((RetriableError,)):
            await client.cuts.take("c")
        assert not any(
            owner.hold.is_held for broker in cluster.brokers.values() for owner in broker.ownership.opened.values()
        )
        monkeypatch.undo()
        await until(lambda: no_cuts(client), 120)
        await client.cuts.take("c")
        assert not torn(await read_cut(cluster, "c"))


@in_cluster("a:1")
async def test_a_hold_that_the_same_cut_has_begun_again_does_not_confirm(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3, I4: a controller is slow, and a late HOLD of an earlier attempt comes after the hold of this one."""
    original, refused = Taking._all, list[str]()

    async def slow(self: Taking, cut: int, bundles: list[int], step: pb.CutStep, places: Places) -> None:
        if step == pb.CUT_CONFIRM:
            await asyncio.sleep(HOLD_S + 0.1)
            assert all([(await self._step(cut, bundle, pb.CUT_HOLD)).ok for bundle in bundles])
        try:
            await original(self, cut, bundles, step, places)
        except Unavailable as error:
            refused.append(error.message)
            raise

    monkeypatch.setattr(taking, "ATTEMPTS_MAX", 1)
    monkeypatch.setattr(Taking, "_all", slow)
    async with cluster.client(timeout_s=15, attempt_timeout_s=15) as client:
        with pytest.raises(RetriableError):
            await client.cuts.take("c")
    assert refused
    assert {message.partition(" has ")[2] for message in refused} == {"ended its hold, and begun another one"}


@in_cluster("a:1", "b:1")
async def test_who_waits_for_a_hold_hears_at_once_that_its_term_has_ended(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 2)
        async with client.transactions("id") as transactions:
            async with transactions.begin() as transaction:
                transaction.send("t", b"1", partition=0)
            owners = [owner for broker in cluster.brokers.values() for owner in broker.ownership.opened.values()]
            for owner in owners:
                owner.hold.begin(7)
            now = asyncio.get_running_loop().time
            begun_s, waiting = now(), [asyncio.create_task(owner.hold.passed()) for owner in owners]
            for owner in owners:
                await owner.close()
            await asyncio.gather(*waiting)
            assert now() - begun_s < HOLD_S / 2


@in_cluster("a:1", "b:1")
async def test_no_partition_begins_to_move_while_a_cut_is_pending(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, refused = Taking._pin, []

    async with cluster.client(timeout_s=3) as client:
        topic = await client.create_topic("t", 2)

        async def pin(self: Taking, cut: int, bundles: list[int]) -> dict[int, int]:
            source = topic.partitions[0].bundle if hasattr(topic.partitions[0], "bundle") else 1
            controller = cluster.brokers[(await cluster.owner_of(keys.METADATA_TOPIC, 0))].controller
            with pytest.raises(Unavailable, match="is being taken at the moment") as caught:
                await controller.move_partition("t", 0, 3 - source, dry_run=False)
            refused.append(caught.value)
            return await original(self, cut, bundles)

        monkeypatch.setattr(Taking, "_pin", pin)
        await client.cuts.take("c")
    assert refused


class CountingStore(PausableStore):
    """Counts what is read of the segments of user bundles."""

    segments_read = 0

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if operation.startswith(("get", "head")) and any(what.startswith(keys.segments(each)) for each in (1, 2)):
            self.segments_read += 1
        return await super().run(operation, what, bytes_known, step)


class CountingCluster(Cluster):
    def view_of_store(self, address: str) -> ObjectStore:
        view = self.views[address] = CountingStore(self.store)
        return view

    def segments_read(self) -> int:
        return sum(view.segments_read for view in self.views.values() if isinstance(view, CountingStore))


@in_cluster("a:1", "b:1", kind=CountingCluster)
async def test_the_owner_pins_by_what_it_knows_however_long_the_tail_is(cluster: CountingCluster) -> None:
    """Another process would read each segment of the tail before it could put a checkpoint."""
    async with cluster.client() as client:
        await client.create_topic("t", PARTITIONS)
        for number in range(60):
            await cluster.produce("t", number % PARTITIONS, b"x")
        before = cluster.segments_read()
        await client.cuts.take("c")
        read = cluster.segments_read() - before
        assert await read_cut(cluster, "c") == [[b"x"] * 15] * PARTITIONS
    assert read <= 16, "fence checks look for the next slot; nothing else reads segments"


@in_cluster("a:1")
async def test_a_cut_beyond_the_bound_of_pins_is_refused_and_says_what_to_do(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "PINS_MAX", 2)
    async with cluster.client(timeout_s=2) as client:
        await client.cuts.take("one")
        await client.cuts.take("two")
        with pytest.raises(ResourceExhausted, match="drop cuts that are no longer"):
            await client.cuts.take("three")
        await client.cuts.drop("one")
    async with cluster.client() as client:
        await client.cuts.take("three")


@in_cluster("a:1", "b:1", kind=SlowCluster)
async def test_a_root_with_a_cut_is_clean(cluster: Cluster) -> None:
    async with under_load(cluster) as client:
        await client.cuts.take("c")
        await asyncio.sleep(1)
    checked = await check_root(cluster.store, await read_cluster(cluster.store), run_blocking=run_inline)
    assert not [problem for problem in checked.problems if "cut" in problem.object_key], checked.problems
