"""Administration of transactions: what is open, where it is staged, and an operator's decisions.

Each call goes to the coordinators, the owners of the partitions of `__transactions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from ledgermq.client.connections import Connections
from ledgermq.client.coordinator import Coordinator
from ledgermq.client.transactions.decisions import OutcomeState, check_transactional_id
from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner, RetriableError, TransactionUnknown, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.runtime.tasks import all_of

CALLS_AT_ONCE = 16
FIRST_SHARE = 0.25
"""Part of the time that one partition has to answer how many there are, before the next is asked."""
SHARE = 0.5
"""Part of the time that all others have: what has answered is shown before the time is over."""
PROBED_MAX = 3
"""Partitions that are asked how many there are."""

TransactionKind = Literal["ordinary", "two_phase", "half_message"]


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """What a decision counts in one bundle. `batches`: by (topic id, partition). `groups`: those
    whose offsets belong to it.
    """

    bundle: int
    batches: Mapping[tuple[int, int], int]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StagedTransaction:
    """What one transaction has staged in one bundle: invisible until it is committed.

    `bytes`: of its batches. `oldest_ms`: when the first of it was staged. `groups`: those with
    offsets.
    """

    transactional_id: str
    epoch: int
    number: int
    bundle: int
    batches: int
    bytes: int
    oldest_ms: int
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The newest transaction of a transactional id that its coordinator knows of.

    `number`: 0 if the epoch has none yet. `complete`: decided, and visible or dropped everywhere;
    `missing`: bundles where it is not, and `trouble`: why. `changed_ms`: of the last decision, or of
    the first question about what is undecided. `parts`: kept until it is complete; only from `describe`.
    """

    transactional_id: str
    kind: TransactionKind
    state: OutcomeState
    epoch: int
    number: int
    complete: bool
    missing: tuple[int, ...]
    trouble: str
    changed_ms: int
    timeout_ms: int
    partition: int
    """Of `__transactions`: it decides about this id."""
    parts: tuple[TransactionPart, ...]
    check_group: str
    checks: int
    coordinator: str = ""
    """Address of the broker that answered; only from `describe`."""
    staged: tuple[StagedTransaction, ...] = ()
    """What the bundles hold of the id, of any epoch and number; only from `describe`."""
    unanswered: Mapping[int, LedgerMQError] = field(default_factory=dict)
    """Partitions of `__transactions` whose bundles may hold more: why they have not answered."""


@dataclass(frozen=True, slots=True)
class TransactionList:
    """`transactions`: by id. `staged`: by bundle, the oldest first. `unanswered`: by partition of
    `__transactions`, why its transactions and its bundle are not in the list.
    """

    transactions: tuple[TransactionDescription, ...]
    staged: tuple[StagedTransaction, ...]
    unanswered: Mapping[int, LedgerMQError]


