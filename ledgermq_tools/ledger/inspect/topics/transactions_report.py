"""Run `ledgermq inspect transactions`: show the transactions of a root, and damage in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ledgermq.cli.output.report import Report, Rows
from ledgermq.sources import Sources
from ledgermq_broker.transactions.state.types import State
from ledgermq_broker.transactions.stored.check import check_transactions
from ledgermq_broker.transactions.stored.view import BundleTransactions, read_transactions
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.open_root import cluster_of
from ledgermq_ledger.timestamps import from_ms
from ledgermq_tools.ledger.inspect.findings import Findings

ID_COLUMNS = ("id", "kind", "state", "epoch", "number", "bundles_missing", "changed")
STAGED_COLUMNS = (
    "bundle",
    "id",
    "epoch",
    "number",
    "batches",
    "bytes",
    "first_offset",
    "first_slot",
    "oldest",
    "groups",
)
NOTE_COLUMNS = ("bundle", "id", "epoch", "number", "batches", "copied", "groups")


async def transactions_report(store: ObjectStore, sources: Sources, *, every: bool) -> Report:
    """Return the report. `every`: also list ids without an open transaction. Raises NoCluster and the
    store's errors; damage is a finding of the report.
    """
    findings, problems = Findings(), Problems()
    found = await read_transactions(store, await cluster_of(store), sources, findings.collecting)
    check_transactions(found, problems, sources.now_ms())
    findings.add_damage(problems)
    facts = {
        "transactional_ids": sum(len(one.ids.known) for one in found),
        "staged_transactions": sum(one.state.open_count for one in found),
        "staged_batches": sum(one.state.batches for one in found),
        "staged_bytes": sum(one.state.size_bytes for one in found),
    }
    return Report(
        f"transactions of {store.url}",
        facts,
        [
            Rows("transactions", ID_COLUMNS, sorted(_ids(found, every), key=lambda row: str(row["id"]))),
            Rows("staged", STAGED_COLUMNS, [row for one in found for row in _staged(one)]),
            Rows("being_completed", NOTE_COLUMNS, [row for one in found for row in _notes(one)], if_any=True),
        ],
        findings.all,
    )


def _ids(found: Iterable[BundleTransactions], every: bool) -> Iterator[dict[str, Any]]:
    for one in found:
        for name, known in one.ids.known.items():
            if every or not known.complete:
                yield {
                    "id": name,
                    "kind": known.kind.name.lower(),
                    "state": None if known.state is State.UNDECIDED else known.state.name.lower(),
                    "epoch": known.epoch,
                    "number": known.number,
                    "complete": known.complete,
                    "bundles_missing": list(known.missing),
                    "changed": from_ms(known.changed_ms),
                    "producer": known.producer_id.hex(),
                    "partition": one.partition,
                }


def _staged(one: BundleTransactions) -> list[dict[str, Any]]:
    """Return a row for each transaction that has staged batches or offsets here, the oldest first."""
    rows: dict[tuple[bytes, int, int], dict[str, Any]] = {}
    for staged in one.state.all():
        of = staged.transaction
        alive = [reference for value in staged.records.values() for reference in one.state.alive(value)]
        first = min((reference.offset for reference in alive), default=None)
        batch = None if first is None else one.batches.get(first)
        rows[of.producer_id, of.epoch, of.number] = _row(one, of.transactional_id, of.epoch, of.number) | {
            "batches": len(alive),
            "bytes": sum(reference.length for reference in alive),
            "first_offset": first,
            "first_slot": None if batch is None else batch.slot,
            "oldest_ms": staged.staged_ms,
        }
    for pending in one.offsets:
        key = pending.producer_id, pending.epoch, pending.number
        row = rows.setdefault(key, _row(one, pending.transactional_id, pending.epoch, pending.number))
        row["groups"] = [*row["groups"], *pending.groups]
        row["oldest_ms"] = min(row["oldest_ms"] or pending.staged_ms, pending.staged_ms)
    return [
        {**row, "oldest": from_ms(row["oldest_ms"])} for row in sorted(rows.values(), key=lambda row: row["oldest_ms"])
    ]


def _row(one: BundleTransactions, name: str, epoch: int, number: int) -> dict[str, Any]:
    nothing = {"batches": 0, "bytes": 0, "first_offset": None, "first_slot": None, "oldest_ms": None}
    return {"bundle": one.bundle, "id": name, "epoch": epoch, "number": number, **nothing, "groups": []}


def _notes(one: BundleTransactions) -> Iterator[dict[str, Any]]:
    for note in one.state.notes.values():
        if note.part is not None and not note.finished:
            of = note.transaction
            yield {
                "bundle": one.bundle,
                "id": of.transactional_id,
                "epoch": of.epoch,
                "number": of.number,
                "batches": sum(note.part.counts.values()),
                "copied": sum(note.copied.values()),
                "groups": list(note.part.groups),
            }
