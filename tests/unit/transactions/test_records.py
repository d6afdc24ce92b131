"""The records of `__transactions`: golden values that stay readable forever, a round trip, and what
is damaged or newer.

A golden file is never written again: `python -m tests.unit.transactions.test_records` creates only
those that are missing.
"""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq_broker.transactions.state.format import ledgermq_transactions_pb2 as fmt
from ledgermq_broker.transactions.state.records import (
    Entry,
    Former,
    IdEntry,
    IdValue,
    NoteEntry,
    NoteValue,
    ReferencesEntry,
    ReferencesValue,
    decode,
    encode,
)
from ledgermq_broker.transactions.state.types import Kind, Part, Reference, State, Stream, Transaction

GOLDEN = Path(__file__).parents[2] / "golden"
PRODUCER = bytes(range(16))
HEX = b"000102030405060708090a0b0c0d0e0f"
TRANSACTION = Transaction("orders", 3, PRODUCER, 7, 41)
STREAM, OTHER = Stream(b"", 12, 0), Stream(b"task-1", 12, 3)
PART = Part(4, {STREAM: 2, OTHER: 1}, ("g", "h"))

ENTRIES: list[tuple[str, bytes, Entry]] = [
    (
        "transactions-id-v1.bin",
        b"id/orders",
        IdEntry(
            "orders",
            IdValue(
                PRODUCER,
                7,
                Kind.HALF_MESSAGE,
                60_000,
                1_700_000_000_000,
                number=1,
                state=State.UNRESOLVED,
                complete=False,
                parts=(PART, Part(5, {}, ())),
                missing=(5,),
                check_group="checkers",
                checks=15,
            ),
        ),
    ),
    (
        "transactions-references-v1.bin",
        b"ref/" + HEX + b"/7/41/2",
        ReferencesEntry(
            PRODUCER,
            7,
            41,
            2,
            ReferencesValue(
                TRANSACTION,
                1_700_000_000_001,
                (
                    Reference(STREAM, 0, 900, 10, 4096, 0xDEADBEEF, 1_600_000_000_000_000, 1_600_000_000_000_009),
                    Reference(OTHER, 5, 910, 1, 99, 1, -1, 0),
                ),
            ),
        ),
    ),
    (
        "transactions-note-v1.bin",
        b"done/" + HEX,
        NoteEntry(PRODUCER, NoteValue(TRANSACTION, State.COMMITTED, False, PART, {STREAM: 1})),
    ),
    (
        "transactions-finished-v1.bin",
        b"done/" + HEX,
        NoteEntry(PRODUCER, NoteValue(TRANSACTION, State.ABORTED, True)),
    ),
    (
        "transactions-id-renewed-v1.bin",
        b"id/orders",
        IdEntry(
            "orders",
            IdValue(
                PRODUCER,
                32_767,
                Kind.ORDINARY,
                60_000,
                1_700_000_000_000,
                number=3,
                state=State.COMMITTED,
                complete=False,
                parts=(PART,),
                missing=(4,),
                former=Former(32_766, 1, State.ABORTED, b"content"),
                nonce=b"nonce",
                counted=b"counted",
                principal=2**63 + 1,
                next_producer=PRODUCER[::-1],
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
u64, u32, i64 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1)
producers = st.binary(min_size=16, max_size=16)
streams = st.builds(Stream, st.binary(max_size=32), u64, u32)
counts = st.dictionaries(streams, u64, max_size=4)
parts = st.builds(Part, u32, counts, st.lists(names, max_size=2).map(tuple))
transactions = st.builds(Transaction, names, u32, producers, u32, u64)
references = st.builds(Reference, streams, u64, u64, u32, u32, u32, i64, i64)
states = st.sampled_from(State)
ids = st.builds(
    IdValue,
    producers,
    u32,
    st.sampled_from(Kind),
    u32,
    i64,
    u64,
    states,
    st.booleans(),
    st.lists(parts, max_size=3).map(tuple),
    st.lists(u32, max_size=3).map(tuple),
    names,
    u32,
    st.none() | st.builds(Former, u32, u64, states),
)
unfinished = st.builds(NoteValue, transactions, states, st.just(False), parts, counts)
finished = st.builds(NoteValue, transactions, states, st.just(True), st.none() | parts, counts)


@st.composite
def staged(draw: st.DrawFn) -> ReferencesEntry:
    transaction = draw(transactions)
    found = tuple(draw(st.lists(references, min_size=1, max_size=3)))
    value = draw(st.sampled_from([None, ReferencesValue(transaction, draw(i64), found)]))
    return ReferencesEntry(*transaction[2:], draw(u32), value)


entries = st.one_of(
    st.builds(IdEntry, names, st.none() | ids),
    staged(),
    (unfinished | finished).map(lambda note: NoteEntry(note.transaction.producer_id, note)),
    st.builds(NoteEntry, producers, st.none()),
)


@given(entries)
def test_encoded_records_come_back(entry: Entry) -> None:
    record = encode(entry)
    assert decode(record.key, record.value) == entry


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(key: bytes, value: bytes | None) -> None:
    for prefix in (b"", b"id/x", b"ref/" + HEX + b"/1/1/", b"done/" + HEX):
        try:
            entry = decode(prefix + key, value)
        except (DataDamaged, FormatNotSupported):
            continue
        record = encode(entry)
        assert decode(record.key, record.value) == entry


@pytest.mark.parametrize(
    "key",
    [b"id/", b"id/a/b", b"ref/" + HEX + b"/1/01/0", b"ref/" + HEX + b"/1/1", b"done/00", b"done/" + HEX.upper(), b""],
)
def test_keys_of_a_later_version_are_not_left_out(key: bytes) -> None:
    with pytest.raises(FormatNotSupported, match="a later version wrote it"):
        decode(key, b"")


@pytest.mark.parametrize("key", [b"id/x", b"ref/" + HEX + b"/1/1/0", b"done/" + HEX])
def test_values_of_another_version_are_refused(key: bytes) -> None:
    with pytest.raises(FormatNotSupported, match="version 2"):
        decode(key, fmt.Id(version=2).SerializeToString())
    with pytest.raises(DataDamaged, match="no format version"):
        decode(key, b"")


def test_a_state_of_a_later_version_is_refused() -> None:
    with pytest.raises(FormatNotSupported, match="state 77"):
        decode(b"id/x", fmt.Id(version=1, producer_id=PRODUCER, state=77).SerializeToString())  # type: ignore[arg-type]


def test_a_value_under_the_key_of_another_transaction_is_damaged() -> None:
    value = encode(ENTRIES[1][2]).value
    with pytest.raises(DataDamaged, match="its value is about"):
        decode(b"ref/" + HEX + b"/7/42/2", value)
    with pytest.raises(DataDamaged, match="its value is about"):
        decode(b"done/" + HEX[::-1], encode(ENTRIES[2][2]).value)


def test_a_producer_id_of_another_length_is_damaged() -> None:
    with pytest.raises(DataDamaged, match="16 bytes"):
        decode(b"id/x", fmt.Id(version=1, producer_id=b"short").SerializeToString())


def test_a_note_that_is_unfinished_counts_something() -> None:
    note = fmt.Note(version=1, transaction=fmt.Transaction(producer_id=PRODUCER))
    with pytest.raises(DataDamaged, match="what the decision counts"):
        decode(b"done/" + HEX, note.SerializeToString())


if __name__ == "__main__":
    for name, _, entry in ENTRIES:
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(encode(entry).value or b"")
