"""Records that only transactions of Kafka clients have: stored bytes, and bytes that are no such record."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.protocol.naming.producer_ids import producer_bytes
from ledgermq_broker.transactions.state.added.records import (
    Entry,
    LastEntry,
    LastValue,
    OpenEntry,
    OpenValue,
    decode,
    encode,
)
from ledgermq_broker.transactions.state.coordinating.ids import Ids
from ledgermq_broker.transactions.state.participating.staged import BundleState
from ledgermq_broker.transactions.state.types import Transaction
from ledgermq_ledger.keys import PartitionId

PLACES = [PartitionId(7, 0), PartitionId(7, 1)]
KAFKA = Transaction("t", 5, producer_bytes(7), 1, 1)

names = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=249)
u64, u32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
places = st.builds(PartitionId, u64, u32)
producers = st.binary(min_size=16, max_size=16)
opened = st.builds(OpenValue, u32, u64, st.frozensets(places), st.frozensets(names), st.frozensets(u32))
transactions = st.builds(Transaction, names, u32, producers, u32, u64)
entries = st.one_of(
    st.builds(OpenEntry, names, st.none() | opened),
    st.builds(LastEntry, producers, st.none()),
    st.builds(LastValue, transactions, st.dictionaries(places, u64, max_size=4)).map(
        lambda last: LastEntry(last.transaction.producer_id, last)
    ),
)


@given(entries)
def test_encoded_records_come_back(entry: Entry) -> None:
    record = encode(entry)
    value = None if record.value is None else bytes(record.value)
    assert decode(record.key, value) == entry


@pytest.mark.parametrize("key", [b"open/", b"open/a/b", b"last/00", b"last/" + b"A" * 32, b"", b"id/x"])
def test_keys_of_a_later_version_are_not_left_out(key: bytes) -> None:
    with pytest.raises(FormatNotSupported, match="a later version wrote it"):
        decode(key, b"")


def test_stored_bytes_stay_as_they_are() -> None:
    """They are read by each later release."""
    one = encode(OpenEntry("x", OpenValue(2, 3, frozenset(PLACES), frozenset({"g"}), frozenset({4, 1}))))
    assert (one.key, one.value) == (
        b"open/x",
        bytes.fromhex("080110021803220208072204080710012a016732020104"),
    )
    two = encode(LastEntry(KAFKA.producer_id, LastValue(KAFKA, {PLACES[0]: 10})))
    assert (two.key, two.value) == (
        b"last/6b61666b610000000000000000000007",
        bytes.fromhex("0801121b0a017410051a106b61666b610000000000000000000007200128011a040807180a"),
    )
    with pytest.raises(DataDamaged):
        decode(b"last/" + b"0" * 32, bytes(two.value or b""))


def test_a_check_of_a_root_passes_over_them() -> None:
    """It looks at decisions and staged batches, about which they say nothing."""
    ids, state = Ids(), BundleState()
    for record in (
        encode(OpenEntry("x", OpenValue(1, 1, frozenset(PLACES)))),
        encode(LastEntry(KAFKA.producer_id, LastValue(KAFKA, {PLACES[0]: 10}))),
    ):
        for value in (bytes(record.value or b""), None):
            ids.apply(record.key, value)
            state.apply(record.key, value)
    assert (ids.known, state.notes, list(state.all())) == ({}, {}, [])
