"""Run `ledgermq inspect ledger`: show the segments of one bundle as they are in the store, which of
them are valid, and what is damaged.

Every index is read and its checksum checked; with `full` every segment is read whole and every
batch checked too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ledgermq.cli.output.report import Report, Rows
from ledgermq.runtime.tasks import all_of
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.history import History, read_history
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.segments.segment import SlotIndex, decode_tail, read_index
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectMissing, ObjectStore
from ledgermq_ledger.timestamps import from_ms
from ledgermq_tools.ledger.inspect.findings import Findings
from ledgermq_tools.ledger.inspect.segment_report import check_batches, kind_name

PARALLEL_READS = 16
COLUMNS = ("slot", "state", "kind", "epoch", "batches", "records", "bytes", "created", "broker")


@dataclass(slots=True)
class LedgerView:
    """`indexes`: of the segments that could be read.

    `history`: None if damage prevents the ledger from being folded.
    """

    bundle: int
    segments: list[ObjectInfo] = field(default_factory=list)
    indexes: dict[int, SlotIndex] = field(default_factory=dict)
    checkpoint: fmt.Checkpoint | None = None
    history: History | None = None

    @property
    def bytes(self) -> int:
        return sum(info.size for info in self.segments)


async def view_ledger(ledger: LedgerRef, findings: Findings, *, full: bool) -> LedgerView:
    """Read what the store holds of a ledger. Raises the store's errors; damage is a finding."""
    store, bundle = ledger.store, ledger.bundle
    view = LedgerView(bundle, [info async for info in store.list(keys.segments(bundle))])

    async def look(info: ObjectInfo) -> None:
        slot = await _read_slot(store, bundle, info, findings, full=full)
        if slot is not None:
            view.indexes[slot.index.slot] = slot

    await all_of((look(info) for info in view.segments), PARALLEL_READS)
    with findings.collecting(keys.checkpoints(bundle)):
        view.checkpoint = await newest_checkpoint(store, bundle)
    with findings.collecting(keys.ledger(bundle)):
        view.history = await read_history(ledger)
    return view


async def _read_slot(
    store: ObjectStore, bundle: int, info: ObjectInfo, findings: Findings, *, full: bool
) -> SlotIndex | None:
    number = info.key.rsplit("/", 1)[1]
    if not keys.is_numbered(info.key, keys.segments(bundle)):
        findings.add(info.key, "FOREIGN_OBJECT", "its name is not a slot number")
        return None
    with findings.collecting(info.key):
        try:
            if not full:
                return await read_index(store, bundle, int(number))
            data = await store.get(info.key)
        except ObjectMissing:
            return None  # compacted and deleted since the list was made
        slot = decode_tail(data, bundle, int(number))
        check_batches(data, slot, findings)
        return slot
    return None


def ledger_report(view: LedgerView, findings: Findings, *, newest: int) -> Report:
    """Return the report: this many of the newest segments one by one (0: all), the rest as a sum."""
    valid = {slot.index.slot for slot in view.history.segments} if view.history else set()
    rows = [_row(info, view, valid) for info in view.segments]
    shown = rows[-newest:] if newest else rows
    report = Report(f"ledger of bundle {view.bundle}", ledger_facts(view), findings=findings.all)
    if len(shown) < len(rows):
        report.facts["older_segments_not_shown"] = len(rows) - len(shown)
    report.tables = [Rows("segments", COLUMNS, shown)]
    return report


def ledger_facts(view: LedgerView) -> dict[str, Any]:
    facts: dict[str, Any] = {"bundle": view.bundle, "segments": len(view.segments), "segment_bytes": view.bytes}
    if view.checkpoint is not None:
        facts |= {
            "checkpoint": view.checkpoint.number or None,
            "trim_slot": view.checkpoint.trim_slot,
            "finished_plan": view.checkpoint.finished_plan or None,
        }
    if view.history is not None:
        state = view.history.state
        claim = state.claims[-1] if state.claims else None
        facts |= {
            "last_slot": state.slot,
            "epoch": state.epoch,
            "claimed_by": claim.broker if claim else None,
            "claimed": from_ms(claim.created_ms) if claim else None,
            "released": state.released,
        }
    return facts


def _row(info: ObjectInfo, view: LedgerView, valid: set[int]) -> dict[str, Any]:
    number = info.key.rsplit("/", 1)[1]
    is_ours = keys.is_numbered(info.key, keys.segments(view.bundle))
    slot = view.indexes.get(int(number)) if is_ours else None
    row: dict[str, Any] = {
        "slot": int(number) if is_ours else number,
        "state": "damaged" if is_ours else "foreign",
        "bytes": info.size,
    }
    if slot is not None:
        index = slot.index
        row |= {
            "state": _state(index, view, valid),
            "kind": kind_name(index),
            "epoch": index.epoch,
            "batches": len(index.batches),
            "records": sum(entry.record_count for entry in index.batches),
            "created": from_ms(index.created_ms),
            "broker": index.broker,
        }
    return row


def _state(index: fmt.SegmentIndex, view: LedgerView, valid: set[int]) -> str:
    """Return the state of a segment: valid, void, trimmed (kept below the trim slot: claims, void
    segments, or not deleted yet), or unknown because of damage.
    """
    if view.history is None:
        return "unknown"
    if index.slot < view.history.checkpoint.trim_slot:
        return "trimmed"
    return "valid" if index.slot in valid else "void"
