"""Check the transactions of a root: each batch that may still become visible is in the ledger as it was
staged, and each decided transaction is complete after a while.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq_broker.internal.feature import StoredRoot
from ledgermq_broker.transactions.state.checks import describe
from ledgermq_broker.transactions.state.participating.staged import Staged
from ledgermq_broker.transactions.state.records import NoteValue, ReferencesValue
from ledgermq_broker.transactions.stored.view import BundleTransactions, read_transactions
from ledgermq_ledger import keys
from ledgermq_ledger.fsck.check import Checked
from ledgermq_ledger.fsck.problem import Problems

INCOMPLETE_MS_MAX = 3_600_000
"""Time after which a decided transaction that is not complete is reported."""


async def add_transactions(root: StoredRoot, checked: Checked) -> None:
    """Add problems of transactions to the check of a root."""
    unread, problems = Problems(), Problems()
    found = await read_transactions(root.store, root.cluster, root.sources, unread.collecting)
    check_transactions(found, problems, root.sources.now_ms())
    checked.add(problems, unread)


def check_transactions(found: Sequence[BundleTransactions], problems: Problems, now_ms: int) -> None:
    for bundle in found:
        for staged in bundle.state.all():
            for value in staged.records.values():
                _check_references(bundle, value, problems)
        for note in bundle.state.notes.values():
            if not note.finished:
                _check_note(bundle, note, problems)
        _check_incomplete(bundle, problems, now_ms)


def _check_references(bundle: BundleTransactions, value: ReferencesValue, problems: Problems) -> None:
    """Check that each batch that is not visible yet is in the ledger, because its commit needs it."""
    for reference in bundle.state.alive(value):
        what = (
            f"{describe(value.transaction)} has staged a batch of {reference.length} bytes at offset"
            f" {reference.offset} of {keys.STAGED_TOPIC}/{bundle.partition}"
        )
        batch = bundle.batches.get(reference.offset)
        if reference.offset < bundle.log_start:
            problems.damage(
                keys.ledger(bundle.bundle),
                "STAGED_MISSING",
                f"{what}, but that is below the log start {bundle.log_start}",
            )
        elif batch is None:
            problems.damage(keys.ledger(bundle.bundle), "STAGED_MISSING", f"{what}, but no segment has it")
        elif (batch.record_count, batch.length, batch.crc) != (
            reference.record_count,
            reference.length,
            reference.crc,
        ):
            problems.damage(
                keys.segment(bundle.bundle, batch.slot),
                "STAGED_DIFFERS",
                f"{what}, but another batch is there: {batch.length} bytes, CRC {batch.crc:08x} instead of"
                f" {reference.crc:08x}",
            )


def _check_note(bundle: BundleTransactions, note: NoteValue, problems: Problems) -> None:
    """Check that all batches that an unfinished completion still has to copy are staged."""
    staged = bundle.state.find(note.transaction) or Staged()
    for stream, batches in note.part.counts.items() if note.part is not None else ():
        places, copied = staged.streams.get(stream, {}), note.copied.get(stream, 0)
        missing = [sequence for sequence in range(copied, batches) if sequence not in places]
        if missing:
            problems.damage(
                keys.ledger(bundle.bundle),
                "STAGED_MISSING",
                f"{describe(note.transaction)} is being completed, but references to {len(missing)} of its {batches}"
                f" batches for partition {stream.topic_id}/{stream.partition} are missing, the first one to batch"
                f" {missing[0]}",
            )


def _check_incomplete(bundle: BundleTransactions, problems: Problems, now_ms: int) -> None:
    for name in bundle.ids.incomplete:
        known = bundle.ids.known[name]
        if now_ms - known.changed_ms > INCOMPLETE_MS_MAX:
            missing = ", ".join(map(str, known.missing))
            problems.untidy(
                keys.ledger(bundle.bundle),
                "TRANSACTION_INCOMPLETE",
                f"transaction {known.number} of {name!r} has been {known.state.name} for more than an hour, but is not"
                f" complete in bundles {missing}: start brokers; `ledgermq transaction describe {name}` shows why",
            )
