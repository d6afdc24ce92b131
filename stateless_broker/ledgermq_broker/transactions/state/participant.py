"""Stage and complete transactions in one bundle: one `Participant` for each bundle that a broker owns.

How a broker uses it (one term, one bundle; no call waits):

    p = Participant(bundle, limits)
    for record in snapshot + tail: p.apply(record.key, record.value)
    decision = p.stage(…)           # append decision.records and the new batches to `__staged`, as ONE group
    decision = p.complete(…)        # DONE: answer "done" when decision.records are durable
                                    # UNSURE: ask the coordinator to CONFIRM, and call it again with `confirmed`
                                    # RETRY: the completion has begun; repeat these two until it is done:
    chunk = p.next_chunk(producer_id)       # read the staged bytes of chunk.references
    decision = p.admit(chunk)               # True: append the copies, decision.records and the records of the
                                            # groups (chunk.groups, with the last chunk) as ONE group

An answer or an error without records is final only after a fence check (X2, X3).

A completion that has begun is in memory only, until its first chunk is admitted; so a small one costs one
segment. If the owner dies before that, the next owner receives the call again. The first chunk puts the
note into the log, and a later owner resumes from there (`unfinished`).

If a completion makes no progress, an operator may have given up this bundle's part: ask the coordinator to
CONFIRM the commit, and call `give_up` if it does not.

Invariant: a decision's records, applied in any order to a copy of the previous state, give the current
state. The rules X1 to X20 are in docs/design.md, chapter 16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, TypeVar

from ledgermq.errors import (
    DataDamaged,
    InvalidRequest,
    LedgerMQError,
    OutOfOrderSequence,
    QuotaExceeded,
    ResourceExhausted,
    TransactionAborted,
    TransactionTooLarge,
    Unavailable,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions.state.checks import check_branch, check_transaction, describe
from ledgermq_broker.transactions.state.limits import RETRY_FULL_MS, RETRY_MS, TransactionLimits
from ledgermq_broker.transactions.state.records import NoteEntry, NoteValue, ReferencesEntry, ReferencesValue, encode
from ledgermq_broker.transactions.state.staged import BundleState, Staged, StagedShares
from ledgermq_broker.transactions.state.types import Part, Reference, State, Stream, Transaction
from ledgermq_broker.transactions.state.wire import transaction_to_proto
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.log.shares import NO_PRINCIPAL

NAMED_MAX = 5
"""Streams and groups that one error names."""

T = TypeVar("T")
Entries = list[ReferencesEntry | NoteEntry]


class ToStage(NamedTuple):
    """One batch that a producer sends. `length`: bytes."""

    topic_id: int
    partition: int
    sequence: int
    record_count: int
    length: int
    crc: int
    timestamp_min_us: int
    timestamp_max_us: int


class Staging(NamedTuple):
    """The result of `stage`.

    `results`: one for each batch; None: the batch is staged, by this call or an earlier one. `new`:
    indexes of the batches to append to `__staged`, in this order, from `next_offset` on.
    """

    results: list[LedgerMQError | None]
    new: list[int]


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
    the same segment; only the last chunk has any.
    """

    transaction: Transaction
    references: tuple[Reference, ...]
    groups: tuple[str, ...]
    is_last: bool


class CarryItem(NamedTuple):
    """Batches to append to `__staged` again, in this order: those of record `n` of a transaction that
    are not visible yet.
    """

    transaction: Transaction
    n: int
    references: tuple[Reference, ...]


class _Begun(NamedTuple):
    """A completion that has begun, and has no note in the log yet."""

    transaction: Transaction
    part: Part
    notes_gone: int


