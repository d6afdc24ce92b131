"""Epochs that are drawn while a cut is taken, and copies of that cut: none draws an epoch again under which it has
something staged already (I22).

The bundles of each cut are placed one after the other here: all but `last` first. What goes on between is in the
cut where it is staged in `last`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

import ledgermq
from ledgermq.client.transactions.transactions import Transactions
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.producer_ids import producer_bytes
from ledgermq_broker.bundle.committing.decision_hold import HOLD_S
from ledgermq_broker.cuts.taking import Places, Taking
from ledgermq_ledger.object_store.contract import ObjectStore
from tests.broker.cluster import Cluster, PausableStore, cluster_of, in_cluster
from tests.broker.kafka_producer import KafkaProducer, SecondProducer
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster, kafka_cluster
from tests.broker.test_kafka_transactions import shows
from tests.broker.test_restored_clusters import restored_from

PARTITIONS = 3
BUNDLES = PARTITIONS + 1
TIMEOUT_MS, OVER_AFTER_S, PLACED_AFTER_S = 1000, 2.2, 3.0
"""A transaction that is open when its cut begins is over while decisions are held, which is for 5 s at most."""
T = TypeVar("T")
Step = Callable[[], Awaitable[object]]
each_bundle = pytest.mark.parametrize("last", range(1, BUNDLES))


class PutsWait(PausableStore):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.may_put = asyncio.Event()
        self.may_put.set()

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if operation.startswith("put"):
            await self.may_put.wait()
        return await super().run(operation, what, bytes_known, step)


class WaitingCluster(Cluster):
    def view_of_store(self, address: str) -> ObjectStore:
        view = self.views[address] = PutsWait(self.store)
        return view


async def cut_around(
    cluster: Cluster, last: int, patch: pytest.MonkeyPatch, meanwhile: Step, before_hold: Step | None = None
) -> None:
    """Take the cut `c`; `meanwhile` begins when one bundle is to be placed yet, and has ended when this returns."""
    running: list[asyncio.Future[object]] = []
    original = Taking._all

    async def one_after_the_other(
        self: Taking, cut: int, bundles: Sequence[int], step: pb.CutStep, places: Places
    ) -> None:
        if step == pb.CUT_HOLD and before_hold is not None:
            await before_hold()
        if step == pb.CUT_PLACE and last in bundles:
            await original(self, cut, [bundle for bundle in bundles if bundle != last], step, places)
            running.append(asyncio.ensure_future(meanwhile()))
            await asyncio.sleep(PLACED_AFTER_S)
            bundles = [last]
        await original(self, cut, bundles, step, places)

    with patch.context() as patched:
        patched.setattr(Taking, "_all", one_after_the_other)
        async with cluster.client() as client:
            await client.cuts.take("c")
    assert len(running) == 1, "the first attempt was taken"
    await running[0]


async def first_of(client: ledgermq.Client) -> None:
    await client.create_topic("t", PARTITIONS)
    async with client.transactions("id") as transactions, transactions.begin() as transaction:
        transaction.send("t", b"first", partition=0)


async def staged(second: Transactions) -> None:
    """Stage a record in each bundle."""
    transaction = second.begin()
    await transaction.start()
    for partition in range(PARTITIONS):
        transaction.send("t", b"second", partition=partition)
    await transaction.flush()


async def by_ours(target: ObjectStore) -> None:
    """In the copy a program takes the id over, and what it sends is stored, and nothing else."""
    async with cluster_of("c:1", store=target, bundles=BUNDLES) as copy, copy.client() as client:
        async with client.transactions("id") as transactions, transactions.begin() as transaction:
            for partition in range(PARTITIONS):
                transaction.send("t", b"third", partition=partition)
        await asyncio.sleep(60)
        stored = [await copy.read_all("t", partition) for partition in range(PARTITIONS)]
        assert stored == [[b"first", b"third"], [b"third"], [b"third"]]


@each_bundle
def test_a_program_that_takes_an_id_over_during_a_cut_leaves_nothing_in_a_copy(
    last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_cluster("a:1", "b:1", bundles=BUNDLES)
    async def run(cluster: Cluster) -> None:
        async def stage() -> None:
            await second.init()
            await staged(second)

        async with cluster.client() as client, cluster.client() as other:
            second = other.transactions("id")
            await first_of(client)
            await cut_around(cluster, last, monkeypatch, stage)
            target = await restored_from(cluster, "c")
        await by_ours(target)

    run()


@each_bundle
def test_an_epoch_that_is_being_drawn_when_the_hold_begins_is_in_the_cut(
    last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is durable a second later; something is staged under it then, in the bundle that is placed last."""

    @in_cluster("a:1", "b:1", bundles=BUNDLES, kind=WaitingCluster)
    async def run(cluster: Cluster) -> None:
        drawing: list[asyncio.Task[None]] = []

        async def begin_to_draw() -> None:
            views = [view for view in cluster.views.values() if isinstance(view, PutsWait)]
            for view in views:
                view.may_put.clear()
                asyncio.get_running_loop().call_later(1, view.may_put.set)
            drawing.append(asyncio.create_task(second.init()))
            await asyncio.sleep(0.1)

        async def stage() -> None:
            await drawing[0]
            assert second.epoch == 2
            await staged(second)

        async with cluster.client() as client, cluster.client() as other:
            second = other.transactions("id")
            await first_of(client)
            await asyncio.sleep(1)  # it is complete in all bundles
            await cut_around(cluster, last, monkeypatch, stage, begin_to_draw)
            target = await restored_from(cluster, "c")
        await by_ours(target)

    run()


