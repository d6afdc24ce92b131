"""Look after what is staged for long: ask coordinators what became of it, carry it forward, and forget notes.

Batches that stay are carried forward, so that the log of `__staged` may be trimmed below them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ledgermq_broker.transactions.state.added.records import LastEntry
from ledgermq_broker.transactions.state.participating.served_bundle import Entries, ServedBundle
from ledgermq_broker.transactions.state.records import NoteEntry, ReferencesEntry
from ledgermq_broker.transactions.state.types import Part, Reference, Transaction
from ledgermq_ledger.log.log_record import Decision


class CarryItem(NamedTuple):
    """Batches to append to `__staged` again, in this order: those of record `n` of a transaction that
    are not visible yet.
    """

    transaction: Transaction
    n: int
    references: tuple[Reference, ...]


class Upkeep:
    def __init__(self, state: ServedBundle) -> None:
        self._state = state

    def to_ask(self, now_ms: int, pause_ms: int | None = None) -> list[tuple[Transaction, Part]]:
        """Return the transactions to ask the coordinator about, with the counts of what is staged: those
        staged for at least `pause_ms` (None: as the limits say) that are not being completed.

        A time of staging that lies in the future counts as old: a former owner's clock was wrong.
        """
        limits = self._state.limits
        old_ms = now_ms - (min(limits.ask_after_ms, limits.check_after_ms) if pause_ms is None else pause_ms)
        return [
            (staged.transaction, Part(self._state.bundle, staged.counts()))
            for staged in self._state.all()
            if not old_ms < staged.staged_ms <= now_ms and not self._state.is_begun(staged.transaction)
        ]

    def notes(self) -> list[Transaction]:
        """Return the transactions of the finished notes, and the last ones of producers of the Kafka protocol. Call
        `forget` for one if the coordinator answers that its id has expired.
        """
        finished = [note.transaction for note in self._state.notes.values() if note.finished]
        return list(dict.fromkeys([*finished, *(last.transaction for last in self._state.last.values())]))

    def forget(self, transaction: Transaction) -> Decision[None]:
        """Forget the finished note of exactly this transaction (X16), and that it was its producer's last one."""
        entries: Entries = []
        last = self._state.last.get(transaction.producer_id)
        if last is not None and last.transaction == transaction:
            entries.append(LastEntry(transaction.producer_id, None))
        note = self._state.notes.get(transaction.producer_id)
        if note is not None and note.finished and note.transaction == transaction:
            self._state.notes_gone += 1
            entries.append(NoteEntry(transaction.producer_id, None))
        return self._state.decided(entries, None)

    def to_carry(self, now_ms: int, below_offset: int) -> list[CarryItem]:
        """Return the batches to carry forward: staged or carried longer than `carry_after_ms` ago, not
        visible yet, and in a record that has an offset below `below_offset`.
        """
        old_ms = now_ms - self._state.limits.carry_after_ms
        return [
            CarryItem(staged.transaction, n, alive)
            for staged in self._state.all()
            for n, value in staged.records.items()
            if not old_ms < self._state.carried_ms.get((*staged.transaction[2:], n), value.staged_ms) <= now_ms
            and (alive := self._state.alive(value))
            and min(reference.offset for reference in alive) < below_offset
        ]

    def carry(self, item: CarryItem, next_offset: int, now_ms: int) -> Decision[bool]:
        """Point references to the bytes that are appended again, from `next_offset` on. Call it in the
        turn that appends them.

        False: some of the batches are visible or dropped by now (X15); do not append the bytes.
        """
        staged = self._state.find(item.transaction)
        value = None if staged is None else staged.records.get(item.n)
        if value is None or self._state.alive(value) != item.references:
            return Decision([], False)
        carried: list[Reference] = []
        for reference in item.references:
            carried.append(_moved(reference, next_offset))
            next_offset += reference.record_count
        key = (*item.transaction[2:], item.n)
        entry = ReferencesEntry(*key, replace(value, references=tuple(carried)))
        decision = self._state.decided([entry], True)
        self._state.carried_ms[key] = now_ms
        return decision


def _moved(reference: Reference, offset: int) -> Reference:
    return Reference(
        reference.stream,
        reference.sequence,
        offset,
        reference.record_count,
        reference.length,
        reference.crc,
        reference.timestamp_min_us,
        reference.timestamp_max_us,
    )
