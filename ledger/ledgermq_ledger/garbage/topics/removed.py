"""Remove topics: a topic's objects may be removed when its removal is in the bundle's newest
checkpoint and every plan from before is finished, because no plan names its files any longer then
(design D4).

Removal goes step by step until the topic's name is free. Any process may run it, at any time,
several at once: each step is a checkpoint move of `ledgermq_ledger.topics.removal`, or a delete that may be
repeated. Idle bundles need no owner for it. A step that has to wait (late puts on S3) is left to a
later run. Versions of a removed keyed topic are removed by the catalog alone, because no reader
finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ledgermq.errors import DataDamaged, FormatNotSupported, LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.delta.names import keyed_topic_of
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage import found
from ledgermq_ledger.garbage.found import Kept, Kind, Removable
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.ledgers import fences
from ledgermq_ledger.log.chains.checkpoint import Move, newest_checkpoint
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.compacting.round import cut_open_plan_short, run_round
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.tables.drop import empty_table
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.removal import confirm_deleted, is_past_barrier, note_barrier, note_of, take_in_facts
from ledgermq_ledger.topics.topic import Topic


@dataclass(slots=True)
class Removals:
    """`free`: the topics whose names are free, for which the controller may write tombstones.

    `failures`: by bundle, the first error.
    """

    free: list[Topic] = field(default_factory=list)
    failures: dict[int, LedgerMQError] = field(default_factory=dict)


async def remove(compaction: Compaction, catalog: Catalog) -> Removals:
    """Advance all removals as far as possible now.

    A topic that cannot be removed from one of its bundles is removed from the others, and delays no
    other topic.
    """
    # Bundles of other brokers too: their indexes must not take the room of what this process reads.
    compaction, done = replace(compaction, on_progress=None, known=SegmentIndexes()), Removals()
    for topic in sorted(catalog.removed.values(), key=lambda topic: topic.id):
        left = 0
        for bundle in sorted(set(topic.bundles)):
            try:
                left += not await _Removal(compaction, bundle, topic, catalog).advance()
            except LedgerMQError as error:
                done.failures.setdefault(bundle, error)
                left += 1
        if not left and await _has_emptied_its_table(compaction, topic, done):
            done.free.append(topic)
    return done


async def _has_emptied_its_table(compaction: Compaction, topic: Topic, done: Removals) -> bool:
    """Put a last version without files into the table of a topic whose files are gone. Return whether that is done; a
    log that cannot be read stays as it is, and does not keep the name.
    """
    if not topic.settings.table_generation:
        return True
    try:
        await empty_table(compaction.store, compaction.cluster, topic, compaction.sources)
    except (DataDamaged, FormatNotSupported):
        return True
    except LedgerMQError as error:
        done.failures.setdefault(topic.bundles[0], error)
        return False
    return True


class _Removal:
    """One topic in one bundle."""

    def __init__(self, compaction: Compaction, bundle: int, topic: Topic, catalog: Catalog) -> None:
        self._compaction = compaction
        self._store = compaction.store
        self._bundle = bundle
        self._topic = topic
        self._catalog = catalog

    async def advance(self) -> bool:
        """Advance. Return True if nothing of the topic is left in the bundle, and its newest
        checkpoint says so.
        """
        checkpoint = await newest_checkpoint(self._store, self._bundle)
        if note_of(checkpoint, self._topic.id) is None:
            checkpoint = await self._move(take_in_facts(self._catalog))
        if not is_past_barrier(checkpoint, self._topic.id):
            await self._finish_a_plan()
            checkpoint = await newest_checkpoint(self._store, self._bundle)
        note = note_of(checkpoint, self._topic.id)
        if note is not None and not note.barrier_ms and is_past_barrier(checkpoint, self._topic.id):
            await fences.close_finished(self._store, self._bundle)
            checkpoint = await self._move(note_barrier(self._topic.id, await self._store.store_time_ms()))
            note = note_of(checkpoint, self._topic.id)
        if note is None or not note.barrier_ms:
            return False  # the plan may be open still: its commit was put under a number that had become free again
        if note.files_deleted:
            return True
        if not await self._late_puts_are_over(checkpoint, note):
            return False
        await self._delete_files()
        checkpoint = await self._move(confirm_deleted(self._topic.id))
        note = note_of(checkpoint, self._topic.id)
        return note is not None and note.files_deleted

    async def _finish_a_plan(self) -> None:
        """Finish a plan. One of internal topics alone is enough: it reads only the segments that no
        plan has named.

        It writes nothing of the topic to Parquet, so that deletion works, and frees room, in a full
        store.
        """
        await cut_open_plan_short(self._store, self._bundle, self._topic.id)
        await run_round(
            self._compaction, self._bundle, self._catalog, everything=False, barrier=True, only_internal=True
        )

    async def _move(self, move: Move) -> fmt.Checkpoint:
        """Apply a move, and return the newest checkpoint after it: a number that was won need not
        be the newest.
        """
        await advance_checkpoint(self._compaction.ledger(self._bundle), move)
        return await newest_checkpoint(self._store, self._bundle)

    async def _late_puts_are_over(self, checkpoint: fmt.Checkpoint, note: fmt.RemovedTopic) -> bool:
        """Return True if no task paused since before the barrier can still create a file of the
        topic.
        """
        if self._store.fences_close_at_once:
            return True
        # Every plan up to the barrier is finished, and a commit keeps counters of whatever its plan
        # named, files that failed included.
        if not any(part.topic_id == note.topic_id for part in checkpoint.partitions):
            return True
        return await self._store.store_time_ms() - note.barrier_ms >= self._compaction.cluster.parquet_min_age_ms

    async def _delete_files(self) -> None:
        """Delete the files in ascending order, each confirmed before the next: a plain read sees a
        run without gaps, or fails.
        """
        gate = await Gate.of(self._store, await newest_checkpoint(self._store, self._bundle), self._catalog)
        for partition, bundle in enumerate(self._topic.bundles):
            if bundle != self._bundle:
                continue
            prefix = self._topic.parquet_folder_of(partition)
            while found := [info.key async for info in self._store.list(prefix) if _holds(info.key, self._topic)]:
                for key in found:
                    if not await gate.delete(self._store, [key]):
                        raise AssertionError(f"{key} stays, but its topic is removed: {gate.why_kept(key)}")


def _holds(key: str, topic: Topic) -> bool:
    """Return whether a Parquet file holds records of this topic: an earlier one of its name has the same folder."""
    name = keys.parse_parquet(key)
    return name is not None and name.topic_id == topic.id


async def find(store: ObjectStore, catalog: Catalog) -> list[Removable]:
    """Return the Parquet files that `remove` will delete."""
    removable = []
    for topic in list(catalog.removed.values()):
        files = [info async for info in store.list(topic.parquet_folder) if _holds(info.key, topic)]
        removable += [Removable.of(Kind.PARQUET, info, f"topic {topic.name} is deleted") for info in files]
    return removable


async def find_kept(store: ObjectStore, catalog: Catalog) -> list[Kept]:
    """Return what the deleted topics keep that can be brought back, by name."""
    found = []
    for topic in sorted(catalog.trashed.values(), key=lambda topic: topic.name):
        sizes = [info.size async for info in store.list(topic.parquet_folder) if _holds(info.key, topic)]
        sizes += [info.size async for info in store.list(keys.keyed_topic(topic.id))]
        until_ms = 0 if topic.trash is None else topic.trash.until_ms
        found.append(Kept(topic.name, len(sizes), sum(sizes), until_ms))
    return found


async def find_versions(store: ObjectStore, catalog: Catalog) -> list[Removable]:
    """Return everything below `keyed/` of topics that are removed by `catalog`, which was read just
    now. The log of a keyed topic's table goes when the topic's name is free: its folder has the topic's id, so no later
    table is there, and a version that was sent long ago is found by the next run (design Z7).
    """
    return [
        Removable.of(Kind.KEYED, info, f"topic id {topic_id} is deleted")
        async for info in store.list(keys.KEYED)
        if (topic_id := _removed_topic_of(info.key, catalog)) is not None
    ]


def _removed_topic_of(key: str, catalog: Catalog) -> int | None:
    """Return the id of the keyed topic of an object that may go, because its topic is removed; None: it stays."""
    if (name := keys.parse_keyed(key)) is not None:
        topic_id: int | None = name.place.topic_id
    else:
        topic_id = keyed_topic_of(key)
        if topic_id in catalog.topics_by_id:
            return None
    return topic_id if topic_id is not None and catalog.is_removed(topic_id, catalog.offset) else None


async def remove_versions(
    store: ObjectStore, versions: Sequence[Removable], catalog: Catalog, bundles: int
) -> list[str]:
    """Remove them, but for what cuts keep, which another run removes when they are over. Return the keys."""
    if not versions:
        return []
    gate = await Gate.of_root(store, bundles, catalog)
    return await found.delete(store, [each for each in versions if not gate.why_kept(each.key)], gate)
