"""Serve one partition of `__transactions` for one term of its bundle.

It is the coordinator of the transactional ids that map to it, and the participant for all that is
staged in the bundle. Both states have their records in this partition. Must not know: how a caller
finds the partition, what a batch contains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ledgermq.errors import InvalidRequest, LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import DELAYED_BRANCH
from ledgermq.sources import Sources
from ledgermq_broker.internal.bundle_calls import BundleCalls
from ledgermq_broker.internal.core import Opening
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.logs import get_logger
from ledgermq_broker.transactions.checker import Checker
from ledgermq_broker.transactions.completer import Completer
from ledgermq_broker.transactions.copier import ENDED_WITHIN_S, Copier
from ledgermq_broker.transactions.counts import TransactionCounts, TransactionSizes
from ledgermq_broker.transactions.housekeeper import Housekeeper
from ledgermq_broker.transactions.pending_offsets import PendingOffsets
from ledgermq_broker.transactions.staged_log import StagedLog
from ledgermq_broker.transactions.state.checks import describe
from ledgermq_broker.transactions.state.coordinator import Coordinator, Identity, Outcome
from ledgermq_broker.transactions.state.limits import RETRY_MS, TransactionLimits
from ledgermq_broker.transactions.state.participant import Completion, Participant, Staging, ToStage
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from ledgermq_broker.transactions.state.wire import (
    part_to_proto,
    shown_transaction,
    state_from_proto,
    state_to_proto,
    transaction_from_proto,
    transaction_to_proto,
)
from ledgermq_broker.transactions.timed_blocks import TimedBlocks
from ledgermq_broker.transactions.unresolved import UnresolvedCopies
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.log.segment import Batch
from ledgermq_ledger.root.two_clocks import TwoClocks
from ledgermq_ledger.topics.catalog import Catalog, Topic

COMPLETE_WAIT_S = 5.0
"""How long a call waits for a completion that takes several segments."""
TURN_WAIT_S = 2.0
"""How long a decision waits for the completion of the id's transaction before."""
READ_BYTES_MAX = 4 * 1024 * 1024
"""Staged bytes in one answer, at most; a single batch may be larger."""

FENCED_MAX = 1000
"""Number of ids whose fenced transactions are remembered, so that each is counted once."""

T = TypeVar("T")

log = get_logger(__name__)


