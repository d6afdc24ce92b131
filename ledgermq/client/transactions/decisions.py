"""Calls to the coordinator of a transactional id: begin an epoch, decide, ask for an outcome.

Invariant: all attempts of one decision have the same number. After any error other than
TransactionOutcomeUnknown, the transaction is not committed, and never will be by this call.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ledgermq.client.connection.connections import Connections
from ledgermq.client.connection.coordinator import Coordinator
from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    NotOwner,
    RetriableError,
    TransactionAborted,
    TransactionOutcomeUnknown,
    Unavailable,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.naming.names import NAME_CHARS_MAX, is_name

OutcomeState = Literal[
    "undecided", "committed", "aborted", "prepared", "committed_by_operator", "aborted_by_operator", "unresolved"
]


class TransactionOutcome(NamedTuple):
    """The outcome of a transaction. `complete`: it is visible, or dropped, in all bundles."""

    state: OutcomeState
    complete: bool

    @property
    def committed(self) -> bool:
        return self.state in ("committed", "committed_by_operator")


_STATES: dict[int, OutcomeState] = {
    pb.UNDECIDED: "undecided",
    pb.COMMITTED: "committed",
    pb.ABORTED: "aborted",
    pb.PREPARED: "prepared",
    pb.COMMITTED_BY_OPERATOR: "committed_by_operator",
    pb.ABORTED_BY_OPERATOR: "aborted_by_operator",
    pb.UNRESOLVED: "unresolved",
}


def check_transactional_id(transactional_id: object) -> str:
    """Return the id. Raises InvalidRequest."""
    if not isinstance(transactional_id, str) or not is_name(transactional_id):
        raise InvalidRequest(
            f"a transactional id has 1 to {NAME_CHARS_MAX} letters, digits, '.', '_' and '-', not {transactional_id!r}"
        )
    return transactional_id


class Decisions:
    """The coordinator of one transactional id.

    `nonce`: 16 random bytes of the object that begins an id which is used once. The coordinator remembers
    it, so that a repeated call is answered as before, and another object is refused.
    """

    def __init__(self, connections: Connections, transactional_id: str, nonce: bytes = b"") -> None:
        self.transactional_id = check_transactional_id(transactional_id)
        self._nonce = nonce
        self._coordinator = Coordinator(connections, f"transactional id {transactional_id!r}")

    async def init(
        self,
        timeout_ms: int,
        deadline: float,
        kind: pb.TransactionKind = pb.ORDINARY,
        check_group: str = "",
        kept_ms: int = 0,
        content: bytes = b"",
    ) -> pb.InitTransactionsResponse:
        """Begin the next epoch. This waits until the last commit of the epoch before is complete. `kept_ms`: how long
        the cluster keeps the id after its last use; 0: as long as other ids. `content`: digest of what the one
        transaction of the epoch writes.

        Raises InvalidRequest, ResourceExhausted, Unavailable; TransactionIdReused if the id has committed other
        content.
        """
        request = pb.InitTransactionsRequest(
            transactional_id=self.transactional_id,
            timeout_ms=timeout_ms,
            kind=kind,
            check_group=check_group,
            nonce=self._nonce,
            kept_ms=kept_ms,
            content=content,
        )
        return await self._coordinator.ask(lambda at: at.init_transactions(request), deadline)

    async def end(
        self,
        transaction: pb.TransactionRef,
        outcome: pb.TransactionState,
        parts: list[pb.TransactionPart],
        deadline: float,
    ) -> OutcomeState:
        """Commit, abort or prepare, and return the state of the transaction. The call is repeated until
        the coordinator answers.

        Raises TransactionAborted, TransactionFenced, TransactionUnknown or another error if the
        transaction is not committed. Raises TransactionOutcomeUnknown at the deadline, and if an attempt
        without an answer is followed by a refusal.
        """
        request = pb.EndTransactionRequest(transaction=transaction, outcome=outcome, parts=parts)
        in_doubt = False

        async def attempt(at: Connection) -> pb.EndTransactionResponse:
            nonlocal in_doubt
            before, in_doubt = in_doubt, True
            try:
                answer = await at.end_transaction(request)
            except NotOwner:
                in_doubt = before
                raise
            except RetriableError:
                raise
            except LedgerMQError as error:
                in_doubt = before and not isinstance(error, TransactionAborted)
                raise
            in_doubt = False
            return answer

        try:
            answer = await self._coordinator.ask(attempt, deadline)
        except LedgerMQError as error:
            if in_doubt or error.retriable:
                raise self._unknown(transaction, outcome, error) from error
            raise
        state = _STATES.get(answer.state, "unresolved")
        if outcome == pb.COMMITTED and state not in ("committed", "committed_by_operator"):
            raise TransactionAborted(f"{self._named(transaction)} is {state}, not committed: run it again")
        return state

    async def end_by_name(self, outcome: pb.TransactionState, deadline: float) -> OutcomeState:
        """Commit or abort the prepared transaction of an id that is used once. Raises as `end`, and
        InvalidRequest if it is not prepared.
        """
        return await self.end(pb.TransactionRef(transactional_id=self.transactional_id), outcome, [], deadline)

    async def outcome(self, epoch: int, number: int, deadline: float) -> TransactionOutcome:
        """Return the final outcome. This aborts an undecided transaction. `epoch` 0: the one transaction
        of an id that is used once.

        Raises TransactionUnknown, Unavailable.
        """
        request = pb.TransactionOutcomeRequest(transactional_id=self.transactional_id, epoch=epoch, number=number)
        answer = await self._coordinator.ask(lambda at: at.transaction_outcome(request), deadline)
        if answer.state not in _STATES:
            raise Unavailable(f"the outcome {answer.state} was added by a newer version: upgrade this client")
        return TransactionOutcome(_STATES[answer.state], answer.complete)

    def _named(self, transaction: pb.TransactionRef) -> str:
        if not transaction.number:
            return f"transaction {self.transactional_id!r}"
        return f"transaction {transaction.number} of epoch {transaction.epoch} of {self.transactional_id!r}"

    def _unknown(
        self, transaction: pb.TransactionRef, outcome: pb.TransactionState, error: LedgerMQError
    ) -> TransactionOutcomeUnknown:
        if outcome == pb.PREPARED or not transaction.number:
            asked = "prepared" if outcome == pb.PREPARED else "ended"
            return TransactionOutcomeUnknown(
                f"{self._named(transaction)} may or may not be {asked}, because the coordinator did not answer: repeat"
                f" the call, or ask client.transactions.outcome({self.transactional_id!r}) ({error.message})"
            )
        call = f"outcome({self.transactional_id!r}, epoch={transaction.epoch}, number={transaction.number})"
        return TransactionOutcomeUnknown(
            f"{self._named(transaction)} may or may not be committed, because the coordinator did not answer: call"
            f" client.transactions.{call}, or begin the next transaction, which first asks for it ({error.message})"
        )
