"""The records of `__shares`: golden values that stay readable forever, a round trip, and what is damaged or newer.

A golden file is never written again: `python -m tests.unit.shares.test_records` creates only those that
are missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq_broker.queues.state.format import ledgermq_shares_pb2 as fmt
from ledgermq_broker.queues.state.limits import CHUNK
from ledgermq_broker.queues.state.records import CHUNK_END, ChunkEntry, Entry, ShareKey, StartEntry, decode, encode

GOLDEN = Path(__file__).parents[2] / "golden"
KEY = ShareKey("workers", 7, 3)

ENTRIES: list[tuple[str, bytes, Entry]] = [
    ("shares-start-v1.bin", b"s/workers/7/3", StartEntry(KEY, 1_000_000)),
    ("shares-chunk-v1.bin", b"w/workers/7/3/3906", ChunkEntry(KEY, 3906, bytes([5, 0, 6, 20, 255]))),
]


@pytest.mark.parametrize(("name", "key", "entry"), ENTRIES)
def test_golden_values_are_readable_for_ever(name: str, key: bytes, entry: Entry) -> None:
    data = (GOLDEN / name).read_bytes()
    assert decode(key, data) == entry
    assert encode(entry) == encode(decode(key, data))
    assert encode(entry).key == key


keys = st.builds(
    ShareKey, st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**63), st.integers(0, 9999)
)
messages = st.binary(min_size=1, max_size=CHUNK).filter(lambda data: data[-1] != 0)
entries = st.one_of(
    st.builds(StartEntry, keys, st.one_of(st.none(), st.integers(0, 2**63 - 1))),
    st.builds(ChunkEntry, keys, st.integers(0, CHUNK_END - 1), st.one_of(st.none(), messages)),
)


@given(entries)
def test_round_trip(entry: Entry) -> None:
    record = encode(entry)
    assert decode(record.key, record.value) == entry


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"s/workers/7/3", b""),
        (b"s/workers/7/3", b"\xff\xff"),
        (b"s/workers/7/3", fmt.Start(version=1, offset=2**63).SerializeToString()),
        (b"w/workers/7/3/0", fmt.Chunk(version=1).SerializeToString()),
        (b"w/workers/7/3/0", fmt.Chunk(version=1, messages=b"\1\0").SerializeToString()),
        (b"w/workers/7/3/0", fmt.Chunk(version=1, messages=b"\1" * 257).SerializeToString()),
    ],
)
def test_damage_names_the_record(key: bytes, value: bytes) -> None:
    with pytest.raises(DataDamaged, match="__shares"):
        decode(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"s/workers/7/3", fmt.Start(version=2).SerializeToString()),
        (b"w/workers/7/3/1", fmt.Chunk(version=9, messages=b"\1").SerializeToString()),
        (b"w/workers/7/3", None),
        (b"s/a group/7/3", None),
        (b"s/workers/07/3", None),
        (b"x/workers/7/3", b""),
        (b"w/workers/7/3/" + str(CHUNK_END).encode(), None),
    ],
)
def test_what_a_later_version_wrote_is_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(FormatNotSupported, match="upgrade"):
        decode(key, value)


if __name__ == "__main__":
    for name, _, entry in ENTRIES:
        path = GOLDEN / name
        if not path.exists():
            value = encode(entry).value
            assert value is not None
            path.write_bytes(value)
