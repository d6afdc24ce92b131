"""Queue groups whose partitions move: what they have finished, and how often messages were delivered, goes along. In
virtual time.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from ledgermq.errors import DataDamaged, NotOwner, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.queues.partition import BundleQueues
from ledgermq_broker.queues.state.records import ShareKey
from ledgermq_broker.queues.stored.view import read_shares
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL
from ledgermq_ledger.root.damage import CollectingDamage
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic
from tests.broker.cluster import cluster_of, in_cluster
from tests.broker.queue_calls import GROUP, TOPIC, Leased, answer, answer_at, fetch, shown
from tests.broker.test_moves import BROKERS, CONSTANTS, FAILURES, SOURCE, TARGET, MovesCluster, kill
from tests.virtual_time import virtual, virtual_sources
from tests.waiting import until

moving_cluster = in_cluster(*BROKERS, constants=CONSTANTS, kind=MovesCluster, background_compaction=True)


async def stock(cluster: MovesCluster, count: int) -> None:
    made = await cluster.create(TOPIC, 1)
    assert made.partitions[0].bundle == SOURCE
    await cluster.produce(TOPIC, 0, *(str(number).encode() for number in range(count)))


async def move(cluster: MovesCluster, bundle: int) -> Topic:
    topic = await cluster.decide(TOPIC, 0, bundle)
    await until(lambda: cluster.has_ended(TOPIC, 0), timeout_s=3600)
    return topic


async def queues_of(cluster: MovesCluster, bundle: int) -> BundleQueues:
    broker = cluster.brokers[cluster.owner_of_bundle(bundle)]
    term = broker.internal._term(await broker.ownership.owner(bundle))
    [queues] = [hosted for hosted in term.ready.values() if isinstance(hosted, BundleQueues)]
    return queues


def catalog_of(cluster: MovesCluster) -> Catalog:
    return cluster.brokers[cluster.owner_of_bundle(keys.METADATA_BUNDLE)].metadata.catalog


def topic_of(cluster: MovesCluster) -> Topic:
    return catalog_of(cluster).living(TOPIC)


def deliveries(messages: list[Leased]) -> dict[int, int]:
    return {message.offset: message.deliveries for message in messages}


@moving_cluster
async def test_a_group_goes_on_where_it_was_there_and_back(cluster: MovesCluster) -> None:
    await stock(cluster, 8)
    first = await fetch(cluster, 6)
    assert await answer(cluster, first[:2]) == []
    assert await answer(cluster, [first[4]], pb.REJECT) == []
    assert await answer(cluster, [first[5]], pb.RELEASE_SHARE) == []
    await move(cluster, TARGET)
    assert [info.finished for info in await shown(cluster, TARGET)] == [1], "number 4, behind two that are not"
    again = await fetch(cluster, member="m2")
    assert deliveries(again) == {2: 2, 3: 2, 5: 2, 6: 1, 7: 1}
    assert await answer(cluster, again[:3]) == []
    assert await answer(cluster, again[3:], pb.RELEASE_SHARE) == []
    await move(cluster, SOURCE)
    last = await fetch(cluster)
    assert deliveries(last) == {6: 2, 7: 2}
    assert await answer(cluster, last) == []
    assert await fetch(cluster) == []
    await cluster.check_root()


@moving_cluster
async def test_what_a_former_bundle_knows_is_removed_when_the_move_has_ended(cluster: MovesCluster) -> None:
    await stock(cluster, 3)
    await answer(cluster, (await fetch(cluster))[:1])
    await move(cluster, TARGET)
    queues = await queues_of(cluster, SOURCE)
    await until(lambda: not queues._shares.away)
    assert await shown(cluster, SOURCE) == []
    await queues._state.durable()
    found, catalog = await read_shares(
        cluster.store,
        await read_cluster(cluster.store),
        virtual_sources(),
        lambda what: CollectingDamage(what, no_damage),
    )
    assert [len(view.state.partitions) + len(view.state.away) for view in found if view.bundle == SOURCE] == [0]
    [view] = [view for view in found if view.state.partitions]
    assert (view.bundle, catalog.living(TOPIC).bundles) == (TARGET, (TARGET,))


def no_damage(key: str, code: str, text: str) -> None:
    raise AssertionError(f"{key}: {code}: {text}")


@moving_cluster
async def test_a_group_that_has_begun_anew_forgets_what_an_earlier_stay_has_left(cluster: MovesCluster) -> None:
    """The old bundle could not remove its part before the partition came back."""
    await stock(cluster, 600)
    messages = await fetch(cluster, 600)
    assert await answer(cluster, [*messages[:300], messages[400]]) == []
    old = await queues_of(cluster, SOURCE)
    old.tick = lambda: None  # type: ignore[method-assign]  # a full store, for example
    await move(cluster, TARGET)
    assert old._shares.away, "it is still there"
    assert await shown_of(cluster, TARGET) == (300, 1)

    async def reset(queues: BundleQueues) -> None:
        await queues.reset(ShareKey(GROUP, topic_of(cluster).id, 0), 10)

    await reset(await queues_of(cluster, TARGET))
    await move(cluster, SOURCE)
    await kill(cluster, cluster.owner_of_bundle(SOURCE))  # the next one goes by what is stored
    assert [m.offset for m in await fetch(cluster, 600)] == list(range(10, 600))
    assert await shown_of(cluster, SOURCE) == (10, 0)


async def shown_of(cluster: MovesCluster, bundle: int) -> tuple[int, int]:
    [info] = await shown(cluster, bundle)
    return info.start, info.finished


@moving_cluster
async def test_a_lease_of_the_old_bundle_does_not_count_in_the_new_one(cluster: MovesCluster) -> None:
    await stock(cluster, 2)
    old = await fetch(cluster)
    await move(cluster, TARGET)
    new = await fetch(cluster, member="m2")
    assert [m.offset for m in new] == [m.offset for m in old] == [0, 1]
    same_term = (await queues_of(cluster, TARGET)).owner.epoch
    forged = [replace(message, epoch=same_term, lease=new[0].lease) for message in old]
    assert await answer(cluster, old, pb.RELEASE_SHARE) == [0, 1]
    assert await answer(cluster, forged, pb.RELEASE_SHARE) == [0, 1], "as one of a bundle with the same epoch"
    assert await answer(cluster, new) == []


@moving_cluster
async def test_nothing_is_leased_or_answered_between_the_seal_and_the_open(cluster: MovesCluster) -> None:
    await stock(cluster, 3)
    leased = await fetch(cluster, 2)
    source, target = await owner(cluster, SOURCE), await owner(cluster, TARGET)
    view = cluster.held_view(cluster.owner_of_bundle(TARGET))
    view.held = keys.ledger(TARGET)
    await cluster.decide(TOPIC, 0, TARGET)
    await until(view.holds.is_set)
    key = ShareKey(GROUP, topic_of(cluster).id, 0)
    old, new = await queues_of(cluster, SOURCE), await queues_of(cluster, TARGET)
    for queues, kind in ((old, NotOwner), (new, Unavailable)):
        for call in (
            queues.begun(key, lambda: source.list_offset(topic_of(cluster), 0, "earliest"), NO_PRINCIPAL),
            queues.answer(key, [span_of(leased[0])]),
            queues.reset(key, 0),
            queues.reset(key, None),
        ):
            with pytest.raises(kind) as refused:
                await call
            assert refused.value.retriable
        assert queues.lease(key, "m3", 10, 30.0, 0, 3) == (0, [])
    assert not old.keeps(PartitionId(*key[1:]))
    assert target.is_here(PartitionId(*key[1:])) is False
    fetching = asyncio.create_task(fetch(cluster, member="m2"))
    await asyncio.sleep(1)
    assert not fetching.done()
    view.let_go.set()
    assert [m.offset for m in await fetching] == [0, 1, 2]


def span_of(message: Leased) -> pb.SharedSpan:
    return pb.SharedSpan(
        first=message.offset, last=message.offset, epoch=message.epoch, lease=message.lease, word=pb.ACCEPT
    )


async def owner(cluster: MovesCluster, bundle: int) -> BundleOwner:
    return await cluster.brokers[cluster.owner_of_bundle(bundle)].ownership.owner(bundle)


@moving_cluster
async def test_the_seal_waits_for_the_last_answer_that_was_taken(cluster: MovesCluster) -> None:
    """Its record waits behind a put when the move is decided, and the seal must not overtake it."""
    await stock(cluster, 3)
    leased = await fetch(cluster)
    address = cluster.owner_of_bundle(SOURCE)
    view, line = cluster.held_view(address), cluster.line(address)
    slot = (await cluster.state(SOURCE)).slot
    view.held = keys.ledger(SOURCE)
    first = asyncio.create_task(answer_at(line, leased[:1], pb.ACCEPT))
    await until(view.holds.is_set)
    second = asyncio.create_task(answer_at(line, leased[1:2], pb.ACCEPT))
    await asyncio.sleep(0.1)
    topic = await cluster.decide(TOPIC, 0, TARGET)
    await asyncio.sleep(1)
    assert (first.done(), second.done(), await cluster.is_sealed(topic)) == (False, False, False)
    view.held = keys.segment(SOURCE, slot + 3)  # of the seal, if it comes behind both
    view.let_go.set()
    view.let_go.clear()
    await until(lambda: first.done() and second.done())
    assert (await first, await second) == ([], [])
    assert not await cluster.is_sealed(topic)
    view.let_go.set()
    await until(lambda: cluster.has_ended(TOPIC, 0), timeout_s=3600)
    assert [m.offset for m in await fetch(cluster, member="m2")] == [2]


async def new_owner_dies_between_bringing_and_opening(
    cluster: MovesCluster, move: Callable[[], Awaitable[Topic]]
) -> None:
    """The group's state is durable in the new bundle, and the partition is not open there."""
    address = cluster.owner_of_bundle(TARGET)
    moving = (await owner(cluster, TARGET))._moving
    brought, stays = asyncio.Event(), asyncio.Event()

    async def never(*_: object) -> bool:
        brought.set()
        await stays.wait()
        return False

    moving._open = never  # type: ignore[method-assign]
    await move()
    await until(brought.is_set)
    await kill(cluster, address)


