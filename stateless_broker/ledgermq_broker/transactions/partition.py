"""Serve one partition of `__transactions` for one term of its bundle.

It is the coordinator of the transactional ids that map to it, and the participant for all that is
staged in the bundle. Both states have their records in this partition. Must not know: how a caller
finds the partition, what a batch contains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ledgermq.errors import InvalidRequest, LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import DELAYED_BRANCH
from ledgermq.sources import Sources
from ledgermq_broker.internal.core import Opening
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.timed.state.sizes import Size, size_in_intake, used
from ledgermq_broker.transactions.coordinating.term import Coordinating
from ledgermq_broker.transactions.counts import TransactionSizes
from ledgermq_broker.transactions.housekeeper import Housekeeper
from ledgermq_broker.transactions.participating.copier import ENDED_WITHIN_S, Copier
from ledgermq_broker.transactions.participating.pending_offsets import PendingOffsets
from ledgermq_broker.transactions.participating.settling import settle
from ledgermq_broker.transactions.participating.staged_log import StagedLog
from ledgermq_broker.transactions.participating.timed_blocks import TimedBlocks
from ledgermq_broker.transactions.parts import TransactionParts
from ledgermq_broker.transactions.peers import Peers
from ledgermq_broker.transactions.state.checks import describe
from ledgermq_broker.transactions.state.coordinator import Coordinator
from ledgermq_broker.transactions.state.limits import RETRY_MS, TransactionLimits
from ledgermq_broker.transactions.state.participant import Participant
from ledgermq_broker.transactions.state.participating.completing import Completion
from ledgermq_broker.transactions.state.participating.intake import Staging, ToStage
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from ledgermq_broker.transactions.state.wire import (
    shown_transaction,
    transaction_from_proto,
)
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.log.segments.segment import Batch

COMPLETE_WAIT_S = 5.0
"""How long a call waits for a completion that takes several segments."""
READ_BYTES_MAX = 4 * 1024 * 1024
"""Staged bytes in one answer, at most; a single batch may be larger."""


class TransactionCores:
    """The two states of a partition, which share its log. Each skips the other's records."""

    def __init__(self, partition: int, bundle: int, limits: TransactionLimits, sources: Sources) -> None:
        loop = asyncio.get_running_loop()
        self.coordinator = Coordinator(partition, limits, sources.new_id, loop.time)
        self.participant = Participant(bundle, limits)

    def apply(self, key: bytes, value: bytes | None) -> None:
        self.coordinator.apply(key, value)
        self.participant.apply(key, value)


Stored = Callable[[], Awaitable[list[LedgerMQError | None]]]
"""Wait until the batches that one call has staged are durable, and return an error or None for each."""


