"""Encode and decode the records of `__holders`: typed entries, and their bytes.

    key                            value
    h/<topic id>/<partition>       Holder   the producer that has the partition for itself, or that none has

A record without a value deletes its key. Numbers are decimal. Invariants: `decode(encode(entry)) == entry`;
equal entries have equal bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ledgermq.errors import DataDamaged
from ledgermq.protocol.limits import PRODUCER_NAME_CHARS_MAX
from ledgermq.protocol.naming.exclusive_ids import is_exclusive
from ledgermq_broker.exclusive.state.format import ledgermq_holders_pb2 as fmt
from ledgermq_broker.exclusive.state.limits import NUMBER_MAX
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import NUMBER, LogRecord, RecordCodec
from ledgermq_ledger.log.partitions.producers import is_anothers


@dataclass(frozen=True, slots=True)
class Holder:
    """`producer_id`: 16 bytes, of the producer that has the partition for itself; empty: none has. `number`: of
    the change that led to this, counted from 1. `principal`: a hash of the name of the principal that took the
    partition; 0: not known, so every caller that states the id counts as the holder.
    """

    producer_id: bytes
    name: str
    number: int
    principal: int = 0

    def is_of(self, producer_id: bytes, principal: int) -> bool:
        """Return whether a caller is this holder: it states its id, and is no other principal."""
        return self.producer_id == producer_id and not is_anothers(principal, self.principal)


@dataclass(frozen=True, slots=True)
class Entry:
    """`holder` None: the record is deleted, because its topic was removed."""

    key: PartitionId
    holder: Holder | None


CODEC: RecordCodec[Entry] = RecordCodec(keys.HOLDERS_TOPIC)
_KEY = re.compile(rb"h/" + NUMBER + rb"/" + NUMBER + rb"\Z")


def encode(entry: Entry) -> LogRecord:
    name, holder = f"h/{entry.key.topic_id}/{entry.key.partition}", entry.holder
    if holder is None:
        return CODEC.record(name, None)
    value = fmt.Holder(
        version=CODEC.version,
        producer_id=holder.producer_id,
        name=holder.name,
        number=holder.number,
        principal=holder.principal,
    )
    return CODEC.record(name, value)


def decode(key: bytes, value: bytes | None) -> Entry:
    """Decode one record. Raises as `RecordCodec.decode`."""
    return CODEC.decode(key, value, _entry_of)


def _entry_of(key: bytes, value: bytes | None) -> Entry | None:
    if (found := _KEY.match(key)) is None:
        return None
    return Entry(PartitionId(int(found[1]), int(found[2])), None if value is None else _holder_of(value))


def _holder_of(data: bytes) -> Holder:
    stored = CODEC.value(fmt.Holder, data)
    if stored.producer_id and not is_exclusive(stored.producer_id):
        raise DataDamaged(f"{stored.producer_id.hex()} is not the id of an exclusive producer")
    if not 0 < stored.number <= NUMBER_MAX or len(stored.name) > PRODUCER_NAME_CHARS_MAX:
        raise DataDamaged(f"number {stored.number} or a name of {len(stored.name)} characters is out of bounds")
    return Holder(stored.producer_id, stored.name, stored.number, stored.principal)