class TransactionAdmin:
    """The part of `client.transactions` for operators. Every call ends within the client's
    `timeout_s`.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def list(self, *, open_only: bool = True) -> TransactionList:
        """Return the transactions of the cluster, and what its bundles hold staged.

        `open_only`: only those that are prepared, not complete, or undecided for a while; else each
        id that is known. A partition that does not answer is named in `unanswered`; raises
        Unavailable if none does.
        """
        answers, unanswered = await self._listed(open_only, self._connections.deadline())
        found = sorted((info for answer in answers for info in answer.transactions), key=_name)
        return TransactionList(tuple(_description(info) for info in found), _staged(answers), unanswered)

    async def describe(self, transactional_id: str, *, staged: bool = True) -> TransactionDescription:
        """Return the newest transaction of an id, and everything that bundles hold of the id.

        `staged`: ask the bundles, too; one that does not answer costs half of the time. Raises
        InvalidRequest, TransactionUnknown, Unavailable.
        """
        request = pb.DescribeTransactionRequest(transactional_id=check_transactional_id(transactional_id))
        deadline = self._connections.deadline()
        coordinator = Coordinator(self._connections, f"transactional id {transactional_id!r}")
        answer = await coordinator.ask(lambda at: at.describe_transaction(request), deadline)
        if not staged:
            return _description(answer.transaction, answer.coordinator)
        answers, unanswered = await self._listed(True, deadline)
        of_id = tuple(one for one in _staged(answers) if one.transactional_id == transactional_id)
        return _description(answer.transaction, answer.coordinator, of_id, unanswered)

    async def resolve(self, transactional_id: str, *, commit: bool) -> TransactionDescription:
        """Decide in the place of a transaction manager or a producer that is gone for good.

        This is a heuristic decision: other participants, for example a database, may have decided
        otherwise. Only what is prepared can be committed; what is undecided can be aborted. Raises
        InvalidRequest, TransactionUnknown, Unavailable.
        """
        request = pb.ResolveTransactionRequest(
            transactional_id=check_transactional_id(transactional_id), resolution=pb.COMMIT if commit else pb.ABORT
        )
        answer = await self._decide(transactional_id, lambda at: at.resolve_transaction(request))
        return _description(answer.transaction)

    async def forget(self, transactional_id: str) -> None:
        """Forget the outcome of a two-phase transaction that is complete, or an operator's decision
        about an ordinary one.

        Raises InvalidRequest (it is not decided, or there is nothing to forget), TransactionUnknown,
        Unavailable (it is not complete yet).
        """
        request = pb.ResolveTransactionRequest(
            transactional_id=check_transactional_id(transactional_id), resolution=pb.FORGET
        )
        attempts = Attempts(lambda at: at.resolve_transaction(request))
        try:
            await self._decide(transactional_id, attempts)
        except TransactionUnknown:
            if not attempts.in_doubt:
                raise  # else the attempt whose answer was lost has forgotten it

    async def give_up(self, transactional_id: str, bundle: int) -> TransactionDescription:
        """Declare the part of a transaction in one bundle lost: it counts as complete there.

        What the bundle has not made visible yet is dropped, for good. Raises InvalidRequest (it is
        not incomplete in this bundle), TransactionUnknown, Unavailable.
        """
        request = pb.ResolveTransactionRequest(
            transactional_id=check_transactional_id(transactional_id), resolution=pb.GIVE_UP, bundle=bundle
        )
        attempts = Attempts(lambda at: at.resolve_transaction(request))
        try:
            answer = await self._decide(transactional_id, attempts)
            return _description(answer.transaction)
        except InvalidRequest:
            if not attempts.in_doubt:
                raise
        found = await self.describe(transactional_id, staged=False)
        if bundle in found.missing:
            raise Unavailable(f"bundle {bundle} of transaction {transactional_id!r} is not given up yet; repeat it")
        return found

    async def _decide(
        self, transactional_id: str, call: Callable[[Connection], Awaitable[pb.ResolveTransactionResponse]]
    ) -> pb.ResolveTransactionResponse:
        coordinator = Coordinator(self._connections, f"transactional id {transactional_id!r}")
        return await coordinator.ask(call, self._connections.deadline())

    async def _listed(
        self, open_only: bool, deadline: float
    ) -> tuple[Sequence[pb.ListTransactionsResponse], dict[int, LedgerMQError]]:
        """Return the answers of all partitions, and why others have not answered."""
        unanswered: dict[int, LedgerMQError] = {}

        async def ask(partition: int, until: float) -> pb.ListTransactionsResponse | None:
            request = pb.ListTransactionsRequest(partition=partition, open_only=open_only)
            coordinator = Coordinator(self._connections, f"partition {partition} of __transactions")
            try:
                return await coordinator.ask(lambda at: at.list_transactions(request), until)
            except LedgerMQError as error:
                unanswered[partition] = error
                return None

        first, answer = 0, None
        while answer is None:
            now = asyncio.get_running_loop().time()
            answer = await ask(first, now + FIRST_SHARE * (deadline - now))
            first += 1
            if answer is None and not _may_be_answered(unanswered, first):
                raise next(iter(unanswered.values()))
        left = range(first, answer.partitions)
        now = asyncio.get_running_loop().time()
        until = now + SHARE * (deadline - now)
        others = await all_of((ask(partition, until) for partition in left), CALLS_AT_ONCE)
        return [answer, *(other for other in others if other is not None)], unanswered


class Attempts:
    """A call that is repeated. `in_doubt`: an attempt may have taken effect without an answer."""

    def __init__(self, call: Callable[[Connection], Awaitable[pb.ResolveTransactionResponse]]) -> None:
        self.in_doubt = False
        self._call = call

    async def __call__(self, at: Connection) -> pb.ResolveTransactionResponse:
        try:
            return await self._call(at)
        except NotOwner:
            raise
        except RetriableError:
            self.in_doubt = True
            raise


def _may_be_answered(unanswered: Mapping[int, LedgerMQError], asked: int) -> bool:
    newest = unanswered[asked - 1]
    return asked < PROBED_MAX and newest.code != "UNKNOWN_PARTITION"


def _name(info: pb.TransactionInfo) -> str:
    return info.transaction.transactional_id


def _description(
    info: pb.TransactionInfo,
    coordinator: str = "",
    staged: tuple[StagedTransaction, ...] = (),
    unanswered: Mapping[int, LedgerMQError] | None = None,
) -> TransactionDescription:
    of = info.transaction
    return TransactionDescription(
        transactional_id=of.transactional_id,
        kind=cast(TransactionKind, _name_of(pb.TransactionKind.items(), info.kind)),
        state=cast(OutcomeState, _name_of(pb.TransactionState.items(), info.state)),
        epoch=of.epoch,
        number=of.number,
        complete=info.complete,
        missing=tuple(info.missing),
        trouble=info.trouble,
        changed_ms=info.changed_ms,
        timeout_ms=info.timeout_ms,
        partition=of.coordinator,
        parts=tuple(_part(part) for part in info.parts),
        check_group=info.check_group,
        checks=info.checks,
        coordinator=coordinator,
        staged=staged,
        unanswered=unanswered or {},
    )


def _part(part: pb.TransactionPart) -> TransactionPart:
    batches: dict[tuple[int, int], int] = {}
    for count in part.counts:
        place = count.topic_id, count.partition
        batches[place] = batches.get(place, 0) + count.batches
    return TransactionPart(part.bundle, batches, tuple(part.groups))


def _staged(answers: Sequence[pb.ListTransactionsResponse]) -> tuple[StagedTransaction, ...]:
    found = [
        StagedTransaction(
            transactional_id=info.transaction.transactional_id,
            epoch=info.transaction.epoch,
            number=info.transaction.number,
            bundle=answer.bundle,
            batches=info.batches,
            bytes=info.bytes,
            oldest_ms=info.oldest_ms,
            groups=tuple(info.groups),
        )
        for answer in answers
        for info in answer.staged
    ]
    return tuple(sorted(found, key=lambda one: (one.bundle, one.oldest_ms)))


def _name_of(names: Sequence[tuple[str, int]], number: int) -> str:
    """Return a name of the protocol in small letters. Raises Unavailable."""
    for name, known in names:
        if known == number:
            return name.lower()
    raise Unavailable(f"the answer has a kind or state {number} of a newer version: upgrade this client")
