"""What `client.move_partition` does and refuses: a partition leaves its bundle only when nothing keeps it there. In
virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import pytest

import ledgermq
from ledgermq.errors import InvalidRequest, PartitionBusy, Unavailable, UnknownPartition, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.exclusive_ids import exclusive_id
from ledgermq_broker.bundle.moving import LEAVING_S
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.cluster.heartbeat import MOVES
from ledgermq_broker.features import ANNOUNCED
from ledgermq_broker.metadata.controller import Controller
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.topic import Topic
from tests.broker.cluster import in_cluster
from tests.broker.test_moves import BROKERS, CONSTANTS, SOURCE, TARGET, MovesCluster
from tests.broker.traffic import RECORDS, traffic
from tests.waiting import until

moving_cluster = in_cluster(*BROKERS, constants=CONSTANTS, kind=MovesCluster, background_compaction=True)


async def owner_of(cluster: MovesCluster, bundle: int) -> BundleOwner:
    return await cluster.brokers[cluster.owner_of_bundle(bundle)].ownership.owner(bundle)


def controller_of(cluster: MovesCluster) -> Controller:
    return cluster.brokers[cluster.owner_of_bundle(keys.METADATA_BUNDLE)].controller


async def bundle_of(client: ledgermq.Client, topic: str = "t") -> int:
    return (await client.describe_topic(topic)).partitions[0].bundle


@moving_cluster
async def test_a_partition_moves_at_a_clients_wish_while_it_is_written_and_read(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 2)
        async with traffic(client, "t") as going:
            await until(lambda: going.sent > 50)
            await client.move_partition("t", 0, TARGET)
            await client.move_partition("t", 0, TARGET)  # a repetition changes nothing
            found = (await client.describe_topic("t")).partitions[0]
            assert (found.bundle, found.moving_from) == (TARGET, SOURCE)
            assert going.sent < RECORDS, "it moved under load"
        await until(lambda: cluster.has_ended("t", 0), timeout_s=3600)
        assert (await client.describe_topic("t")).partitions[0].moving_from is None
        await client.move_partition("t", 0, TARGET)
        catalog = controller_of(cluster)._metadata.catalog
        assert [record.id for record in catalog.living("t").moves.values()] == [catalog.living("t").moves[0].id]
        await client.move_partition("t", 0, SOURCE)
        await until(lambda: cluster.has_ended("t", 0), timeout_s=3600)
        await cluster.check_root()


@moving_cluster
async def test_a_dry_run_changes_nothing(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 2)
        end = controller_of(cluster)._metadata.catalog.offset
        await client.move_partition("t", 0, TARGET, dry_run=True)
        assert controller_of(cluster)._metadata.catalog.offset == end
        async with client.transactions("x") as transactions, transactions.begin() as transaction:
            transaction.send("t", b"a", partition=0)  # and what it has asked for is not refused
            await transaction.flush()
            with pytest.raises(PartitionBusy):
                await client.move_partition("t", 0, TARGET, dry_run=True)


@moving_cluster
async def test_what_cannot_move_is_refused(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 2)
        with pytest.raises(UnknownTopic):
            await client.move_partition("nowhere", 0, TARGET)
        with pytest.raises(UnknownPartition):
            await client.move_partition("t", 7, TARGET)
        for bundle in (0, 99):
            with pytest.raises(InvalidRequest, match="a partition can move to the bundles 1 to"):
                await client.move_partition("t", 0, bundle)


@moving_cluster
async def test_nothing_moves_beside_a_broker_that_does_not_know_moves(cluster: MovesCluster) -> None:
    async with cluster.client(timeout_s=20) as client:
        await client.create_topic("t", 2)
        older = cluster.brokers["c:1"]
        features = tuple(feature for feature in ANNOUNCED if feature != MOVES)
        older.membership.me = replace(older.membership.me, features=features, release="0.0.9")
        await until(lambda: all(broker.membership.lacking(MOVES) for broker in cluster.brokers.values()))
        with pytest.raises(Unavailable, match=r"moves need every broker, but broker .* runs 0\.0\.9"):
            await client.move_partition("t", 0, TARGET)
        assert await bundle_of(client) == SOURCE


@moving_cluster
async def test_the_answer_for_a_deleted_topic_does_not_count_for_the_next_one_of_its_name(
    cluster: MovesCluster,
) -> None:
    """The topic is created anew between the owner's answer and the decision: its owner was not asked."""
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        controller, asked = controller_of(cluster), list[int]()
        ask = controller._prepare_move

        async def ask_and_create_anew(bundle: int, key: PartitionId, dry_run: bool) -> None:
            await ask(bundle, key, dry_run)
            asked.append(key.topic_id)
            if len(asked) == 1:
                await client.delete_topic("t")
                await until(lambda: "t" not in controller._metadata.catalog.topics_by_name, timeout_s=3600)
                await client.create_topic("t", 1)

        controller._prepare_move = ask_and_create_anew
        with pytest.raises(Unavailable, match="meanwhile"):
            await controller.move_partition("t", 0, TARGET, dry_run=False)
        assert await bundle_of(client) == SOURCE
        await client.move_partition("t", 0, TARGET)
        assert asked[1:] == [controller._metadata.catalog.living("t").id]


