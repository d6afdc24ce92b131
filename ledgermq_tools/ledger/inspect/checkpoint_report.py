"""Run `ledgermq inspect checkpoint`: show one checkpoint of a bundle, the newest by default."""

from __future__ import annotations

from typing import Any

from ledgermq.cli.output.report import Report, Rows
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import decode_checkpoint, newest_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.timestamps import from_ms
from ledgermq_tools.ledger.inspect.findings import Findings
from ledgermq_tools.ledger.inspect.moves_table import moves_table

PARTITION_COLUMNS = (
    "topic_id",
    "partition",
    "log_start",
    "end",
    "parquet_start",
    "parquet_end",
    "newest_page",
    "parked",
)


async def checkpoint_report(store: ObjectStore, bundle: int, number: int | None) -> Report:
    """Return the report. Raises ObjectMissing and the store's errors; damage is a finding."""
    findings = Findings()
    title = f"bundle {bundle}, newest checkpoint" if number is None else keys.checkpoint(bundle, number)
    report = Report(title, findings=[])
    data = None if number is None else await store.get(title)
    with findings.collecting(keys.checkpoints(bundle)):
        checkpoint = await newest_checkpoint(store, bundle) if data is None else decode_checkpoint(data, title)
        report.facts = _facts(checkpoint)
        report.tables = _tables(checkpoint)
        note_parked(checkpoint, findings)
    report.findings = findings.all
    return report


def _facts(checkpoint: fmt.Checkpoint) -> dict[str, Any]:
    state = checkpoint.state
    return {
        "object": keys.checkpoint(checkpoint.bundle, checkpoint.number) if checkpoint.number else None,
        "bundle": checkpoint.bundle,
        "number": checkpoint.number,
        "created": from_ms(checkpoint.created_ms),
        "slot": state.slot,
        "epoch": state.epoch,
        "released": state.released,
        "trim_slot": checkpoint.trim_slot,
        "finished_plan": checkpoint.finished_plan,
        "planned_slot": checkpoint.planned_slot,
        "snapshot_plan": checkpoint.snapshot_plan,
        "snapshot_bytes": checkpoint.snapshot_bytes,
        "metadata_offset": checkpoint.metadata_offset,
        "producer_states": len(state.producers),
        "producers_forgotten_to_slot": state.forgotten_to,
        "writer": state.writer.hex(),
        "last_put_id": state.last_put_id.hex(),
        "put_id": checkpoint.put_id.hex(),
    }


def _tables(checkpoint: fmt.Checkpoint) -> list[Rows]:
    tables = [Rows("partitions", PARTITION_COLUMNS, _partitions(checkpoint))]
    lost = [_lost(counter, each) for counter in checkpoint.partitions for each in counter.lost]
    if lost:
        tables.append(Rows("given_up", tuple(lost[0]), lost))
    if checkpoint.state.claims:
        claims = [
            {"slot": c.slot, "epoch": c.epoch, "created": from_ms(c.created_ms), "broker": c.broker}
            for c in checkpoint.state.claims
        ]
        tables.append(Rows("claims", ("slot", "epoch", "created", "broker"), claims))
    if checkpoint.removed_topics:
        removed = [
            {"topic": t.topic, "topic_id": t.topic_id, "files_deleted": t.files_deleted}
            for t in checkpoint.removed_topics
        ]
        tables.append(Rows("removed_topics", ("topic", "topic_id", "files_deleted"), removed))
    return tables + moves_table(checkpoint.state.seals, checkpoint.state.opens)


def _partitions(checkpoint: fmt.Checkpoint) -> list[dict[str, Any]]:
    counters = {PartitionId(p.topic_id, p.partition): p for p in checkpoint.partitions}
    ends = {PartitionId(e.topic_id, e.partition): e.end for e in checkpoint.state.ends}
    rows = []
    for topic_id, partition in sorted(counters.keys() | ends.keys()):
        counter = counters.get(PartitionId(topic_id, partition), fmt.PartitionCheckpoint())
        rows.append(
            {
                "topic_id": topic_id,
                "partition": partition,
                "log_start": counter.log_start,
                "end": ends.get(PartitionId(topic_id, partition), 0),
                "parquet_start": counter.parquet_start,
                "parquet_end": counter.parquet_end,
                "newest_page": counter.newest_page or None,
                "parked": counter.parked.reason if counter.HasField("parked") else None,
            }
        )
    return rows


def _lost(counter: fmt.PartitionCheckpoint, lost: fmt.LostRecords) -> dict[str, Any]:
    return {
        "topic_id": counter.topic_id,
        "partition": counter.partition,
        "first_offset": lost.first_offset,
        "last_offset": lost.last_offset,
        "object": lost.object_key,
        "reason": lost.reason,
        "by": lost.decided_by,
        "at": from_ms(lost.decided_ms),
    }


def note_parked(checkpoint: fmt.Checkpoint, findings: Findings) -> None:
    """Note parked partitions: each waits for `ledgermq repair`, and prevents the trim of its
    bundle.
    """
    for counter in checkpoint.partitions:
        if counter.HasField("parked"):
            where = f"topic {counter.topic_id} partition {counter.partition} is parked since plan {counter.parked.plan}"
            findings.add(counter.parked.object_key, "PARKED", f"{where}: {counter.parked.reason}")
