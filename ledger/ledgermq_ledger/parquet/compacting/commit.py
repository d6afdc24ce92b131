"""Commit a round: the one checkpoint move that finishes plan k, and the only one that moves the
trim slot. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import Move, partitions_by_key, replace_partitions
from ledgermq_ledger.parquet.files.stored_file import StoredFile
from ledgermq_ledger.parquet.hand_over import freeze, take_over


def commit_move(
    plan: fmt.CompactionPlan, stored: Sequence[StoredFile], *, fence_lost: bool = False, snapshot_bytes: int = 0
) -> Move:
    """Return the move that finishes a plan; it declines if the plan is not the next one to finish.

    `stored`: every file of the plan as it is in the store. `fence_lost`: no process can put another
    file of the plan. Files that are not in `stored` are then left to later plans; those of removed
    topics are dropped, so they hold no segment.
    """
    by_key = {file.key: file for file in stored}
    missing = [file.key for file in plan.files if file.key and file.key not in by_key]
    if missing and not fence_lost:  # safety invariants 1 and 9: nothing is trimmed that is not in Parquet
        raise AssertionError(f"bundle {plan.bundle} plan {plan.number} cannot be committed without {missing[0]}")

    def move(draft: fmt.Checkpoint) -> bool:
        if draft.finished_plan != plan.number - 1:
            return False
        if draft.state.slot < plan.last_slot:
            raise AssertionError(
                f"bundle {plan.bundle}: it ends at slot {draft.state.slot}, but plan {plan.number} at {plan.last_slot}"
            )
        parts = partitions_by_key(draft)
        trim_slot = plan.trim_slot
        removed = {note.topic_id for note in draft.removed_topics}
        for file in plan.files:
            counters = _counters(parts, file.topic_id, file.partition)
            outcome = by_key.get(file.key)
            if file.key and outcome is None and file.topic_id in removed:
                continue
            if file.key and outcome is None:
                trim_slot = min(trim_slot, file.slots[0])
            elif outcome is not None and outcome.note.failed:
                _park(counters, plan, file, outcome)
                trim_slot = min(trim_slot, file.slots[0])
            else:
                _finish(counters, plan, file, outcome)
        for part in plan.internal:
            counters = _counters(parts, part.topic_id, part.partition)
            counters.parquet_end = max(counters.parquet_end, part.end)
        _hand_over(draft, plan, parts)
        draft.finished_plan = plan.number
        draft.planned_slot = plan.last_slot
        draft.trim_slot = max(draft.trim_slot, trim_slot)
        if plan.internal:
            draft.snapshot_plan = plan.number
            draft.snapshot_bytes = snapshot_bytes
        replace_partitions(draft, parts.values())
        return True

    return move


def _counters(
    parts: dict[PartitionId, fmt.PartitionCheckpoint], topic_id: int, partition: int
) -> fmt.PartitionCheckpoint:
    """Return the partition's counters as a copy, kept in `parts`."""
    known = parts.get(PartitionId(topic_id, partition))
    counters = fmt.PartitionCheckpoint(topic_id=topic_id, partition=partition)
    if known is not None:
        counters.CopyFrom(known)
    parts[PartitionId(topic_id, partition)] = counters
    return counters


def _hand_over(
    draft: fmt.Checkpoint, plan: fmt.CompactionPlan, parts: dict[PartitionId, fmt.PartitionCheckpoint]
) -> None:
    for planned in plan.freezes:
        freeze(draft, _counters(parts, planned.topic_id, planned.partition), planned)
    for takeover in plan.takeovers:
        came = take_over(draft, takeover, plan.number)
        parts[PartitionId(came.topic_id, came.partition)] = came


def _finish(
    counters: fmt.PartitionCheckpoint, plan: fmt.CompactionPlan, file: fmt.PlannedFile, outcome: StoredFile | None
) -> None:
    is_first = counters.parquet_start >= counters.parquet_end
    if file.first_offset != counters.parquet_end and not (is_first and file.first_offset <= counters.log_start):
        raise AssertionError(f"{file.key} does not follow the end of Parquet at {counters.parquet_end}")
    if file.key:
        counters.newest_page = plan.number
        if is_first:
            counters.parquet_start = file.first_offset
    elif counters.log_start <= file.last_offset or not is_first:
        raise AssertionError(
            f"plan {plan.number} drops offsets up to {file.last_offset}, but the log starts at {counters.log_start}"
        )
    counters.parquet_end = file.last_offset + 1
    if outcome is not None:
        counters.appended_us = max(counters.appended_us, outcome.appended_max_us)
    if not file.key:
        counters.parquet_start = counters.parquet_end


def _park(
    counters: fmt.PartitionCheckpoint, plan: fmt.CompactionPlan, file: fmt.PlannedFile, outcome: StoredFile
) -> None:
    counters.parked.CopyFrom(
        fmt.Parked(
            plan=plan.number,
            first_slot=file.slots[0],
            object_key=outcome.note.damaged_object,
            reason=outcome.note.failed,
        )
    )
