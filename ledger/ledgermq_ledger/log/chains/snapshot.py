"""Encode and decode snapshots: the internal topics of a bundle, cleaned by key (design G2). Each
round puts one object `snapshots/<plan>`.

    envelope( Snapshot{ bundle, plan, put id of the plan,
                        per partition: end, latest record of each key with its offset } )

Every process that runs the plan writes the same bytes, so it does not matter which one wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ledgermq.errors import DataDamaged
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.envelope import ObjectKind, seal, unseal


@dataclass(frozen=True, slots=True)
class InternalRecord:
    """`value` None: a tombstone."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp_us: int


def encode_snapshot(snapshot: fmt.Snapshot) -> bytes:
    return seal(ObjectKind.SNAPSHOT, snapshot)


def decode_snapshot(data: bytes, key: str) -> fmt.Snapshot:
    """Decode a snapshot. Raises DataDamaged, FormatNotSupported, naming `key`."""
    snapshot = unseal(ObjectKind.SNAPSHOT, fmt.Snapshot(), data, key)
    if key != keys.snapshot(snapshot.bundle, snapshot.plan):
        raise DataDamaged(f"{key}: it says bundle {snapshot.bundle}, plan {snapshot.plan}", object_key=key)
    return snapshot


def clean(records: Iterable[InternalRecord]) -> list[InternalRecord]:
    """Return the latest record of each key, by offset, without keys whose latest record is a
    tombstone.
    """
    latest: dict[bytes, InternalRecord] = {}
    for record in records:
        latest[record.key] = record
    return sorted((r for r in latest.values() if r.value is not None), key=lambda r: r.offset)


def records_of(snapshot: fmt.Snapshot, topic_id: int, partition: int) -> tuple[int, list[InternalRecord]]:
    """Return (end, records) of one partition; (0, []) if the snapshot does not have it."""
    for part in snapshot.partitions:
        if (part.topic_id, part.partition) == (topic_id, partition):
            return part.end, [InternalRecord(r.offset, r.key, r.value, r.timestamp_us) for r in part.records]
    return 0, []
