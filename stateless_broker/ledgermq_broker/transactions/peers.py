"""Ask the other side of a transaction: its coordinator, or a bundle that has a part in it.

The calls go to the brokers that own these bundles at present. Must not know: what this bundle has staged or decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledgermq.errors import InvalidRequest, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.internal.bundle_calls import BundleCalls
from ledgermq_broker.transactions.state.added.ids import Incomplete
from ledgermq_broker.transactions.state.added.producers import NotOpen
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from ledgermq_broker.transactions.state.wire import (
    part_from_proto,
    part_to_proto,
    state_from_proto,
    state_to_proto,
    transaction_to_proto,
)
from ledgermq_ledger.keys import PartitionId


class Peers:
    """`bundle_of(coordinator)`: the bundle of a partition of `__transactions`."""

    def __init__(self, calls: BundleCalls, bundle_of: Callable[[int], int]) -> None:
        self._calls = calls
        self._bundle_of = bundle_of

    async def is_confirmed(self, transaction: Transaction) -> bool:
        """Ask the coordinator whether a transaction is committed and not complete in all its bundles."""
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

    async def is_settled(self, transaction: Transaction) -> bool:
        """Ask the coordinator whether readers of the latest offset need not wait for a transaction."""
        request = pb.AskTransactionRequest(transaction=transaction_to_proto(transaction), question=pb.SETTLED)
        return (await self._asked(request)).settled

    async def _asked(self, request: pb.AskTransactionRequest) -> pb.AskTransactionResponse:
        bundle = self._bundle_of(request.transaction.coordinator)
        return await self._calls.at(bundle, lambda broker: broker.ask_transaction(request))

    async def join(
        self,
        transaction: Transaction,
        bundle: int,
        place: PartitionId | None,
        group: str,
        *,
        adds: bool,
        also: Sequence[pb.TopicPartition],
    ) -> int:
        """Make a bundle part of the open transaction of the id at its coordinator, and return its number.
        `transaction`: without it. `adds`: what was not added is added, and `also`, too. Raises NotOpen, and Incomplete
        while that has to wait: an error between brokers has no code of Kafka.
        """
        request = pb.JoinTransactionRequest(
            transaction=transaction_to_proto(transaction), bundle=bundle, group=group, adds=adds, also=also
        )
        if place is not None:
            request.topic_id, request.partition = place
        at = self._bundle_of(transaction.coordinator)
        try:
            return (await self._calls.at(at, lambda broker: broker.join_transaction(request))).number
        except InvalidRequest as error:
            raise NotOpen(error.message) from error
        except Unavailable as error:
            raise (Incomplete(error.message, retry_after_ms=error.retry_after_ms) if adds else error) from error

    async def count_staged(self, transaction: Transaction, bundle: int, groups: Sequence[str]) -> Part:
        """Ask the owner of a bundle what a transaction has staged there."""
        request = pb.CountStagedRequest(transaction=transaction_to_proto(transaction), bundle=bundle, groups=groups)
        return part_from_proto((await self._calls.at(bundle, lambda broker: broker.count_staged(request))).part)

    async def read_staged(self, transaction: Transaction, part: Part, skip: int) -> pb.ReadStagedResponse:
        """Read the staged batches of a part from its bundle, without the first `skip` ones."""
        request = pb.ReadStagedRequest(
            transaction=transaction_to_proto(transaction), part=part_to_proto(part), skip=skip
        )
        return await self._calls.at(part.bundle, lambda broker: broker.read_staged(request))

    async def complete(self, transaction: Transaction, outcome: State, part: Part) -> bool:
        """Send a decision to the bundle of a part. Return whether it answered "done"."""
        request = pb.CompleteTransactionRequest(
            transaction=transaction_to_proto(transaction), outcome=state_to_proto(outcome), part=part_to_proto(part)
        )
        return (await self._calls.at(part.bundle, lambda broker: broker.complete_transaction(request))).done
