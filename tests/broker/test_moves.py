"""Partitions that move to another bundle while they are written and read, and owners that fail at each step of
a move. In virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from ledgermq.errors import NotOwner, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint, partition_of
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.recovery import recover
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import PUTS
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.topics.topic import Topic
from tests.broker.cluster import TIMESTAMP_US, Cluster, PausableStore, cluster_of, in_cluster
from tests.broker.traffic import RECORDS, traffic
from tests.virtual_time import virtual
from tests.waiting import until
from tests.worlds.ledgers import ledger_of

CONSTANTS = BrokerConstants(damaged_retry_s=5)
BROKERS = ("a:1", "b:1", "c:1")
SOURCE, TARGET = 1, 2
T = TypeVar("T")


class HeldPuts(PausableStore):
    """Also holds only the puts into one ledger's segments, while `held` names their prefix."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.held = ""
        self.holds = asyncio.Event()
        self.let_go = asyncio.Event()

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if self.held and operation in PUTS and what.startswith(self.held):
            self.holds.set()
            await self.let_go.wait()
        return await super().run(operation, what, bytes_known, step)


class MovesCluster(Cluster):
    def view_of_store(self, address: str) -> ObjectStore:
        view = self.views[address] = HeldPuts(self.store)
        return view

    def held_view(self, address: str) -> HeldPuts:
        view = self.views[address]
        assert isinstance(view, HeldPuts)
        return view

    def owner_of_bundle(self, bundle: int) -> str:
        [address] = [a for a, broker in self.brokers.items() if bundle in broker.ownership.opened]
        return address

    async def decide(self, topic: str, partition: int, bundle: int) -> Topic:
        controller = self.brokers[self.owner_of_bundle(keys.METADATA_BUNDLE)]
        await controller.controller.move_partition(topic, partition, bundle, dry_run=False)
        return controller.metadata.catalog.living(topic)

    async def state(self, bundle: int) -> LedgerState:
        cluster = await read_cluster(self.store)
        return (await recover(ledger_of(self.store, bundle, cluster=cluster))).state

    async def is_sealed(self, topic: Topic) -> bool:
        return (await self.state(SOURCE)).moves.seal_of(PartitionId(topic.id, 0)) is not None

    async def is_open(self, topic: Topic) -> bool:
        return (await self.state(TARGET)).moves.open_of(PartitionId(topic.id, 0)) is not None

    def has_ended(self, name: str, partition: int) -> bool:
        """Whether all brokers know that the newest move of a partition has ended."""
        newest = [broker.metadata.catalog.living(name).moves.get(partition) for broker in self.brokers.values()]
        return len({move and move.id for move in newest}) == 1 and all(move and move.ended for move in newest)

    async def check_files(self, topic: Topic, partition: int, bundle: int) -> None:
        """The bundle lists the partition's files, no other does, and a plain reader sees these, gapless."""
        for each in (SOURCE, TARGET):
            counters = partition_of(await newest_checkpoint(self.store, each), topic.id, partition)
            listed = [file.key for file in await PageReader(self.store, each).files_from(counters, 0)]
            assert bool(listed) == (each == bundle), (each, listed)
            if listed:
                folder = topic.parquet_folder_of(partition)
                assert sorted(listed) == sorted([info.key async for info in self.store.list(folder)])
        await self.check_root()

    async def check_root(self) -> None:
        """`ledgermq fsck` finds nothing damaged."""
        found = await check_root(self.store, await read_cluster(self.store), run_blocking=run_inline)
        assert [problem for problem in found.problems if problem.severity is Severity.DAMAGE] == []

    async def check_whole(self, topic: Topic) -> None:
        """The open goes on where the seal ended, and the partition's records are dense over both ledgers."""
        key = PartitionId(topic.id, 0)
        seal = (await self.state(SOURCE)).moves.seal_of(key)
        target = await self.state(TARGET)
        opened = target.moves.open_of(key)
        assert seal is not None
        assert opened is not None
        assert (seal.end, seal.move, seal.target) == (opened.start, opened.move, TARGET)
        values = await self.read_all(topic.name, 0)
        assert len(values) == len(set(values)) == target.end(*key)


