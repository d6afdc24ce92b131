"""Encode and decode the records of `__holders`: typed entries, and their bytes.

    key                            value
    h/<topic id>/<partition>       Holder   the producer that has the partition for itself, or that none has

A record without a value deletes its key. Numbers are decimal. Invariants: `decode(encode(entry)) == entry`;
equal entries have equal bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.protocol.exclusive_ids import is_exclusive
from ledgermq.protocol.limits import PRODUCER_NAME_CHARS_MAX
from ledgermq_broker.exclusive.state.format import ledgermq_holders_pb2 as fmt
from ledgermq_broker.exclusive.state.limits import NUMBER_MAX
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.producers import is_anothers

VERSION = 1


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


_NUMBER = r"(0|[1-9][0-9]{0,19})"
_KEY = re.compile(rf"h/{_NUMBER}/{_NUMBER}\Z".encode())


def encode(entry: Entry) -> LogRecord:
    name, holder = f"h/{entry.key.topic_id}/{entry.key.partition}".encode(), entry.holder
    if holder is None:
        return LogRecord(name, None)
    value = fmt.Holder(
        version=VERSION,
        producer_id=holder.producer_id,
        name=holder.name,
        number=holder.number,
        principal=holder.principal,
    )
    return LogRecord(name, value.SerializeToString(deterministic=True))


def decode(key: bytes, value: bytes | None) -> Entry:
    """Decode one record.

    Raises DataDamaged. Raises FormatNotSupported for a record of a later version, because a reader
    that skips it would have a wrong state.
    """
    found = _KEY.match(key)
    if found is None:
        raise FormatNotSupported(f"record {key[:600]!r} of __holders: a later version wrote it; upgrade this program")
    try:
        return Entry(PartitionId(int(found[1]), int(found[2])), None if value is None else _holder_of(value))
    except (DecodeError, FormatNotSupported, DataDamaged) as error:
        kind = FormatNotSupported if isinstance(error, FormatNotSupported) else DataDamaged
        raise kind(f"record {key[:600]!r} of __holders: {error}") from error


def _holder_of(data: bytes) -> Holder:
    stored = fmt.Holder.FromString(data)
    if stored.version == 0:
        raise DataDamaged("the value has no format version")
    if stored.version != VERSION:
        raise FormatNotSupported(f"format version {stored.version}, this program reads {VERSION}; upgrade this program")
    if stored.producer_id and not is_exclusive(stored.producer_id):
        raise DataDamaged(f"{stored.producer_id.hex()} is not the id of an exclusive producer")
    if not 0 < stored.number <= NUMBER_MAX or len(stored.name) > PRODUCER_NAME_CHARS_MAX:
        raise DataDamaged(f"number {stored.number} or a name of {len(stored.name)} characters is out of bounds")
    return Holder(stored.producer_id, stored.name, stored.number, stored.principal)
