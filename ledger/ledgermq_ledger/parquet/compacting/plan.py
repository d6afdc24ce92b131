"""Plan one Parquet compaction round: the files, the slots that they read, and the slots that may be
trimmed afterwards. Pure.

A partition joins with one file when it has its target size in segments, when its oldest record
there is older than its maximum lag, or when everything is requested. A quiet partition, which has
little in segments, may wait longer (`TopicSettings.parquet_lag_ms`), unless it would hold many
segments, or records that were deleted. Internal topics join every
plan; a plan of them alone (`only_internal`) is made from the segments that no plan has named yet,
and trims nothing. A topic that the checkpoint names as removed is left out; a topic that the
catalog does not know yet, or that is removed but not named yet, waits and holds the trim, as a
parked partition does. So does a partition that came from another bundle, until its file list came,
too (design Y6). One that has left joins at once, and is frozen when all of it is in Parquet. Staged
batches become neither Parquet nor part of a snapshot: a plan drops those below the log start, and
those above it hold the trim; alone they never make a plan due. No plan reads any of them. A hidden
topic is planned as topics of users are; only the names of its files differ. Where removed topics
have more in segments than the partitions that hold these segments, those join at once, because
deletion has to make room.

Invariants (safety 1, 8, 9), asserted by `check_plan`: a file begins where Parquet ends, except
where records below the log start are dropped and no file is left; every record in a slot below the
trim slot is in Parquet or a snapshot after the commit, or is dropped by a rule. Must not know:
stores, clocks (`now_ms` is given and only decides which partitions join), engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ledgermq.errors import Unavailable
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partitions_by_key
from ledgermq_ledger.log.history import History
from ledgermq_ledger.log.internal_topic import is_internal_due
from ledgermq_ledger.parquet.files.typed_files import is_typed, name_schema
from ledgermq_ledger.parquet.hand_over import freezes_due, is_forgotten, waits_for_files
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.removal import note_of
from ledgermq_ledger.topics.topic import Topic

INTERNAL_LAG_MS = 60 * 60 * 1000
QUIET_SLOTS_MAX = 8192
"""Slots behind the oldest record of a partition above which it waits no longer than others do: a round reads the
index of each, and brokers refuse to hold more than 20,000 behind a parked partition.
"""


class Fate(Enum):
    WRITE = 1
    INTERNAL = 2
    WAIT = 3
    DROP = 4
    STAGED = 5


@dataclass(slots=True)
class Backlog:
    """The records of a partition in segments that are not yet in Parquet; `batches` ascending by
    offset, as (slot, when it was written, entry).
    """

    topic: Topic | None
    partition: int
    fate: Fate
    counters: fmt.PartitionCheckpoint
    batches: list[tuple[int, int, fmt.BatchEntry]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(entry.length for _, _, entry in self.batches)

    @property
    def end(self) -> int:
        """Return the next offset after the backlog."""
        return end_of(self.batches[-1][2])

    @property
    def first_held(self) -> int | None:
        """Return the slot of the first staged batch that is not below the log start; None if all
        are.
        """
        assert self.fate is Fate.STAGED
        return next((slot for slot, _, entry in self.batches if end_of(entry) > self.counters.log_start), None)

    def is_older_than(self, written_ms: int) -> bool:
        return self.batches[0][1] <= written_ms


def end_of(entry: fmt.BatchEntry) -> int:
    return entry.base_offset + entry.record_count


def needs_newer_catalog(history: History, catalog: Catalog) -> bool:
    """Return True if the ledger is ahead of the catalog, which has to be read again before
    planning.
    """
    if catalog.offset < history.checkpoint.metadata_offset:
        return True
    return any(
        entry.topic_id >= catalog.offset and entry.topic_id not in catalog.topics_by_id
        for _, _, entry in _batches(history)
    )


def fate_of(topic_id: int, checkpoint: fmt.Checkpoint, catalog: Catalog) -> Fate:
    topic = catalog.topics_by_id.get(topic_id)
    if note_of(checkpoint, topic_id) is not None:
        return Fate.DROP
    if topic is None:
        return Fate.DROP if topic_id < checkpoint.metadata_offset else Fate.WAIT
    if topic.removed:
        return Fate.WAIT
    if topic.staged:
        return Fate.STAGED
    return Fate.INTERNAL if topic.compacted else Fate.WRITE


def backlogs_of(history: History, catalog: Catalog) -> dict[PartitionId, Backlog]:
    """Return the backlogs, sorted by topic id and partition.

    Raises Unavailable if the catalog is older than the checkpoint's view of it.
    """
    if catalog.offset < history.checkpoint.metadata_offset:
        raise Unavailable(f"bundle {history.bundle}: the catalog is older than its newest checkpoint")
    counters = partitions_by_key(history.checkpoint)
    found: dict[PartitionId, Backlog] = {}
    for slot, written_ms, entry in _batches(history):
        key = PartitionId(entry.topic_id, entry.partition)
        backlog = found.get(key)
        if backlog is None:
            known = counters.get(key) or fmt.PartitionCheckpoint(topic_id=key.topic_id, partition=key.partition)
            topic = catalog.topics_by_id.get(key.topic_id)
            fate = fate_of(key.topic_id, history.checkpoint, catalog)
            if is_forgotten(history.state.moves, key, known):
                fate = Fate.DROP
            elif waits_for_files(history.state.moves, key, known) and fate is not Fate.DROP:
                fate = Fate.WAIT
            backlog = found[key] = Backlog(topic, key.partition, fate, known)
        if end_of(entry) > backlog.counters.parquet_end:
            backlog.batches.append((slot, written_ms, entry))
    return {key: found[key] for key in sorted(found) if found[key].batches}


def make_plan(
    history: History,
    catalog: Catalog,
    *,
    everything: bool,
    now_ms: int,
    put_id: bytes,
    barrier: bool = False,
    only_internal: bool = False,
    takeovers: Sequence[fmt.PlannedTakeover] = (),
) -> fmt.CompactionPlan | None:
    """Return the next plan, or None if nothing is due. `barrier`: make a plan even if it is empty
    (a removed topic waits for it). `takeovers`: the file lists that the plan takes over.

    `only_internal`: `history` need not begin before the first slot that no plan has named.
    """
    checkpoint = history.checkpoint
    plan = fmt.CompactionPlan(
        bundle=history.bundle,
        number=checkpoint.finished_plan + 1,
        put_id=put_id,
        created_ms=now_ms,
        checkpoint=checkpoint.number,
        last_slot=history.state.slot,
        previous_snapshot=checkpoint.snapshot_plan,
    )
    backlogs = backlogs_of(history, catalog)
    if only_internal:
        backlogs = {key: backlog for key, backlog in backlogs.items() if backlog.fate is Fate.INTERNAL}
    emptied_to, hurried_to = _worth_emptying(history, backlogs), _hurried_to(history, backlogs)
    if not only_internal:
        plan.freezes.extend(freezes_due(history, catalog, backlogs))
        plan.takeovers.extend(takeovers)
    for key, backlog in backlogs.items():
        if backlog.fate is Fate.INTERNAL:
            plan.internal.append(_internal(backlog))
        elif backlog.fate is Fate.STAGED:
            if (dropped := _dropped(backlog)) is not None:
                plan.files.append(dropped)
        elif plan.freezes or plan.takeovers:
            continue  # a hand-over waits for no room in the store: the next plan writes files
        elif backlog.fate is Fate.WRITE and not backlog.counters.HasField("parked"):
            has_left = history.state.moves.seal_of(key) is not None
            if has_left or backlog.batches[0][0] <= emptied_to or _joins(backlog, everything, now_ms, hurried_to):
                plan.files.append(_file(backlog, plan.number))
    plan.metadata_offset = catalog.offset if is_typed(plan) else 0
    plan.trim_slot = checkpoint.trim_slot if only_internal else _trim_slot(history, plan, backlogs)
    if not barrier and not _is_due(history, plan, backlogs, everything, now_ms):
        return None
    _name_slots(history, plan)
    check_plan(history, plan, backlogs)
    return plan


def _batches(history: History) -> Iterator[tuple[int, int, fmt.BatchEntry]]:
    for segment in history.segments:
        for entry in segment.index.batches:
            yield segment.index.slot, segment.index.created_ms, entry


def _joins(backlog: Backlog, everything: bool, now_ms: int, hurried_to: int) -> bool:
    assert backlog.topic is not None
    settings, counters = backlog.topic.settings, backlog.counters
    if everything or backlog.bytes >= settings.parquet_target_bytes:
        return True
    is_hurried = backlog.batches[0][0] <= hurried_to or counters.log_start > counters.parquet_end
    lag_ms = settings.parquet_max_lag_ms if is_hurried else settings.parquet_lag_ms(backlog.bytes)
    return backlog.is_older_than(now_ms - lag_ms)


def _hurried_to(history: History, backlogs: dict[PartitionId, Backlog]) -> int:
    """Return the last slot that no quiet partition holds for longer than the others: up to it there are many
    segments, or some that hold records of removed topics.
    """
    removed = (backlog.batches[-1][0] for backlog in backlogs.values() if backlog.fate is Fate.DROP)
    return max(history.state.slot - QUIET_SLOTS_MAX, *removed, 0)


def _worth_emptying(history: History, backlogs: dict[PartitionId, Backlog]) -> int:
    """Return the last slot up to which segments hold more bytes of removed topics than would have
    to be written to free them; 0: none.
    """
    blocked = [part.parked.first_slot for part in history.checkpoint.partitions if part.HasField("parked")]
    for backlog in backlogs.values():
        if backlog.fate is Fate.WAIT:
            blocked.append(backlog.batches[0][0])
        elif backlog.fate is Fate.STAGED and (held_by_it := backlog.first_held) is not None:
            blocked.append(held_by_it)
    end = min(blocked, default=history.state.slot + 1)

    def held(fate: Fate, below: int) -> list[tuple[int, int]]:
        found = (batch for backlog in backlogs.values() if backlog.fate is fate for batch in backlog.batches)
        return [(slot, entry.length) for slot, _, entry in found if slot < below]

    removed = held(Fate.DROP, end)
    last = max((slot for slot, _ in removed), default=0)
    return last if sum(length for _, length in removed) > sum(length for _, length in held(Fate.WRITE, last + 1)) else 0


def _file(backlog: Backlog, plan: int) -> fmt.PlannedFile:
    """Return one file of up to the target size, in whole batches: it may be larger by less than one
    batch.
    """
    topic, counters = backlog.topic, backlog.counters
    assert topic is not None
    first = _first_offset(counters)
    file = fmt.PlannedFile(topic_id=topic.id, topic=topic.name, partition=backlog.partition, first_offset=first)
    end = counters.parquet_end
    for slot, _, entry in backlog.batches:
        if file.source_bytes >= topic.settings.parquet_target_bytes:
            file.first_slot_after = slot
            break
        end = end_of(entry)
        if end > first:
            file.source_bytes += entry.length
            if not file.slots or file.slots[-1] != slot:
                file.slots.append(slot)
    if end <= first:  # only records below the log start: they are dropped without a file
        file.first_offset = counters.parquet_end
    else:
        name = None if topic.hidden else topic.name
        file.key = keys.ParquetName(name, backlog.partition, first, end - 1, topic.id, plan).key
    file.last_offset = end - 1
    file.lost.extend(lost for lost in counters.lost if lost.last_offset >= first and lost.first_offset < end)
    if topic.settings.parquet_bloom_key:
        file.bloom_columns.append("key")
    file.has_appended, file.appended_floor_us = topic.settings.parquet_appended, counters.appended_us
    file.row_group_bytes = topic.settings.parquet_row_group_bytes
    name_schema(file, topic)
    return file


def _dropped(backlog: Backlog) -> fmt.PlannedFile | None:
    """Return, as a file without a key, the staged batches below the log start: whole batches from
    the first on. None if there are none.
    """
    topic, counters = backlog.topic, backlog.counters
    assert topic is not None
    first = counters.parquet_end
    end = max((end_of(entry) for _, _, entry in backlog.batches if end_of(entry) <= counters.log_start), default=0)
    if end <= first:
        return None
    return fmt.PlannedFile(
        topic_id=topic.id, topic=topic.name, partition=backlog.partition, first_offset=first, last_offset=end - 1
    )


def _first_offset(counters: fmt.PartitionCheckpoint) -> int:
    """Return the first offset of the next file. Records below the log start may be left out only if
    no Parquet file is left, because plain readers would see a gap otherwise.
    """
    if counters.log_start > counters.parquet_end and counters.parquet_start >= counters.parquet_end:
        return counters.log_start
    return counters.parquet_end


def _internal(backlog: Backlog) -> fmt.PlannedInternal:
    assert backlog.topic is not None
    slots = sorted({slot for slot, _, _ in backlog.batches})
    return fmt.PlannedInternal(
        topic_id=backlog.topic.id, topic=backlog.topic.name, partition=backlog.partition, end=backlog.end, slots=slots
    )


def _trim_slot(history: History, plan: fmt.CompactionPlan, backlogs: dict[PartitionId, Backlog]) -> int:
    """Return the lowest slot that is still needed once the plan is finished without a failure."""
    needed = [part.parked.first_slot for part in history.checkpoint.partitions if part.HasField("parked")]
    planned = {PartitionId(file.topic_id, file.partition): file for file in plan.files}
    for key, backlog in backlogs.items():
        if backlog.fate is Fate.WAIT or (backlog.fate is Fate.WRITE and key not in planned):
            needed.append(backlog.batches[0][0])
        elif key in planned and planned[key].first_slot_after:
            needed.append(planned[key].first_slot_after)
        elif backlog.fate is Fate.STAGED and (held := backlog.first_held) is not None:
            needed.append(held)
    return max(history.checkpoint.trim_slot, min(needed, default=history.state.slot + 1))


def _is_due(
    history: History, plan: fmt.CompactionPlan, backlogs: dict[PartitionId, Backlog], everything: bool, now_ms: int
) -> bool:
    internal = [backlog for backlog in backlogs.values() if backlog.fate is Fate.INTERNAL]
    if plan.freezes or plan.takeovers:
        return True
    if any(backlogs[PartitionId(file.topic_id, file.partition)].fate is Fate.WRITE for file in plan.files):
        return True
    if everything and internal:
        return True
    segments = {slot for backlog in internal for slot, _, _ in backlog.batches}
    if is_internal_due(len(segments), sum(backlog.bytes for backlog in internal), history.checkpoint.snapshot_bytes):
        return True
    if any(backlog.batches[0][0] < plan.trim_slot for backlog in backlogs.values() if backlog.fate is Fate.DROP):
        return True
    freed = [s.index for s in history.segments if s.index.slot < plan.trim_slot and s.index.kind == fmt.DATA]
    return any(everything or index.created_ms <= now_ms - INTERNAL_LAG_MS for index in freed)


def _name_slots(history: History, plan: fmt.CompactionPlan) -> None:
    planned_slot = history.checkpoint.planned_slot
    read = slots_read(plan)
    for segment in history.segments:
        index = segment.index
        named = fmt.PlannedSlot(
            slot=index.slot,
            put_id=index.put_id,
            kind=index.kind,
            tail_length=segment.tail_length,
            stored_ms=segment.stored_ms if index.kind == fmt.DATA else 0,
        )
        if index.slot > planned_slot and index.kind in (fmt.DATA, fmt.RELEASE):
            plan.slots.append(named)
        elif index.slot in read:
            plan.lagging.append(named)


def slots_read(plan: fmt.CompactionPlan) -> set[int]:
    """Return the slots that the plan's files and internal partitions read."""
    parts: Iterable[Iterable[int]] = [*(file.slots for file in plan.files), *(part.slots for part in plan.internal)]
    return {slot for slots in parts for slot in slots}


