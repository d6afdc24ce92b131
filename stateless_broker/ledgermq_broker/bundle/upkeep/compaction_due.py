"""Decide whether a round of Parquet compaction is worth a request to the store. Pure: it applies
the rules of `ledgermq_ledger.parquet.compacting.plan` to what the owner knows.

It may report "due" too early; the plan then finds nothing to do. It is late only if the owner has
not read a newer checkpoint yet.
"""

from __future__ import annotations

from typing import NamedTuple

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.topics.retention import has_retention
from ledgermq_ledger.garbage.topics.versions import may_have_been_keyed
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.internal_topic import is_internal_due
from ledgermq_ledger.parquet.compacting.plan import INTERNAL_LAG_MS, QUIET_SLOTS_MAX
from ledgermq_ledger.parquet.compaction import NoStaleVersions
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.facts import may_remove
from ledgermq_ledger.topics.settings import TopicSettings
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.view import LedgerView


class _Waiting(NamedTuple):
    """A partition that waits for its file. `has_deleted`: records of it in segments were deleted."""

    settings: TopicSettings
    size_bytes: int
    oldest_ms: int
    slot: int
    has_deleted: bool

    def due_ms(self, hurried_to: int) -> int:
        """Return when it is due. `hurried_to`: up to this slot no quiet partition waits longer than others."""
        settings = self.settings
        if self.size_bytes >= settings.parquet_target_bytes:
            return 0
        is_hurried = self.slot <= hurried_to or self.has_deleted
        return self.oldest_ms + (
            settings.parquet_max_lag_ms if is_hurried else settings.parquet_lag_ms(self.size_bytes)
        )


def next_compaction_ms(view: LedgerView, catalog: Catalog) -> int | None:
    """Return the wall-clock time at which a round is due; 0: at once; None: nothing waits for a
    round.
    """
    times = [0] if view.is_partial else []
    parked = {PartitionId(part.topic_id, part.partition) for part in view.parked}
    needed = [part.parked.first_slot for part in view.parked]
    removed_bytes = kept_bytes = newest = 0
    removed_slots: list[tuple[int, int]] = []
    waiting: list[_Waiting] = []
    for key in view.index.partitions:
        topic = catalog.topics_by_id.get(key.topic_id)
        # the checkpoint may be newer than the one known
        if topic.removed if topic is not None else key.topic_id < catalog.offset:
            partition = view.index.partitions[key]
            place = partition.place_of_slot(view.checkpoint.trim_slot)
            if place < len(partition):
                removed_bytes += partition.size_from(place)
                removed_slots.append((partition[place].slot, partition[len(partition) - 1].slot))
            continue
        if topic is None:
            continue
        if topic.staged:  # it never becomes Parquet, so it is never late; a round drops it by the way
            if (slot := first_staged_slot(view, key, topic)) is not None:
                needed.append(slot)
            continue
        backlog = view.index.backlog(key, view.parquet_end(key))
        counters = view.counters.get(key)
        if backlog is None or key in parked or (counters is not None and counters.forgotten):
            continue
        size_bytes, oldest_ms = backlog
        if topic.compacted:
            times.append(oldest_ms + INTERNAL_LAG_MS)
        else:
            kept_bytes += size_bytes
            slot, partition = view.index.slot_of(key, view.parquet_end(key)), view.index.partitions[key]
            newest = max(newest, partition[len(partition) - 1].slot)
            needed.append(slot)
            has_deleted = counters is not None and counters.log_start > counters.parquet_end
            waiting.append(_Waiting(topic.settings, size_bytes, oldest_ms, slot, has_deleted))
    hurried_to = max(newest - QUIET_SLOTS_MAX, *(last for _, last in removed_slots), 0)
    times += [each.due_ms(hurried_to) for each in waiting]
    first_removed = min((first for first, _ in removed_slots), default=None)
    if first_removed is not None and (
        removed_bytes > kept_bytes or first_removed < min(needed, default=first_removed + 1)
    ):
        times.append(0)  # segments can go
    oldest = view.index.first_slot(view.checkpoint.trim_slot)
    # no reader needs it, and rounds of internal topics trim nothing
    if oldest is not None and oldest < min(needed, default=oldest + 1):
        times.append(view.index.created_ms(oldest) + INTERNAL_LAG_MS)
    return min(times, default=None)


def first_staged_slot(view: LedgerView, key: PartitionId, topic: Topic) -> int | None:
    """Return the slot from which on a partition of staged batches needs its segments; None if it
    needs none. Never higher than the true one: if the index does not reach back to it, the first
    slot that is not trimmed.
    """
    partition, start = view.index.partitions.get(key), view.log_start(key, topic)
    if view.durable_end(key) <= start:
        return None
    if partition is None or partition.begin > start:
        return view.checkpoint.trim_slot
    return view.index.slot_of(key, start)


def wants_snapshot(view: LedgerView, catalog: Catalog) -> bool:
    """Return whether so many records of internal topics follow the snapshot that a takeover should
    not have to read them.
    """
    slots: set[int] = set()
    size_bytes = 0
    for key in view.index.partitions:
        topic = catalog.topics_by_id.get(key.topic_id)
        if topic is not None and topic.compacted:
            found, length = view.index.behind(key, view.parquet_end(key))
            slots |= found
            size_bytes += length
    return is_internal_due(len(slots), size_bytes, view.checkpoint.snapshot_bytes)


def wants_retention(checkpoint: fmt.Checkpoint, catalog: Catalog, no_stale_versions: NoStaleVersions) -> bool:
    """Return whether any Parquet file may become too old or too large, lies below its log start, or
    may be replaced by cleaning.

    `no_stale_versions`: topics that have none, although they may have been keyed.
    """
    for part in checkpoint.partitions:
        topic = catalog.topics_by_id.get(part.topic_id)
        if topic is None:
            continue
        is_leaving = has_retention(topic.settings) or part.parquet_start < part.log_start
        if is_leaving and part.parquet_start < part.parquet_end and may_remove(checkpoint, topic, part.partition):
            return True
        in_versions = topic.settings.keyed or (
            may_have_been_keyed(topic) and (topic, part.partition) not in no_stale_versions
        )
        if in_versions and part.parquet_end:
            return True
    return False
