"""Complete decided transactions: make the batches of a commit visible, chunk by chunk, or drop what is staged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ledgermq.errors import DataDamaged, InvalidRequest, Unavailable
from ledgermq_broker.transactions.state.checks import check_transaction, describe
from ledgermq_broker.transactions.state.limits import RETRY_MS
from ledgermq_broker.transactions.state.participating.served_bundle import Begun, Entries, ServedBundle
from ledgermq_broker.transactions.state.participating.staged import Staged
from ledgermq_broker.transactions.state.records import NoteEntry, NoteValue, ReferencesEntry
from ledgermq_broker.transactions.state.types import Part, Reference, State, Transaction
from ledgermq_ledger.log.log_record import Decision


class Completion(Enum):
    DONE = "done"
    RETRY = "retry"
    """The completion has begun, and continues chunk by chunk."""
    UNSURE = "unsure"
    """There is no note about the producer: ask the coordinator to confirm the commit (X16)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The batches that one segment makes visible.

    `references`: those of the batches, in order. `groups`: groups whose staged offsets are committed in
    the same segment; only the last chunk has any. `principals`: those that staged the batches.
    """

    transaction: Transaction
    references: tuple[Reference, ...]
    groups: tuple[str, ...]
    is_last: bool
    principals: tuple[int, ...] = ()


class Completing:
    def __init__(self, state: ServedBundle) -> None:
        self._state = state

    def complete(
        self,
        transaction: Transaction,
        outcome: State,
        part: Part,
        *,
        confirmed: bool,
        groups_pending: Callable[[str], bool],
    ) -> Decision[Completion]:
        """Begin to copy the batches that `part` counts, for a commit; drop all that is staged otherwise.

        `confirmed`: the coordinator has confirmed the commit, and `notes_gone` has not changed since it
        was asked. `groups_pending(group)`: whether the group has staged offsets of this transaction.
        With DONE, the caller also drops the offsets that this producer has staged in groups, at or below
        the transaction.

        Raises DataDamaged, and changes nothing, if less is staged than a commit counts (X4); Unavailable
        while another transaction of the producer is being completed; InvalidRequest.
        """
        check_transaction(transaction)
        if self._state.open.get(transaction.producer_id) == transaction.pair:
            del self._state.open[transaction.producer_id]  # it is decided, even if it cannot be completed here
        if self._state.is_over(transaction):
            self._check_outcome(transaction, outcome)
            return self._state.decided(self._state.dropped(transaction, transaction.pair), Completion.DONE)
        doing = self._state.doing(transaction.producer_id)
        if doing is not None and transaction.pair < doing[0].pair and not outcome.is_commit:
            return self._state.decided(self._state.dropped(transaction, transaction.pair), Completion.DONE)
        self._check_turn(transaction)
        if not outcome.is_commit:
            return self._abort(transaction, outcome)
        if part.bundle != self._state.bundle:
            raise InvalidRequest(
                f"{describe(transaction)}: these are the counts of bundle {part.bundle}; send them to its owner, "
                f"not to the owner of bundle {self._state.bundle}"
            )
        if not confirmed and transaction.producer_id not in self._state.notes:
            return Decision([], Completion.UNSURE)
        self._state.check_counts(transaction, part, groups_pending)
        if not self._state.is_begun(transaction):
            counts = {stream: count for stream, count in part.counts.items() if count}
            part = Part(part.bundle, counts, tuple(sorted(set(part.groups))))
            self._state.begun[transaction.producer_id] = Begun(transaction, part, self._state.notes_gone)
        return Decision([], Completion.RETRY)

    def _abort(self, transaction: Transaction, outcome: State) -> Decision[Completion]:
        """Drop what is staged.

        An abort replaces the producer's note of the same epoch, but never writes the first one: with a
        note, a late commit would not be confirmed with the coordinator (X16). Only a commit writes a note
        of a later epoch: an epoch that was never begun is aborted too, and such a note would refuse
        transactions of the epochs that were begun.
        """
        if self._state.is_begun(transaction):
            raise DataDamaged(
                f"bundle {self._state.bundle} received that {describe(transaction)} is {outcome.name}, but it received "
                "before that it is committed, and is completing it; nothing was changed; please report this"
            )
        entries = [*self._state.dropped(transaction, transaction.pair), *self._state.ended(transaction)]
        known = self._state.notes.get(transaction.producer_id)
        if known is not None and known.transaction[:4] == transaction[:4]:
            note = NoteValue(transaction, State.ABORTED, finished=True)
            entries.append(NoteEntry(transaction.producer_id, note))
        return self._state.decided(entries, Completion.DONE)

    def _check_outcome(self, transaction: Transaction, outcome: State) -> None:
        note = self._state.notes[transaction.producer_id]
        if note.transaction.pair == transaction.pair and outcome.is_commit and not note.outcome.is_commit:
            raise DataDamaged(
                f"bundle {self._state.bundle} received that {describe(transaction)} is committed, but it received "
                "before that it is aborted, and dropped it; nothing was changed; please report this"
            )

    def _check_turn(self, transaction: Transaction) -> None:
        """Raise Unavailable while another transaction of the producer is being completed (X6)."""
        doing = self._state.doing(transaction.producer_id)
        if doing is not None and doing[0].pair != transaction.pair:
            raise Unavailable(
                f"{describe(transaction)} waits in bundle {self._state.bundle} until {describe(doing[0])} is complete "
                "there; repeat the call",
                retry_after_ms=RETRY_MS,
            )

    def unfinished(self) -> list[Transaction]:
        """Return the commits that are being completed: those with a note in the log, and those begun in
        memory.
        """
        of_log = [note.transaction for note in self._state.notes.values() if not note.finished]
        return of_log + [begun.transaction for begun in self._state.begun.values()]

    def next_chunk(self, producer_id: bytes) -> Chunk | None:
        """Return what the next segment makes visible; None if no completion of the producer has begun.

        Raises DataDamaged if a reference is missing.
        """
        doing = self._state.doing(producer_id)
        if doing is None:
            return None
        transaction, part = doing
        staged = self._state.find(transaction) or Staged()
        copied = self._state.copied(transaction)
        references, principals, size_bytes = list[Reference](), list[int](), 0
        for stream in sorted(part.counts, key=lambda stream: stream.order):
            for sequence in range(copied.get(stream, 0), part.counts[stream]):
                place = staged.streams.get(stream, {}).get(sequence)
                if place is None:
                    raise DataDamaged(
                        f"{describe(transaction)} is committed, but bundle {self._state.bundle} has no reference to "
                        f"batch {sequence} of partition {stream.topic_id}/{stream.partition}; restore the bundle's "
                        "ledger, or give up its part with `ledgermq transaction give-up`"
                    )
                size_bytes += place.reference.length
                if references and size_bytes > self._state.limits.chunk_bytes:
                    return Chunk(transaction, tuple(references), (), is_last=False, principals=tuple(principals))
                references.append(place.reference)
                principals.append(staged.principal_of(place))
        return Chunk(transaction, tuple(references), part.groups, is_last=True, principals=tuple(principals))

    def admit(self, chunk: Chunk) -> Decision[bool]:
        """Judge a chunk again, in the turn of the event loop that appends it (X11).

        False: it is no longer the next chunk; call `next_chunk` again. True: append its copies, these
        records and those of the groups in one segment (X8).
        """
        transaction = chunk.transaction
        producer_id = transaction.producer_id
        begun = self._state.begun.get(producer_id)
        if begun is not None and begun.notes_gone != self._state.notes_gone and producer_id not in self._state.notes:
            del self._state.begun[producer_id]  # the confirmation is too old: ask the coordinator again
        if self.next_chunk(producer_id) != chunk:
            return Decision([], False)
        doing = self._state.doing(producer_id)
        assert doing is not None
        self._state.begun.pop(producer_id, None)
        if chunk.is_last:
            note = NoteValue(transaction, State.COMMITTED, finished=True)
            entries = self._state.dropped(transaction, transaction.pair)
        else:
            note = self._advanced(chunk, doing[1])
            entries = self._state.dropped(transaction, (transaction.epoch, transaction.number - 1))  # X5
            entries += self._copied_records(chunk, note)
        entries += self._state.ended(transaction)  # with the first chunk, before it drops anything
        return self._state.decided([*entries, NoteEntry(producer_id, note)], True)

    def _advanced(self, chunk: Chunk, part: Part) -> NoteValue:
        copied = dict(self._state.copied(chunk.transaction))
        for reference in chunk.references:
            copied[reference.stream] = reference.sequence + 1
        return NoteValue(chunk.transaction, State.COMMITTED, finished=False, part=part, copied=copied)

    def _copied_records(self, chunk: Chunk, note: NoteValue) -> Entries:
        """Return the end of those records of references whose batches are all visible. For records that
        are visible in part, the note counts the visible batches.
        """
        staged = self._state.find(chunk.transaction)
        assert staged is not None
        touched = sorted({staged.streams[ref.stream][ref.sequence].n for ref in chunk.references})
        return [
            ReferencesEntry(*chunk.transaction[2:], n, None)
            for n in touched
            if all(ref.sequence < note.copied.get(ref.stream, 0) for ref in staged.records[n].references)
        ]

    def counted(self, transaction: Transaction, part: Part) -> list[Reference]:
        """Return the references that `part` counts, in the order of a commit; an empty list if nothing of
        the transaction is staged. Raises DataDamaged if only some of them are.
        """
        staged = self._state.find(transaction)
        if staged is None:
            return []
        self._state.check_counts(transaction, Part(part.bundle, part.counts), lambda group: True)
        copied = self._state.copied(transaction)
        return [
            staged.streams[stream][sequence].reference
            for stream in sorted(part.counts, key=lambda stream: stream.order)
            for sequence in range(copied.get(stream, 0), part.counts[stream])
        ]

    def give_up(self, transaction: Transaction) -> Decision[bool]:
        """Stop completing a commit that the coordinator no longer confirms, because an operator gave up
        this bundle's part (X20). Batches that are not visible yet are dropped.

        False: the transaction is not being completed, and nothing changes.
        """
        if not self._state.is_begun(transaction):
            return Decision([], False)
        self._state.begun.pop(transaction.producer_id, None)
        entries = self._state.dropped(transaction, transaction.pair)
        if transaction.producer_id in self._state.notes:
            entries.append(NoteEntry(transaction.producer_id, NoteValue(transaction, State.COMMITTED, finished=True)))
        return self._state.decided(entries, True)