moving_cluster = in_cluster(*BROKERS, constants=CONSTANTS, kind=MovesCluster)


@moving_cluster
async def test_a_partition_moves_while_it_is_written_and_read(cluster: MovesCluster) -> None:
    await cluster.create("t", 2)
    async with cluster.client() as client, traffic(client, "t") as going:
        await until(lambda: going.sent > 50)
        topic = await cluster.decide("t", 0, TARGET)
        await until(lambda: cluster.is_open(topic))
        assert going.sent < RECORDS, "it moved under load"
    assert topic.bundles == (TARGET, TARGET)
    await cluster.check_whole(topic)
    opened = (await cluster.state(TARGET)).moves.open_of(PartitionId(topic.id, 0))
    assert opened is not None
    assert 0 < opened.start < (await cluster.state(TARGET)).end(topic.id, 0)


@moving_cluster
async def test_a_repeated_batch_is_known_at_the_new_bundle_and_its_producer_goes_on(cluster: MovesCluster) -> None:
    await cluster.create("t", 1)
    slot = (await cluster.brokers[await cluster.owner_of("t", 0)].ownership.owner(SOURCE)).session_slot(1, 0)
    session = pb.ProducerSession(id=b"p" * 16, epoch=1, sequence=0, opened_slot=slot)
    assert (await cluster.produce("t", 0, b"a", b"b", session=session))[0] == 0
    topic = await cluster.decide("t", 0, TARGET)
    await until(lambda: cluster.is_open(topic))
    assert (await cluster.produce("t", 0, b"a", b"b", session=session))[0] == 0, "stored once"
    session.sequence = 2
    assert (await cluster.produce("t", 0, b"c", session=session))[0] == 2
    assert await cluster.read_all("t", 0) == [b"a", b"b", b"c"]


@moving_cluster
async def test_offsets_of_times_are_found_in_both_ledgers(cluster: MovesCluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, b"a")
    topic = await cluster.decide("t", 0, TARGET)
    await until(lambda: cluster.is_open(topic))
    await cluster.produce("t", 0, b"b")
    owner = await cluster.brokers[await cluster.owner_of("t", 0)].ownership.owner(TARGET)
    assert await owner.list_offset(topic, 0, TIMESTAMP_US) == 0
    assert await owner.list_offset(topic, 0, TIMESTAMP_US + 1) == 2
    assert await owner.list_offset(topic, 0, "earliest") == 0
    assert await owner.list_offset(topic, 0, "latest") == 2


@moving_cluster
async def test_the_new_bundle_takes_nothing_before_the_partition_is_open_there(cluster: MovesCluster) -> None:
    await cluster.create("t", 2)
    await cluster.produce("t", 0, b"a")
    view = cluster.held_view(cluster.owner_of_bundle(TARGET))
    view.held = keys.ledger(TARGET)
    topic = await cluster.decide("t", 0, TARGET)
    await until(view.holds.is_set)
    owner = await cluster.brokers[cluster.owner_of_bundle(TARGET)].ownership.owner(TARGET)
    with pytest.raises(
        Unavailable, match=f"t/0 moves from bundle {SOURCE} to bundle {TARGET} at the moment"
    ) as refused:
        owner.session_slot(topic.id, 0)
    assert refused.value.retriable
    for call in (
        owner.fetch(topic, 0, 0, 1000),
        owner.list_offset(topic, 0, "latest"),
        owner.list_offset(topic, 0, "earliest"),
        owner.backlog(topic, 0, 0),
    ):
        with pytest.raises(Unavailable, match="at the moment"):
            await call
    with pytest.raises(Unavailable, match="at the moment"):
        owner.next_sequence(b"p" * 16, PartitionId(topic.id, 0))
    sending = asyncio.create_task(cluster.produce("t", 0, b"b"))
    await asyncio.sleep(1)
    assert not sending.done()
    view.let_go.set()
    assert (await sending)[0] == 1