class Participant:
    """`now_ms`: wall clock."""

    def __init__(self, bundle: int, limits: TransactionLimits) -> None:
        self.bundle = bundle
        self.notes_gone = 0
        """Number of notes that were forgotten in this term. A confirmation counts only if this number is
        the same as when the coordinator was asked (X16).
        """
        self._limits = limits
        self._state = BundleState()
        self._begun: dict[bytes, _Begun] = {}
        self._carried_ms: dict[tuple[bytes, int, int, int], int] = {}
        """Key of a record of references -> when this owner carried its batches forward."""

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log, in order. Raises DataDamaged, FormatNotSupported."""
        self._state.apply(key, value)

    # Staging

    def other_id(self, transaction: Transaction) -> str | None:
        """Return another transactional id under which this producer id has staged something here; None if
        there is none. A producer id belongs to one id, so one of the two callers is false.
        """
        of_producer = self._state.of_producer(transaction.producer_id).values()
        names = (staged.transaction.transactional_id for staged in of_producer)
        return next((name for name in names if name != transaction.transactional_id), None)

    def stage(
        self,
        transaction: Transaction,
        branch: bytes,
        batches: Sequence[ToStage],
        next_offset: int,
        now_ms: int,
        principal: int = NO_PRINCIPAL,
    ) -> Decision[Staging]:
        """Decide which batches are staged, in their order. `next_offset`: the end of `__staged` here.
        `principal`: a hash of the name of the principal that sends them; 0: not known.

        A batch may have the result OutOfOrderSequence if an earlier batch is missing (send that one
        again first); TransactionAborted if another batch has its sequence (X13); TransactionTooLarge;
        ResourceExhausted; QuotaExceeded if the principal has its share of the bundle. The call itself
        raises InvalidRequest, and TransactionAborted if the transaction is over or being completed (X11).
        The caller has checked that no other transactional id has something here under this producer id
        (`other_id`).
        """
        check_branch(branch)
        self.check_open(check_transaction(transaction))
        assert self.other_id(transaction) is None, "what is staged of a producer has one transactional id"
        staged = self._state.find(transaction) or Staged()
        results: list[LedgerMQError | None] = []
        new: list[int] = []
        references: list[Reference] = []
        added: dict[tuple[Stream, int], Reference] = {}
        ends = staged.counts()
        size_bytes = 0
        for index, batch in enumerate(batches):
            stream = Stream(branch, batch.topic_id, batch.partition)
            end = ends.get(stream, 0)
            if batch.sequence < end:
                stored = added.get((stream, batch.sequence)) or staged.reference(stream, batch.sequence)
                results.append(_duplicate(transaction, stored, batch))
                continue
            error = self._refusal(transaction, staged, batch, end, len(references), size_bytes)
            if error is None:
                error = self._over_share(principal, staged, batch, len(references), size_bytes)
            results.append(error)
            if error is not None:
                continue
            reference = Reference(
                stream,
                batch.sequence,
                next_offset,
                batch.record_count,
                batch.length,
                batch.crc,
                batch.timestamp_min_us,
                batch.timestamp_max_us,
            )
            next_offset += batch.record_count
            size_bytes += batch.length
            ends[stream] = end + 1
            added[stream, batch.sequence] = reference
            references.append(reference)
            new.append(index)
        entries: Entries = []
        if references:
            value = ReferencesValue(transaction, now_ms, tuple(references), principal)
            entries.append(ReferencesEntry(*transaction[2:], staged.next_n, value))
        return self._decided(entries, Staging(results, new))

    def _refusal(
        self, transaction: Transaction, staged: Staged, batch: ToStage, end: int, more: int, more_bytes: int
    ) -> LedgerMQError | None:
        """Return why a batch cannot be staged, or None. `more`, `more_bytes`: number and bytes of the
        batches that this call stages before it.
        """
        limits = self._limits
        if batch.sequence > end:
            return OutOfOrderSequence(
                f"{describe(transaction)}, partition {batch.topic_id}/{batch.partition}: batch {batch.sequence} "
                f"arrived, but batch {end} is missing; send batch {end} again, then this one"
            )
        if staged.batches + more >= limits.batches_max:
            return TransactionTooLarge(
                f"{describe(transaction)} has {limits.batches_max} batches in bundle {self.bundle}, which is the "
                "maximum; abort it, and use larger batches or smaller transactions"
            )
        if staged.size_bytes + more_bytes + batch.length > limits.bytes_max:
            return TransactionTooLarge(
                f"{describe(transaction)} would have more than {limits.bytes_max} bytes in bundle {self.bundle}; abort "
                "it, and use smaller transactions"
            )
        if not staged.records and not more and self._state.open_count >= limits.open_max:
            return ResourceExhausted(
                f"bundle {self.bundle} has {limits.open_max} open transactions, which is the maximum; send the batch "
                "again later",
                retry_after_ms=RETRY_FULL_MS,
            )
        is_full = self._state.batches + more >= limits.staged_batches_max
        if is_full or self._state.size_bytes + more_bytes + batch.length > limits.staged_bytes_max:
            bound = f"{limits.staged_batches_max} batches" if is_full else f"{limits.staged_bytes_max} bytes"
            return ResourceExhausted(
                f"bundle {self.bundle} would have more than {bound} staged, which is the maximum; send the batch again "
                "later, and find transactions that stay open with `ledgermq transaction list --staged`",
                retry_after_ms=RETRY_FULL_MS,
            )
        return None

    def _over_share(
        self, principal: int, staged: Staged, batch: ToStage, more: int, more_bytes: int
    ) -> QuotaExceeded | None:
        """Return why this principal may not stage a batch, although the bundle has room for it; None: it may. `more`,
        `more_bytes`: see `_refusal`.
        """
        limits, state = self._limits, self._state
        shares, where = state.shares, f"bundle {self.bundle}"
        try:
            if not staged.records and not more:
                free = limits.open_max - state.open_count
                shares.open.check(principal, 1, free, where=where, retry_after_ms=RETRY_FULL_MS)
            free = limits.staged_batches_max - state.batches
            shares.batches.check(principal, more + 1, free, where=where, retry_after_ms=RETRY_FULL_MS)
            free = limits.staged_bytes_max - state.size_bytes
            shares.size_bytes.check(
                principal, more_bytes + batch.length, free, where=where, retry_after_ms=RETRY_FULL_MS
            )
        except QuotaExceeded as error:
            return error
        return None

    def check_open(self, transaction: Transaction) -> None:
        """Raise TransactionAborted if the transaction is over in this bundle, or is being completed;
        InvalidRequest if this bundle has completed a transaction of the producer under another id.
        """
        note = self._state.notes.get(transaction.producer_id)
        if note is not None and note.transaction.transactional_id != transaction.transactional_id:
            raise InvalidRequest(
                f"{describe(transaction)} names a producer id of another transactional id; use the one that "
                "InitTransactions returned for this id"
            )
        if self._is_over(transaction) or self._is_begun(transaction):
            raise TransactionAborted(
                f"{describe(transaction)} is over in bundle {self.bundle}: it was aborted, for example at its "
                "time-out, or committed without this data; ask for its outcome before you repeat the work"
            )

    def staged_in(self, topic_id: int, partition: int) -> int:
        """Return how many transactions have batches for a partition that are not visible yet."""
        place = topic_id, partition
        return sum(
            any((stream.topic_id, stream.partition) == place for stream in staged.streams)
            for staged in self._state.all()
        )

    # Completion

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
        if self._is_over(transaction):
            self._check_outcome(transaction, outcome)
            return self._decided(self._dropped(transaction, transaction.pair), Completion.DONE)
        doing = self._doing(transaction.producer_id)
        if doing is not None and transaction.pair < doing[0].pair and not outcome.is_commit:
            return self._decided(self._dropped(transaction, transaction.pair), Completion.DONE)
        self._check_turn(transaction)
        if not outcome.is_commit:
            return self._abort(transaction, outcome)
        if part.bundle != self.bundle:
            raise InvalidRequest(
                f"{describe(transaction)}: these are the counts of bundle {part.bundle}; send them to its owner, "
                f"not to the owner of bundle {self.bundle}"
            )
        if not confirmed and transaction.producer_id not in self._state.notes:
            return Decision([], Completion.UNSURE)
        self._check_counts(transaction, part, groups_pending)
        if not self._is_begun(transaction):
            counts = {stream: count for stream, count in part.counts.items() if count}
            part = Part(part.bundle, counts, tuple(sorted(set(part.groups))))
            self._begun[transaction.producer_id] = _Begun(transaction, part, self.notes_gone)
        return Decision([], Completion.RETRY)

    def _abort(self, transaction: Transaction, outcome: State) -> Decision[Completion]:
        """Drop what is staged.

        An abort replaces the producer's note of the same epoch, but never writes the first one: with a
        note, a late commit would not be confirmed with the coordinator (X16). Only a commit writes a note
        of a later epoch: an epoch that was never begun is aborted too, and such a note would refuse
        transactions of the epochs that were begun.
        """
        if self._is_begun(transaction):
            raise DataDamaged(
                f"bundle {self.bundle} received that {describe(transaction)} is {outcome.name}, but it received "
                "before that it is committed, and is completing it; nothing was changed; please report this"
            )
        entries = self._dropped(transaction, transaction.pair)
        known = self._state.notes.get(transaction.producer_id)
        if known is not None and known.transaction[:4] == transaction[:4]:
            note = NoteValue(transaction, State.ABORTED, finished=True)
            entries.append(NoteEntry(transaction.producer_id, note))
        return self._decided(entries, Completion.DONE)

    def _check_outcome(self, transaction: Transaction, outcome: State) -> None:
        note = self._state.notes[transaction.producer_id]
        if note.transaction.pair == transaction.pair and outcome.is_commit and not note.outcome.is_commit:
            raise DataDamaged(
                f"bundle {self.bundle} received that {describe(transaction)} is committed, but it received before "
                "that it is aborted, and dropped it; nothing was changed; please report this"
            )

    def _check_turn(self, transaction: Transaction) -> None:
        """Raise Unavailable while another transaction of the producer is being completed (X6)."""
        doing = self._doing(transaction.producer_id)
        if doing is not None and doing[0].pair != transaction.pair:
            raise Unavailable(
                f"{describe(transaction)} waits in bundle {self.bundle} until {describe(doing[0])} is complete there; "
                "repeat the call",
                retry_after_ms=RETRY_MS,
            )

    def _check_counts(self, transaction: Transaction, part: Part, groups_pending: Callable[[str], bool]) -> None:
        staged = self._state.find(transaction) or Staged()
        copied = self._state.copied(transaction)
        missing = [
            f"{count} batches of partition {stream.topic_id}/{stream.partition}, but only the first {end} are there"
            for stream, count in part.counts.items()
            if (end := _end(staged, stream, copied.get(stream, 0))) < count
        ]
        missing += [f"offsets of group {group}" for group in part.groups if not groups_pending(group)]
        if missing:
            more = f"; and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
            raise DataDamaged(
                f"{describe(transaction)} is committed, but bundle {self.bundle} has not staged all that it counts: "
                f"{'; '.join(missing[:NAMED_MAX])}{more}; nothing was changed. Restore the bundle's ledger, "
                "or give up its part with `ledgermq transaction give-up`"
            )

    def unfinished(self) -> list[Transaction]:
        """Return the commits that are being completed: those with a note in the log, and those begun in
        memory.
        """
        of_log = [note.transaction for note in self._state.notes.values() if not note.finished]
        return of_log + [begun.transaction for begun in self._begun.values()]

    def next_chunk(self, producer_id: bytes) -> Chunk | None:
        """Return what the next segment makes visible; None if no completion of the producer has begun.

        Raises DataDamaged if a reference is missing.
        """
        doing = self._doing(producer_id)
        if doing is None:
            return None
        transaction, part = doing
        staged = self._state.find(transaction) or Staged()
        copied = self._state.copied(transaction)
        references: list[Reference] = []
        size_bytes = 0
        for stream in sorted(part.counts, key=_order):
            for sequence in range(copied.get(stream, 0), part.counts[stream]):
                place = staged.streams.get(stream, {}).get(sequence)
                if place is None:
                    raise DataDamaged(
                        f"{describe(transaction)} is committed, but bundle {self.bundle} has no reference to batch "
                        f"{sequence} of partition {stream.topic_id}/{stream.partition}; restore the bundle's ledger, "
                        "or give up its part with `ledgermq transaction give-up`"
                    )
                size_bytes += place.reference.length
                if references and size_bytes > self._limits.chunk_bytes:
                    return Chunk(transaction, tuple(references), (), is_last=False)
                references.append(place.reference)
        return Chunk(transaction, tuple(references), part.groups, is_last=True)

    def admit(self, chunk: Chunk) -> Decision[bool]:
        """Judge a chunk again, in the turn of the event loop that appends it (X11).

        False: it is no longer the next chunk; call `next_chunk` again. True: append its copies, these
        records and those of the groups in one segment (X8).
        """
        transaction = chunk.transaction
        producer_id = transaction.producer_id
        begun = self._begun.get(producer_id)
        if begun is not None and begun.notes_gone != self.notes_gone and producer_id not in self._state.notes:
            del self._begun[producer_id]  # the confirmation is too old: ask the coordinator again
        if self.next_chunk(producer_id) != chunk:
            return Decision([], False)
        doing = self._doing(producer_id)
        assert doing is not None
        self._begun.pop(producer_id, None)
        if chunk.is_last:
            note = NoteValue(transaction, State.COMMITTED, finished=True)
            entries = self._dropped(transaction, transaction.pair)
        else:
            note = self._advanced(chunk, doing[1])
            entries = self._dropped(transaction, (transaction.epoch, transaction.number - 1))  # X5
            entries += self._copied_records(chunk, note)
        return self._decided([*entries, NoteEntry(producer_id, note)], True)

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

    def give_up(self, transaction: Transaction) -> Decision[bool]:
        """Stop completing a commit that the coordinator no longer confirms, because an operator gave up
        this bundle's part (X20). Batches that are not visible yet are dropped.

        False: the transaction is not being completed, and nothing changes.
        """
        if not self._is_begun(transaction):
            return Decision([], False)
        self._begun.pop(transaction.producer_id, None)
        entries = self._dropped(transaction, transaction.pair)
        if transaction.producer_id in self._state.notes:
            entries.append(NoteEntry(transaction.producer_id, NoteValue(transaction, State.COMMITTED, finished=True)))
        return self._decided(entries, True)

    # Questions to the coordinator

    def to_ask(self, now_ms: int, pause_ms: int | None = None) -> list[tuple[Transaction, Part]]:
        """Return the transactions to ask the coordinator about, with the counts of what is staged: those
        staged for at least `pause_ms` (None: as the limits say) that are not being completed.

        A time of staging that lies in the future counts as old: a former owner's clock was wrong.
        """
        limits = self._limits
        old_ms = now_ms - (min(limits.ask_after_ms, limits.check_after_ms) if pause_ms is None else pause_ms)
        return [
            (staged.transaction, Part(self.bundle, staged.counts()))
            for staged in self._state.all()
            if not old_ms < staged.staged_ms <= now_ms and not self._is_begun(staged.transaction)
        ]

    def counted(self, transaction: Transaction, part: Part) -> list[Reference]:
        """Return the references that `part` counts, in the order of a commit; an empty list if nothing of
        the transaction is staged. Raises DataDamaged if only some of them are.
        """
        staged = self._state.find(transaction)
        if staged is None:
            return []
        self._check_counts(transaction, Part(part.bundle, part.counts), lambda group: True)
        copied = self._state.copied(transaction)
        return [
            staged.streams[stream][sequence].reference
            for stream in sorted(part.counts, key=_order)
            for sequence in range(copied.get(stream, 0), part.counts[stream])
        ]

    def notes(self) -> list[Transaction]:
        """Return the transactions of the finished notes. Call `forget` for one if the coordinator answers
        that its id has expired.
        """
        return [note.transaction for note in self._state.notes.values() if note.finished]

    def forget(self, transaction: Transaction) -> Decision[None]:
        """Forget the finished note of exactly this transaction (X16)."""
        note = self._state.notes.get(transaction.producer_id)
        if note is None or not note.finished or note.transaction != transaction:
            return Decision([], None)
        self.notes_gone += 1
        return self._decided([NoteEntry(transaction.producer_id, None)], None)

    # Carrying forward

    def to_carry(self, now_ms: int, below_offset: int) -> list[CarryItem]:
        """Return the batches to carry forward: staged or carried longer than `carry_after_ms` ago, not
        visible yet, and in a record that has an offset below `below_offset`.
        """
        old_ms = now_ms - self._limits.carry_after_ms
        return [
            CarryItem(staged.transaction, n, alive)
            for staged in self._state.all()
            for n, value in staged.records.items()
            if not old_ms < self._carried_ms.get((*staged.transaction[2:], n), value.staged_ms) <= now_ms
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
        decision = self._decided([entry], True)
        self._carried_ms[key] = now_ms
        return decision

    def lowest_offset(self) -> int | None:
        """Return the lowest offset of `__staged` that is still needed; None if nothing is staged."""
        return min(
            (
                reference.offset
                for staged in self._state.all()
                for value in staged.records.values()
                for reference in self._state.alive(value)
            ),
            default=None,
        )

    # What there is

    @property
    def open_count(self) -> int:
        """Transactions that have something staged here."""
        return self._state.open_count

    def has_staged(self, producer_id: bytes, epoch: int, number: int) -> bool:
        return (epoch, number) in self._state.of_producer(producer_id)

    @property
    def staged_bytes(self) -> int:
        return self._state.size_bytes

    @property
    def shares(self) -> StagedShares:
        """Return what each principal has staged."""
        return self._state.shares

    @property
    def staged_batches(self) -> int:
        return self._state.batches

    @property
    def note_count(self) -> int:
        return len(self._state.notes)

    def oldest_ms(self) -> int | None:
        """Return when the oldest staged batch was staged; None if nothing is staged."""
        return min((staged.staged_ms for staged in self._state.all()), default=None)

    def staged_infos(self) -> list[pb.StagedInfo]:
        """Return what each transaction has staged, without groups, the oldest first."""
        found = [
            pb.StagedInfo(
                transaction=transaction_to_proto(staged.transaction),
                batches=staged.batches,
                bytes=staged.size_bytes,
                oldest_ms=staged.staged_ms,
            )
            for staged in self._state.all()
        ]
        return sorted(found, key=lambda info: info.oldest_ms)

    def entries(self) -> list[ReferencesEntry | NoteEntry]:
        """Return the whole state as entries of the log."""
        return self._state.entries()

    # The state

    def _doing(self, producer_id: bytes) -> tuple[Transaction, Part] | None:
        """Return the commit of a producer that is being completed, and its part here."""
        begun = self._begun.get(producer_id)
        if begun is not None:
            return begun.transaction, begun.part
        note = self._state.notes.get(producer_id)
        if note is None or note.finished:
            return None
        assert note.part is not None
        return note.transaction, note.part

    def _is_begun(self, transaction: Transaction) -> bool:
        doing = self._doing(transaction.producer_id)
        return doing is not None and doing[0].pair == transaction.pair

    def _is_over(self, transaction: Transaction) -> bool:
        """Return True if this transaction, or a later one of its producer, was completed here."""
        note = self._state.notes.get(transaction.producer_id)
        return note is not None and transaction.pair <= note.transaction.pair and not self._is_begun(transaction)

    def _dropped(self, transaction: Transaction, last: tuple[int, int]) -> Entries:
        """Return the entries that drop all that the producer has staged at or below the pair `last` (X5),
        under this transactional id. A call that names the producer id beside another id drops nothing of it.
        """
        return [
            ReferencesEntry(transaction.producer_id, *pair, n, None)
            for pair, staged in self._state.of_producer(transaction.producer_id).items()
            if pair <= last and staged.transaction[:2] == transaction[:2]
            for n in staged.records
        ]

    def _decided(self, entries: Entries, answer: T) -> Decision[T]:
        for entry in entries:
            self._state.take(entry)
            if isinstance(entry, ReferencesEntry) and entry.value is None:
                self._carried_ms.pop((entry.producer_id, entry.epoch, entry.number, entry.n), None)
        return Decision([encode(entry) for entry in entries], answer)


def _order(stream: Stream) -> tuple[int, int, bytes]:
    return stream.topic_id, stream.partition, stream.branch


def _end(staged: Staged, stream: Stream, copied: int) -> int:
    """Return how many batches of a stream, from the first, are visible or staged."""
    places = staged.streams.get(stream, {})
    while copied in places:
        copied += 1
    return copied


def _duplicate(transaction: Transaction, stored: Reference | None, batch: ToStage) -> LedgerMQError | None:
    """Return None if a batch equals the stored one of its sequence, else the error (X13)."""
    if stored is None:
        return DataDamaged(
            f"{describe(transaction)}, partition {batch.topic_id}/{batch.partition}: later batches are staged, but the "
            f"reference to batch {batch.sequence} is missing; abort the transaction"
        )
    if (stored.record_count, stored.crc, stored.length) == (batch.record_count, batch.crc, batch.length):
        return None
    return TransactionAborted(
        f"{describe(transaction)}, partition {batch.topic_id}/{batch.partition}: batch {batch.sequence} differs from "
        f"the staged batch of this sequence ({batch.record_count} records and CRC {batch.crc:#010x}, not "
        f"{stored.record_count} and {stored.crc:#010x}); abort the transaction, because a sequence is used once"
    )


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