@dataclass(frozen=True)
class TransactionParts:
    """What all terms of a broker share. `bundle_of(coordinator)`: the bundle of a partition of
    `__transactions`. `staged()`: the topic of staged batches. `unresolved`: finds or creates
    a topic of half messages. `carry_slots`: how many slots staged batches may be behind before they
    are carried forward.
    """

    limits: TransactionLimits
    sources: Sources
    clocks: TwoClocks
    catalog: Callable[[], Catalog]
    calls: BundleCalls
    bundle_of: Callable[[int], int]
    staged: Callable[[], Topic]
    unresolved: Callable[[str], Awaitable[Topic]]
    counts: TransactionCounts
    carry_slots: int = 2048


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
        self._fenced: dict[str, tuple[int, int]] = {}
        """Id -> the newest transaction that was counted as aborted because its epoch is over."""
        self._staged = StagedLog(opening.owner, opening.log, parts.staged(), opening.partition)
        self._pending = PendingOffsets(self.bundle, parts.catalog, opening.hosted)
        self._timed = TimedBlocks(self.bundle, opening.hosted)
        self._state = IssuedState("transactions", opening.owner, opening.log, opening.place, self._fail)
        self._completer = Completer(self._state, self.coordinator, self._push, parts.sources, parts.counts)
        self._copier = Copier(
            self._state,
            self.participant,
            self._staged,
            self._pending,
            self._timed,
            parts.catalog,
            parts.sources,
            self._moved,
            self._is_confirmed,
        )
        self._housekeeper = Housekeeper(self, self._state, self._staged, self._pending, parts)
        self._checker = Checker(
            self._state, self.coordinator, self._read_first, self._count_check, self._declare_unresolved, parts.clocks
        )
        self._unresolved = UnresolvedCopies(parts.unresolved, parts.calls, self._read_staged, parts.sources.now_us)
        self.coordinator.start(self.now_ms())
        self._completer.resume()
        self._copier.resume()
        self._housekeeper.start()
        self._checker.start()

    @property
    def lost(self) -> LedgerMQError | None:
        return self._state.lost

    def tick(self) -> None:
        """Do nothing: the catalog is read when batches are copied."""

    def keeps(self, place: PartitionId) -> str:
        count = self.participant.staged_in(place.topic_id, place.partition)
        return f"{count} open transactions have batches for it: commit or abort them" if count else ""

    def close(self, error: LedgerMQError) -> None:
        """End the term: every later call raises NotOwner. Idempotent."""
        self._state.close(error)
        self._completer.close()
        self._copier.close()
        self._housekeeper.close()
        self._checker.close()

    # Participant

    def stage(
        self, transaction: Transaction, branch: bytes, batches: Sequence[tuple[int, Batch]], principal: int
    ) -> Stored:
        """Judge batches with their sequences now, and append the new ones in one decision. `principal`: a hash of the
        name of the principal that sends them; 0: not known.

        Raises NotOwner, ResourceExhausted, Unavailable, and the error of a store that takes no records;
        then nothing has changed.
        """
        size_bytes = sum(len(batch.data) for _, batch in batches)
        self._state.check_room(1 + size_bytes)
        self.owner.check_admission()
        if branch.endswith(DELAYED_BRANCH):
            self._timed.check_room(size_bytes)
            self._timed.check_full([batch for _, batch in batches])
        wanted = [_to_stage(sequence, batch) for sequence, batch in batches]
        self._check_name(transaction)
        try:
            decision = self._state.ask(
                partial(
                    self.participant.stage,
                    transaction,
                    branch,
                    wanted,
                    self._staged.next_offset,
                    self.now_ms(),
                    principal,
                )
            )
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
        self._state.ask(lambda: self.participant.check_open(transaction))
        self._housekeeper.wake()

    def _check_name(self, transaction: Transaction) -> None:
        """Raise Unavailable if another transactional id has something staged here under this producer id.

        One of the two ids is not that of the producer. The coordinator of the staged one is asked at once;
        if it does not know the producer, the batches go, and a repeated call succeeds.
        """
        if self.participant.other_id(transaction) is None and self._pending.other_id(transaction) is None:
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
            elif await self._is_confirmed(transaction):
                confirmed = self.participant.notes_gone == gone
            else:
                return True  # this is a late call: the transaction is complete in all bundles

    def _begin(self, transaction: Transaction, outcome: State, part: Part, confirmed: bool) -> Decision[Completion]:
        """Judge a call to complete; if the transaction is aborted or over, drop what it staged."""
        (self._pending.check_ready if outcome.is_commit else self._pending.check_loaded)(part.groups)
        decision = self._state.ask(
            lambda: self.participant.complete(
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

    async def _is_confirmed(self, transaction: Transaction) -> bool:
        return (await self.ask(transaction, pb.CONFIRM)).is_commit

    async def ask(self, transaction: Transaction, question: pb.Question, part: Part | None = None) -> State:
        """Ask the coordinator of a transaction. Raises the errors of the call."""
        request = pb.AskTransactionRequest(transaction=transaction_to_proto(transaction), question=question)
        if part is not None:
            request.part.CopyFrom(part_to_proto(part))
        return state_from_proto((await self._asked(request)).state)

    async def ask_expired(self, transaction: Transaction) -> bool:
        """Ask the coordinator whether the note about this transaction's producer may be forgotten."""
        request = pb.AskTransactionRequest(transaction=transaction_to_proto(transaction), question=pb.EXPIRED)
        return (await self._asked(request)).expired

    async def _asked(self, request: pb.AskTransactionRequest) -> pb.AskTransactionResponse:
        bundle = self._parts.bundle_of(request.transaction.coordinator)
        return await self._parts.calls.at(bundle, lambda broker: broker.ask_transaction(request))

    async def read_staged(self, transaction: Transaction, part: Part, skip: int) -> pb.ReadStagedResponse:
        """Return batches that `part` counts, without the first `skip` ones; none if nothing is staged."""
        references = await self._state.read(lambda: self.participant.counted(transaction, part))
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

    # Coordinator

    async def poll_checks(self, request: pb.PollChecksRequest) -> list[pb.Check]:
        return await self._checker.poll(request.check_group, request.max_wait_ms / 1000, request.max_checks)

    def used_by(self, principal: int) -> dict[str, int]:
        """Return what a principal (a hash of its name) has of this bundle's tables, by their names."""
        shares = (self.coordinator.shares, *self.participant.shares)
        return {each.limit: each.of(principal) for each in shares}

    async def init(self, request: pb.InitTransactionsRequest, kind: Kind) -> Identity:
        name, timeout_ms, group, nonce = (
            request.transactional_id,
            request.timeout_ms,
            request.check_group,
            request.nonce,
        )
        return await self._in_turn(
            name,
            lambda: self.coordinator.init(name, kind, timeout_ms, group, self.now_ms(), nonce, request.caller),
        )

    async def end(self, transaction: Transaction, outcome: State, parts: Sequence[Part]) -> State:
        def end() -> Decision[State]:
            decision = self.coordinator.end(transaction, outcome, parts, self.now_ms())
            return self._counted(decision, decision.answer, "producer")

        return await self._in_turn(transaction.transactional_id, end)

    async def outcome(self, request: pb.TransactionOutcomeRequest) -> Outcome:
        name, epoch, number = request.transactional_id, request.epoch, request.number

        def outcome() -> Decision[Outcome]:
            decision = self.coordinator.outcome(name, epoch, number, self.now_ms())
            return self._counted(decision, decision.answer.state, "asked")

        return await self._in_turn(name, outcome)

    async def resolve(self, request: pb.ResolveTransactionRequest) -> pb.TransactionInfo:
        """Carry out an operator's decision, and return the state of the transaction."""
        name, coordinator, now_ms = request.transactional_id, self.coordinator, self.now_ms()
        if request.resolution == pb.FORGET:
            info = await self._state.read(lambda: coordinator.describe(name))
            await self._decided(name, lambda: coordinator.forget(name))
            return info
        if request.resolution == pb.GIVE_UP:
            log.warning("operator gives up a part of a transaction", transaction=name, bundle=request.bundle)
            return await self._decided(name, lambda: coordinator.give_up(name, request.bundle, now_ms))
        if request.resolution not in (pb.COMMIT, pb.ABORT):
            raise InvalidRequest(f"this broker has no resolution {request.resolution} of a transaction; upgrade it")
        commit = request.resolution == pb.COMMIT

        def resolve() -> Decision[pb.TransactionInfo]:
            decision = coordinator.resolve(name, commit, now_ms)
            return self._counted(decision, State(decision.answer.state), "operator")

        log.warning("operator decides about a transaction", transaction=name, commit=commit)
        return await self._decided(name, resolve)

    async def answer(self, transaction: Transaction, question: pb.Question, part: Part) -> pb.AskTransactionResponse:
        """Answer a bundle's question about a transaction."""
        if question == pb.EXPIRED:
            expired = await self._state.read(lambda: self.coordinator.is_expired(transaction))
            return pb.AskTransactionResponse(expired=expired)
        if question == pb.CONFIRM:
            state = await self._state.read(lambda: self.coordinator.confirm(transaction))
        elif question == pb.FATE:
            state = await self._decided(transaction.transactional_id, partial(self._fate, transaction, part))
        else:
            raise InvalidRequest(f"this broker has no question {question} about a transaction; upgrade it")
        return pb.AskTransactionResponse(state=state_to_proto(state))

    async def list(self, open_only: bool) -> tuple[Sequence[pb.TransactionInfo], Sequence[pb.StagedInfo]]:
        """Return the ids of this partition, and what is staged in its bundle."""
        return await self._state.read(lambda: (self.coordinator.infos(open_only), self._staged_infos()))

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

    async def describe(self, transactional_id: str) -> pb.TransactionInfo:
        return await self._state.read(lambda: self.coordinator.describe(transactional_id))

    # Inside

    def _fate(self, transaction: Transaction, part: Part) -> Decision[State]:
        decision = self.coordinator.fate(transaction, part, self.now_ms())
        if decision.answer is State.ABORTED and not decision.records and self.coordinator.is_fenced(transaction):
            self._count_fenced(transaction)
        return self._counted(decision, decision.answer, "timeout")

    def _count_fenced(self, transaction: Transaction) -> None:
        """Count a fenced transaction once, although many bundles may ask about it."""
        counted = self._fenced.get(transaction.transactional_id)
        if counted is None or counted < transaction.pair:
            while len(self._fenced) >= FENCED_MAX:
                del self._fenced[next(iter(self._fenced))]
            self._fenced[transaction.transactional_id] = transaction.pair
            self._parts.counts.ended(self.partition, State.ABORTED, "fenced")

    def _counted(self, decision: Decision[T], state: State, cause: str) -> Decision[T]:
        if decision.records:
            self._parts.counts.ended(self.partition, state, cause)
        return decision

    async def _in_turn(self, transactional_id: str, decide: Callable[[], Decision[T]]) -> T:
        """As `_decided`; if the transaction before is not complete, wait up to `TURN_WAIT_S` for that."""
        try:
            return await self._decided(transactional_id, decide)
        except Unavailable:
            if self.lost is not None or not await self._completer.finished(transactional_id, TURN_WAIT_S):
                raise
        return await self._decided(transactional_id, decide)

    async def _decided(self, transactional_id: str, decide: Callable[[], Decision[T]]) -> T:
        """Decide about an id, and send the decision to the bundles as soon as it is durable."""

        def decide_and_begin() -> Decision[T]:
            decision = decide()
            if decision.records:
                self._completer.begin(transactional_id)
                self._checker.wake()
            return decision

        return await self._state.decided(decide_and_begin)

    async def _count_check(self, transaction: Transaction) -> State:
        return await self._decided(
            transaction.transactional_id, lambda: self.coordinator.checked(transaction, self.now_ms())
        )

    async def _declare_unresolved(self, transaction: Transaction, now_ms: int) -> bool:
        def declare() -> Decision[bool]:
            decision = self.coordinator.declare_unresolved(transaction, now_ms)
            return self._counted(decision, State.UNRESOLVED, "checks")

        return await self._decided(transaction.transactional_id, declare)

    async def _read_first(self, transaction: Transaction, part: Part) -> pb.StagedData | None:
        batches = (await self._read_staged(transaction, part, 0)).batches
        return batches[0] if batches else None

    async def _read_staged(self, transaction: Transaction, part: Part, skip: int) -> pb.ReadStagedResponse:
        """Read the staged batches of a part from its bundle."""
        if part.bundle == self.bundle:
            return await self.read_staged(transaction, part, skip)
        request = pb.ReadStagedRequest(
            transaction=transaction_to_proto(transaction), part=part_to_proto(part), skip=skip
        )
        return await self._parts.calls.at(part.bundle, lambda broker: broker.read_staged(request))

    async def _push(self, transaction: Transaction, outcome: State, part: Part) -> bool:
        """Send a decision to the bundle of a part. An UNRESOLVED half message is sent as an abort, after
        its copy for operators is durable (X19).
        """
        if outcome is State.UNRESOLVED:
            info = self.coordinator.describe(transaction.transactional_id)
            await self._unresolved.store(transaction, part, info.check_group, info.checks)
            outcome = State.ABORTED
        request = pb.CompleteTransactionRequest(
            transaction=transaction_to_proto(transaction), outcome=state_to_proto(outcome), part=part_to_proto(part)
        )
        if part.bundle == self.bundle:
            return await self.complete(transaction, outcome, part)
        answer = await self._parts.calls.at(part.bundle, lambda broker: broker.complete_transaction(request))
        return answer.done

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
