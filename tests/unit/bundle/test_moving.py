"""What an owner does for moves that the catalog names, and what it leaves alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from ledgermq.errors import DataDamaged, NotOwner, Unavailable
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext, BundleMetrics
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.topics.topic import PartitionMove, Topic
from tests.virtual_time import virtual_in, virtual_sources
from tests.waiting import until
from tests.worlds.bundles import TOPIC, bundle_context, fetch_values, opened, produce
from tests.worlds.ledgers import append_and_wait, batch, ledger_of, own

KEY = PartitionId(TOPIC.id, 0)
HERE, ELSEWHERE = 1, 2
MOVE = PartitionMove(21, source=ELSEWHERE)


class Failures(BundleMetrics):
    def __init__(self) -> None:
        self.failed: Counter[tuple[str, type[BaseException]]] = Counter()

    def upkeep_failed(self, bundle: int, work: str, error: BaseException) -> None:
        self.failed[work, type(error)] += 1


class World:
    def __init__(self) -> None:
        sources = virtual_sources()
        self.store = MemoryStore("moving", sources)
        self.metrics = Failures()
        context = bundle_context(self.store, sources, metrics=self.metrics)
        self.context: BundleContext = replace(context, run_blocking=run_inline)

    def decide(self, move: PartitionMove, bundle: int = HERE) -> Topic:
        topic = replace(TOPIC, bundles=(bundle, *TOPIC.bundles[1:]), moves={0: move})
        catalog = self.context.catalog()
        catalog.topics_by_id[topic.id] = catalog.topics_by_name[topic.name] = catalog.moved[topic.name] = topic
        return topic

    async def seal_elsewhere(self, move: int = MOVE.id) -> None:
        """The partition has one record in the other ledger, and leaves it."""
        there = await own(self.store, self.context.sources, bundle=ELSEWHERE)
        await append_and_wait(there, batch(b"a"))
        sealed = there.seal(KEY, move, HERE)
        assert sealed is not None
        await sealed

    async def moves_here(self) -> int:
        return (await recover(ledger_of(self.store, HERE))).state.moves.move(KEY)


@asynccontextmanager
async def in_world() -> AsyncIterator[World]:
    yield World()


moving = virtual_in(in_world, "world")


def is_open(owner: BundleOwner) -> bool:
    try:
        owner.check_arrived(batch(b"x"))
    except Unavailable:
        return False
    return True


@moving
async def test_an_owner_opens_what_was_decided_before_its_term_or_is_decided_in_it(world: World) -> None:
    world.decide(MOVE)
    async with opened(world.context) as owner:
        await asyncio.sleep(20)
        assert not is_open(owner), "the other ledger has no seal"
        await world.seal_elsewhere()
        await until(lambda: is_open(owner))
        assert await produce(owner, batch(b"b")) == [1]
        assert await fetch_values(owner, 0, 0, topic=world.decide(MOVE)) == [b"a", b"b"]
        assert world.metrics.failed == {}


@moving
async def test_a_decision_in_the_middle_of_a_term_is_carried_out(world: World) -> None:
    await world.seal_elsewhere()
    async with opened(world.context) as owner:
        await asyncio.sleep(1)
        assert await world.moves_here() == 0
        world.decide(MOVE)
        owner.catalog_changed()
        await until(lambda: is_open(owner))
        assert await world.moves_here() == MOVE.id


@moving
async def test_an_owner_seals_what_leaves_and_refuses_it_from_then_on(world: World) -> None:
    away = PartitionMove(21, source=HERE)
    async with opened(world.context) as owner:
        assert await produce(owner, batch(b"a"), batch(b"x", partition=1)) == [0, 0]
        world.decide(away, bundle=ELSEWHERE)
        owner.catalog_changed()
        await asyncio.sleep(1)
        seal = (await recover(ledger_of(world.store, HERE))).state.moves.seal_of(KEY)
        assert seal is not None
        assert (seal.move, seal.end, seal.target) == (21, 1, ELSEWHERE)
        with pytest.raises(NotOwner, match="has moved to bundle 2"):
            await produce(owner, batch(b"b"))
        assert await produce(owner, batch(b"y", partition=1)) == [1]


@moving
async def test_an_owner_that_has_sealed_a_partition_does_not_let_it_go_once_more(world: World) -> None:
    """A broker with an old catalog asks it after the partition has gone on."""
    async with opened(world.context) as owner:
        world.decide(PartitionMove(21, source=HERE), bundle=ELSEWHERE)
        owner.catalog_changed()
        await until(lambda: owner.has_left(KEY))
        with pytest.raises(NotOwner, match="has left bundle 1"):
            owner.prepare_move(TOPIC, 0, dry_run=False)


@moving
async def test_the_seal_of_another_move_opens_nothing(world: World) -> None:
    await world.seal_elsewhere(move=MOVE.id - 1)
    world.decide(MOVE)
    async with opened(world.context) as owner:
        await asyncio.sleep(20)
        assert not is_open(owner)
        assert await world.moves_here() == 0


@pytest.mark.parametrize("move", [replace(MOVE, ended=True), replace(MOVE, source=3)])
@moving
async def test_an_owner_leaves_alone_what_has_ended_or_concerns_others(world: World, move: PartitionMove) -> None:
    await world.seal_elsewhere()
    world.decide(move, bundle=HERE if move.ended else ELSEWHERE)
    async with opened(world.context):
        await asyncio.sleep(20)
        assert await world.moves_here() == 0
        assert world.metrics.failed == {}


@moving
async def test_a_seal_waits_for_the_move_before_it(world: World) -> None:
    """An owner that has to send away what has not come yet does nothing."""
    async with opened(world.context) as owner:
        await produce(owner, batch(b"a"))
        world.decide(PartitionMove(23, source=HERE, before=22), bundle=ELSEWHERE)
        owner.catalog_changed()
        await asyncio.sleep(20)
        assert await world.moves_here() == 0


@moving
async def test_damage_in_the_other_ledger_is_counted_and_the_term_goes_on(world: World) -> None:
    await world.seal_elsewhere()
    await advance_checkpoint(ledger_of(world.store, ELSEWHERE, sources=world.context.sources))
    found = [info.key async for info in world.store.list(keys.checkpoints(ELSEWHERE))]
    good = await world.store.get(found[-1])
    await world.store.put(found[-1], b"damaged")
    world.decide(MOVE)
    async with opened(world.context) as owner:
        await until(lambda: world.metrics.failed["move", DataDamaged] >= 3)
        assert await produce(owner, batch(b"x", partition=1)) == [0], "other partitions are served"
        assert not is_open(owner)
        await world.store.put(found[-1], good)
        await until(lambda: is_open(owner))
        assert owner.lost is None