# The files


@in_cluster(*BROKERS, constants=CONSTANTS, kind=MovesCluster, background_compaction=True)
async def test_a_partition_goes_with_its_files_and_comes_back(cluster: MovesCluster) -> None:
    await cluster.create("t", 2)
    values = [b"0"]
    await cluster.produce("t", 0, b"0")
    for bundle in (TARGET, SOURCE, TARGET):
        topic = await cluster.decide("t", 0, bundle)
        with pytest.raises(Unavailable, match="still moves from bundle"):
            await cluster.decide("t", 0, TARGET + SOURCE - bundle)
        while not cluster.has_ended("t", 0):
            values.append(b"%d" % len(values))
            await cluster.produce("t", 0, values[-1])
            assert await cluster.read_all("t", 0) == values
            await cluster.check_root()
            await asyncio.sleep(7)
        assert await cluster.read_all("t", 0) == values
        await cluster.check_files(topic, 0, bundle)


@in_cluster(*BROKERS, constants=CONSTANTS, kind=MovesCluster, background_compaction=True)
async def test_what_has_left_is_read_at_its_new_bundle_before_and_after_its_files_came(cluster: MovesCluster) -> None:
    await cluster.create("t", 2)
    await cluster.produce("t", 0, b"a", b"b")
    topic = await cluster.decide("t", 0, TARGET)
    await until(lambda: cluster.is_open(topic))
    await cluster.produce("t", 0, b"c")
    owner = await cluster.brokers[cluster.owner_of_bundle(TARGET)].ownership.owner(TARGET)
    while not cluster.has_ended("t", 0):
        assert await cluster.read_all("t", 0) == [b"a", b"b", b"c"]
        assert await owner.list_offset(topic, 0, "earliest") == 0
        assert await owner.list_offset(topic, 0, TIMESTAMP_US) == 0
        await asyncio.sleep(1)
    assert await cluster.read_all("t", 0) == [b"a", b"b", b"c"]
    assert (await owner.backlog(topic, 0, 0)).size_bytes > 0


# Owners that fail


async def kill(cluster: MovesCluster, address: str) -> None:
    await cluster.stop(address, graceful=False)


async def old_owner_dies_with_the_seal_on_its_way(cluster: MovesCluster, move: Callable[[], Awaitable[Topic]]) -> None:
    address = cluster.owner_of_bundle(SOURCE)
    view = cluster.held_view(address)
    view.held = keys.ledger(SOURCE)
    topic = await move()
    await until(view.holds.is_set)
    await asyncio.sleep(0.5)
    assert not await cluster.is_sealed(topic)
    await kill(cluster, address)


async def old_owner_stands_still_with_the_seal_on_its_way(
    cluster: MovesCluster, move: Callable[[], Awaitable[Topic]]
) -> None:
    address = cluster.owner_of_bundle(SOURCE)
    view = cluster.held_view(address)
    view.held = keys.ledger(SOURCE)
    await move()
    await until(view.holds.is_set)
    view.pause()
    await until(lambda: any(SOURCE in b.ownership.opened for a, b in cluster.brokers.items() if a != address))
    view.held = ""
    view.let_go.set()
    view.resume()


async def sealed_and_not_open(cluster: MovesCluster, move: Callable[[], Awaitable[Topic]]) -> None:
    """The owner of the new bundle has read the seal, and its open is on its way."""
    view = cluster.held_view(cluster.owner_of_bundle(TARGET))
    view.held = keys.ledger(TARGET)
    topic = await move()
    await until(lambda: cluster.is_sealed(topic))
    await until(view.holds.is_set)
    await asyncio.sleep(0.5)
    assert not await cluster.is_open(topic)


async def old_owner_dies_once_it_has_sealed(cluster: MovesCluster, move: Callable[[], Awaitable[Topic]]) -> None:
    new_owner = cluster.owner_of_bundle(TARGET)
    await sealed_and_not_open(cluster, move)
    await kill(cluster, cluster.owner_of_bundle(SOURCE))
    cluster.held_view(new_owner).let_go.set()


