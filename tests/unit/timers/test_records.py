"""The records of `__timers` and the header of a block: golden values that stay readable forever, a round
trip, and what is damaged or newer.

A golden file is never written again: `python -m tests.unit.timers.test_records` creates only those that
are missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq_broker.timed.state.blocks import Id, Key, end_of
from ledgermq_broker.timed.state.format import ledgermq_timers_pb2 as fmt
from ledgermq_broker.timed.state.places import NEAR_PLACES, PLACES, WIDTHS_US, Range, RangeId
from ledgermq_broker.timed.state.records import (
    Entry,
    Flushed,
    FlushedEntry,
    Piece,
    RangeEntry,
    RecallEntry,
    WatermarkEntry,
    decode,
    encode,
)

GOLDEN = Path(__file__).parents[2] / "golden"
MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US

ENTRIES: list[tuple[str, bytes, Entry]] = [
    ("timers-watermark-v1.bin", b"watermark", WatermarkEntry(Key(1_700_000_000_000_000, 41, 7))),
    (
        "timers-flushed-v1.bin",
        b"flushed",
        FlushedEntry(Flushed(12, (Piece(40, 28_333_333 * MINUTE_US), Piece(41, 28_333_334 * MINUTE_US)))),
    ),
    (
        "timers-range-v1.bin",
        b"range/1/3",
        RangeEntry(RangeId(True, 3), Range(236_110 * 2 * HOUR_US, 236_111 * 2 * HOUR_US, 9, True, 1000, 123_456)),
    ),
    (
        "timers-range-of-principals-v1.bin",
        b"range/0/3",
        RangeEntry(
            RangeId(False, 3),
            Range(28_333_333 * MINUTE_US, 28_333_334 * MINUTE_US, 9, False, 10, 1000, {5: 10}, {7: 600, 2**63: 300}),
        ),
    ),
    ("timers-recall-v1.bin", b"recall/41/7", RecallEntry(Id(41, 7), 1_700_000_000_000_001)),
    ("timers-recall-of-topics-v1.bin", b"recall/41/7", RecallEntry(Id(41, 7), 1_700_000_000_000_001, (5, 600))),
]


@pytest.mark.parametrize(("name", "key", "entry"), ENTRIES)
def test_golden_values_are_readable_for_ever(name: str, key: bytes, entry: Entry) -> None:
    data = (GOLDEN / name).read_bytes()
    assert decode(key, data) == entry
    assert encode(entry) == encode(decode(key, data))
    assert encode(entry).key == key


dues = st.integers(-(2**62), 2**62)
topics = st.dictionaries(st.integers(0, 2**63), st.integers(1, 2**63), max_size=3)
offsets, rows = st.integers(0, 2**63 - 2), st.integers(0, 2**32 - 2)
keys = st.builds(Key, dues, offsets, rows) | st.builds(end_of, dues)
u64 = st.integers(0, 2**64 - 1)


@st.composite
def flushed(draw: st.DrawFn) -> Flushed:
    begin, *ends = sorted(draw(st.lists(offsets, min_size=1, max_size=5, unique=True)))
    return Flushed(begin, tuple(Piece(end, draw(dues)) for end in ends))


@st.composite
def ranges(draw: st.DrawFn) -> RangeEntry:
    far = draw(st.booleans())
    range_id = RangeId(far, draw(st.sampled_from(PLACES[far])))
    width_us = draw(st.sampled_from(WIDTHS_US[:-1] if far else WIDTHS_US[-1:]))
    from_us = draw(st.integers(0, 2**61 // width_us)) * width_us
    value = Range(
        from_us,
        from_us + width_us,
        draw(offsets),
        draw(st.booleans()),
        draw(u64),
        draw(u64),
        draw(topics),
        draw(topics),
    )
    return RangeEntry(range_id, draw(st.sampled_from([None, value])))


entries = st.one_of(
    st.builds(WatermarkEntry, st.none() | keys),
    st.builds(FlushedEntry, st.none() | flushed()),
    ranges(),
    st.builds(RecallEntry, st.builds(Id, offsets, rows), st.none()),
    st.builds(
        RecallEntry, st.builds(Id, offsets, rows), dues, st.sets(u64, max_size=5).map(lambda ids: tuple(sorted(ids)))
    ),
)


@given(entries)
def test_encoded_records_come_back(entry: Entry) -> None:
    record = encode(entry)
    assert decode(record.key, record.value) == entry


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(key: bytes, value: bytes | None) -> None:
    for prefix in (b"watermark", b"flushed", b"range/1/3", b"range/0/", b"recall/1/2", b""):
        for name in (prefix, prefix + key):
            try:
                entry = decode(name, value)
            except (DataDamaged, FormatNotSupported):
                continue
            record = encode(entry)
            assert decode(record.key, record.value) == entry


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"watermarks",
        b"range/2/1",
        b"range/0/0",
        b"range/0/17",
        b"range/1/128",
        b"range/1/01",
        b"recall/1",
        b"recall/01/1",
        b"recall/9223372036854775807/1",
    ],
)
def test_keys_of_a_later_version_are_not_left_out(key: bytes) -> None:
    with pytest.raises(FormatNotSupported, match="a later version wrote it"):
        decode(key, b"")


@pytest.mark.parametrize("key", [b"watermark", b"flushed", b"range/1/3", b"recall/1/2"])
def test_values_of_another_version_are_refused(key: bytes) -> None:
    with pytest.raises(FormatNotSupported, match="version 2"):
        decode(key, fmt.Watermark(version=2).SerializeToString())
    with pytest.raises(DataDamaged, match="no format version"):
        decode(key, b"")


@pytest.mark.parametrize(
    ("from_us", "to_us", "place"),
    [
        (0, 0, NEAR_PLACES[0]),
        (1, MINUTE_US + 1, NEAR_PLACES[0]),
        (0, 2 * MINUTE_US, NEAR_PLACES[0]),
        (0, 10 * MINUTE_US, NEAR_PLACES[0]),
        (0, 1 << 63 - 1, NEAR_PLACES[0]),
    ],
)
def test_an_interval_that_no_range_has_is_damaged(from_us: int, to_us: int, place: int) -> None:
    with pytest.raises(DataDamaged):
        decode(
            b"range/0/%d" % place,
            fmt.Range(version=1, from_us=from_us, to_us=min(to_us, 2**63 - 1)).SerializeToString(),
        )


def test_principals_without_their_bytes_are_damaged() -> None:
    value = fmt.Range(version=1, from_us=0, to_us=MINUTE_US, principals=[5], principal_bytes=[])
    with pytest.raises(DataDamaged, match="1 principals and 0 sums of bytes"):
        decode(b"range/0/3", value.SerializeToString())


def test_topics_without_their_counts_are_damaged() -> None:
    value = fmt.Range(version=1, from_us=0, to_us=MINUTE_US, topic_ids=[5], topic_records=[])
    with pytest.raises(DataDamaged, match="1 topics and 0 numbers"):
        decode(b"range/0/%d" % NEAR_PLACES[0], value.SerializeToString())


@pytest.mark.parametrize(
    ("ends", "horizons"), [([5, 5], [1, 1]), ([6, 5], [1, 1]), ([2], [1]), ([5], []), ([1 << 63], [1])]
)
def test_pieces_that_do_not_ascend_are_damaged(ends: list[int], horizons: list[int]) -> None:
    with pytest.raises(DataDamaged):
        decode(
            b"flushed",
            fmt.Flushed(version=1, begin_offset=2, end_offsets=ends, horizons_us=horizons).SerializeToString(),
        )


if __name__ == "__main__":
    for name, _, entry in ENTRIES:
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(encode(entry).value or b"")