class TransactionPartition:
    """One partition and its tasks. Make it when both states are loaded, and no append of the bundle's
    former log is under way.
    """

    def __init__(self, cores: TransactionCores, opening: Opening, parts: TransactionParts) -> None:
        self.partition = opening.partition
        self.bundle = opening.owner.bundle
        self.coordinator = cores.coordinator
        self.participant = cores.participant
        self.owner = opening.owner
        self._parts = parts
        self._on_failed = opening.on_failed
        self._staged = StagedLog(opening.owner, opening.log, parts.staged(), opening.partition)
        self._pending = PendingOffsets(self.bundle, parts.catalog, opening.hosted)
        self._timed = TimedBlocks(self.bundle, opening.hosted)
        self._state = IssuedState("transactions", opening.owner, opening.log, opening.place, self._fail)
        self.peers = Peers(parts.calls, parts.bundle_of)
        self.coordinating = Coordinating(
            self.partition, self._state, self.coordinator, self.bundle, self, self.peers, parts
        )
        self._copier = Copier(
            self._state,
            self.participant,
            self._staged,
            self._pending,
            self._timed,
            parts.catalog,
            parts.sources,
            self._moved,
            self.peers.is_confirmed,
        )
        self._housekeeper = Housekeeper(self, self._state, self._staged, self._pending, self.peers, parts)
        self.coordinating.start()
        self._copier.resume()
        self._housekeeper.start()

    @property
    def lost(self) -> LedgerMQError | None:
        return self._state.lost

    def tick(self) -> None:
        """Do nothing: the catalog is read when batches are copied."""

    def keeps(self, place: PartitionId) -> str:
        count = self.participant.staged_in(place.topic_id, place.partition)
        return f"{count} open transactions have batches for it: commit or abort them" if count else ""

    async def settle(self, place: PartitionId, end_s: float) -> None:
        await settle(self.participant, self.peers, place, end_s)
        await self._state.durable()  # what was copied a moment ago is in no end before that

    def close(self, error: LedgerMQError) -> None:
        """End the term: every later call raises NotOwner. Idempotent."""
        self._state.close(error)
        self.coordinating.close()
        self._copier.close()
        self._housekeeper.close()

    # Participant

    def stage(
        self,
        transaction: Transaction,
        branch: bytes,
        batches: Sequence[tuple[int, Batch]],
        principal: int,
        *,
        by_records: bool = False,
    ) -> Stored:
        """Judge batches with their sequences now, and append the new ones in one decision. `principal`: a hash of the
        name of the principal that sends them; 0: not known. `by_records`: one batch, with a sequence of Kafka's.

        Raises NotOwner, ResourceExhausted, Unavailable, and the error of a store that takes no records;
        then nothing has changed.
        """
        size_bytes = sum(len(batch.data) for _, batch in batches)
        self._state.check_room(1 + size_bytes)
        self.owner.check_admission()
        if branch.endswith(DELAYED_BRANCH):
            delayed = [batch for _, batch in batches]
            self._timed.check_room(delayed, principal)
            self._timed.check_full(delayed)
        wanted = [_to_stage(sequence, batch) for sequence, batch in batches]
        self._check_name(transaction)
        place = self._staged.next_offset, self.now_ms(), principal
        stage = partial(self.participant.intake.stage, transaction, branch, wanted, *place)
        if by_records:
            [only] = wanted
            stage = partial(self.participant.by_records.stage, transaction, only, *place)
        try:
            decision = self._state.ask(stage)
        except LedgerMQError as error:
            if error.retriable:
                raise
            return partial(self._refused, error, len(batches))
        staging = decision.answer
        self._state.take(decision, self._staged.issue([batches[at][1] for at in staging.new]))
        if staging.new:
            self._housekeeper.wake()
        return partial(self._stored, staging, self._state.durable_soon(), self._staged.next_offset)

    async def _stored(self, staging: Staging, durable: asyncio.Task[None], end: int) -> list[LedgerMQError | None]:
        await durable
        if staging.new:
            self._check_end(end)
        if len(staging.new) < len(staging.results):  # refused, or staged before: final only if still the owner
            await self._state.confirmed()
        return staging.results

    async def _refused(self, error: LedgerMQError, batches: int) -> list[LedgerMQError | None]:
        await self._state.confirmed()
        return [error] * batches

    def check_open(self, transaction: Transaction) -> None:
        """Raise TransactionAborted if the transaction is over in this bundle or is being completed, or
        NotOwner. Stage a group's offsets in the same turn.
        """
        self._check_name(transaction)
        self._state.ask(lambda: self.participant.intake.check_open(transaction))
        self._housekeeper.wake()

    def _check_name(self, transaction: Transaction) -> None:
        """Raise Unavailable if another transactional id has something staged here under this producer id.

        One of the two ids is not that of the producer. The coordinator of the staged one is asked at once;
        if it does not know the producer, the batches go, and a repeated call succeeds.
        """
        if self.participant.intake.other_id(transaction) is None and self._pending.other_id(transaction) is None:
            return
        self._housekeeper.note_disputed(transaction.producer_id)
        raise Unavailable(
            f"{describe(transaction)}: another transactional id has staged something in bundle {self.bundle} under "
            "this producer id, and its coordinator is asked whether it may; repeat the call",
            retry_after_ms=RETRY_MS,
        )

    def note_busy(self) -> None:
        """Note that a group waits for the end of a transaction; the housekeeper asks its coordinator at
        once.
        """
        self._housekeeper.note_busy()

    def note_fenced(self, producer_id: bytes, epoch: int) -> None:
        """Note that a producer has begun this epoch; transactions of its earlier epochs are aborted."""
        self._housekeeper.note_fenced(producer_id, epoch)

    async def complete(self, transaction: Transaction, outcome: State, part: Part) -> bool:
        """Make the transaction's part visible, or drop it. Return True when that is durable; False if it
        takes longer: it has begun, and continues by itself.
        """
        confirmed = wrote = False
        while True:
            self._state.check_room()
            gone = self.participant.notes_gone
            decision = self._begin(transaction, outcome, part, confirmed)
            if decision.answer is Completion.DONE:
                if wrote or decision.records:
                    await self._state.durable(within_s=ENDED_WITHIN_S)
                else:
                    await self._state.confirmed()
                return True
            if decision.answer is Completion.RETRY:
                if not await self._copier.copied(transaction.producer_id, COMPLETE_WAIT_S):
                    return False
                confirmed, wrote = False, True  # judge it again: now the state has to say that it is over
            elif await self.peers.is_confirmed(transaction):
                confirmed = self.participant.notes_gone == gone
            else:
                return True  # this is a late call: the transaction is complete in all bundles

    def _begin(self, transaction: Transaction, outcome: State, part: Part, confirmed: bool) -> Decision[Completion]:
        """Judge a call to complete; if the transaction is aborted or over, drop what it staged."""
        (self._pending.check_ready if outcome.is_commit else self._pending.check_loaded)(part.groups)
        decision = self._state.ask(
            lambda: self.participant.completing.complete(
                transaction,
                outcome,
                part,
                confirmed=confirmed,
                groups_pending=lambda group: self._pending.has_pending(group, transaction),
            )
        )
        if decision.answer is Completion.DONE:
            self._state.take(decision, more=lambda: self._pending.settle(transaction, ()), within_s=ENDED_WITHIN_S)
            self._moved()
        return decision

    async def read_staged(self, transaction: Transaction, part: Part, skip: int) -> pb.ReadStagedResponse:
        """Return batches that `part` counts, without the first `skip` ones; none if nothing is staged."""
        references = await self._state.read(lambda: self.participant.completing.counted(transaction, part))
        chosen = references[skip : skip + 1]
        size_bytes = sum(reference.length for reference in chosen)
        for reference in references[skip + 1 :]:
            size_bytes += reference.length
            if size_bytes > READ_BYTES_MAX:
                break
            chosen.append(reference)
        batches = await self._staged.read(chosen)
        topics = self._parts.catalog().topics_by_id
        answer = pb.ReadStagedResponse(left=max(0, len(references) - skip - len(chosen)))
        for batch in batches:
            topic = topics.get(batch.topic_id)
            answer.batches.add(
                topic=topic.name if topic is not None and not topic.removed else "",
                topic_id=batch.topic_id,
                partition=batch.partition,
                record_count=batch.record_count,
                crc=batch.crc,
                data=bytes(batch.data),
            )
        return answer

    def open_number(self, producer_id: bytes, epoch: int, place: PartitionId | None, group: str) -> int:
        """Return the number of the open transaction of the Kafka protocol that has something staged here for this
        partition, or for the group if `place` is None; 0: none.
        """
        by_records = self.participant.by_records
        if place is not None:
            return by_records.open_number(producer_id, epoch, place)
        number = self._pending.open_number(producer_id, epoch, group)
        return number if by_records.is_open(producer_id, epoch, number) else 0

    async def count_staged(self, transaction: Transaction, bundle: int, groups: Sequence[str]) -> Part:
        """Return what a transaction has staged here. `groups`: those that it may have offsets of, anywhere."""
        if bundle != self.bundle:
            raise InvalidRequest(f"bundle {bundle} is asked of the owner of bundle {self.bundle}")

        def counted() -> Part:
            pending = tuple(group for group in groups if self._pending.has_here(group, transaction))
            return Part(bundle, self.participant.by_records.counts(transaction), pending)

        return await self._state.read(counted)

    # Coordinator

    def used_by(self, principal: int) -> dict[str, int]:
        """Return what a principal (a hash of its name) has of this bundle's tables, by their names."""
        shares = (self.coordinator.shares, *self.participant.shares)
        return {each.limit: each.of(principal) for each in shares} | used(self.delayed_staged(principal)[1])

    def delayed_staged(self, principal: int) -> tuple[Size, Size]:
        """Return what delayed batches that are staged here will take, of all principals and of this one."""
        found = self.participant.delayed
        batches, records, size_bytes = found.batches, found.records, found.size_bytes
        whole = size_in_intake(batches.total, records.total, size_bytes.total)
        return whole, size_in_intake(batches.of(principal), records.of(principal), size_bytes.of(principal))

    async def list(self, open_only: bool) -> tuple[Sequence[pb.TransactionInfo], Sequence[pb.StagedInfo]]:
        """Return the ids of this partition, and what is staged in its bundle."""
        return await self._state.read(lambda: (self.coordinator.operators.infos(open_only), self._staged_infos()))

    def sizes(self) -> TransactionSizes:
        """Return the sizes for metrics, as they are in memory; they may not be durable yet."""
        coordinator, participant, now_ms = self.coordinator, self.participant, self.now_ms()
        since = [staged.staged_ms for staged in self._pending.staged().values()]
        if (oldest_ms := participant.oldest_ms()) is not None:
            since.append(oldest_ms)
        waiting_ms = coordinator.incomplete_since_ms()
        return TransactionSizes(
            ids=coordinator.size,
            prepared=coordinator.prepared_count,
            incomplete=coordinator.incomplete_count,
            incomplete_s=0.0 if waiting_ms is None else max(0, now_ms - waiting_ms) / 1000,
            staged=participant.open_count,
            staged_batches=participant.staged_batches,
            staged_bytes=participant.staged_bytes,
            staged_s=max(0, now_ms - min(since, default=now_ms)) / 1000,
        )

    def _staged_infos(self) -> Sequence[pb.StagedInfo]:
        """Return what is staged in the bundle, batches and offsets, the oldest first."""
        found = {transaction_from_proto(info.transaction): info for info in self.participant.staged_infos()}
        for one, pending in self._pending.staged().items():
            info = found.setdefault(one, pb.StagedInfo(oldest_ms=pending.staged_ms))
            info.oldest_ms = min(info.oldest_ms, pending.staged_ms)
            info.groups.extend(pending.groups)
        for one, info in found.items():
            info.transaction.CopyFrom(shown_transaction(one))
        return sorted(found.values(), key=lambda info: info.oldest_ms)

    def _check_end(self, end: int) -> None:
        try:
            self._staged.check_end(end)
        except AssertionError as bug:
            self._state.broken(bug)
            raise Unavailable(
                f"staged batches of bundle {self.bundle} have other offsets than expected; its transactions are loaded"
                " again from their log; retry"
            ) from bug

    def _moved(self) -> None:
        """Note that staged data was copied or dropped."""
        self._housekeeper.moved()

    def now_ms(self) -> int:
        """Return the time that is stored, and compared with what was stored (decision 30)."""
        return self._parts.clocks.stamp_ms()

    def _fail(self, error: LedgerMQError) -> None:
        self.close(error)
        self._on_failed()


def _to_stage(sequence: int, batch: Batch) -> ToStage:
    return ToStage(
        batch.topic_id,
        batch.partition,
        sequence,
        batch.record_count,
        len(batch.data),
        batch.crc,
        batch.timestamp_min_us,
        batch.timestamp_max_us,
    )