async def new_owner_dies_with_the_open_on_its_way(cluster: MovesCluster, move: Callable[[], Awaitable[Topic]]) -> None:
    await sealed_and_not_open(cluster, move)
    await kill(cluster, cluster.owner_of_bundle(TARGET))


async def new_owner_stands_still_with_the_open_on_its_way(
    cluster: MovesCluster, move: Callable[[], Awaitable[Topic]]
) -> None:
    address = cluster.owner_of_bundle(TARGET)
    await sealed_and_not_open(cluster, move)
    view = cluster.held_view(address)
    view.pause()
    await until(lambda: any(TARGET in b.ownership.opened for a, b in cluster.brokers.items() if a != address))
    view.held = ""
    view.let_go.set()
    view.resume()


async def new_owner_dies_once_it_has_opened(cluster: MovesCluster, move: Callable[[], Awaitable[Topic]]) -> None:
    topic = await move()
    await until(lambda: cluster.is_open(topic))
    await kill(cluster, cluster.owner_of_bundle(TARGET))


async def old_owner_dies_once_the_new_one_has_opened(
    cluster: MovesCluster, move: Callable[[], Awaitable[Topic]]
) -> None:
    topic = await move()
    await until(lambda: cluster.is_open(topic))
    await kill(cluster, cluster.owner_of_bundle(SOURCE))


async def controller_dies_once_it_has_decided(cluster: MovesCluster, move: Callable[[], Awaitable[Topic]]) -> None:
    await move()
    await kill(cluster, cluster.owner_of_bundle(keys.METADATA_BUNDLE))


FAILURES = (
    controller_dies_once_it_has_decided,
    old_owner_dies_with_the_seal_on_its_way,
    old_owner_stands_still_with_the_seal_on_its_way,
    old_owner_dies_once_it_has_sealed,
    new_owner_dies_with_the_open_on_its_way,
    new_owner_stands_still_with_the_open_on_its_way,
    new_owner_dies_once_it_has_opened,
    old_owner_dies_once_the_new_one_has_opened,
)


@pytest.mark.parametrize("fail", FAILURES)
@virtual
async def test_a_move_goes_on_and_loses_nothing_after(
    fail: Callable[[MovesCluster, Callable[[], Awaitable[Topic]]], Awaitable[None]],
) -> None:
    async with cluster_of(*BROKERS, constants=CONSTANTS, kind=MovesCluster, background_compaction=True) as cluster:
        assert len({cluster.owner_of_bundle(bundle) for bundle in range(3)}) == 3
        await cluster.create("t", 2)
        async with cluster.client() as client, traffic(client, "t") as going:
            await until(lambda: going.sent > 50)
            await fail(cluster, lambda: cluster.decide("t", 0, TARGET))
        topic = next(iter(cluster.brokers.values())).metadata.catalog.living("t")
        await until(lambda: cluster.is_open(topic))
        await until(lambda: len(cluster.serving("t", 0)) == 1)
        await cluster.check_whole(topic)
        await until(lambda: cluster.has_ended("t", 0), timeout_s=3600)
        await cluster.check_files(topic, 0, TARGET)
        await cluster.check_whole(topic)


# What is refused


@moving_cluster
async def test_a_broker_that_does_not_know_the_move_answers_retriably_behind_the_seal(cluster: MovesCluster) -> None:
    await cluster.create("t", 2)
    await cluster.produce("t", 0, b"a")
    owner = await cluster.brokers[cluster.owner_of_bundle(SOURCE)].ownership.owner(SOURCE)
    before = owner._context.catalog().living("t")
    topic = await cluster.decide("t", 0, TARGET)
    await until(lambda: cluster.is_open(topic))
    with pytest.raises(NotOwner, match=f"in bundle {TARGET}, not {SOURCE}"):
        await owner.fetch(topic, 0, 0, 1000)
    for offset in (0, 1):
        with pytest.raises(NotOwner, match=f"has moved to bundle {TARGET}"):
            await owner.fetch(before, 0, offset, 1000)
