"""Garbage collection of a whole root: all that is left over goes, once it is old enough; what
counts, and what is not ours, stays.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ledgermq.errors import Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.garbage.found import Found, Kind
from ledgermq_ledger.garbage.sweep import Swept, find_removable, sweep
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.compacting.round import run_round
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.files.columns import FooterNote, empty_file
from ledgermq_ledger.topics.topic import METADATA, topic_key
from tests.stores.backends import memory_store
from tests.stores.no_deletes import NoDeletes
from tests.unit.parquet.test_gc import Clock
from tests.worlds.damage import damage_checkpoint
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, read_everything, read_parquet_rows

HOUR_MS = 3_600_000


class Untidied:
    """A root on which rounds were run by processes that died before they could tidy up."""

    def __init__(self, root: Root, clock: Clock, sources: Sources) -> None:
        self.root = root
        self.clock = clock
        self.sources = sources
        self.engine = LocalEngine(sources, run_inline)

    @classmethod
    async def open(cls, store: ObjectStore, sources: Sources) -> Untidied:
        clock = Clock()
        sources = Sources(clock, sources.random)
        if isinstance(store, MemoryStore):
            store._sources = sources
        return cls(await Root.open(store, sources), clock, sources)

    async def round(self) -> None:
        cluster, catalog = self.root.cluster, await self.root.catalog()
        for bundle in range(cluster.bundles):
            await run_round(
                Compaction(self.root.store, cluster, self.sources, self.engine), bundle, catalog, everything=True
            )

    async def find(self, grace_ms: int = 0) -> Found:
        return await find_removable(self.root.store, self.root.cluster, await self.root.catalog(), grace_ms)

    async def sweep(self, grace_ms: int = 0, store: ObjectStore | None = None) -> Swept:
        return await sweep(
            Compaction(store or self.root.store, self.root.cluster, self.sources, self.engine), grace_ms=grace_ms
        )

    def pass_time(self, hours: float = 2) -> None:
        self.clock.now_us += round(hours * HOUR_MS * 1000)


def counts(found: Found) -> dict[Kind, int]:
    return {kind: objects for kind, objects, _ in found.by_kind()}


async def left(store: ObjectStore, kind: str) -> list[str]:
    return [info.key async for info in store.list("") if f"/{kind}/" in info.key]


async def test_a_dry_run_says_what_a_run_then_removes(sources: Sources) -> None:
    async with memory_store(sources) as store:
        untidied = await Untidied.open(store, sources)
        root = untidied.root
        await root.create_topic("t", partitions=2)
        for i in range(4):
            await root.produce("t", (0, [b"a%d" % i]), (1, [b"b%d" % i]))
            await untidied.round()
        await store.put(keys.broker("dead"), b"{}")
        untidied.pass_time()
        await store.put(keys.broker("alive"), b"{}")
        await store.put_if_absent("notes.txt", [b"mine"])
        await store.put_if_absent("parquet/half-written.parquet", [b"PAR1"])
        found = await untidied.find()
        assert counts(found) == {
            Kind.SEGMENT: 6,
            Kind.PLAN: 5,
            Kind.CHECKPOINT: 3,
            Kind.PAGE: 3,
            Kind.FENCE: 5,
            Kind.HEARTBEAT: 1,
        }
        assert found.foreign == ["notes.txt", "parquet/half-written.parquet"]
        swept = await untidied.sweep()
        assert sorted(swept.removed) == sorted(found.removable)
        assert not swept.failures
        assert {problem.object_key for problem in (await check_root(store, root.cluster)).problems} == set(
            found.foreign
        )
        await store.delete(["parquet/half-written.parquet"])
        assert await read_everything(root) == root.produced
        assert await left(store, "segments") == [keys.segment(0, 1), keys.segment(1, 1)], "claims"
        assert await left(store, "compactions") == []
        assert [info.key async for info in store.list(keys.BROKERS)] == [keys.broker("alive")]
        assert (await untidied.find()).removable == []
        assert (await untidied.find()).fences_kept == 2


async def test_objects_younger_than_the_grace_stay(sources: Sources) -> None:
    async with memory_store(sources) as store:
        untidied = await Untidied.open(store, sources)
        await untidied.root.create_topic("t")
        await untidied.root.produce("t", (0, [b"a"]))
        await untidied.round()
        untidied.pass_time(0.5)
        found = await untidied.find(HOUR_MS)
        assert counts(found) == {Kind.FENCE: 2}
        assert found.waiting
        swept = await untidied.sweep(HOUR_MS)
        assert {each.kind for each in swept.removed} == {Kind.FENCE}
        assert len(await left(store, "segments")) > 2
        untidied.pass_time(0.6)
        await untidied.sweep(HOUR_MS)
        assert len(await left(store, "segments")) == 2


async def test_a_plan_stays_until_all_that_it_names_is_gone(sources: Sources) -> None:
    """Without it, a sweep would no longer know the younger ones of its segments."""
    async with memory_store(sources) as store:
        untidied = await Untidied.open(store, sources)
        root = untidied.root
        await root.create_topic("t")
        await root.produce("t", (0, [b"a"]))
        untidied.pass_time(1.5)
        await root.produce("t", (0, [b"b"]))
        await untidied.round()
        swept = await untidied.sweep(HOUR_MS)
        assert [each.kind for each in swept.removed if "ledgers/0001" in each.key] == [Kind.SEGMENT]
        assert await left(store, "compactions") != []
        untidied.pass_time()
        await untidied.sweep(HOUR_MS)
        assert len(await left(store, "segments")) == 2


async def test_files_below_the_log_start_go_and_a_held_topic_keeps_its_own(sources: Sources) -> None:
    async with memory_store(sources) as store:
        untidied = await Untidied.open(store, sources)
        root = untidied.root
        held = {"legal_hold": "true"}
        for name, settings in (("t", {}), ("held", held)):
            await root.create_topic(name, **settings)
            for i in range(3):
                await root.produce(name, (0, [b"%d" % i]))
                await untidied.round()
        for name in ("t", "held"):
            topic = (await root.catalog()).topics_by_name[name]
            move = deletion_move(topic, {0: 2}) if name == "t" else _unheld(topic.id)
            await advance_checkpoint(ledger_of(store, 1, cluster=root.cluster, sources=sources), move)
        untidied.pass_time()
        found = await untidied.find()
        assert [keys.parse_parquet(key).first_offset for key in found.keys(Kind.PARQUET)] == [0, 1]  # type: ignore[union-attr]
        await untidied.sweep()
        rows = await read_parquet_rows(store)
        assert (sorted(rows["t", 0]), sorted(rows["held", 0])) == ([2], [0, 1, 2])


def _unheld(topic_id: int) -> object:
    """A log start that moved before the hold came."""

    def move(draft: object) -> bool:
        next(part for part in draft.partitions if part.topic_id == topic_id).log_start = 2  # type: ignore[attr-defined]
        return True

    return move


async def test_files_of_a_removed_topic_go(sources: Sources) -> None:
    async with memory_store(sources) as store:
        untidied = await Untidied.open(store, sources)
        root = untidied.root
        await root.create_topic("t")
        await root.create_topic("kept")
        await root.produce("t", (0, [b"a"]))
        await root.produce("kept", (0, [b"k"]))
        await untidied.round()
        await root.remove_topic("t")
        untidied.pass_time()
        assert counts(await untidied.find())[Kind.PARQUET] == 1
        swept = await untidied.sweep()
        assert [each.why for each in swept.removed if each.kind is Kind.PARQUET] == ["topic t is deleted"]
        assert await read_parquet_rows(store) == {("kept", 0): {0: b"k"}}


async def test_a_damaged_bundle_is_named_and_the_others_are_swept(sources: Sources) -> None:
    async with memory_store(sources) as store:
        untidied = await Untidied.open(store, sources)
        root = untidied.root
        await root.create_topic("t")
        await root.produce("t", (0, [b"a"]))
        await untidied.round()
        untidied.pass_time()
        other = NoDeletes(store, keys.segments(1))
        swept = await untidied.sweep(store=other)
        assert "bundle 1" in swept.failures
        assert all("ledgers/0001/segments" not in each.key for each in swept.removed)
        assert any("ledgers/0000/" in each.key for each in swept.removed)


async def test_a_bundle_whose_checkpoint_is_damaged_is_named_and_the_others_are_swept(sources: Sources) -> None:
    async with memory_store(sources) as store:
        untidied = await Untidied.open(store, sources)
        root = untidied.root
        await root.create_topic("t")
        await root.create_topic("gone")
        await root.produce("t", (0, [b"a"]), timestamp_ms=1)
        await untidied.round()
        await root.remove_topic("gone")
        await store.put(keys.broker("dead"), b"{}")
        untidied.pass_time()
        damaged = await damage_checkpoint(store, 1)
        before = [key async for key in _keys(store, keys.ledger(1))]
        found = await untidied.find()
        assert {where: error.object_key for where, error in found.failures.items()} == {"bundle 1": damaged}
        swept = await untidied.sweep()
        assert {where: error.object_key for where, error in swept.failures.items()} == {"bundle 1": damaged}
        assert sorted(swept.removed) == sorted(found.removable)
        assert counts(found)[Kind.SEGMENT] == 3, "of bundle 0"
        assert counts(found)[Kind.HEARTBEAT] == 1
        assert [key async for key in _keys(store, keys.ledger(1))] == before
        assert len(await read_parquet_rows(store)) == 1


async def _keys(store: ObjectStore, prefix: str) -> AsyncIterator[str]:
    async for info in store.list(prefix):
        yield info.key


@pytest.mark.parametrize(
    ("folder", "where"), [(keys.PARQUET, "garbage"), (keys.KEYED, "keyed topics"), (keys.BROKERS, "heartbeats")]
)
async def test_a_chore_that_fails_keeps_no_other_from_being_done(sources: Sources, folder: str, where: str) -> None:
    """`folder`: where nothing can be deleted.

    In each of them, and in the ledgers, is something that should go.
    """
    async with memory_store(sources) as store:
        untidied = await Untidied.open(store, sources)
        root = untidied.root
        await root.create_topic("t")
        await root.produce("t", (0, [b"a"]))
        await untidied.round()
        note = FooterNote(root.cluster.cluster_id, 1, 99, 0, 0, 0, 1, "00", failed="f")
        garbage = keys.ParquetName("t", 0, 7, 7, 99, 1).key
        await store.put_if_absent(garbage, [bytes(empty_file(note))])
        topic = await root.create_topic("gone")
        await root.put_internal(METADATA, topic_key("gone"), None)
        keyed = keys.keyed_version(PartitionId(topic.id, 0), 1)
        await store.put_if_absent(keyed, [b"of a removed topic"])
        await store.put(keys.broker("dead"), b"{}")
        untidied.pass_time()
        swept = await untidied.sweep(store=NoDeletes(store, folder))
        wanted = {garbage, keyed, keys.broker("dead")}
        removed = {each.key for each in swept.removed}
        assert {key for key in wanted if not key.startswith(folder)} <= removed
        assert not any(key.startswith(folder) for key in wanted & removed)
        assert [*swept.failures] == ["bundle 1" if where == "garbage" else where]


async def test_a_heartbeat_that_is_written_again_meanwhile_stays(sources: Sources) -> None:
    async with memory_store(sources) as store:
        untidied = await Untidied.open(store, sources)
        await store.put(keys.broker("slow"), b"{}")
        untidied.pass_time()

        class Awakes(StoreWrapper):
            async def head(self, key: str) -> object:  # type: ignore[override]
                await store.put(key, b"{}")
                return await store.head(key)

        await untidied.sweep(store=Awakes(store))
        assert [info.key async for info in store.list(keys.BROKERS)] == [keys.broker("slow")]
        assert (await newest_checkpoint(store, 0)).bundle == 0


class ParquetCannotBeListed(StoreWrapper):
    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        if prefix.startswith(keys.PARQUET):
            raise Unavailable("the store does not answer")
        async for info in self.inner.list(prefix, start_after):
            yield info


async def test_parquet_files_that_cannot_be_listed_keep_no_other_kind_from_going(sources: Sources) -> None:
    async with memory_store(sources) as store:
        untidied = await Untidied.open(store, sources)
        await untidied.root.create_topic("t")
        for i in range(4):
            await untidied.root.produce("t", (0, [b"%d" % i]))
            await untidied.round()
        untidied.pass_time()
        whole = counts(await untidied.find())
        catalog = await untidied.root.catalog()
        found = await find_removable(ParquetCannotBeListed(store), untidied.root.cluster, catalog, 0)
        assert "garbage" in found.failures
        for kind in (Kind.SEGMENT, Kind.PLAN, Kind.CHECKPOINT):
            assert counts(found)[kind] == whole[kind] > 0
