"""End in the background what changes of the catalog began: names of deleted topics are freed once nothing of the topic
remains, moves are recorded as done, and trashed topics are removed when their grace is over.
"""

from __future__ import annotations

from ledgermq.errors import LedgerMQError
from ledgermq_broker.logs import get_logger
from ledgermq_broker.metadata.changes import Changes
from ledgermq_broker.metadata.topic_changes import (
    grace_ended,
    move_ended,
)
from ledgermq_ledger.garbage.topics.removed import remove as remove_topics
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.parquet.hand_over import has_forgotten
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

    def _until_a_grace_ends_s(self, pause_s: float) -> float | None:
        """Return how long to wait for the next grace to end; None if no topic is trashed. `pause_s`: the least time,
        if this machine's clock is ahead of the store's.
        """
        ends = [topic.trash.until_ms for topic in self._metadata.catalog.trashed.values() if topic.trash is not None]
        if not ends:
            return None
        return min(GRACE_PAUSE_S_MAX, max(pause_s, (min(ends) - self._sources.now_ms()) / 1000))

    def _moving(self) -> list[tuple[Topic, int, PartitionMove]]:
        return list(self._metadata.catalog.moving())

    def _removed(self) -> list[Topic]:
        return list(self._metadata.catalog.removed.values())
