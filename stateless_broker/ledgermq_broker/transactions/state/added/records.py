"""Encode and decode the records of `__transactions` that only transactions of the Kafka protocol have.

    key                                       value
    open/<transactional id>                   Open        what was added to the id's open transaction
    last/<producer id>                        Last        the producer's last transaction that ended in this bundle

Earlier releases refuse a partition with such a record, so none is written while a broker of them is present.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ledgermq.errors import DataDamaged
from ledgermq.protocol.limits import PRODUCER_ID_BYTES
from ledgermq.protocol.naming.names import NAME_PATTERN
from ledgermq_broker.transactions.state.format import ledgermq_transactions_pb2 as fmt
from ledgermq_broker.transactions.state.types import Transaction
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord, RecordCodec

OPEN, LAST = b"open/", b"last/"


@dataclass(frozen=True, slots=True)
class OpenValue:
    """The open transaction of an id. `places`, `groups`: what was added. `bundles`: those that may have staged
    something of it. `renews`: its client speaks the second protocol, so it goes on in a new epoch.
    """

    epoch: int
    number: int
    places: frozenset[PartitionId] = frozenset()
    groups: frozenset[str] = frozenset()
    bundles: frozenset[int] = frozenset()
    renews: bool = False


@dataclass(frozen=True, slots=True)
class LastValue:
    """`next`: the sequences with which the producer goes on in this bundle, in the epoch of `transaction`."""

    transaction: Transaction
    next: Mapping[PartitionId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenEntry:
    transactional_id: str
    value: OpenValue | None


@dataclass(frozen=True, slots=True)
class LastEntry:
    producer_id: bytes
    value: LastValue | None


Entry = OpenEntry | LastEntry
CODEC: RecordCodec[Entry] = RecordCodec(keys.TRANSACTIONS_TOPIC)

_OPEN = re.compile(f"open/({NAME_PATTERN})".encode() + rb"\Z")
_LAST = re.compile(rb"last/([0-9a-f]{32})\Z")


def encode(entry: Entry) -> LogRecord:
    match entry:
        case OpenEntry(transactional_id, opened):
            return CODEC.record(f"open/{transactional_id}", None if opened is None else _open_to(opened))
        case LastEntry(producer_id, last):
            return CODEC.record(f"last/{producer_id.hex()}", None if last is None else _last_to(last))


def decode(key: bytes, value: bytes | None) -> Entry:
    """Decode one record. Raises as `RecordCodec.decode`."""
    return CODEC.decode(key, value, _entry_of)


def _entry_of(key: bytes, value: bytes | None) -> Entry | None:
    if found := _OPEN.match(key):
        return OpenEntry(found[1].decode(), None if value is None else _open_of(value))
    if found := _LAST.match(key):
        producer_id = bytes.fromhex(found[1].decode())
        last = None if value is None else _last_of(value)
        if last is not None and last.transaction.producer_id != producer_id:
            raise DataDamaged(f"its value is about {last.transaction}")
        return LastEntry(producer_id, last)
    return None


def _open_to(opened: OpenValue) -> fmt.Open:
    return fmt.Open(
        version=CODEC.version,
        epoch=opened.epoch,
        number=opened.number,
        places=[fmt.Place(topic_id=place.topic_id, partition=place.partition) for place in sorted(opened.places)],
        groups=sorted(opened.groups),
        bundles=sorted(opened.bundles),
        renews=opened.renews,
    )


def _open_of(data: bytes) -> OpenValue:
    stored = CODEC.value(fmt.Open, data)
    return OpenValue(
        stored.epoch,
        stored.number,
        frozenset(PartitionId(place.topic_id, place.partition) for place in stored.places),
        frozenset(stored.groups),
        frozenset(stored.bundles),
        stored.renews,
    )


def _last_to(last: LastValue) -> fmt.Last:
    one = last.transaction
    return fmt.Last(
        version=CODEC.version,
        transaction=fmt.Transaction(
            transactional_id=one.transactional_id,
            coordinator=one.coordinator,
            producer_id=one.producer_id,
            epoch=one.epoch,
            number=one.number,
        ),
        next=[
            fmt.Next(topic_id=place.topic_id, partition=place.partition, sequence=sequence)
            for place, sequence in sorted(last.next.items())
        ],
    )


def _last_of(data: bytes) -> LastValue:
    stored = CODEC.value(fmt.Last, data)
    one = stored.transaction
    if len(one.producer_id) != PRODUCER_ID_BYTES:
        raise DataDamaged(f"a producer id has {PRODUCER_ID_BYTES} bytes, this one has {len(one.producer_id)}")
    return LastValue(
        Transaction(one.transactional_id, one.coordinator, one.producer_id, one.epoch, one.number),
        {PartitionId(each.topic_id, each.partition): each.sequence for each in stored.next},
    )
