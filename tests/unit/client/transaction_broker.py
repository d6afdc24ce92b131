"""A small cluster in memory that keeps the rules of transactions, with faults on request.

Two brokers: each owns one partition of topic `t`; the coordinators of transactional ids and groups
move between them. It checks what a client may never do: counts above what is staged, a number that
is not the next, offsets of another epoch.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    NotOwner,
    OutOfOrderSequence,
    TransactionAborted,
    TransactionFenced,
    TransactionUnknown,
    Unavailable,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection, Connector
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.protocol.frames import FetchFrame, StageFrame
from ledgermq.protocol.limits import DELAYED_BRANCH
from ledgermq.protocol.status import error_to_proto
from tests.unit.client.groups.hostile_coordinator import HostileCoordinator
from tests.unit.client.hostile import encoded, fetched

A = TypeVar("A")

ADDRESSES = ("first:1", "second:1")
PRODUCER_ID = b"p" * 16
COORDINATOR = 3
GROUP_BUNDLE = 9
EPOCH = 5
"""Of the group's partitions."""

Pair = tuple[int, int]


def bundle_of(partition: int) -> int:
    return partition + 1


@dataclass(slots=True)
class Batch:
    crc: int
    values: list[bytes]
    dues_us: list[int]
    """Timestamps of the records."""


@dataclass(slots=True)
class Faults:
    """By method: `lost`, answers that are lost after the call took effect; `doubled`, calls that
    take effect twice; `refused`, errors to raise before any effect; `silent`, calls that have no
    effect and no answer.
    """

    lost: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    doubled: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    refused: dict[str, list[LedgerMQError]] = field(default_factory=lambda: defaultdict(list))
    silent: set[str] = field(default_factory=set)
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    """Calls that wait for an event before they take effect."""


