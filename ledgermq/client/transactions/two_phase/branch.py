"""One transaction that several processes write, each in a separate branch.

    begin ──SharedTransaction──> branch in each process ──BranchCounts──> commit, or abort

One process begins the transaction and decides about it; the others only stage. The decision names
branches with their counts, and the cluster drops what is staged in other branches. So a process that
runs again takes a new branch. Names and counts are plain values that can be pickled.

The transactional id is used for one transaction. Its commit is kept until `forget`; an id without a
commit expires after some days without use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import NamedTuple, Self

from ledgermq.client.connection.connections import Connections
from ledgermq.client.context import ClientContext
from ledgermq.client.producing.arrow.rows import ArrowData
from ledgermq.client.producing.buffering.queuing import Queuing
from ledgermq.client.producing.delivery import BatchDelivery
from ledgermq.client.producing.producer import Producer
from ledgermq.client.producing.traced import make_producer
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.transactions.admin import TransactionAdmin
from ledgermq.client.transactions.decisions import Decisions, TransactionOutcome
from ledgermq.client.transactions.sending.staging import Staging
from ledgermq.errors import InvalidRequest, LedgerMQError, TransactionUnknown, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import BRANCH_BYTES_MAX, DELAYED_BRANCH

TIMEOUT_MS_MAX = 2**32 - 1


class SharedTransaction(NamedTuple):
    """The name of a transaction, for the processes that write it."""

    transactional_id: str
    coordinator: int
    producer_id: bytes
    epoch: int

    @property
    def reference(self) -> pb.TransactionRef:
        return pb.TransactionRef(
            transactional_id=self.transactional_id,
            coordinator=self.coordinator,
            producer_id=self.producer_id,
            epoch=self.epoch,
            number=1,
        )


class StagedBatches(NamedTuple):
    """Number of batches that a branch has staged for a partition, and the partition's bundle."""

    bundle: int
    topic_id: int
    partition: int
    batches: int


@dataclass(frozen=True)
class BranchCounts:
    """Counts of what a branch has staged, for the decision."""

    branch: bytes
    staged: tuple[StagedBatches, ...] = ()


