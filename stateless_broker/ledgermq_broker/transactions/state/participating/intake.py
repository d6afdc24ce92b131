"""Stage the batches of open transactions: within the bounds, and each sequence once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ledgermq.errors import (
    DataDamaged,
    InvalidRequest,
    LedgerMQError,
    OutOfOrderSequence,
    QuotaExceeded,
    ResourceExhausted,
    TransactionAborted,
    TransactionTooLarge,
)
from ledgermq_broker.transactions.state.checks import check_branch, check_transaction, describe
from ledgermq_broker.transactions.state.limits import RETRY_FULL_MS
from ledgermq_broker.transactions.state.participating.served_bundle import Entries, ServedBundle
from ledgermq_broker.transactions.state.participating.staged import Staged
from ledgermq_broker.transactions.state.records import ReferencesEntry, ReferencesValue
from ledgermq_broker.transactions.state.types import Reference, Stream, Transaction
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL


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


class _Call:
    """What one call of `stage` adds to a transaction."""

    def __init__(self, transaction: Transaction, staged: Staged, next_offset: int) -> None:
        self.transaction = transaction
        self.staged = staged
        """What was staged before the call."""
        self.ends = staged.counts()
        self.references: list[Reference] = []
        self.new: list[int] = []
        self.added_bytes = 0
        self._next_offset = next_offset
        self._added: dict[tuple[Stream, int], Reference] = {}

    @property
    def is_first(self) -> bool:
        """Return True while nothing of the transaction is staged."""
        return not self.staged.records and not self.references

    @property
    def batches(self) -> int:
        return self.staged.batches + len(self.references)

    @property
    def size_bytes(self) -> int:
        return self.staged.size_bytes + self.added_bytes

    def stored(self, stream: Stream, sequence: int) -> Reference | None:
        return self._added.get((stream, sequence)) or self.staged.reference(stream, sequence)

    def add(self, index: int, stream: Stream, batch: ToStage) -> None:
        reference = Reference(
            stream,
            batch.sequence,
            self._next_offset,
            batch.record_count,
            batch.length,
            batch.crc,
            batch.timestamp_min_us,
            batch.timestamp_max_us,
        )
        self._next_offset += batch.record_count
        self.added_bytes += batch.length
        self.ends[stream] = batch.sequence + 1
        self._added[stream, batch.sequence] = reference
        self.references.append(reference)
        self.new.append(index)


class Intake:
    def __init__(self, state: ServedBundle) -> None:
        self._state = state

    def other_id(self, transaction: Transaction) -> str | None:
        """Return another transactional id under which this producer id has staged something here; None if
        there is none. A producer id belongs to one id, so one of the two callers is false.
        """
        of_producer = self._state.of_producer(transaction.producer_id).values()
        names = (staged.transaction.transactional_id for staged in of_producer)
        return next((name for name in names if name != transaction.transactional_id), None)

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
        state = self._state
        if state.is_over(transaction) or state.is_begun(transaction) or state.is_after_end(transaction):
            raise TransactionAborted(
                f"{describe(transaction)} is over in bundle {self._state.bundle}: it was aborted, for example at its "
                "time-out, or committed without this data; ask for its outcome before you repeat the work"
            )

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
        call = _Call(transaction, self._state.find(transaction) or Staged(), next_offset)
        results: list[LedgerMQError | None] = []
        for index, batch in enumerate(batches):
            stream = Stream(branch, batch.topic_id, batch.partition)
            if batch.sequence < call.ends.get(stream, 0):
                results.append(_duplicate(transaction, call.stored(stream, batch.sequence), batch))
                continue
            error = self._refusal(call, stream, batch) or self._over_share(call, principal, batch)
            results.append(error)
            if error is None:
                call.add(index, stream, batch)
        entries: Entries = []
        if call.references:
            value = ReferencesValue(transaction, now_ms, tuple(call.references), principal)
            entries.append(ReferencesEntry(*transaction[2:], call.staged.next_n, value))
        return self._state.decided(entries, Staging(results, call.new))

    def _refusal(self, call: _Call, stream: Stream, batch: ToStage) -> LedgerMQError | None:
        """Return why a batch cannot be staged, or None."""
        limits, state, transaction = self._state.limits, self._state, call.transaction
        end = call.ends.get(stream, 0)
        if batch.sequence > end:
            return OutOfOrderSequence(
                f"{describe(transaction)}, partition {batch.topic_id}/{batch.partition}: batch {batch.sequence} "
                f"arrived, but batch {end} is missing; send batch {end} again, then this one"
            )
        if call.batches >= limits.batches_max:
            return TransactionTooLarge(
                f"{describe(transaction)} has {limits.batches_max} batches in bundle {state.bundle}, which is the "
                "maximum; abort it, and use larger batches or smaller transactions"
            )
        if call.size_bytes + batch.length > limits.bytes_max:
            return TransactionTooLarge(
                f"{describe(transaction)} would have more than {limits.bytes_max} bytes in bundle {state.bundle}; "
                "abort it, and use smaller transactions"
            )
        if call.is_first and state.open_count >= limits.open_max:
            return ResourceExhausted(
                f"bundle {state.bundle} has {limits.open_max} open transactions, which is the maximum; send the batch "
                "again later",
                retry_after_ms=RETRY_FULL_MS,
            )
        is_full = state.batches + len(call.references) >= limits.staged_batches_max
        if is_full or state.size_bytes + call.added_bytes + batch.length > limits.staged_bytes_max:
            bound = f"{limits.staged_batches_max} batches" if is_full else f"{limits.staged_bytes_max} bytes"
            return ResourceExhausted(
                f"bundle {state.bundle} would have more than {bound} staged, which is the maximum; send the batch "
                "again later, and find transactions that stay open with `ledgermq transaction list --staged`",
                retry_after_ms=RETRY_FULL_MS,
            )
        return None

    def _over_share(self, call: _Call, principal: int, batch: ToStage) -> QuotaExceeded | None:
        """Return why this principal may not stage a batch, although the bundle has room for it; None: it may."""
        limits, state = self._state.limits, self._state
        shares, where = state.shares, f"bundle {state.bundle}"
        try:
            if call.is_first:
                free = limits.open_max - state.open_count
                shares.open.check(principal, 1, free, where=where, retry_after_ms=RETRY_FULL_MS)
            free = limits.staged_batches_max - state.batches
            shares.batches.check(principal, len(call.references) + 1, free, where=where, retry_after_ms=RETRY_FULL_MS)
            free = limits.staged_bytes_max - state.size_bytes
            shares.size_bytes.check(
                principal, call.added_bytes + batch.length, free, where=where, retry_after_ms=RETRY_FULL_MS
            )
        except QuotaExceeded as error:
            return error
        return None


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
