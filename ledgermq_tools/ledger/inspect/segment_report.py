"""Run `ledgermq inspect segment`: show one segment with all its batches, every checksum checked and
every batch decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq.cli.output.report import Report, Rows
from ledgermq.errors import CorruptFrame, MessageTooLarge
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import decode_batch, schema_prefix
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.segments.segment import SlotIndex, decode_tail
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.timestamps import from_ms, from_us
from ledgermq_tools.ledger.inspect.findings import Findings
from ledgermq_tools.ledger.inspect.moves_table import moves_table

COLUMNS = (
    "topic",
    "topic_id",
    "partition",
    "base_offset",
    "records",
    "bytes",
    "first_time",
    "last_time",
    "producer",
    "sequence",
    "state",
)


async def segment_report(store: ObjectStore, bundle: int, slot: int, names: Mapping[int, str] | None = None) -> Report:
    """Return the report. `names`: of topics, by id, as far as they are known.

    Raises ObjectMissing and the store's errors; damage is a finding.
    """
    key = keys.segment(bundle, slot)
    try:
        data = await store.get(key)
    except ObjectMissing as error:
        where = f"`ledgermq inspect ledger ROOT {bundle}` shows which there are; those that are in Parquet go"
        raise ObjectMissing(f"there is no segment {key}: {where}", object_key=key) from error
    report = Report(key, {"object": key, "bytes": len(data)}, findings=[])
    findings = Findings()
    with findings.collecting(key):
        index = decode_tail(data, bundle, slot)
        report.facts |= segment_facts(index)
        rows = [{"topic": (names or {}).get(row["topic_id"]), **row} for row in check_batches(data, index, findings)]
        moved = moves_table(index.index.seals, index.index.opens)
        report.tables = [Rows("batches", COLUMNS, rows), *moved]
    report.findings = findings.all
    return report


def segment_facts(slot: SlotIndex) -> dict[str, Any]:
    index = slot.index
    return {
        "bundle": index.bundle,
        "slot": index.slot,
        "epoch": index.epoch,
        "kind": kind_name(index),
        "records": sum(entry.record_count for entry in index.batches),
        "created": from_ms(index.created_ms),
        "broker": index.broker,
        "successor": index.successor,
        "writer": index.writer.hex(),
        "put_id": index.put_id.hex(),
        "previous": index.previous.hex(),
        "index_bytes": slot.tail_length,
    }


def kind_name(index: fmt.SegmentIndex) -> str:
    """Return the name of a kind, or its number if this software does not know it: such a segment is
    void.
    """
    known = index.kind in fmt.SegmentKind.values()
    return fmt.SegmentKind.Name(index.kind) if known else str(int(index.kind))


def check_batches(data: bytes, slot: SlotIndex, findings: Findings) -> list[dict[str, Any]]:
    """Return a row per batch; damage is added to `findings`."""
    key = keys.segment(slot.index.bundle, slot.index.slot)
    if not data.startswith(schema_prefix()):
        findings.add(key, "DATA_DAMAGED", "it does not begin with the Arrow schema of record schema 1")
    rows = []
    for number, entry in enumerate(slot.index.batches):
        problem = _problem(memoryview(data)[entry.position : entry.position + entry.length], entry)
        if problem:
            findings.add(
                key, "DATA_DAMAGED", f"batch {number} (topic {entry.topic_id} partition {entry.partition}): {problem}"
            )
        rows.append(_row(entry, "damaged" if problem else "ok"))
    return rows


def _problem(data: memoryview, entry: fmt.BatchEntry) -> str | None:
    try:
        check_crc(data, entry.crc)
        batch = decode_batch(data)
    except (CorruptFrame, MessageTooLarge) as error:
        return error.message
    return (
        None
        if batch.num_rows == entry.record_count
        else f"it has {batch.num_rows} records, the index says {entry.record_count}"
    )


def _row(entry: fmt.BatchEntry, state: str) -> dict[str, Any]:
    return {
        "topic_id": entry.topic_id,
        "partition": entry.partition,
        "base_offset": entry.base_offset,
        "records": entry.record_count,
        "bytes": entry.length,
        "first_time": from_us(entry.timestamp_min_us),
        "last_time": from_us(entry.timestamp_max_us),
        "producer": entry.producer_id.hex()[:12] or None,
        "producer_epoch": entry.producer_epoch,
        "sequence": entry.sequence if entry.producer_id else None,
        "position": entry.position,
        "crc": f"{entry.crc:08x}",
        "state": state,
    }