def check_plan(history: History, plan: fmt.CompactionPlan, backlogs: dict[PartitionId, Backlog]) -> None:
    """Assert safety invariants 1, 8 and 9 of the round that this plan leads to.

    A violation is a bug of LedgerMQ, so it stops the caller.
    """
    named = {slot.slot for slot in (*plan.slots, *plan.lagging)}
    if not slots_read(plan) <= named:
        raise AssertionError(f"bundle {plan.bundle} plan {plan.number} reads slots that it does not name")
    covered = {PartitionId(file.topic_id, file.partition): file.last_offset + 1 for file in plan.files}
    covered |= {PartitionId(part.topic_id, part.partition): part.end for part in plan.internal}
    for part in plan.internal:
        backlog = backlogs[PartitionId(part.topic_id, part.partition)]
        if backlog.batches[0][2].base_offset > backlog.counters.parquet_end:
            raise AssertionError(
                f"bundle {plan.bundle} plan {plan.number}: {part.topic}/{part.partition} would lose records"
            )
    for file in plan.files:
        counters = backlogs[PartitionId(file.topic_id, file.partition)].counters
        drops = file.first_offset != counters.parquet_end
        if drops and (counters.parquet_start < counters.parquet_end or file.first_offset > counters.log_start):
            raise AssertionError(
                f"bundle {plan.bundle} plan {plan.number}: {file.key} would leave a gap after {counters.parquet_end}"
            )
    for key, backlog in backlogs.items():
        end = max(covered.get(key, 0), backlog.counters.parquet_end)
        lost = [slot for slot, _, entry in backlog.batches if slot < plan.trim_slot and end_of(entry) > end]
        if lost and backlog.fate is not Fate.DROP:
            raise AssertionError(
                f"bundle {plan.bundle} plan {plan.number} would trim slot {lost[0]}, but partition {key} still needs it"
            )
    if not history.checkpoint.trim_slot <= plan.trim_slot <= plan.last_slot + 1:
        raise AssertionError(f"bundle {plan.bundle} plan {plan.number}: trim slot {plan.trim_slot} is out of bounds")
