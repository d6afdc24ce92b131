"""Check the timed messages of a root: each one that waits is in the ledger, where the state of its
bundle says, and delivery has passed nothing that waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ledgermq_broker.internal.feature import StoredRoot
from ledgermq_broker.timed.stored.view import BundleView, HiddenPartition, read_timers
from ledgermq_ledger import keys
from ledgermq_ledger.fsck.check import Checked
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.timestamps import from_us

AHEAD_US_MAX = 3_600_000_000
"""How far a watermark may be ahead of this machine's clock, which may be wrong, before it is reported."""


async def add_timers(root: StoredRoot, checked: Checked) -> None:
    """Add problems of timed messages to the check of a root. A quick one does not read the blocks."""
    unread, problems = Problems(), Problems()
    blocks = not root.quick
    found, _ = await read_timers(root.store, root.cluster, root.sources, unread.collecting, blocks=blocks)
    check_timers(found, problems, root.sources.now_ms())
    checked.add(problems, unread)


def check_timers(found: Sequence[BundleView], problems: Problems, now_ms: int) -> None:
    for bundle in found:
        _check_watermark(bundle, problems, now_ms)
        _check_flushed(bundle, problems)
        for hidden in bundle.hidden:
            _check_offsets(bundle, hidden, problems)
            _check_blocks(bundle, hidden, problems)


def _check_watermark(bundle: BundleView, problems: Problems, now_ms: int) -> None:
    due_us = bundle.state.watermark.due_us
    if due_us > now_ms * 1000 + AHEAD_US_MAX:
        problems.untidy(
            keys.ledger(bundle.bundle),
            "WATERMARK_AHEAD",
            f"delivery of timed messages has come to {_time(due_us)}, which is more than an hour after the present by"
            " this machine's clock; check that clock, and the store's",
        )
    for range_id, found in bundle.state.ranges.items():
        if range_id.far and found.from_us <= due_us:
            problems.damage(
                keys.ledger(bundle.bundle),
                "TIMED_CONTRADICTED",
                f"delivery has come to {_time(due_us)}, past messages that still wait in"
                f" {keys.DELAYED_FAR_TOPIC} for times from {_time(found.from_us)} on",
            )


def _check_flushed(bundle: BundleView, problems: Problems) -> None:
    """Check the end of the flushed pieces; that they ascend is checked when their record is decoded."""
    if bundle.state.flushed.end_offset > bundle.intake.end:
        problems.damage(
            keys.ledger(bundle.bundle),
            "TIMED_CONTRADICTED",
            f"{keys.TIMERS_TOPIC}/{bundle.partition} says that batches up to {bundle.state.flushed.end_offset} of"
            f" {_name(bundle.intake)} were flushed, but it ends at {bundle.intake.end}",
        )


def _check_offsets(bundle: BundleView, hidden: HiddenPartition, problems: Problems) -> None:
    """Check that all from `begin_offset` on is there."""
    needs = f"timed messages wait in {_name(hidden)} from offset {hidden.begin_offset} on"
    if hidden.begin_offset > hidden.end:
        problems.damage(
            keys.ledger(bundle.bundle), "TIMED_CONTRADICTED", f"{needs}, but the partition ends at {hidden.end}"
        )
    elif hidden.begin_offset < hidden.log_start:
        problems.damage(
            keys.ledger(bundle.bundle),
            "TIMED_MISSING",
            f"{needs}, but offsets below {hidden.log_start} were deleted",
        )
    else:
        far = hidden.range_id is not None and hidden.range_id.far
        missing = _first_missing(
            max(hidden.begin_offset, hidden.parquet_end) if far else hidden.begin_offset, hidden.end, hidden.covered
        )
        if missing is not None:
            problems.damage(
                keys.ledger(bundle.bundle), "TIMED_MISSING", f"{needs}, but no segment has offset {missing}"
            )


def _first_missing(begin: int, end: int, covered: Iterable[tuple[int, int]]) -> int | None:
    """Return the first offset in [begin, end) that no interval of `covered`, ascending, has."""
    for first, stop in covered:
        if first > begin:
            break
        begin = max(begin, stop)
    return begin if begin < end else None


def _check_blocks(bundle: BundleView, hidden: HiddenPartition, problems: Problems) -> None:
    """Check that ranges, and only ranges, hold messages with ids, of their interval of due times."""
    found = None if hidden.range_id is None else bundle.state.ranges[hidden.range_id]
    for block in hidden.blocks:
        what = f"the block at offset {block.offset} of {_name(hidden)}"
        key = keys.segment(bundle.bundle, block.slot)
        if block.has_ids != (found is not None):
            problems.damage(key, "TIMED_CONTRADICTED", f"{what} has {'' if block.has_ids else 'no '}ids of messages")
        if found is not None and not found.from_us <= block.first_due_us <= block.last_due_us < found.to_us:
            problems.damage(
                key,
                "TIMED_CONTRADICTED",
                f"{what} has messages that are due from {_time(block.first_due_us)} to {_time(block.last_due_us)}, but"
                f" its range is from {_time(found.from_us)} to {_time(found.to_us)}",
            )


def _name(hidden: HiddenPartition) -> str:
    return f"{hidden.name}/{hidden.place.partition}"


def _time(due_us: int) -> str:
    return from_us(due_us) or f"{due_us} µs"