class Branch:
    """Stages batches in one branch. Use `async with`; call `counts` after `flush`.

    If a record failed, `counts` raises its error: write all records again in a new branch.
    """

    def __init__(
        self, context: ClientContext, transaction: SharedTransaction, branch: bytes, settings: ProducerSettings
    ) -> None:
        """Raises InvalidRequest."""
        if not 1 <= len(branch) <= BRANCH_BYTES_MAX:
            raise InvalidRequest(f"the name of a branch has 1 to {BRANCH_BYTES_MAX} bytes, not {len(branch)}")
        if branch.endswith(DELAYED_BRANCH):
            raise InvalidRequest(f"the name of a branch may not end with {DELAYED_BRANCH!r}: {branch!r}")
        self._branch = branch
        self._staging = Staging()
        self._staging.begin(transaction.reference, branch)
        self._failure: LedgerMQError | None = None
        self._producer: Producer = make_producer(context, settings, self._staging, self._failed)

    def _failed(self, error: LedgerMQError) -> LedgerMQError:
        self._failure = self._failure or error
        return error

    @property
    def closed(self) -> bool:
        return self._producer.closed

    def send_batch(
        self, topic: str, batch: ArrowData, *, partition: int | None = None, timeout: float | timedelta | None = None
    ) -> Queuing[BatchDelivery]:
        """Queue the rows of Arrow data, as `Producer.send_batch`."""
        return self._producer.send_batch(topic, batch, partition=partition, timeout=timeout)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record is staged.

        Raises DeadlineExceeded after `timeout_s`, and the error of a record that failed.
        """
        await self._producer.flush(timeout_s)
        self._check()

    def counts(self) -> BranchCounts:
        """Return what is staged. Raises the error of a record that failed; Unavailable if a record is not
        staged yet.
        """
        self._check()
        if self._producer.unanswered_records:
            raise Unavailable(f"{self._producer.unanswered_records} records are not staged yet: flush first")
        staged = [
            StagedBatches(part.bundle, count.topic_id, count.partition, count.batches)
            for part in self._staging.parts(())
            for count in part.counts
        ]
        return BranchCounts(self._branch, tuple(staged))

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message) from self._failure

    async def close(self) -> None:
        """Close at once. Staged batches stay until the transaction is decided."""
        await self._producer.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SharedTransactions:
    """`client.transactions.shared`: begin transactions that several processes write, and decide about
    them.
    """

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    @property
    def _connections(self) -> Connections:
        return self._context.connections

    async def begin(self, transactional_id: str, *, timeout_s: float) -> SharedTransaction:
        """Begin a transaction under an id that no other transaction has.

        `timeout_s`: the cluster aborts the transaction if it is undecided for so long. The time begins
        some seconds after the first batch is staged. Raises InvalidRequest, ResourceExhausted,
        Unavailable.
        """
        timeout_ms = round(timeout_s * 1000)
        if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
            raise InvalidRequest(f"a time-out is 1 to {TIMEOUT_MS_MAX} ms, not {timeout_ms} ms")
        decisions = Decisions(self._connections, transactional_id, self._context.sources.new_id())
        answer = await decisions.init(timeout_ms, self._connections.deadline(), pb.TWO_PHASE)
        return SharedTransaction(transactional_id, answer.coordinator, answer.producer_id, answer.epoch)

    def branch(self, transaction: SharedTransaction, branch: bytes, settings: ProducerSettings) -> Branch:
        """Return a branch to write to. `branch`: a name that no other writer of the transaction has."""
        return Branch(self._context, transaction, branch, settings)

    async def commit(self, transaction: SharedTransaction, counts: Iterable[BranchCounts]) -> None:
        """Commit what these branches have staged, and drop what others have.

        Raises TransactionAborted, TransactionFenced or TransactionUnknown if the transaction is not
        committed; TransactionOutcomeUnknown if it may be committed: ask for its outcome.
        """
        await self._end(transaction, pb.COMMITTED, counts)

    async def abort(self, transaction: SharedTransaction, counts: Iterable[BranchCounts] = ()) -> None:
        """Abort. Branches that are not passed are dropped too, some seconds later. Raises as `commit`."""
        await self._end(transaction, pb.ABORTED, counts)

    async def _end(
        self, transaction: SharedTransaction, outcome: pb.TransactionState, counts: Iterable[BranchCounts]
    ) -> None:
        decisions = Decisions(self._connections, transaction.transactional_id)
        await decisions.end(transaction.reference, outcome, parts_of(counts), self._connections.deadline())

    async def completed(self, transactional_id: str) -> TransactionOutcome:
        """Return the outcome when the transaction is visible, or dropped, in all bundles. This aborts an
        undecided transaction.

        Raises TransactionUnknown; Unavailable if the transaction is still incomplete at the deadline.
        """
        decisions = Decisions(self._connections, transactional_id)
        backoff, deadline = self._connections.backoff(), self._connections.deadline()
        while not (outcome := await decisions.outcome(0, 0, deadline)).complete:
            wait_s = backoff.next_s(0)
            if asyncio.get_running_loop().time() + wait_s >= deadline:
                raise Unavailable(
                    f"transaction {transactional_id!r} is {outcome.state}, but not complete in all its bundles yet:"
                    " repeat the call"
                )
            await asyncio.sleep(wait_s)
        return outcome

    async def forget(self, transactional_id: str) -> None:
        """Forget a complete transaction, when no process will ask about it any longer. May be called
        again.

        Raises InvalidRequest, Unavailable.
        """
        with suppress(TransactionUnknown):  # it is forgotten already
            await TransactionAdmin(self._connections).forget(transactional_id)


def parts_of(counts: Iterable[BranchCounts]) -> list[pb.TransactionPart]:
    """Return the counts of all branches by bundle."""
    parts: dict[int, pb.TransactionPart] = {}
    for each in counts:
        for bundle, topic_id, partition, batches in each.staged:
            part = parts.setdefault(bundle, pb.TransactionPart(bundle=bundle))
            part.counts.add(branch=each.branch, topic_id=topic_id, partition=partition, batches=batches)
    return [parts[bundle] for bundle in sorted(parts)]
