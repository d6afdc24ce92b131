"""The records of `__consumer_offsets`: golden values that stay readable forever, a round trip, and
what is damaged or newer.

A golden file is never written again: `python -m tests.unit.offsets.test_records` creates only those
that are missing.
"""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq_offsets.format import ledgermq_offsets_pb2 as fmt
from ledgermq_offsets.state.records import (
    Entry,
    FloorEntry,
    GroupEntry,
    GroupValue,
    Held,
    MemberEntry,
    MemberValue,
    OffsetEntry,
    OffsetValue,
    PendingEntry,
    PendingKey,
    PendingOffset,
    PendingValue,
    Subscription,
    decode,
    encode,
)

GOLDEN = Path(__file__).parents[2] / "golden"

ENTRIES: list[tuple[str, bytes, Entry]] = [
    ("offsets-floor-v1.bin", b"floor", FloorEntry(41)),
    ("offsets-group-v1.bin", b"group/g", GroupEntry("g", GroupValue(41, 7, 1_700_000_000_000, "sticky"))),
    (
        "offsets-member-v1.bin",
        b"member/g/m-1",
        MemberEntry(
            "g",
            "m-1",
            MemberValue(
                Subscription(("t", "u"), "", "range", "static-1", "zone-a", "client", 10_000, 60_000),
                away=True,
                held={(7, 0): Held(12, False), (7, 3): Held(40, True), (9, 1): Held(41, False)},
                names={7: "t", 9: "u"},
            ),
        ),
    ),
    (
        "offsets-offset-v1.bin",
        b"offset/g/7/3",
        OffsetEntry("g", (7, 3), OffsetValue(900, "where I was", 1_700_000_000_001, 40, 5, "t")),
    ),
    (
        "offsets-forgotten-v1.bin",
        b"offset/g/7/4",
        OffsetEntry("g", (7, 4), OffsetValue(None, "", 1_700_000_000_002, 41, 0, "t")),
    ),
    (
        "offsets-pending-v1.bin",
        b"pending/g/000102030405060708090a0b0c0d0e0f/3/12",
        PendingEntry(
            "g",
            PendingKey(bytes(range(16)), 3, 12),
            PendingValue(
                "billing-1",
                4,
                1_700_000_000_003,
                {(7, 0): PendingOffset(900, "where I am", 40, 5, "t"), (9, 1): PendingOffset(0, "", 41, 1, "u")},
            ),
        ),
    ),
]


@pytest.mark.parametrize(("name", "key", "entry"), ENTRIES)
def test_golden_values_are_readable_for_ever(name: str, key: bytes, entry: Entry) -> None:
    data = (GOLDEN / name).read_bytes()
    assert decode(key, data) == entry
    assert encode(entry) == encode(decode(key, data))
    assert encode(entry).key == key


names = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=249)
u64, u32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
subscriptions = st.builds(
    Subscription,
    topics=st.lists(names, max_size=3).map(tuple),
    topic_pattern=text,
    assignor=names,
    instance_id=text,
    rack=text,
    client_id=text,
    session_timeout_ms=u32,
    rebalance_timeout_ms=u32,
    filter=text,
)


#: the epoch of a withdrawal is kept for what is withdrawn, and for nothing else
helds = st.builds(Held, epoch=u64, withdrawn=st.just(False), withdrawn_in=st.just(0)) | st.builds(
    Held, epoch=u64, withdrawn=st.just(True), withdrawn_in=u64
)


@st.composite
def members(draw: st.DrawFn) -> MemberValue:
    held = draw(st.dictionaries(st.tuples(u64, u32), helds, max_size=6))
    return MemberValue(
        draw(subscriptions),
        draw(st.booleans()),
        held,
        {topic_id: draw(text) for topic_id in sorted({t for t, _ in held})},
    )


entries = st.one_of(
    st.builds(FloorEntry, u64),
    st.builds(GroupEntry, names, st.none() | st.builds(GroupValue, u64, u64, st.integers(0, 2**62), text)),
    st.builds(MemberEntry, names, names, st.none() | members()),
    st.builds(
        OffsetEntry,
        names,
        st.tuples(u64, u32),
        st.none() | st.builds(OffsetValue, st.none() | u64, text, st.integers(0, 2**62), u64, u64, text),
    ),
    st.builds(
        PendingEntry,
        names,
        st.builds(PendingKey, st.binary(min_size=16, max_size=16), u32, u64),
        st.none()
        | st.builds(
            PendingValue,
            text,
            u32,
            st.integers(0, 2**62),
            st.dictionaries(st.tuples(u64, u32), st.builds(PendingOffset, u64, text, u64, u64, text), max_size=4),
        ),
    ),
)


@given(entries)
def test_encoded_records_come_back(entry: Entry) -> None:
    record = encode(entry)
    assert decode(record.key, record.value) == entry


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(key: bytes, value: bytes | None) -> None:
    for prefix in (b"", b"group/g", b"member/g/m", b"offset/g/1/", b"floor", b"pending/g/" + b"0a" * 16 + b"/1/"):
        try:
            entry = decode(prefix + key, value)
        except (DataDamaged, FormatNotSupported):
            continue
        assert decode(*_pair(entry)) == entry


def _pair(entry: Entry) -> tuple[bytes, bytes | None]:
    record = encode(entry)
    return record.key, record.value


@pytest.mark.parametrize(
    "key",
    [
        b"group/",
        b"group/a/b",
        b"member/g",
        b"offset/g/01/2",
        b"offset/g/1",
        b"pending/g/" + b"0A" * 16 + b"/1/1",
        b"pending/g/" + b"0a" * 15 + b"/1/1",
        b"pending/g/" + b"0a" * 16 + b"/1",
        b"transaction/x",
        b"floor/",
        b"",
    ],
)
def test_keys_of_a_later_version_are_not_left_out(key: bytes) -> None:
    with pytest.raises(FormatNotSupported, match="a later version wrote it"):
        decode(key, b"")


@pytest.mark.parametrize(
    "key", [b"floor", b"group/g", b"member/g/m", b"offset/g/1/2", b"pending/g/" + b"0a" * 16 + b"/1/1"]
)
def test_values_of_another_version_are_refused(key: bytes) -> None:
    with pytest.raises(FormatNotSupported, match="version 2"):
        decode(key, fmt.Floor(version=2).SerializeToString())
    with pytest.raises(DataDamaged, match="no format version"):
        decode(key, b"")


def test_a_member_whose_lists_do_not_fit_is_damaged() -> None:
    member = fmt.Member(version=1)
    member.held.add(topic_id=7, topic="t", partitions=[1, 2], epochs=[3])
    with pytest.raises(DataDamaged, match="member/g/m"):
        decode(b"member/g/m", member.SerializeToString())


if __name__ == "__main__":
    for name, _, entry in ENTRIES:
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(encode(entry).value or b"")