async def by_kafka(cluster: KafkaCluster, first: KafkaProducer) -> None:
    """In a copy of the cut, a producer of the id of `first` stores what it sends, and nothing else becomes visible."""
    target = await restored_from(cluster, "c")
    async with kafka_cluster("c:1", store=target, bundles=BUNDLES) as copy:
        third = type(first)(copy)
        await third.init()
        assert third.id == first.id
        await third.transaction({("t", partition): b"third" for partition in range(PARTITIONS)})
        await asyncio.sleep(60)
        for partition in range(PARTITIONS):
            await shows(copy, "t", partition, b"first", b"third")


@each_bundle
@pytest.mark.parametrize("kind", [KafkaProducer, SecondProducer])
def test_a_kafka_producer_that_takes_an_id_over_during_a_cut_leaves_nothing_in_a_copy(
    kind: type[KafkaProducer], last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_kafka_cluster("a:1", "b:1", bundles=BUNDLES)
    async def run(cluster: KafkaCluster) -> None:
        async def stage() -> None:
            second = kind(cluster)
            await second.init()
            if kind is KafkaProducer:
                assert await second.add(*places) == 0
            for topic, partition in places:
                assert await second.send(topic, partition, b"second") == 0

        await cluster.create("t", PARTITIONS)
        places = [("t", partition) for partition in range(PARTITIONS)]
        first = kind(cluster)
        await first.init()
        await first.transaction(dict.fromkeys(places, b"first"))
        await cut_around(cluster, last, monkeypatch, stage)
        await by_kafka(cluster, first)

    run()


@each_bundle
@pytest.mark.parametrize("times_out", [False, True])
def test_a_kafka_producer_that_aborts_during_a_cut_and_goes_on_leaves_nothing_in_a_copy(
    times_out: bool, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the second protocol an abort, also one at the time-out, gives the producer its next epoch."""

    @in_kafka_cluster("a:1", "b:1", bundles=BUNDLES)
    async def run(cluster: KafkaCluster) -> None:
        async def abort_and_stage() -> None:
            await asyncio.sleep(OVER_AFTER_S if times_out else 0)
            assert await producer.end(commit=False) == 0
            for partition in range(PARTITIONS):
                assert await producer.send("t", partition, b"second") == 0

        await cluster.create("t", PARTITIONS)
        producer = SecondProducer(cluster)
        await producer.init(timeout_ms=TIMEOUT_MS if times_out else 60_000)
        await producer.transaction({("t", partition): b"first" for partition in range(PARTITIONS)})
        assert await producer.send("t", 0, b"aborted") == 0
        await cut_around(cluster, last, monkeypatch, abort_and_stage)
        await by_kafka(cluster, producer)

    run()


@pytest.mark.parametrize("kind", [KafkaProducer, SecondProducer])
def test_an_abort_by_our_own_call_of_an_open_kafka_transaction_waits_for_the_hold(
    kind: type[KafkaProducer | SecondProducer],
) -> None:
    """Its client has not asked for it, and gets another epoch."""

    @in_kafka_cluster("a:1", bundles=2)
    async def test(cluster: KafkaCluster) -> None:
        await cluster.create("t", 1)
        producer = kind(cluster)
        await producer.init()
        if kind is KafkaProducer:
            assert await producer.add(("t", 0)) == 0
        assert await producer.send("t", 0, b"x") == 0
        for owner in cluster.brokers["a:1"].ownership.opened.values():
            owner.hold.begin(7)
        begun_s = asyncio.get_running_loop().time()
        ref = pb.TransactionRef(
            transactional_id="x", producer_id=producer_bytes(producer.id), epoch=producer.epoch + 1, number=1
        )
        request = pb.EndTransactionRequest(transaction=ref, outcome=pb.ABORTED)
        assert (await cluster.line("a:1").end_transaction(request)).state == pb.ABORTED
        assert asyncio.get_running_loop().time() - begun_s == pytest.approx(HOLD_S, abs=0.5)

    test()