@pytest.mark.parametrize("fail", [*FAILURES, new_owner_dies_between_bringing_and_opening])
@virtual
async def test_a_group_loses_and_repeats_nothing_after(
    fail: Callable[[MovesCluster, Callable[[], Awaitable[Topic]]], Awaitable[None]],
) -> None:
    async with cluster_of(*BROKERS, constants=CONSTANTS, kind=MovesCluster, background_compaction=True) as cluster:
        await stock(cluster, 400)
        leased = await fetch(cluster, 400)
        assert await answer(cluster, [*leased[:100], *leased[200:300]]) == []
        await fail(cluster, lambda: cluster.decide(TOPIC, 0, TARGET))
        left = await fetch(cluster, 400, member="m2")
        assert [m.offset for m in left] == [*range(100, 200), *range(300, 400)]
        assert await answer(cluster, left) == []
        await until(lambda: cluster.has_ended(TOPIC, 0), timeout_s=3600)
        assert await fetch(cluster, member="m3") == []
        await cluster.check_root()


@moving_cluster
async def test_damaged_records_of_groups_hold_up_the_open_and_nothing_is_lost(cluster: MovesCluster) -> None:
    await stock(cluster, 3)
    assert await answer(cluster, (await fetch(cluster))[:1]) == []
    broker = cluster.brokers[cluster.owner_of_bundle(TARGET)]
    bring, damage = broker.context.bring, [DataDamaged("segment 7: damaged", object_key="7")] * 5

    async def damaged(*given: object) -> None:
        if damage:
            raise damage.pop()
        await bring(*given)  # type: ignore[arg-type]

    broker.context.bring = damaged
    topic = await cluster.decide(TOPIC, 0, TARGET)
    await until(lambda: len(damage) < 3)
    assert not await cluster.is_open(topic)
    await until(lambda: cluster.has_ended(TOPIC, 0), timeout_s=3600)
    assert deliveries(await fetch(cluster, member="m2")).keys() == {1, 2}


@moving_cluster
async def test_an_old_catalog_forgets_no_group_of_a_partition_that_came_back(cluster: MovesCluster) -> None:
    """A broker that takes the bundle over may still have the partition in the other one."""
    await stock(cluster, 3)
    catalogs = [copy.deepcopy(catalog_of(cluster))]
    for bundle in (TARGET, SOURCE):
        await move(cluster, bundle)
        catalogs.append(copy.deepcopy(catalog_of(cluster)))
    assert [old.living(TOPIC).bundles for old in catalogs] == [(SOURCE,), (TARGET,), (SOURCE,)]
    await answer(cluster, (await fetch(cluster))[:1])
    queues = await queues_of(cluster, SOURCE)
    context, parts, now = queues.owner._moving._context, queues._parts, queues.owner._moving._context.catalog
    for old in catalogs[:2]:
        context.catalog = lambda old=old: old  # type: ignore[misc]
        queues._parts = replace(parts, catalog=context.catalog)
        queues.tick()
        assert [*queues._shares.partitions]
    context.catalog, queues._parts = now, parts
