"""Bundles that are added to a running cluster: nothing stands still, new partitions land in them, and
transactions, timed messages and queues work there. In virtual time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

import ledgermq
from ledgermq.errors import InvalidConfig, InvalidRequest, LedgerMQError, NotOwner, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.broker import Broker
from ledgermq_broker.metadata import controller
from ledgermq_broker.transactions.routing.routed import partition_of
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import FORMAT_VERSION, GROWN_VERSION, mark_grown, read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.rounds.service import CompactionService, ServiceEvents
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.traffic import RECORDS, traffic
from tests.virtual_time import virtual_sources
from tests.waiting import until

INTERNAL = (
    keys.STAGED_TOPIC,
    keys.TRANSACTIONS_TOPIC,
    keys.DELAYED_TOPIC,
    keys.DELAYED_FAR_TOPIC,
    keys.TIMERS_TOPIC,
    keys.SHARES_TOPIC,
)


def controller_of(cluster: Cluster) -> Broker:
    return next(broker for broker in cluster.brokers.values() if 0 in broker.ownership.terms.opened)


def counted(broker: Broker) -> int:
    return len(broker.directory.claims)


def owned(cluster: Cluster) -> dict[str, list[int]]:
    return {address: sorted(broker.ownership.opened) for address, broker in cluster.brokers.items()}


async def bundles_of(client: ledgermq.Client, topic: str) -> list[int]:
    return [partition.bundle for partition in (await client.describe_topic(topic)).partitions]


@in_cluster("a:1", "b:1", bundles=3)
async def test_new_partitions_go_to_added_bundles_and_old_ones_stay(cluster: Cluster) -> None:
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("old", 4)
        before = await bundles_of(client, "old")
        assert await client.add_bundles(2, dry_run=True) == ledgermq.AddedBundles(3, 5)
        assert (await read_cluster(cluster.store)).format_version == FORMAT_VERSION, "a dry run changes nothing"
        assert await client.add_bundles(2) == ledgermq.AddedBundles(3, 5)
        await client.create_topic("new", 4)
        assert Counter(await bundles_of(client, "new")) == {3: 2, 4: 2}, "the emptiest ones"
        assert await bundles_of(client, "old") == before
        await client.alter_topic("old", partitions=8)
        grown = await bundles_of(client, "old")
        assert grown[:4] == before
        assert Counter(grown[4:]) == {1: 1, 2: 1, 3: 1, 4: 1}
        for topic, partitions in (("old", 8), ("new", 4)):
            for partition in range(partitions):
                assert (await producer.send(topic, b"x", partition=partition)).offset == 0
        assert sorted(bundle for each in owned(cluster).values() for bundle in each) == list(range(5))
        described = await client.describe_cluster()
        assert [bundle.bundle for bundle in described.bundles] == list(range(5))
        while {bundle.owner for bundle in (await client.describe_cluster()).bundles} != {"a:1", "b:1"}:
            await asyncio.sleep(0.1)
    cluster_file = await read_cluster(cluster.store)
    assert (cluster_file.format_version, cluster_file.bundles) == (GROWN_VERSION, 3)


@in_cluster("a:1", "b:1", "c:1", bundles=3)
async def test_programs_go_on_without_an_error_and_the_third_broker_gets_work(cluster: Cluster) -> None:
    await cluster.create("t", 4)
    async with cluster.client() as client, traffic(client, "t") as going:
        await until(lambda: going.sent > 50)
        await client.add_bundles(4)
        await client.alter_topic("t", partitions=8)
        await until(lambda: all(counted(broker) == 7 for broker in cluster.brokers.values()))
        await until(lambda: all(len(bundles) >= 2 for bundles in owned(cluster).values()), 30)
        assert going.sent < RECORDS, "they were added under load"


async def use_all_kinds(client: ledgermq.Client, topic: str, marker: bytes) -> None:
    """A transaction and a timed message, in each partition of the topic."""
    partitions = range(len((await client.describe_topic(topic)).partitions))
    async with client.transactions(f"id-{marker.decode()}") as transactions, transactions.begin() as transaction:
        for partition in partitions:
            transaction.send(topic, b"transaction " + marker, partition=partition)
    async with client.producer() as plain:
        for partition in partitions:
            await plain.send(topic, b"timed " + marker, partition=partition, delay=5)


@in_cluster("a:1", "b:1", bundles=3)
async def test_transactions_timed_messages_and_queues_go_on_and_work_in_added_bundles(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("old", 2)
        await use_all_kinds(client, "old", b"before")
        async with client.queue("old", group="workers") as queue:
            for message in await queue.fetch(max_records=1, timeout=3):
                message.ack()
        catalog = controller_of(cluster).metadata.catalog
        before = {name: catalog.living(name) for name in INTERNAL}
        async with client.consumer("old", group="g", start="earliest") as consumer:
            await consumer.fetch(timeout=5)
        coordinators = catalog.living(keys.OFFSETS_TOPIC).bundles
        await client.add_bundles(2)
        for name, topic in before.items():
            now = controller_of(cluster).metadata.catalog.living(name)
            assert now.id == topic.id
            assert now.bundles[: topic.partitions] == topic.bundles, "those that exist stay"
            each = topic.partitions // 2
            assert now.bundles[topic.partitions :] == (3,) * each + (4,) * each
            assert now.settings.transaction_coordinators == topic.settings.transaction_coordinators
        assert controller_of(cluster).metadata.catalog.living(keys.OFFSETS_TOPIC).bundles == coordinators
        await client.create_topic("new", 2)
        assert await bundles_of(client, "new") == [3, 4]
        await use_all_kinds(client, "new", b"after")
        await use_all_kinds(client, "old", b"later")
        await asyncio.sleep(10)
        found: Counter[bytes] = Counter()
        async with client.consumer("new", start="earliest", until_end=True) as consumer:
            found.update([message.value async for message in consumer])
        assert found == {b"transaction after": 2, b"timed after": 2}
        async with client.queue("new", group="workers", start="earliest") as queue:
            taken = 0
            async with asyncio.timeout(30):
                while taken < 4:
                    for message in await queue.fetch(max_records=10, timeout=3):
                        message.ack()
                        taken += 1
        described = await client.queues.describe("workers")
        shown = {each.partition.partition for each in described.partitions if each.partition.topic == "new"}
        assert shown == {0, 1}


@in_cluster("a:1", "b:1", bundles=3)
async def test_a_broker_that_has_not_read_of_a_bundle_reads_first_and_then_judges(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("old", 2)
        await use_all_kinds(client, "old", b"before")
        async with client.queue("old", group="workers") as queue:
            await queue.fetch(max_records=1, timeout=3)
    other = next(broker for broker in cluster.brokers.values() if broker is not controller_of(cluster))
    line = cluster.line(other.address)
    topic = other.metadata.catalog.living(keys.TRANSACTIONS_TOPIC)
    named = pb.TransactionRef(
        transactional_id="id-before",
        coordinator=partition_of("id-before", topic),
        producer_id=bytes(16),
        epoch=1,
        number=1,
    )
    calls: list[Callable[[int], Awaitable[object]]] = [
        lambda bundle: line.list_shares(pb.ListSharesRequest(group="workers", bundle=bundle)),
        lambda bundle: line.list_delayed(pb.ListDelayedRequest(bundle=bundle)),
        lambda bundle: line.read_staged(
            pb.ReadStagedRequest(transaction=named, part=pb.TransactionPart(bundle=bundle))
        ),
        lambda bundle: line.complete_transaction(
            pb.CompleteTransactionRequest(transaction=named, outcome=pb.ABORTED, part=pb.TransactionPart(bundle=bundle))
        ),
        lambda bundle: line.end_transaction(
            pb.EndTransactionRequest(transaction=named, outcome=pb.COMMITTED, parts=[pb.TransactionPart(bundle=bundle)])
        ),
        lambda bundle: line.ask_transaction(
            pb.AskTransactionRequest(transaction=named, question=pb.FATE, part=pb.TransactionPart(bundle=bundle))
        ),
    ]
    for added, call in enumerate(calls, 3):
        await cluster.line(controller_of(cluster).address).add_bundles(pb.AddBundlesRequest(bundles=added + 1))
        assert counted(other) == added, "its stream brings the news a moment later"
        [error] = await asyncio.gather(call(added), return_exceptions=True)
        assert not (isinstance(error, InvalidRequest) and f"bundle {added} " in error.message), repr(error)
        assert counted(other) == added + 1
        with pytest.raises(InvalidRequest, match="bundle 99 "):
            await call(99)


@in_cluster("a:1", "b:1", bundles=3)
async def test_an_added_bundle_is_taken_over_when_its_owner_is_killed(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.add_bundles(2)
        await client.create_topic("new", 2)
        async with client.producer() as producer:
            await producer.send("new", b"1", partition=0)
            await cluster.stop(await cluster.owner_of("new", 0), graceful=False)
            await producer.send("new", b"2", partition=0)
            async with client.consumer("new", [0], start="earliest", until_end=True) as consumer:
                assert [message.value async for message in consumer] == [b"1", b"2"]
        await cluster.start("c:1")
        await until(lambda: len(cluster.brokers["c:1"].ownership.opened) >= 2, 60)
        assert counted(cluster.brokers["c:1"]) == 5, "a broker that starts later knows them"


@in_cluster("a:1", "b:1", bundles=3)
async def test_a_controller_that_dies_between_the_steps_changes_nothing_and_a_repetition_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = controller_of(cluster)

    async def dies_after_it(store: Any, found: Any) -> None:
        await mark_grown(store, found)
        cluster.views[old.address].pause()
        await store.store_time_ms()

    monkeypatch.setattr(controller, "mark_grown", dies_after_it)
    waiting = asyncio.create_task(cluster.line(old.address).add_bundles(pb.AddBundlesRequest(bundles=5)))
    while (await read_cluster(cluster.store)).format_version == FORMAT_VERSION:
        await asyncio.sleep(0.1)
    await cluster.stop(old.address, graceful=False)
    with pytest.raises((LedgerMQError, asyncio.CancelledError)):
        await waiting
    monkeypatch.undo()
    await until(lambda: any(0 in broker.ownership.terms.opened for broker in cluster.brokers.values()), 30)
    async with cluster.client() as client:
        await client.create_topic("t", 4)
        assert set(await bundles_of(client, "t")) == {1, 2}, "they were not added"
        assert await client.add_bundles(2) == ledgermq.AddedBundles(3, 5)
        await client.create_topic("new", 2)
        assert await bundles_of(client, "new") == [3, 4]


@in_cluster("a:1", "b:1", bundles=3)
async def test_calls_at_the_same_time_add_each_its_own_number(cluster: Cluster) -> None:
    async with cluster.client() as one, cluster.client() as other, cluster.client() as third:
        added = await asyncio.gather(one.add_bundles(2), other.add_bundles(3), third.add_bundles(4))
    assert [each.added for each in added] == [2, 3, 4]
    assert max(each.after for each in added) == 3 + 2 + 3 + 4
    assert len({each.after for each in added}) == 3, "one after the other"
    await until(lambda: all(counted(broker) == 12 for broker in cluster.brokers.values()))


@pytest.mark.parametrize("is_known", [True, False])
@in_cluster("a:1", bundles=3)
async def test_a_call_whose_answer_was_lost_adds_its_bundles_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """`is_known`: whether the broker says that it asked the controller once; earlier releases do not."""
    ask, lost, asked = controller.Controller.add_bundles, 0, 0

    async def loses_an_answer(self: controller.Controller, bundles: int, *, dry_run: bool) -> tuple[int, int]:
        nonlocal lost
        answer = await ask(self, bundles, dry_run=dry_run)
        if not dry_run and is_known:
            lost += 1
            if lost == 1:
                raise Unavailable("the answer is lost")
        return answer

    async def without_the_field(request: pb.AddBundlesRequest) -> pb.AddBundlesResponse:
        nonlocal asked
        asked += not request.dry_run
        answer = await service_of(request)
        if not request.dry_run:
            await ask(controller_of(cluster).controller, request.bundles, dry_run=False)
            answer.before = answer.bundles  # a broker that has asked again, after the change
        answer.ClearField("once")
        return answer

    monkeypatch.setattr(controller.Controller, "add_bundles", loses_an_answer)
    service = cluster.brokers["a:1"].service
    service_of = service.add_bundles
    if not is_known:
        monkeypatch.setattr(service, "add_bundles", without_the_field)
    async with cluster.client() as client:
        added = await client.add_bundles(2)
    assert (added.added, added.after) == (2, 5)
    assert (lost, asked) == ((2, 0) if is_known else (0, 1))
    assert counted(cluster.brokers["a:1"]) == 5


@in_cluster("a:1", "b:1", bundles=3)
async def test_the_number_never_becomes_less_and_a_repetition_adds_nothing(cluster: Cluster) -> None:
    other = next(broker for broker in cluster.brokers.values() if broker is not controller_of(cluster))
    line = cluster.line(other.address)
    for wanted, before, after in ((5, 3, 5), (5, 5, 5), (4, 5, 5), (6, 5, 6)):
        answer = await line.add_bundles(pb.AddBundlesRequest(bundles=wanted))
        assert (answer.before, answer.bundles) == (before, after)
        assert counted(other) == after, "a forwarded change is known here"
    many = await asyncio.gather(*(line.add_bundles(pb.AddBundlesRequest(bundles=n)) for n in (7, 9, 8)))
    assert max(answer.bundles for answer in many) == 9
    await until(lambda: all(counted(broker) == 9 for broker in cluster.brokers.values()))
    with pytest.raises(NotOwner) as refused:
        await line.add_bundles(pb.AddBundlesRequest(bundles=12, forwarded=True))
    assert refused.value.owner == controller_of(cluster).address


@in_cluster("a:1", bundles=3)
async def test_numbers_that_make_no_sense_are_refused(cluster: Cluster) -> None:
    for wanted in (0, 1, 1001, 2**32 - 1):
        with pytest.raises(InvalidRequest, match="2 to 1000 bundles"):
            await cluster.line("a:1").add_bundles(pb.AddBundlesRequest(bundles=wanted))
    async with cluster.client() as client:
        for count in (0, -1, True, 1.5):
            with pytest.raises(InvalidConfig, match="count must be a whole number"):
                await client.add_bundles(count)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="2 to 1000 bundles, not 1001"):
            await client.add_bundles(998)
        assert await client.add_bundles(997) == ledgermq.AddedBundles(3, 1000)


@in_cluster("a:1", "b:1", bundles=3)
async def test_a_broker_of_an_earlier_release_is_named_and_nothing_is_changed(cluster: Cluster) -> None:
    found = controller_of(cluster)
    older = next(broker for broker in cluster.brokers.values() if broker is not found)
    older.membership.me = replace(older.membership.me, features=(), release="0.0.9")
    await until(lambda: found.membership.present()[older.broker_id].release == "0.0.9", 10)
    for dry_run in (True, False):
        with pytest.raises(
            Unavailable, match=rf"broker {older.broker_id} at {older.address} runs 0\.0\.9 without them"
        ):
            await cluster.line(found.address).add_bundles(pb.AddBundlesRequest(bundles=4, dry_run=dry_run))
    assert (await read_cluster(cluster.store)).format_version == FORMAT_VERSION
    assert counted(found) == 3


@in_cluster("a:1", "b:1", bundles=3)
async def test_a_compaction_service_that_is_older_than_a_bundle_compacts_it(cluster: Cluster) -> None:
    sources = virtual_sources(900)
    service = CompactionService(
        cluster.store, await read_cluster(cluster.store), sources, LocalEngine(sources, run_inline), ServiceEvents()
    )
    await service.run_once(collect=True)
    async with cluster.client() as client, client.producer() as producer:
        await client.add_bundles(2)
        await client.create_topic("new", 2, {"parquet.max.lag.ms": "1000"})
        for partition in range(2):
            await producer.send("new", b"x", partition=partition)
        await asyncio.sleep(5)
        await service.run_once(collect=True)
        written = [info.key async for info in cluster.store.list(keys.parquet_topic("new"))]
        assert {keys.parse_parquet(key).partition for key in written} == {0, 1}  # type: ignore[union-attr]
    checked = await check_root(cluster.store, await read_cluster(cluster.store), run_blocking=run_inline)
    assert not checked.problems
    report = await compact_root(cluster.store, sources, LocalEngine(sources, run_inline))
    assert sorted(report.lags) == list(range(5))