@moving_cluster
async def test_an_answer_of_the_owner_counts_for_a_few_seconds(cluster: MovesCluster) -> None:
    """After that it takes in again what would keep the partition."""
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        controller = controller_of(cluster)
        ask, waits_s = controller._prepare_move, [LEAVING_S, 0.0]

        async def ask_and_wait(bundle: int, key: PartitionId, dry_run: bool) -> None:
            await ask(bundle, key, dry_run)
            await asyncio.sleep(waits_s.pop(0))

        controller._prepare_move = ask_and_wait
        with pytest.raises(Unavailable, match="too long ago"):
            await controller.move_partition("t", 0, TARGET, dry_run=False)
        assert await bundle_of(client) == SOURCE
        assert await controller.move_partition("t", 0, TARGET, dry_run=False) is not None


# What keeps a partition

Keeper = Callable[[ledgermq.Client], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def open_transaction(client: ledgermq.Client) -> AsyncIterator[None]:
    async with client.transactions("x") as transactions:
        transaction = transactions.begin()
        await transaction.start()
        transaction.send("t", b"a", partition=0)
        await transaction.flush()
        yield
        await transaction.commit()


@asynccontextmanager
async def timed_message(client: ledgermq.Client) -> AsyncIterator[None]:
    async with client.producer() as producer:
        await producer.send("t", b"a", partition=0, delay=60)
        yield
        await asyncio.sleep(70)


@asynccontextmanager
async def exclusive_producer(client: ledgermq.Client) -> AsyncIterator[None]:
    async with client.producer(access_mode="exclusive") as producer:
        await producer.send("t", b"a", partition=0)
        yield


KEEPERS = {
    open_transaction: "1 open transactions have batches for it",
    timed_message: "1 timed messages of its topic wait in this bundle",
    exclusive_producer: "a producer has it for itself",
}


NAMES = [keeper.__name__ for keeper in KEEPERS]


async def moves(client: ledgermq.Client) -> bool:
    try:
        await client.move_partition("t", 0, TARGET)
    except PartitionBusy:
        return False  # what has just ended is about to be stored
    return True


@pytest.mark.parametrize("keeper", KEEPERS, ids=NAMES)
@moving_cluster
async def test_a_partition_stays_while_something_keeps_it(cluster: MovesCluster, keeper: Keeper) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        async with keeper(client):
            with pytest.raises(PartitionBusy, match=f"t/0 cannot leave bundle {SOURCE} now: {KEEPERS[keeper]}"):
                await client.move_partition("t", 0, TARGET)
            assert await bundle_of(client) == SOURCE
        await until(lambda: moves(client))
        await until(lambda: cluster.has_ended("t", 0), timeout_s=3600)
    assert await cluster.read_all("t", 0) == [b"a"]


@pytest.mark.parametrize("keeper", KEEPERS, ids=NAMES)
@moving_cluster
async def test_nothing_new_keeps_a_partition_whose_move_is_being_decided(cluster: MovesCluster, keeper: Keeper) -> None:
    """The decision is never made: after a few seconds the partition stays as it was."""
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        async with keeper(client):  # so that the internal topics exist
            pass
        owner = await owner_of(cluster, SOURCE)
        topic = controller_of(cluster)._metadata.catalog.living("t")
        await until(lambda: is_prepared(owner, topic))
        begun_s = asyncio.get_running_loop().time()
        async with keeper(client):
            assert asyncio.get_running_loop().time() - begun_s >= LEAVING_S


async def is_prepared(owner: BundleOwner, topic: Topic) -> bool:
    try:
        owner.prepare_move(topic, 0, dry_run=False)
    except (PartitionBusy, Unavailable):
        return False
    return True


@pytest.mark.parametrize("keeper", [open_transaction, timed_message, exclusive_producer])
@moving_cluster
async def test_the_seal_waits_for_what_came_after_the_question(cluster: MovesCluster, keeper: Keeper) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        async with keeper(client):
            topic = await decide_unasked(cluster, client)
            await asyncio.sleep(20)
            assert not await cluster.is_sealed(topic)
        await until(lambda: cluster.is_open(topic))
        await until(lambda: cluster.has_ended("t", 0), timeout_s=3600)
    assert await cluster.read_all("t", 0) == [b"a"]


async def decide_unasked(cluster: MovesCluster, client: ledgermq.Client) -> Topic:
    """Another owner has answered the question whether the partition may leave; the one that seals sees for itself."""

    async def is_free(bundle: int, key: PartitionId, dry_run: bool) -> None:
        pass

    controller_of(cluster)._prepare_move = is_free
    await client.move_partition("t", 0, TARGET)
    return controller_of(cluster)._metadata.catalog.living("t")


@moving_cluster
async def test_a_late_claim_of_before_the_move_does_not_fence(cluster: MovesCluster) -> None:
    """The changes of the holder are counted on in the new bundle (E7)."""
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        for _ in range(3):
            async with client.producer(access_mode="exclusive") as producer:
                await producer.send("t", b"a", partition=0)
                [before] = await client.holders("t")
        await until(lambda: moves(client))
        await until(lambda: cluster.has_ended("t", 0), timeout_s=3600)
        async with client.producer(access_mode="exclusive") as producer:
            await producer.send("t", b"b", partition=0)
            [held] = await client.holders("t")
            assert held.changes > before.changes
            late = pb.WantedPartition(topic="t", partition=0, number=before.changes)
            request = pb.HoldPartitionsRequest(producer_id=exclusive_id(b"l" * 16), partitions=[late], fences=True)
            line = cluster.line(await cluster.owner_of("t", 0))
            [standing] = (await line.hold_partitions(request)).holders
            assert (standing.is_held, standing.is_caller) == (True, False)
            await producer.send("t", b"c", partition=0)


@pytest.mark.slow
@moving_cluster
async def test_an_old_handle_recalls_no_message_of_the_new_bundle(cluster: MovesCluster) -> None:
    """Ids of timed messages count in their bundle."""
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        [old] = await send_later(client, 5, b"old")
        await asyncio.sleep(10)
        await until(lambda: moves(client))
        await until(lambda: cluster.has_ended("t", 0), timeout_s=3600)
        _, other = await send_later(client, 3600, b"new", b"other")
        assert await client.recall(old) == ledgermq.RecallOutcome.FORGOTTEN
        assert await client.recall(other) == ledgermq.RecallOutcome.RECALLED
        await asyncio.sleep(3700)
    assert await cluster.read_all("t", 0) == [b"old", b"new"]


async def send_later(client: ledgermq.Client, delay_s: float, *values: bytes) -> list[str]:
    """Return the handles."""
    async with client.producer() as producer:
        results = [await producer.send("t", value, partition=0, delay=delay_s) for value in values]
    return [result.handle or "" for result in results]


@moving_cluster
async def test_a_producer_of_timed_messages_goes_on_in_the_new_bundle(cluster: MovesCluster) -> None:
    """Its session was in the intake of the old bundle; what it was refused there is not in doubt."""
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("t", 1)
        await producer.send("t", b"before", partition=0, delay=5)
        await asyncio.sleep(10)
        await until(lambda: moves(client))
        await producer.send("t", b"while it moves", partition=0, delay=5)
        await until(lambda: cluster.has_ended("t", 0), timeout_s=3600)
        await producer.send("t", b"after", partition=0, delay=5)
        await asyncio.sleep(10)
    assert await cluster.read_all("t", 0) == [b"before", b"while it moves", b"after"]
