"""Serve the coordinator of one partition of `__transactions` for one term of its bundle: decide about the
transactional ids that map to it, and send each decision to the bundles.

Must not know: what is staged in this bundle, and how.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeVar

from ledgermq.errors import InvalidRequest, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.logs import get_logger
from ledgermq_broker.transactions.coordinating.added import AddedCalls
from ledgermq_broker.transactions.coordinating.checker import Checker
from ledgermq_broker.transactions.coordinating.completer import Completer
from ledgermq_broker.transactions.coordinating.unresolved import UnresolvedCopies
from ledgermq_broker.transactions.parts import TransactionParts
from ledgermq_broker.transactions.peers import Peers
from ledgermq_broker.transactions.state.added.producers import Named
from ledgermq_broker.transactions.state.coordinating.producers import Identity, Outcome
from ledgermq_broker.transactions.state.coordinator import Coordinator
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from ledgermq_broker.transactions.state.wire import state_to_proto
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision

TURN_WAIT_S = 2.0
"""How long a decision waits for the completion of the id's transaction before."""
FENCED_MAX = 1000
"""Number of ids whose fenced transactions are remembered, so that each is counted once."""

T = TypeVar("T")

log = get_logger(__name__)


class Bundle(Protocol):
    """What a coordinator asks of a bundle that has a part in a transaction."""

    async def read_staged(self, transaction: Transaction, part: Part, skip: int) -> pb.ReadStagedResponse: ...

    async def complete(self, transaction: Transaction, outcome: State, part: Part) -> bool: ...

    async def count_staged(self, transaction: Transaction, bundle: int, groups: Sequence[str]) -> Part: ...


