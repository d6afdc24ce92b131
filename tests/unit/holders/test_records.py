"""The records of `__holders`: golden values that stay readable forever, a round trip, and what is damaged or newer.

A golden file is never written again: `python -m tests.unit.holders.test_records` creates only those that
are missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.protocol.limits import PRODUCER_NAME_CHARS_MAX
from ledgermq.protocol.naming.exclusive_ids import exclusive_id
from ledgermq_broker.exclusive.state.format import ledgermq_holders_pb2 as fmt
from ledgermq_broker.exclusive.state.limits import NUMBER_MAX
from ledgermq_broker.exclusive.state.records import Entry, Holder, decode, encode
from ledgermq_ledger.keys import PartitionId

GOLDEN = Path(__file__).parents[2] / "golden"
KEY = PartitionId(7, 3)
ID = exclusive_id(bytes(range(16)))

ENTRIES: list[tuple[str, bytes, Entry]] = [
    ("holders-holder-v1.bin", b"h/7/3", Entry(KEY, Holder(ID, "writer-1", 12))),
    ("holders-free-v1.bin", b"h/7/3", Entry(KEY, Holder(b"", "", 13))),
]


@pytest.mark.parametrize(("name", "key", "entry"), ENTRIES)
def test_golden_values_are_readable_for_ever(name: str, key: bytes, entry: Entry) -> None:
    data = (GOLDEN / name).read_bytes()
    assert decode(key, data) == entry
    assert encode(entry) == encode(decode(key, data))
    assert encode(entry).key == key


ids = st.one_of(st.just(b""), st.binary(min_size=16, max_size=16).map(exclusive_id))
held = st.builds(Holder, ids, st.text(max_size=PRODUCER_NAME_CHARS_MAX), st.integers(1, NUMBER_MAX))
places = st.builds(PartitionId, st.integers(0, 2**63), st.integers(0, 9999))


@given(st.builds(Entry, places, st.one_of(st.none(), held)))
def test_round_trip(entry: Entry) -> None:
    record = encode(entry)
    assert decode(record.key, record.value) == entry


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"h/7/3", b""),
        (b"h/7/3", b"\xff\xff"),
        (b"h/7/3", fmt.Holder(version=1, number=0).SerializeToString()),
        (b"h/7/3", fmt.Holder(version=1, number=NUMBER_MAX + 1).SerializeToString()),
        (b"h/7/3", fmt.Holder(version=1, number=1, producer_id=b"s" * 16).SerializeToString()),
        (b"h/7/3", fmt.Holder(version=1, number=1, name="x" * (PRODUCER_NAME_CHARS_MAX + 1)).SerializeToString()),
    ],
)
def test_a_damaged_record_is_named(key: bytes, value: bytes) -> None:
    with pytest.raises(DataDamaged, match="record b'h/7/3' of __holders"):
        decode(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"h/7/3", fmt.Holder(version=2, number=1).SerializeToString()),
        (b"h/7/3/1", b""),
        (b"h/07/3", b""),
        (b"x/7/3", b""),
        (b"", None),
    ],
)
def test_a_record_of_a_later_version_is_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(FormatNotSupported, match="upgrade this program"):
        decode(key, value)


if __name__ == "__main__":
    for name, _, entry in ENTRIES:
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(encode(entry).value or b"")