class TransactionCluster(Connector):
    def __init__(self) -> None:
        self.faults = Faults()
        self.coordinator = ADDRESSES[0]
        self.group_coordinator = ADDRESSES[1]
        self.owners = list(ADDRESSES)
        self.epoch = 0
        self.number = 0
        self.outcome = pb.ABORTED
        self.incomplete = 0
        """Number of calls that are refused because the last commit is not complete."""
        self.staged: dict[Pair, dict[tuple[bytes, int], list[Batch]]] = defaultdict(lambda: defaultdict(list))
        """By transaction, then by branch and partition."""
        self.over: set[Pair] = set()
        """Transactions of which bundles stage nothing further."""
        self.visible: dict[int, list[bytes]] = defaultdict(list)
        """Values by partition."""
        self.waiting: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
        """By partition, the values that wait after their commit, with their due times."""
        self.now_us = 0
        """The time that brokers report."""
        self.pending: dict[Pair, dict[int, int]] = defaultdict(dict)
        self.committed: dict[int, int] = {0: 0, 1: 0}
        self.counters: dict[int, int] = defaultdict(int)
        self.log: dict[int, list[bytes]] = {0: [], 1: []}
        """Records of topic `t` for consumers, by partition."""
        self.assigned = [0, 1]
        self.revised = 0
        self.calls: list[str] = []
        self.ends: list[pb.EndTransactionRequest] = []
        self.stages: list[pb.StageHeader] = []
        self.brokers = {address: MemoryBroker(self, address) for address in ADDRESSES}

    def connect(self, address: str) -> Connection:
        return self.brokers[address]

    def assign(self, *partitions: int) -> None:
        """Give the member of the group these partitions."""
        self.assigned = list(partitions)
        self.revised += 1

    def move_everything(self) -> None:
        self.owners.reverse()
        self.coordinator, self.group_coordinator = self.group_coordinator, self.coordinator

    async def call(self, method: str, effect: Callable[[], A]) -> A:
        """Let a call take effect, with the faults that are asked for."""
        self.calls.append(method)
        if method in self.faults.silent:
            await asyncio.Event().wait()
        if method in self.faults.held:
            await self.faults.held[method].wait()
        if self.faults.refused[method]:
            raise self.faults.refused[method].pop(0)
        answer = effect()
        if self.faults.doubled[method]:
            self.faults.doubled[method] -= 1
            answer = effect()
        if self.faults.lost[method]:
            self.faults.lost[method] -= 1
            raise Unavailable("the line was lost")
        return answer

    # -- what brokers decide

    def init(self) -> pb.InitTransactionsResponse:
        self.wait_for_completion()
        self.epoch, self.number, self.outcome = self.epoch + 1, 0, pb.ABORTED
        self.drop(keep_from=(self.epoch, 0))
        return pb.InitTransactionsResponse(
            producer_id=PRODUCER_ID, epoch=self.epoch, coordinator=COORDINATOR, timeout_ms=60_000, now_us=self.now_us
        )

    def wait_for_completion(self) -> None:
        if self.incomplete:
            self.incomplete -= 1
            raise Unavailable("the last commit is not complete", retry_after_ms=100)

    def stage(
        self, transaction: pb.TransactionRef, branch: bytes, staged: pb.StageBatch, data: bytes
    ) -> pb.StageResult:
        pair = (transaction.epoch, transaction.number)
        if pair in self.over:
            raise TransactionAborted("the transaction is over")
        stored = self.staged[pair][branch, staged.batch.partition]
        if staged.sequence > len(stored):
            raise OutOfOrderSequence(f"batch {len(stored)} is missing before {staged.sequence}")
        if staged.sequence < len(stored):
            if stored[staged.sequence].crc != staged.batch.crc:
                raise TransactionAborted("another batch has this sequence")
        else:
            rows = decode_batch(data)
            dues_us = [moment.value for moment in rows.column("timestamp")]
            stored.append(Batch(staged.batch.crc, rows.column("value").to_pylist(), dues_us))
        return pb.StageResult(topic_id=1, bundle=bundle_of(staged.batch.partition))

    def end(self, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        self.ends.append(request)
        transaction = request.transaction
        if transaction.epoch != self.epoch:
            raise TransactionFenced(f"epoch {self.epoch} has begun")
        if transaction.number == self.number:
            if request.outcome == pb.COMMITTED and self.outcome == pb.ABORTED:
                raise TransactionAborted("it was aborted")
            return pb.EndTransactionResponse(state=self.outcome)
        if transaction.number != self.number + 1:
            raise InvalidRequest(f"number {self.number + 1} is next, not {transaction.number}")
        self.wait_for_completion()
        self.decide(request.outcome, request.parts)
        return pb.EndTransactionResponse(state=self.outcome)

    def decide(self, outcome: pb.TransactionState, parts: list[pb.TransactionPart] | object = ()) -> None:
        """Decide the next transaction, and complete it."""
        self.number, self.outcome = self.number + 1, outcome
        pair = (self.epoch, self.number)
        if outcome == pb.COMMITTED:
            for part in parts:  # type: ignore[attr-defined]
                for count in part.counts:
                    stored = self.staged[pair][count.branch, count.partition]
                    assert part.bundle == bundle_of(count.partition)
                    assert count.topic_id == 1
                    assert count.batches <= len(stored), "a decision counts staged batches only"
                    for batch in stored[: count.batches]:
                        if count.branch.endswith(DELAYED_BRANCH):
                            self.waiting[count.partition] += zip(batch.values, batch.dues_us, strict=True)
                        else:
                            self.visible[count.partition] += batch.values
                if part.groups:
                    assert part.bundle == GROUP_BUNDLE
                    assert list(part.groups) == ["g"]
                    assert self.pending[pair], "a group that is named has staged offsets"
                    self.committed |= self.pending[pair]
        self.over.add(pair)
        self.drop(keep_from=(self.epoch, self.number + 1))

    def drop(self, keep_from: Pair) -> None:
        for pair in [pair for pair in self.staged if pair < keep_from]:
            self.over.add(pair)
            del self.staged[pair]
        for pair in [pair for pair in self.pending if pair < keep_from]:
            del self.pending[pair]

    def ask_outcome(self, request: pb.TransactionOutcomeRequest) -> pb.TransactionOutcomeResponse:
        epoch, number = request.epoch or self.epoch, request.number or self.number
        if epoch != self.epoch:
            raise TransactionUnknown(f"epoch {self.epoch} has begun")
        if number == self.number + 1:
            self.decide(pb.ABORTED)
        return pb.TransactionOutcomeResponse(state=self.outcome, complete=not self.incomplete)

    def stage_offsets(self, request: pb.StageOffsetsRequest) -> pb.StageOffsetsResponse:
        pair = (request.transaction.epoch, request.transaction.number)
        if pair in self.over:
            raise TransactionAborted("the transaction is over")
        for commit in request.commits:
            assert commit.epoch == EPOCH
            if commit.counter > self.counters[commit.partition]:
                self.counters[commit.partition] = commit.counter
                self.pending[pair][commit.partition] = commit.offset
        return pb.StageOffsetsResponse(results=[pb.CommitResult() for _ in request.commits], bundle=GROUP_BUNDLE)

    def commit_offsets(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        answer = pb.CommitOffsetsResponse()
        for commit in request.commits:
            result = answer.results.add()
            if any(commit.partition in pending for pending in self.pending.values()):
                result.error.CopyFrom(error_to_proto(Unavailable("an offset is pending")))
            elif commit.counter > self.counters[commit.partition]:
                self.counters[commit.partition] = commit.counter
                self.committed[commit.partition] = commit.offset
        return answer


class MemoryBroker(HostileCoordinator):
    """One broker of the cluster."""

    def __init__(self, cluster: TransactionCluster, address: str) -> None:
        super().__init__()
        self.cluster = cluster
        self.address = address

    def _check(self, owner: str) -> None:
        if owner != self.address:
            raise NotOwner(f"{self.address} is not the owner", owner=owner)

    def _at_coordinator(self, method: str, effect: Callable[[], A]) -> Awaitable[A]:
        self._check(self.cluster.coordinator)
        return self.cluster.call(method, effect)

    async def describe_topics(self, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        if "describe_topics" in self.cluster.faults.silent:
            await asyncio.Event().wait()
        partitions = [
            pb.PartitionInfo(bundle=bundle_of(partition), owner=owner)
            for partition, owner in enumerate(self.cluster.owners)
        ]
        info = pb.TopicInfo(name="t", topic_id=1, partitions=partitions)
        if list(request.topics) != ["t"]:
            info = pb.TopicInfo(name=request.topics[0], error=pb.Error(code="UNKNOWN_TOPIC", message="no such topic"))
        return pb.DescribeTopicsResponse(topics=[info])

    async def stage(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        async for frame in requests:
            assert not frame.header.branch.endswith(DELAYED_BRANCH)
            yield await self.cluster.call("stage", lambda frame=frame: self._stage(frame))  # type: ignore[misc]

    async def stage_delayed(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        async for frame in requests:
            assert frame.header.branch.endswith(DELAYED_BRANCH)
            yield await self.cluster.call("stage_delayed", lambda frame=frame: self._stage(frame))  # type: ignore[misc]

    def _stage(self, frame: StageFrame) -> pb.StageResponse:
        self.cluster.stages.append(frame.header)
        answer = pb.StageResponse()
        for staged, data in zip(frame.header.batches, frame.payload, strict=True):
            try:
                self._check(self.cluster.owners[staged.batch.partition])
                header = frame.header
                answer.results.append(self.cluster.stage(header.transaction, header.branch, staged, bytes(data)))
            except LedgerMQError as error:
                answer.results.add(topic_id=1, error=error_to_proto(error))
        return answer

    async def init_transactions(self, request: pb.InitTransactionsRequest) -> pb.InitTransactionsResponse:
        return await self._at_coordinator("init_transactions", self.cluster.init)

    async def end_transaction(self, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        return await self._at_coordinator("end_transaction", lambda: self.cluster.end(request))

    async def transaction_outcome(self, request: pb.TransactionOutcomeRequest) -> pb.TransactionOutcomeResponse:
        return await self._at_coordinator("transaction_outcome", lambda: self.cluster.ask_outcome(request))

    # -- the group

    async def stage_offsets(self, request: pb.StageOffsetsRequest) -> pb.StageOffsetsResponse:
        self._check(self.cluster.group_coordinator)
        return await self.cluster.call("stage_offsets", lambda: self.cluster.stage_offsets(request))

    async def commit_offsets(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        self._check(self.cluster.group_coordinator)
        return await self.cluster.call("commit_offsets", lambda: self.cluster.commit_offsets(request))

    async def fetch_committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        self._check(self.cluster.group_coordinator)
        committed = self.cluster.committed
        partitions = [
            pb.CommittedPartition(topic="t", topic_id=1, partition=at.partition, offset=committed[at.partition])
            for at in request.partitions
        ]
        return pb.FetchCommittedResponse(partitions=partitions)

    async def group_heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        self._check(self.cluster.group_coordinator)
        given = [
            pb.GivenPartition(topic="t", topic_id=1, partition=partition, epoch=EPOCH)
            for partition in self.cluster.assigned
        ]
        if request.step == pb.STAY and list(request.owned) == given:
            await asyncio.sleep(request.max_wait_ms / 1000)
        return pb.GroupHeartbeatResponse(
            group_epoch=10 + self.cluster.revised,
            assigned=given,
            session_timeout_ms=45_000,
            heartbeat_interval_ms=1000,
        )

    async def fetch(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        for at in request.partitions:
            values = self.cluster.log[at.partition][at.offset :]
            if values:
                yield fetched(encoded(*values), count=len(values), base=at.offset, partition=at.partition)
        await asyncio.Event().wait()

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        return pb.ListOffsetsResponse(results=[pb.OffsetResult(offset=0) for _ in request.queries])


def sequences(cluster: TransactionCluster) -> list[tuple[int, int, int]]:
    """Return (number, partition, sequence) of each batch that was sent, in order."""
    return [
        (header.transaction.number, staged.batch.partition, staged.sequence)
        for header in cluster.stages
        for staged in header.batches
    ]
