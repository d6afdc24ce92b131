"""Versions of keyed partitions as bytes: a golden file that stays readable forever, round trips,
and damage that is found.

`python -m tests.unit.keyed.test_version_format` writes the golden file if it is missing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq_ledger import keys
from ledgermq_ledger.keyed.note import KeyedNote
from ledgermq_ledger.keyed.version import (
    EARLIER_MAX,
    KeyedFile,
    KeyedVersion,
    Published,
    aged_end,
    decode_version,
    earlier_of,
    encode_version,
)
from ledgermq_ledger.keys import KeyedName, PartitionId, parse_keyed

GOLDEN = Path(__file__).parents[2] / "golden" / "keyed-version-v1.json"
PLACE = PartitionId(7, 1)


def version() -> KeyedVersion:
    files = (
        KeyedFile(keys.keyed_file(PLACE, 0, 99, 3, b"a" * 16), 0, 99, 12, 1, 4321, 1_000_000, 2_000_000),
        KeyedFile(keys.keyed_file(PLACE, 100, 149, 4, b"b" * 16), 100, 149, 50, 0, 9876, 0, 0),
    )
    return KeyedVersion(
        PLACE, "prices", "ab" * 16, 4, b"b" * 16, 150, files, ((80, 1_700_000_000_000), (100, 1_700_000_001_000)), 80
    )


def test_the_golden_file_is_readable_for_ever() -> None:
    assert decode_version(GOLDEN.read_bytes(), keys.keyed_version(PLACE, 4), PLACE) == version()


def test_a_version_is_plain_json() -> None:
    found = json.loads(encode_version(version()))
    assert (found["topic"], found["topic_id"], found["partition"], found["end"]) == ("prices", 7, 1, 150)
    assert [file["key"] for file in found["files"]] == [file.key for file in version().files]


_numbers = st.integers(0, 2**62)


@given(
    counts=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), max_size=5),
    earlier=st.lists(st.tuples(_numbers, _numbers), max_size=5),
    expired_ms=_numbers,
    topic=st.text(max_size=20),
)
def test_round_trip(counts: list[tuple[int, int]], earlier: list[tuple[int, int]], expired_ms: int, topic: str) -> None:
    files, at = [], 0
    for gap, length in counts:
        files.append(
            KeyedFile(
                keys.keyed_file(PLACE, at + gap, at + gap + length, 9, b"x" * 16),
                at + gap,
                at + gap + length,
                1,
                0,
                10,
                5,
                6,
            )
        )
        at += gap + length + 1
    changed = {
        "topic": topic,
        "number": 9,
        "end": at + 1,
        "files": tuple(files),
        "earlier": tuple(earlier),
        "expired_ms": expired_ms,
    }
    whole = replace(version(), **changed)
    assert decode_version(encode_version(whole), keys.keyed_version(PLACE, 9), PLACE) == whole


@given(at=st.integers(min_value=0), value=st.integers(min_value=1, max_value=255))
def test_any_flipped_byte_is_found(at: int, value: int) -> None:
    data = bytearray(encode_version(version()))
    data[at % len(data)] ^= value
    with pytest.raises((DataDamaged, FormatNotSupported)) as caught:
        decode_version(bytes(data), keys.keyed_version(PLACE, 4), PLACE)
    assert caught.value.object_key == keys.keyed_version(PLACE, 4)


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises((DataDamaged, FormatNotSupported)):
        decode_version(data, keys.keyed_version(PLACE, 4), PLACE)


@pytest.mark.parametrize(
    "changed",
    [
        {"number": "4"},
        {"end": 150.5},
        {"tombstones_to": True},
        {"expired_ms": None},
        {"topic": 7},
        {"end": 2**63},
        {"earlier": [[1, None]]},
    ],
)
def test_values_of_other_kinds_are_refused_though_the_checksum_fits(changed: dict[str, object]) -> None:
    found = json.loads(encode_version(version())) | {"checksum": "00000000"} | changed
    blank = json.dumps(found, sort_keys=True).encode() + b"\n"
    with pytest.raises(DataDamaged, match="not a valid version of a keyed partition"):
        decode_version(blank.replace(b'"00000000"', b'"%08x"' % crc32c(blank)), keys.keyed_version(PLACE, 4), PLACE)


@pytest.mark.parametrize("number", [3, 5])
def test_a_version_under_another_key_is_refused(number: int) -> None:
    with pytest.raises(DataDamaged, match="it says that it is"):
        decode_version(encode_version(version()), keys.keyed_version(PLACE, number), PLACE)


def test_files_that_overlap_or_reach_beyond_the_end_are_never_written() -> None:
    first, second = version().files
    for wrong in ((second, first), (first, replace(second, first=99)), (first, replace(second, last=150))):
        with pytest.raises(ValueError, match=r"files|overlaps"):
            encode_version(replace(version(), files=wrong))


def test_names() -> None:
    assert parse_keyed(keys.keyed_version(PLACE, 4)) == KeyedName(PLACE, 4, False)
    assert parse_keyed(version().files[0].key) == KeyedName(PLACE, 3, True)
    for wrong in (
        "keyed/x",
        "keyed/_7/partition=1/versions/4",
        "keyed/_7/partition=1/files/4.parquet",
        f"parquet/{keys.keyed_version(PLACE, 4)}",
    ):
        assert parse_keyed(wrong) is None


def test_notes_round_trip_and_others_are_none() -> None:
    note = KeyedNote("c", 7, 1, 0, 99, 3, "aa" * 16, 12, 1, 5, 6)
    assert KeyedNote.decode(note.encode()) == note
    for other in (
        None,
        {},
        {b"ledgermq": b"{"},
        {b"ledgermq": b'{"format": 1}'},
        {b"ledgermq": b'{"format": 2, "kind": "keyed"}'},
    ):
        assert KeyedNote.decode(other) is None


def test_versions_remember_how_old_those_before_them_are() -> None:
    base = replace(version(), end=300, earlier=((100, 1_000), (200, 5_000)))
    found = earlier_of(Published(base, 9_000), keep_ms=4_000, now_ms=10_000)
    assert found == ((200, 5_000), (300, 9_000))
    assert aged_end(found, 4_000, 10_000) == 200
    assert aged_end(found, 4_000, 8_999) == 0
    assert earlier_of(None, 0, 0) == ()


@settings(max_examples=10)
@given(st.integers(1, 500))
def test_what_versions_remember_is_bounded_and_tombstones_get_old_all_the_same(rounds: int) -> None:
    """A version a second; tombstones stay a hundred seconds."""
    published = None
    for n in range(1, rounds + 1):
        earlier = earlier_of(published, keep_ms=100_000, now_ms=n * 1000)
        assert len(earlier) <= EARLIER_MAX + 1
        end = aged_end(earlier, 100_000, n * 1000)
        assert end <= max(0, n - 100) * 10
        assert n < 220 or end >= (n - 220) * 10, "what was forgotten only makes tombstones stay longer, not for ever"
        published = Published(replace(version(), files=(), end=n * 10, earlier=earlier), n * 1000)


if __name__ == "__main__" and not GOLDEN.exists():
    GOLDEN.write_bytes(encode_version(version()))
