"""The files of a partition that moved: from the old bundle's list to that of the new one, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from ledgermq.errors import Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.sweep import tidy_bundle
from ledgermq_ledger.garbage.topics.expired_files import remove_expired
from ledgermq_ledger.garbage.topics.removed import Removals
from ledgermq_ledger.garbage.topics.removed import remove as remove_topics
from ledgermq_ledger.garbage.topics.retention import deletion_move, log_start_move
from ledgermq_ledger.keys import PartitionId, parse_parquet
from ledgermq_ledger.log.chains.checkpoint import check_successor, newest_checkpoint, partition_of
from ledgermq_ledger.log.chains.plans import read_plan
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.partitions.moves import open_after
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.object_store.contract import FenceClosed
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compacting.commit import commit_move
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.files.stored_file import list_files
from ledgermq_ledger.parquet.hand_over import has_forgotten
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.rounds.runner import _not_in_parquet, compact_bundle, round_of_bundle
from ledgermq_ledger.rounds.stillness import find_stillness
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.settings import PARTITIONS_MOVED
from ledgermq_ledger.topics.topic import PartitionMove, Topic, encode_topic_record, removed, topic_key
from tests.worlds.damage import damage_checkpoint
from tests.worlds.ledgers import TOPIC_ID, append_and_wait, batch, ledger_of, own, session

KEY = PartitionId(TOPIC_ID, 0)
OLD, NEW = 1, 2
MOVE = 21
CLUSTER = ClusterSettings(producer_states_max=100, cluster_id="test", url_life_ms=1000, parquet_min_age_ms=4000)
AGELESS = replace(CLUSTER, parquet_min_age_ms=0)


@dataclass
class World:
    """Partition 0 of a topic is in bundle `OLD` with three records, partition 1 stays there with one."""

    sources: Sources
    store: MemoryStore = field(init=False)
    topic: Topic = field(init=False)

    def __post_init__(self) -> None:
        self.store = MemoryStore("hand-over", self.sources)
        self.topic = Topic(TOPIC_ID, "t", (OLD, OLD), version=TOPIC_ID)

    @property
    def catalog(self) -> Catalog:
        catalog = Catalog()
        catalog.apply(self.topic.version, topic_key("t"), encode_topic_record(self.topic))
        return catalog

    @property
    def compaction(self) -> Compaction:
        return Compaction(self.store, CLUSTER, self.sources, LocalEngine(self.sources, run_inline))

    def decide(self, move: int = MOVE, source: int = OLD, target: int = NEW) -> None:
        moves = {0: PartitionMove(move, source)}
        raw = {PARTITIONS_MOVED: "true"}
        self.topic = replace(self.topic, bundles=(target, OLD), moves=moves, version=move, raw_settings=raw)

    async def write(self, bundle: int, *values: bytes) -> None:
        await append_and_wait(await own(self.store, self.sources, bundle=bundle), batch(*values))

    async def seal(self, move: int = MOVE, source: int = OLD, target: int = NEW) -> None:
        sealed = (await own(self.store, self.sources, bundle=source)).seal(
            KEY, move, target, (await recover(ledger_of(self.store, source))).state.moves.move(KEY)
        )
        assert sealed is not None
        await sealed

    async def open(self, source: int = OLD, target: int = NEW) -> None:
        seal = (await recover(ledger_of(self.store, source))).state.moves.seal_of(KEY)
        assert seal is not None
        opened = (await own(self.store, self.sources, bundle=target)).open_partition(open_after(seal, source))
        assert opened is not None
        await opened

    async def round(self, bundle: int) -> bool:
        return await round_of_bundle(self.compaction, bundle, self.catalog, everything=False) is not None

    async def counters(self, bundle: int) -> fmt.PartitionCheckpoint:
        return partition_of(await newest_checkpoint(self.store, bundle), *KEY)

    async def listed(self, bundle: int) -> list[tuple[int, int]]:
        counters = await self.counters(bundle)
        files = await PageReader(self.store, bundle).files_from(counters, 0)
        return [(file.first_offset, file.last_offset) for file in files]

    async def plain(self) -> list[tuple[int, int]]:
        """What a plain reader of the Parquet files sees of the partition."""
        names = [parse_parquet(info.key) async for info in list_files(self.store)]
        return sorted((n.first_offset, n.last_offset) for n in names if n is not None and n.partition == 0)

    async def moved(self) -> None:
        """The partition is open in bundle `NEW`, with one more record; its files are where they were."""
        first = batch(b"a", b"b", producer=session(0)), batch(b"x", partition=1), batch(b"c")
        await append_and_wait(await own(self.store, self.sources, bundle=OLD), *first)
        self.decide()
        await self.seal()
        await self.open()
        await self.write(NEW, b"d")

    async def handed_over(self) -> None:
        await self.moved()
        for bundle in (OLD, OLD, NEW, OLD):
            await self.round(bundle)
        assert has_forgotten(await newest_checkpoint(self.store, OLD), KEY, MOVE)


@pytest.fixture
def world(sources: Sources) -> World:
    return World(sources)


async def test_the_files_go_over_step_by_step(world: World) -> None:
    await world.moved()
    assert not await world.round(NEW), "nothing of it is planned before its files came"

    assert await world.round(OLD), "what has left joins at once"
    assert await world.listed(OLD) == await world.plain() == [(0, 2)]
    assert not await world.round(NEW), "drained is not frozen"

    assert await world.round(OLD)
    frozen = await newest_checkpoint(world.store, OLD)
    assert (await world.counters(OLD)).frozen == MOVE
    assert [len(seal.producers) for seal in frozen.state.seals] == [1]
    assert await world.listed(NEW) == []

    assert await world.round(NEW)
    there = await world.counters(NEW)
    assert (there.taken_over, there.parquet_end, there.frozen) == (MOVE, 3, 0)
    assert await world.listed(NEW) == await world.listed(OLD) == [(0, 2)]
    [file] = await PageReader(world.store, NEW).files_from(there, 0)
    newest = await newest_checkpoint(world.store, NEW)
    assert file.plan == newest.finished_plan, "its age counts from here"

    await world.round(OLD)
    assert has_forgotten(await newest_checkpoint(world.store, OLD), KEY, MOVE)
    assert await world.listed(OLD) == []
    await compact_bundle(world.compaction, NEW, world.catalog, everything=True)
    assert await world.listed(NEW) == await world.plain() == [(0, 2), (3, 3)]
    await compact_bundle(world.compaction, OLD, world.catalog, everything=True)
    assert await world.listed(NEW) == await world.plain() == [(0, 2), (3, 3)]
    newest = await newest_checkpoint(world.store, OLD)
    assert [(seal.end, len(seal.producers)) for seal in newest.state.seals] == [(3, 0)]
    assert newest.trim_slot == newest.state.slot + 1, "what it forgot holds no segment"


async def test_a_partition_that_never_had_a_record_is_handed_over(world: World) -> None:
    await append_and_wait(await own(world.store, world.sources, bundle=OLD), batch(b"x", partition=1))
    world.decide()
    await world.seal()
    await world.open()
    for bundle in (OLD, NEW, OLD):
        assert await world.round(bundle) or bundle == OLD
    assert has_forgotten(await newest_checkpoint(world.store, OLD), KEY, MOVE)
    assert (await world.counters(NEW)).taken_over == MOVE


async def test_a_partition_comes_back_to_the_bundle_that_forgot_it(world: World) -> None:
    await world.handed_over()
    world.decide(MOVE + 1, NEW, OLD)
    await world.seal(MOVE + 1, NEW, OLD)
    await world.open(NEW, OLD)
    await world.write(OLD, b"e")
    for bundle in (NEW, NEW, OLD, NEW):
        await world.round(bundle)
    assert has_forgotten(await newest_checkpoint(world.store, NEW), KEY, MOVE + 1)
    await compact_bundle(world.compaction, OLD, world.catalog, everything=True)
    assert await world.listed(OLD) == await world.plain() == [(0, 2), (3, 3), (4, 4)]


async def test_between_two_bundles_nothing_is_deleted_and_other_partitions_go_on(world: World) -> None:
    await world.moved()
    await world.round(OLD)
    other = PartitionId(TOPIC_ID, 1)
    for bundle in (OLD, NEW):
        await advance_checkpoint(ledger_of(world.store, bundle, sources=world.sources))
        draft = await newest_checkpoint(world.store, bundle)
        assert not log_start_move({KEY: 1}, world.catalog)(draft)
        with pytest.raises(Unavailable, match="t/0 moves between bundles"):
            deletion_move(world.topic, {0: 1})(draft)
    assert log_start_move({other: 1}, world.catalog)(await newest_checkpoint(world.store, OLD))
    assert deletion_move(world.topic, {1: 1})(await newest_checkpoint(world.store, OLD))


async def test_retention_goes_on_in_the_new_bundle(world: World) -> None:
    await world.handed_over()
    await compact_bundle(world.compaction, NEW, world.catalog, everything=True)
    raw = world.topic.raw_settings | {"retention.bytes": "0"}
    world.topic = replace(world.topic, raw_settings=raw, version=MOVE + 1)
    await world.round(NEW)
    await tidy_bundle(world.compaction.ledger(NEW), world.catalog)
    assert (await world.counters(NEW)).log_start == 4


async def test_files_are_not_taken_over_by_who_has_older_settings_of_the_topic(world: World) -> None:
    """Settings from before the move could delete by the new list what a later change protects."""
    await world.moved()
    await world.round(OLD)
    await world.round(OLD)
    moved, world.topic = world.topic, Topic(TOPIC_ID, "t", (OLD, OLD), version=TOPIC_ID)
    assert not await world.round(NEW)
    world.topic = moved
    assert await world.round(NEW)


async def test_a_plan_from_before_the_freeze_does_not_change_what_is_frozen(world: World) -> None:
    await world.moved()
    await world.round(OLD)
    drained = await newest_checkpoint(world.store, OLD)
    late = await read_plan(world.store, OLD, drained.finished_plan)
    assert late is not None
    await world.round(OLD)
    frozen = await newest_checkpoint(world.store, OLD)
    assert not commit_move(late, [], fence_lost=True)(frozen)
    changed = fmt.Checkpoint()
    changed.CopyFrom(frozen)
    changed.number += 1
    partition_of(changed, *KEY).log_start = 2
    with pytest.raises(AssertionError, match="frozen file list of partition 7/0 would change"):
        check_successor(frozen, changed)


async def test_nothing_is_frozen_before_it_is_drained_nor_taken_over_twice(world: World) -> None:
    await world.moved()
    await advance_checkpoint(ledger_of(world.store, OLD, sources=world.sources))
    early = fmt.CompactionPlan(bundle=OLD, number=1, freezes=[fmt.PlannedFreeze(topic_id=TOPIC_ID, move=MOVE)])
    with pytest.raises(AssertionError, match="before it is drained"):
        commit_move(early, [])(await newest_checkpoint(world.store, OLD))
    for bundle in (OLD, OLD, NEW):
        await world.round(bundle)
    draft = await newest_checkpoint(world.store, NEW)
    counters = await world.counters(OLD)
    again = fmt.CompactionPlan(
        bundle=NEW, number=draft.finished_plan + 1, takeovers=[fmt.PlannedTakeover(counters=counters)]
    )
    with pytest.raises(AssertionError, match="out of turn"):
        commit_move(again, [])(draft)


async def test_a_bundle_with_a_hand_over_under_way_is_not_still(world: World) -> None:
    await world.moved()
    for bundle in (OLD, OLD):
        await compact_bundle(world.compaction, bundle, world.catalog, everything=True)
    assert await find_stillness(world.compaction, OLD, world.catalog, 0) is None
    await world.round(NEW)
    await compact_bundle(world.compaction, OLD, world.catalog, everything=True)
    assert await find_stillness(world.compaction, OLD, world.catalog, 0) is not None


async def test_a_topic_that_is_removed_after_its_partition_moved_leaves_no_work(world: World) -> None:
    await world.handed_over()
    moves = {0: replace(world.topic.moves[0], ended=True)}
    world.topic = replace(removed(world.topic), moves=moves, version=MOVE + 1)
    done = Removals()
    while not done.free:
        done = await remove_topics(world.compaction, world.catalog)
        assert done.failures == {}
    assert await world.plain() == []
    for bundle in (OLD, NEW):
        while await compact_bundle(world.compaction, bundle, world.catalog, everything=True):
            pass
        assert await find_stillness(world.compaction, bundle, world.catalog, 0) is not None


async def test_a_late_put_of_the_other_bundle_s_plan_does_not_bring_a_deleted_file_back(world: World) -> None:
    """Its process slept after another one had put the same file; nothing closed the fence of that plan."""
    await world.moved()
    await world.round(OLD)
    [file] = [info.key async for info in list_files(world.store) if _is_of(info.key, 0)]
    late = [await world.store.fenced_puts(name, [file], 1000) for name in await world.store.list_fences()]
    data = await world.store.get(file)
    for bundle in (OLD, NEW, OLD):
        await world.round(bundle)
    await advance_checkpoint(world.compaction.ledger(NEW), deletion_move(world.topic, {0: 3}))
    await remove_expired(LedgerRef(world.store, NEW, AGELESS, world.sources), world.catalog)
    assert await world.plain() == []
    assert late
    for permission in late:
        with pytest.raises(FenceClosed):
            await permission.put_if_absent(file, [data])


def _is_of(key: str, partition: int) -> bool:
    name = parse_parquet(key)
    return name is not None and name.partition == partition


@pytest.mark.parametrize("bundle", [OLD, NEW])
async def test_damage_in_one_bundle_holds_up_no_other_partition_of_the_other_one(world: World, bundle: int) -> None:
    await world.moved()
    for each in (OLD, OLD, NEW)[: 2 if bundle == OLD else 3]:
        await world.round(each)
    await damage_checkpoint(world.store, bundle)
    healthy = OLD + NEW - bundle
    await append_and_wait(await own(world.store, world.sources, bundle=healthy), batch(b"z", partition=1))
    report = await round_of_bundle(world.compaction, healthy, world.catalog, everything=True)
    assert report is not None
    assert report.files == 1


async def test_a_goal_of_what_was_forgotten_meanwhile_is_reached(world: World) -> None:
    await world.handed_over()
    assert await _not_in_parquet({KEY: 3}, world.compaction, OLD) == {}


async def test_a_hand_over_needs_no_room_for_the_files_of_other_partitions(world: World) -> None:
    await world.moved()
    await world.round(OLD)
    await append_and_wait(await own(world.store, world.sources, bundle=OLD), batch(b"y", partition=1))
    report = await round_of_bundle(world.compaction, OLD, world.catalog, everything=True)
    assert report is not None
    assert (report.files, (await world.counters(OLD)).frozen) == (0, MOVE)
    report = await round_of_bundle(world.compaction, OLD, world.catalog, everything=True)
    assert report is not None
    assert report.files == 1
