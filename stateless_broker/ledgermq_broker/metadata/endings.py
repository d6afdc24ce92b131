"""End in the background what changes of the catalog began: names of deleted topics are freed once nothing of the topic
remains, moves are recorded as done, and trashed topics are removed when their grace is over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ledgermq.errors import LedgerMQError
from ledgermq_broker.logs import get_logger
from ledgermq_broker.metadata.changes import Changes
from ledgermq_broker.metadata.topic_changes import (
    grace_ended,
    move_ended,
)
from ledgermq_ledger import keys
from ledgermq_ledger.cuts.record import abandoned, cuts_in, dropped, due, encode, key_of
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage import cuts as garbage_cuts
from ledgermq_ledger.garbage.topics.removed import remove as remove_topics
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.parquet.hand_over import has_forgotten
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import PartitionMove, Topic, encode_topic_record, topic_key

GRACE_PAUSE_S_MAX = 3600.0
"""Between two looks whether graces have ended; a clock may have been set meanwhile."""

log = get_logger(__name__)


class Endings(Changes):
    """What the controller does in rounds."""

    async def _free_names(self) -> bool:
        """Let removed topics leave their bundles as far as possible now. Return True if a name was
        freed, which writes its tombstone.
        """
        if not self._removed():
            return False
        done = await remove_topics(self._compaction, self._metadata.catalog)
        for bundle, error in done.failures.items():
            log.warning("removed topics stay in a bundle", bundle=bundle, code=error.code, error=error.message)
        for topic in done.free:
            async with self._lock:
                owner = await self._ready()
                if any(removed.id == topic.id for removed in self._removed()):
                    await self._append(owner, topic_key(topic.name), None)
                    log.info("topic removed", topic=topic.name, topic_id=topic.id)
        return bool(done.free)

    async def _end_moves(self) -> None:
        """Record the moves of which the former bundles have done their part."""
        under_way: dict[int, list[tuple[Topic, int, PartitionMove]]] = {}
        for each in self._moving():
            under_way.setdefault(each[2].source, []).append(each)
        for source, moves in under_way.items():
            try:
                checkpoint = await newest_checkpoint(self._compaction.store, source)
                for topic, partition, move in moves:
                    if has_forgotten(checkpoint, PartitionId(topic.id, partition), move.id):
                        await self._end_move(topic.id, partition, move)
            except LedgerMQError as error:
                log.warning("moves not ended", source=source, moves=len(moves), error=str(error))

    async def _end_move(self, topic_id: int, partition: int, move: PartitionMove) -> None:
        async with self._lock:
            owner = await self._ready()
            wish = move_ended(self._metadata.catalog, topic_id, partition, move.id)
            if wish is not None:
                await self._append(owner, topic_key(wish.name), encode_topic_record(wish))
                log.info("move ended", topic=wish.name, partition=partition, move=move.id)

    async def _end_graces(self) -> None:
        """Remove trashed topics for good when both clocks agree that their grace is over (decision 30)."""
        trashed = self._metadata.catalog.trashed
        if not any(topic.trash and topic.trash.until_ms <= self._sources.now_ms() for topic in trashed.values()):
            return
        now_ms = min(self._sources.now_ms(), await self._compaction.store.store_time_ms())
        for topic in list(trashed.values()):
            if grace_ended(self._metadata.catalog, topic.id, now_ms) is None:
                continue
            async with self._lock:
                owner = await self._ready()
                wish = grace_ended(self._metadata.catalog, topic.id, now_ms)
                if wish is not None:  # otherwise it was brought back while this waited for the lock
                    await self._append(owner, topic_key(wish.name), encode_topic_record(wish))
                    log.info("grace of a deleted topic is over", topic=wish.name, topic_id=wish.id)

    async def _end_cuts(self) -> bool:
        """Abandon attempts of earlier controllers, drop cuts whose time is over, and remove what is left of those that
        are over. Return True if the name of one is free.
        """
        catalog = self._metadata.catalog
        if not (cuts := cuts_in(catalog)):
            return False
        for record in cuts.values():
            if record.state == fmt.PENDING and record.id not in self.taking:
                await self._put_cut(partial(abandoned, cut_id=record.id, reason="its controller was replaced"))
        if any(record.state == fmt.TAKEN and 0 < record.until_ms <= self._sources.now_ms() for record in cuts.values()):
            now_ms = min(self._sources.now_ms(), await self._compaction.store.store_time_ms())
            for record in due(catalog, now_ms):
                await self._put_cut(partial(_dropped_if_due, record=record, now_ms=now_ms))
        await self._drop_foreign_cuts()
        catalog = self._metadata.catalog
        over = [record for record in cuts_in(catalog).values() if record.state in (fmt.ABANDONED, fmt.DROPPED)]
        if not over:
            return False
        bundles = range(catalog.bundles(self._cluster))
        for bundle in bundles:
            await garbage_cuts.unpin(self._compaction.unindexed(bundle), catalog)
        store = self._compaction.store
        await garbage_cuts.remove(store, await garbage_cuts.find(store, self._cluster))
        for record in over:
            await self._forget_cut(record)
        return True

    async def _drop_foreign_cuts(self) -> None:
        """Drop cuts of the root that this one was copied from: they are in the catalog, but have no pin here."""
        catalog = self._metadata.catalog
        taken = [record for record in cuts_in(catalog).values() if record.state == fmt.TAKEN]
        if all(record.id in self._pinned for record in taken):
            return
        checkpoint = await newest_checkpoint(self._compaction.store, keys.METADATA_BUNDLE)
        self._pinned = {pin.cut for pin in checkpoint.pins}
        for record in taken:
            if record.id not in self._pinned and not record.holders:
                await self._put_cut(partial(_dropped_if_there, record=record))

    async def _put_cut(self, decide: Callable[[Catalog], fmt.CutRecord | None]) -> None:
        async with self._lock:
            owner = await self._ready()
            record = decide(self._metadata.catalog)
            if record is not None:
                await self._append(owner, key_of(record.name), encode(record))
                log.info("cut ended", cut=record.name, cut_id=record.id, reason=record.reason)

    async def _forget_cut(self, over: fmt.CutRecord) -> None:
        async with self._lock:
            owner = await self._ready()
            record = cuts_in(self._metadata.catalog).get(over.name)
            if record is not None and record.id == over.id and record.state == over.state:
                await self._append(owner, key_of(record.name), None)

    def _cuts_end(self) -> bool:
        """Return whether something of a cut is to be ended now."""
        return any(
            record.state in (fmt.ABANDONED, fmt.DROPPED)
            or (record.state == fmt.PENDING and record.id not in self.taking)
            for record in cuts_in(self._metadata.catalog).values()
        )

    def _until_something_ends_s(self, pause_s: float) -> float | None:
        """Return how long to wait for the next grace, or the time of the next cut, to end; None if there is neither.
        `pause_s`: the least time, if this machine's clock is ahead of the store's.
        """
        catalog = self._metadata.catalog
        ends = [topic.trash.until_ms for topic in catalog.trashed.values() if topic.trash is not None]
        ends += [
            record.until_ms for record in cuts_in(catalog).values() if record.state == fmt.TAKEN and record.until_ms
        ]
        if not ends:
            return None
        return min(GRACE_PAUSE_S_MAX, max(pause_s, (min(ends) - self._sources.now_ms()) / 1000))

    def _moving(self) -> list[tuple[Topic, int, PartitionMove]]:
        return list(self._metadata.catalog.moving())

    def _removed(self) -> list[Topic]:
        return list(self._metadata.catalog.removed.values())


def _dropped_if_there(catalog: Catalog, *, record: fmt.CutRecord) -> fmt.CutRecord | None:
    """Return the record that drops a cut, if it is still this one."""
    held = cuts_in(catalog).get(record.name)
    return dropped(catalog, record.name) if held is not None and held.id == record.id else None


def _dropped_if_due(catalog: Catalog, *, record: fmt.CutRecord, now_ms: int) -> fmt.CutRecord | None:
    """Return the record that drops a cut, if its time is still over."""
    still_due = any(each.id == record.id for each in due(catalog, now_ms))
    return dropped(catalog, record.name) if still_due else None
