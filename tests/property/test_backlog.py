"""Backlogs of any pieces: sizes add up, and what is left after an eviction is within its bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq_ledger.view.backlog import Backlog, Piece
from ledgermq_ledger.view.partition_index import IndexedBatch, PartitionIndex

SPANS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000), st.integers(0, 1000)), max_size=12)


@st.composite
def backlogs(draw: st.DrawFn) -> Backlog:
    """Files, then batches, whose times ascend; it begins somewhere in the first of them."""
    at, time_us, older, index = draw(st.integers(0, 100)), 0, [], PartitionIndex()
    for count, size, lasts_us in draw(SPANS):
        older.append(Piece(at, at + count, size, time_us, time_us + lasts_us))
        at, time_us = at + count, time_us + lasts_us
    for slot, (count, size, lasts_us) in enumerate(draw(SPANS)):
        index.append(IndexedBatch(at, count, slot, 0, size, 0, time_us, time_us + lasts_us))
        at, time_us = at + count, time_us + lasts_us
    begin, end = (
        (older[0].first, older[0].end) if older else (index.begin, index[0].end) if len(index) else (at, at + 1)
    )
    offset = draw(st.integers(begin, end - 1))
    if older:
        older[0] = older[0].between(offset, at)
    return Backlog(offset, at, older, index)


def after(backlog: Backlog, offset: int) -> Backlog:
    older = [piece.between(offset, backlog.end) for piece in backlog.older if piece.end > offset]
    batches = backlog.batches
    if len(batches):
        batches = batches.between(max(offset, batches.begin), backlog.end)
    return Backlog(offset, backlog.end, older, batches)


@given(backlogs(), st.integers(0, 60_000), st.integers(0, 12_000))
def test_what_is_left_is_within_the_bounds(backlog: Backlog, bytes_max: int, since_us: int) -> None:
    by_size = backlog.first_within(bytes_max, None)
    by_age = backlog.first_within(None, since_us)
    assert backlog.first_within(bytes_max, since_us) == max(by_size, by_age)
    assert backlog.offset <= by_size <= backlog.end
    assert by_size == backlog.end or after(backlog, by_size).size_bytes <= bytes_max
    oldest_us = after(backlog, by_age).oldest_us if by_age < backlog.end else None
    assert oldest_us is None or oldest_us >= since_us - 1000, "a record's time is a guess within its piece"
    assert backlog.first_within(None, None) == backlog.offset
    if backlog.size_bytes <= bytes_max:
        assert by_size == backlog.offset, "no more goes than has to"


@given(backlogs(), st.integers(0, 600))
def test_sizes_grow_backwards(backlog: Backlog, skipped: int) -> None:
    offset = min(backlog.end, backlog.offset + skipped)
    assert after(backlog, offset).size_bytes <= backlog.size_bytes
    assert Backlog(backlog.end, backlog.end, (), PartitionIndex()).size_bytes == 0