class Coordinating:
    """`own_bundle`, `own`: the bundle of this partition, which needs no call."""

    def __init__(
        self,
        partition: int,
        state: IssuedState,
        coordinator: Coordinator,
        own_bundle: int,
        own: Bundle,
        peers: Peers,
        parts: TransactionParts,
    ) -> None:
        self._partition = partition
        self._state = state
        self._coordinator = coordinator
        self._own_bundle = own_bundle
        self._own = own
        self._peers = peers
        self._parts = parts
        self._now_ms = parts.clocks.stamp_ms
        self._fenced: dict[str, tuple[int, int]] = {}
        """Id -> the newest transaction that was counted as aborted because its epoch is over."""
        self._completer = Completer(state, coordinator, self._push, parts.sources, parts.counts)
        self._checker = Checker(
            state, coordinator, self._read_first, self._count_check, self._declare_unresolved, parts.clocks
        )
        self.added = AddedCalls(
            state, coordinator.added, self._in_turn, self._counted, self._count, self._time_out, self._now_ms
        )
        self._copied: set[Transaction] = set()
        """UNRESOLVED half messages whose copy is durable, and whose bundle has not completed them yet."""
        self._unresolved = UnresolvedCopies(parts.unresolved, parts.calls, self._read_staged, parts.sources.now_us)

    def start(self) -> None:
        """Begin again with all completions that are not complete by the log, and look for half messages to check."""
        self._coordinator.start(self._now_ms())
        self._completer.resume()
        self._checker.start()
        self.added.start()

    def close(self) -> None:
        self._completer.close()
        self._checker.close()
        self.added.close()

    async def poll_checks(self, request: pb.PollChecksRequest) -> list[pb.Check]:
        return await self._checker.poll(request.check_group, request.max_wait_ms / 1000, request.max_checks)

    async def init(self, request: pb.InitTransactionsRequest, kind: Kind) -> Identity:
        name, timeout_ms, group = request.transactional_id, request.timeout_ms, request.check_group
        nonce, kept_ms, content = request.nonce, request.kept_ms, request.content
        if request.HasField("kafka"):
            named = Named(request.kafka.id, request.kafka.epoch)
            return await self.added.init(name, timeout_ms, named, request.caller)
        init = self._coordinator.producers.init
        return await self._in_turn(
            name,
            lambda: init(name, kind, timeout_ms, group, self._now_ms(), nonce, request.caller, kept_ms, content),
            held=True,
        )

    async def end(self, transaction: Transaction, outcome: State, parts: Sequence[Part]) -> State:
        def end() -> Decision[State]:
            decision = self._coordinator.producers.end(transaction, outcome, parts, self._now_ms())
            return self._counted(decision, decision.answer, "producer")

        name = transaction.transactional_id
        draws = self._coordinator.added.is_open(name)  # Kafka's: its client has not asked for this end
        return await self._in_turn(name, end, held=draws or outcome is not State.ABORTED)

    async def outcome(self, request: pb.TransactionOutcomeRequest) -> Outcome:
        name, epoch, number = request.transactional_id, request.epoch, request.number

        def outcome() -> Decision[Outcome]:
            decision = self._coordinator.producers.outcome(name, epoch, number, self._now_ms())
            return self._counted(decision, decision.answer.state, "asked")

        return await self._in_turn(name, outcome, held=self._coordinator.added.is_open(name))

    async def resolve(self, request: pb.ResolveTransactionRequest) -> pb.TransactionInfo:
        """Carry out an operator's decision, and return the state of the transaction."""
        name, coordinator, now_ms = request.transactional_id, self._coordinator, self._now_ms()
        if request.resolution == pb.FORGET:
            info = await self._state.read(lambda: coordinator.operators.describe(name))
            await self._decided(name, lambda: coordinator.operators.forget(name))
            return info
        if request.resolution == pb.GIVE_UP:
            log.warning("operator gives up a part of a transaction", transaction=name, bundle=request.bundle)
            return await self._decided(name, lambda: coordinator.operators.give_up(name, request.bundle, now_ms))
        if request.resolution not in (pb.COMMIT, pb.ABORT):
            raise InvalidRequest(f"this broker has no resolution {request.resolution} of a transaction; upgrade it")
        commit = request.resolution == pb.COMMIT

        def resolve() -> Decision[pb.TransactionInfo]:
            decision = coordinator.operators.resolve(name, commit, now_ms)
            return self._counted(decision, State(decision.answer.state), "operator")

        log.warning("operator decides about a transaction", transaction=name, commit=commit)
        return await self._decided(name, resolve, held=commit or coordinator.added.is_open(name))

    async def answer(self, transaction: Transaction, question: pb.Question, part: Part) -> pb.AskTransactionResponse:
        """Answer a bundle's question about a transaction."""
        if question == pb.EXPIRED:
            expired = await self._state.read(lambda: self._coordinator.bundles.is_expired(transaction))
            return pb.AskTransactionResponse(expired=expired)
        if question == pb.SETTLED:
            settled = await self._state.read(lambda: self._coordinator.added.is_settled(transaction))
            return pb.AskTransactionResponse(settled=settled)
        if question == pb.CONFIRM:
            state = await self._state.read(lambda: self._coordinator.bundles.confirm(transaction))
        elif question == pb.FATE:
            is_open = self._coordinator.added.is_open(transaction.transactional_id)
            held = is_open or self._coordinator.bundles.may_prepare(transaction, part)
            state = await self._decided(transaction.transactional_id, partial(self._fate, transaction, part), held=held)
        else:
            raise InvalidRequest(f"this broker has no question {question} about a transaction; upgrade it")
        return pb.AskTransactionResponse(state=state_to_proto(state))

    async def describe(self, transactional_id: str) -> tuple[pb.TransactionInfo, Collection[PartitionId]]:
        """Return also the partitions that a client of the Kafka protocol has added to the open transaction."""
        coordinator = self._coordinator
        return await self._state.read(
            lambda: (coordinator.operators.describe(transactional_id), coordinator.added.places(transactional_id))
        )

    # Inside

    @property
    def is_quiet(self) -> bool:
        """Return whether everything that was decided to become visible is so in all its bundles (I2). What is decided
        and not durable yet is not complete.
        """
        self._state.check()
        return not self._coordinator.has_incomplete_commits

    async def drained(self) -> None:
        """Wait until all that was decided before this call is durable. Raises NotOwner, and the log's error."""
        await self._state.durable()

    def _fate(self, transaction: Transaction, part: Part) -> Decision[State]:
        decision = self._coordinator.bundles.fate(transaction, part, self._now_ms())
        if (
            decision.answer is State.ABORTED
            and not decision.records
            and self._coordinator.bundles.is_fenced(transaction)
        ):
            self._count_fenced(transaction)
        return self._counted(decision, decision.answer, "timeout")

    def _count_fenced(self, transaction: Transaction) -> None:
        """Count a fenced transaction once, although many bundles may ask about it."""
        counted = self._fenced.get(transaction.transactional_id)
        if counted is None or counted < transaction.pair:
            while len(self._fenced) >= FENCED_MAX:
                del self._fenced[next(iter(self._fenced))]
            self._fenced[transaction.transactional_id] = transaction.pair
            self._parts.counts.ended(self._partition, State.ABORTED, "fenced")

    def _counted(self, decision: Decision[T], state: State, cause: str) -> Decision[T]:
        if decision.records:
            self._parts.counts.ended(self._partition, state, cause)
        return decision

    async def _in_turn(self, transactional_id: str, decide: Callable[[], Decision[T]], *, held: bool = False) -> T:
        """As `_decided`; if the transaction before is not complete, wait up to `TURN_WAIT_S` for that."""
        try:
            return await self._decided(transactional_id, decide, held=held)
        except Unavailable:
            if self._state.lost is not None or not await self._completer.finished(transactional_id, TURN_WAIT_S):
                raise
        return await self._decided(transactional_id, decide, held=True)  # what is open may be another one by now

    async def _decided(self, transactional_id: str, decide: Callable[[], Decision[T]], *, held: bool = False) -> T:
        """Decide about an id, and send the decision to the bundles as soon as it is durable. One that counts what other
        bundles have, as commits and prepared transactions do (I4), or that draws an epoch (I22), waits while a cut is
        taken (`held`).
        """

        def decide_and_begin() -> Decision[T]:
            before = self._coordinator.holder(transactional_id)
            decision = decide()
            self._check_drawn(transactional_id, before)
            if decision.records:
                self._completer.begin(transactional_id)
                self._checker.wake()
            return decision

        if held:
            await self._state.owner.hold.passed()
        return await self._state.decided(decide_and_begin)

    def _check_drawn(self, transactional_id: str, before: tuple[bytes, int] | None) -> None:
        """Check that no epoch was drawn while a cut is taken (I22). `before`: the id's producer until now."""
        holder, cut = self._coordinator.holder(transactional_id), self._state.owner.hold.is_held
        assert not cut or holder in (before, None), f"an epoch of {transactional_id} was drawn while a cut is taken"

    async def _count_check(self, transaction: Transaction) -> State:
        return await self._decided(
            transaction.transactional_id, lambda: self._coordinator.half_messages.checked(transaction, self._now_ms())
        )

    async def _declare_unresolved(self, transaction: Transaction, now_ms: int) -> bool:
        def declare() -> Decision[bool]:
            decision = self._coordinator.half_messages.declare_unresolved(transaction, now_ms)
            return self._counted(decision, State.UNRESOLVED, "checks")

        return await self._decided(transaction.transactional_id, declare, held=True)

    async def _read_first(self, transaction: Transaction, part: Part) -> pb.StagedData | None:
        batches = (await self._read_staged(transaction, part, 0)).batches
        return batches[0] if batches else None

    async def _read_staged(self, transaction: Transaction, part: Part, skip: int) -> pb.ReadStagedResponse:
        """Read the staged batches of a part from its bundle."""
        return await self._at(part).read_staged(transaction, part, skip)

    async def _push(self, transaction: Transaction, outcome: State, part: Part) -> bool:
        """Send a decision to the bundle of a part. An UNRESOLVED half message is sent as an abort, after
        its copy for operators is durable (X19).
        """
        if outcome is State.UNRESOLVED:
            if transaction not in self._copied:
                info = self._coordinator.operators.describe(transaction.transactional_id)
                await self._unresolved.store(transaction, part, info.check_group, info.checks)
                self._copied.add(transaction)
            outcome = State.ABORTED
        is_done = await self._at(part).complete(transaction, outcome, part)
        if is_done:
            self._copied.discard(transaction)
        return is_done

    async def _count(self, transaction: Transaction, bundle: int, groups: Sequence[str]) -> Part:
        return await self._at(Part(bundle)).count_staged(transaction, bundle, groups)

    async def _time_out(self, transaction: Transaction) -> State:
        decide = partial(self._fate, transaction, Part(self._own_bundle))
        return await self._decided(transaction.transactional_id, decide, held=True)

    def _at(self, part: Part) -> Bundle:
        return self._own if part.bundle == self._own_bundle else self._peers
