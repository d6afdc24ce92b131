"""Judge each batch when it gets its place in a ledger: whether it is the next one of its producer, which may write,
has new ids, and meets its condition; or is answered, now or together with the segment that holds its like.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.errors import ConditionFailed, DuplicateMessage, LedgerMQError, NotOwner, ProducerError
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import Recovered
from ledgermq_ledger.log.writing.in_flight import Append, InFlight, fail, succeed
from ledgermq_ledger.log.writing.term import Term

MayWrite = Callable[[PartitionId, bytes, int], None]
"""Raises the error that keeps a producer (its id; empty: it has none) from writing to a partition now. It is asked
for each batch that is not stored yet, when the batch gets its place.
"""


class Judging(Term):
    def __init__(self, ledger: LedgerRef, recovered: Recovered, may_write: MayWrite) -> None:
        super().__init__(ledger, recovered)
        self._may_write = may_write

    def _check_own(self, append: Append) -> None:
        """Raise AssertionError if a batch that is stored together with others is of a partition that was sealed: the
        others must not be stored without it. What such batches come from holds up the seal (design Y13).
        """
        key = append.batch.key
        if append.is_own and self._issued.moves.seal_of(key) is not None:
            raise AssertionError(f"bundle {self.bundle}: {key} was sealed before all that was stored in it")

    def _is_new(self, append: Append, building: InFlight) -> bool:
        """Judge the partition's place, the sequence, the producer, the ids, then the condition. Return False if the
        batch was refused, answered, or joined to the segment that holds it already: that one is acknowledged again,
        also if its producer may write no longer, and whatever its condition says by now (design P12).
        """
        try:
            self._issued.moves.check_here(append.batch.key)
        except NotOwner as error:
            fail(append, error)
            return False
        if not self._is_next(append, building) or not self._is_allowed(append):
            return False
        if append.batch.ids and not self._has_new_ids(append, building):
            return False
        return append.batch.expect_end is None or self._is_at_end(append, building)

    def _is_allowed(self, append: Append) -> bool:
        batch = append.batch
        if append.is_own:
            return True
        try:
            self._may_write(batch.key, *batch.identity)
        except LedgerMQError as error:
            if error.retriable:
                fail(append, error)
            else:
                self._refuse(append, error)
            return False
        return True

    def _is_next(self, append: Append, building: InFlight) -> bool:
        batch = append.batch
        if batch.producer is None:
            return True
        try:
            stored = self._issued.judge(batch.producer, batch.key, batch.record_count, batch.sent_crc)
        except ProducerError as error:
            self._refuse(append, error)
            return False
        if stored is None:
            return True
        if not self._is_joined(append, stored.slot, stored.base_offset, building):
            succeed(append, stored.base_offset)
        return False

    def _has_new_ids(self, append: Append, building: InFlight) -> bool:
        """Judge the ids. A batch with duplicates is not stored, and its producer sends the other records
        again; the answer waits until the originals are durable (design P9).
        """
        batch = append.batch
        try:
            found = self._issued.ids.judge(batch.key, batch.ids, batch.ids_us, batch.ids_principal)
        except LedgerMQError as error:
            fail(append, error)
            return False
        if found is None:
            return True
        if not self._is_joined(append, found.slot, found.error, building):
            fail(append, found.error)
        return False

    def _is_joined(self, append: Append, slot: int, answer: int | DuplicateMessage, building: InFlight) -> bool:
        """Let a batch be answered together with the segment of that slot. Return False if this is durable already."""
        for flight in (building, *self._in_flight):
            if flight.index.slot == slot:
                flight.answers.append((append, answer))
                return True
        if slot > self.durable.slot:
            raise AssertionError(f"bundle {self.bundle}: slot {slot} is neither durable nor in flight")
        return False

    def _is_at_end(self, append: Append, building: InFlight) -> bool:
        """Judge the condition by the end that is issued. A failure is answered when the records that cause it are
        durable; if all are, after a fence check (design P12).
        """
        batch, end = append.batch, self._issued.end(*append.batch.key)
        if batch.expect_end == end:
            return True
        error = ConditionFailed(
            f"partition {batch.partition} of topic id {batch.topic_id} ends at {end}, not at {batch.expect_end} as the"
            " batch expects; nothing of it is stored"
        )
        error.end = end
        for flight in (building, *reversed(self._in_flight)):
            if batch.key in flight.keys:
                flight.answers.append((append, error))
                return False
        self._refuse(append, error)
        return False

    def _refuse(self, append: Append, error: LedgerMQError) -> None:
        """Refuse a batch after a fence check. A refusal is final for the producer, and a later
        owner may have other facts.
        """
        self._refused[append.done] = append
        self._start(self._fail_unless_fenced(append, error), f"refusal, bundle {self.bundle}")

    async def _fail_unless_fenced(self, append: Append, error: LedgerMQError) -> None:
        try:
            await self.check_fence()
        except LedgerMQError as not_known:
            error = not_known
        fail(append, error)
        self._refused.pop(append.done, None)
