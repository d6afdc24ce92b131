"""Administration of transactions: list and describe them, and record an operator's decisions.

Each call goes to coordinators, the owners of the partitions of `__transactions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from ledgermq.client.connection.connections import Connections
from ledgermq.client.connection.coordinator import Coordinator
from ledgermq.client.transactions.decisions import OutcomeState, check_transactional_id
from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner, RetriableError, TransactionUnknown, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.runtime.tasks import all_of

CALLS_AT_ONCE = 16
FIRST_SHARE = 0.25
"""Share of the time in which one partition has to return the number of partitions, before the next one is
asked.
"""
SHARE = 0.5
"""Share of the remaining time for all other partitions; the list then contains those that have answered."""
PROBED_MAX = 3
"""Number of partitions that are asked for the number of partitions, at most."""

TransactionKind = Literal["ordinary", "two_phase", "half_message"]


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """The part of a transaction in one bundle, as the decision counts it.

    `batches`: number of batches by (topic id, partition). `groups`: groups whose offsets belong to the
    transaction.
    """

    bundle: int
    batches: Mapping[tuple[int, int], int]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StagedTransaction:
    """What one transaction has staged in one bundle: invisible until the transaction is committed.

    `bytes`: size of its batches. `oldest_ms`: when the first batch or offset was staged. `groups`:
    groups of its offsets.
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
    """The newest transaction of a transactional id, as its coordinator has recorded it.

    `number`: 0 if the epoch has no transaction yet. `complete`: it is decided, and visible or dropped
    in all bundles. `missing`: bundles where it is not; `trouble`: why. `changed_ms`: time of the last
    change, or of a bundle's first question about an undecided transaction. `parts`: kept until the
    transaction is complete; only `describe` returns them.
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
    """Partition of `__transactions` whose owner decides about this id."""
    parts: tuple[TransactionPart, ...]
    check_group: str
    checks: int
    coordinator: str = ""
    """Address of the broker that answered; only from `describe`."""
    staged: tuple[StagedTransaction, ...] = ()
    """What the id has staged in the bundles, under any epoch and number; only from `describe`."""
    unanswered: Mapping[int, LedgerMQError] = field(default_factory=dict)
    """Partition of `__transactions` -> why it has not answered; its bundle may hold more."""


@dataclass(frozen=True, slots=True)
class TransactionList:
    """`transactions`: sorted by id. `staged`: by bundle, the oldest first. `unanswered`: partition of
    `__transactions` -> why its transactions, and what is staged in its bundle, are missing.
    """

    transactions: tuple[TransactionDescription, ...]
    staged: tuple[StagedTransaction, ...]
    unanswered: Mapping[int, LedgerMQError]


class TransactionAdmin:
    """The methods of `client.transactions` for operators. Every call ends within the client's
    `timeout_s`.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def list(self, *, open_only: bool = True) -> TransactionList:
        """Return the transactions of the cluster, and what is staged in its bundles.

        `open_only`: only transactions that are prepared, decided and not complete, or undecided for some
        seconds; otherwise all transactional ids. `unanswered` names partitions that do not answer.
        Raises Unavailable if none does.
        """
        answers, unanswered = await self._listed(open_only, self._connections.deadline())
        found = sorted((info for answer in answers for info in answer.transactions), key=_name)
        return TransactionList(tuple(_description(info) for info in found), _staged(answers), unanswered)

    async def describe(self, transactional_id: str, *, staged: bool = True) -> TransactionDescription:
        """Return the newest transaction of an id, and everything that the id has staged.

        `staged`: ask all bundles, too; if one does not answer, the call takes half of the client's
        `timeout_s`. Raises InvalidRequest, TransactionUnknown, Unavailable.
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
        """Decide in the place of a transaction manager or a producer that will not come back.

        This is a heuristic decision: another participant, for example a database, may have decided
        otherwise. A prepared transaction can be committed or aborted, an undecided one only aborted.
        Raises InvalidRequest, TransactionUnknown, Unavailable.
        """
        request = pb.ResolveTransactionRequest(
            transactional_id=check_transactional_id(transactional_id), resolution=pb.COMMIT if commit else pb.ABORT
        )
        answer = await self._decide(transactional_id, lambda at: at.resolve_transaction(request))
        return _description(answer.transaction)

    async def forget(self, transactional_id: str) -> None:
        """Forget the outcome of a two-phase transaction that is complete, or an operator's decision
        about an ordinary one.

        Raises InvalidRequest if the transaction is not decided or there is nothing to forget;
        TransactionUnknown; Unavailable if the transaction is not complete yet.
        """
        request = pb.ResolveTransactionRequest(
            transactional_id=check_transactional_id(transactional_id), resolution=pb.FORGET
        )
        attempts = Attempts(lambda at: at.resolve_transaction(request))
        try:
            await self._decide(transactional_id, attempts)
        except TransactionUnknown:
            if not attempts.in_doubt:
                raise  # otherwise an attempt without an answer has forgotten it

    async def give_up(self, transactional_id: str, bundle: int) -> TransactionDescription:
        """Declare the part of a transaction in one bundle lost. It then counts as complete there.

        Data that the bundle has not made visible yet is dropped for good. Raises InvalidRequest if the
        transaction is not incomplete in this bundle; TransactionUnknown; Unavailable.
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
            raise Unavailable(
                f"the part of transaction {transactional_id!r} in bundle {bundle} is not given up yet; repeat the call"
            )
        return found

    async def _decide(
        self, transactional_id: str, call: Callable[[Connection], Awaitable[pb.ResolveTransactionResponse]]
    ) -> pb.ResolveTransactionResponse:
        coordinator = Coordinator(self._connections, f"transactional id {transactional_id!r}")
        return await coordinator.ask(call, self._connections.deadline())

    async def _listed(
        self, open_only: bool, deadline: float
    ) -> tuple[Sequence[pb.ListTransactionsResponse], dict[int, LedgerMQError]]:
        """Return the answers of the partitions, and the errors of those that have not answered."""
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
    """A call that is repeated. `in_doubt`: an attempt without an answer may have taken effect."""

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
    """Return the protocol's name of a number, in lower case. Raises Unavailable if it has none."""
    for name, known in names:
        if known == number:
            return name.lower()
    raise Unavailable(f"the answer has kind or state {number}, which a newer version added: upgrade this client")
