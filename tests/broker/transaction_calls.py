"""Make calls about transactions as a client does, for tests in virtual time: stage where the bundle
is, count what was staged, end at the coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ledgermq.errors import LedgerMQError, NotOwner, RetriableError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame, StageFrame
from ledgermq.protocol.limits import DELAYED_BRANCH
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_broker.transactions.participating.copier import Copier
from ledgermq_broker.transactions.partition import TransactionPartition
from ledgermq_broker.transactions.routing.routed import partition_of
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_broker.transactions.state.participating.completing import Chunk
from ledgermq_ledger import keys
from tests.broker.cluster import FAST_CONSTANTS, Cluster, batch_header, encoded
from tests.broker.groups import ask, committed
from tests.broker.timer_calls import Timed, timed_batch
from tests.waiting import until

PATIENCE_S = 60.0


def stage_frame(
    ref: pb.TransactionRef, *batches: tuple[str, int, int, Sequence[bytes]], branch: bytes = b""
) -> StageFrame:
    """`batches`: (topic, partition, sequence, values)."""
    header = pb.StageHeader(transaction=ref, branch=branch)
    payload = []
    for topic, partition, sequence, values in batches:
        data = encoded(values)
        header.batches.add(batch=batch_header(topic, partition, data, len(values)), sequence=sequence)
        payload.append(data)
    return Frame(header, payload)


def timed_stage_frame(
    ref: pb.TransactionRef,
    topic: str,
    partition: int,
    sequence: int,
    messages: Sequence[Timed],
    branch: bytes = DELAYED_BRANCH,
) -> StageFrame:
    batch, data = timed_batch(topic, partition, messages)
    header = pb.StageHeader(transaction=ref, branch=branch)
    header.batches.add(batch=batch, sequence=sequence)
    return Frame(header, [data])


async def stage_once(
    cluster: Cluster, address: str, frame: StageFrame, *, delayed: bool = False
) -> list[pb.StageResult]:
    """Send one frame to one broker and return its results. `delayed`: by StageDelayed."""

    async def frames():  # type: ignore[no-untyped-def]
        yield frame

    line = cluster.line(address)
    [answer] = [answer async for answer in (line.stage_delayed if delayed else line.stage)(frames())]
    return list(answer.results)


@dataclass
class Producer:
    """One process that uses a transactional id. `counts`: what the open transaction has staged."""

    cluster: Cluster
    name: str
    ref: pb.TransactionRef = field(default_factory=pb.TransactionRef)
    parts: dict[int, pb.TransactionPart] = field(default_factory=dict)
    sequences: dict[tuple[bytes, str, int], int] = field(default_factory=dict)
    tokens: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)

    async def init(self, **more: object) -> pb.InitTransactionsResponse:
        request = pb.InitTransactionsRequest(transactional_id=self.name, **more)  # type: ignore[arg-type]
        answer = await ask(self.cluster, lambda line: line.init_transactions(request))
        self.ref = pb.TransactionRef(
            transactional_id=self.name,
            coordinator=answer.coordinator,
            producer_id=answer.producer_id,
            epoch=answer.epoch,
            number=0,
        )
        return answer

    def begin(self) -> None:
        self.ref.number += 1
        self.parts, self.sequences = {}, {}

    async def send(self, topic: str, partition: int, *values: bytes) -> None:
        """Stage one batch, until it is staged."""
        sequence = self.sequences.get((b"", topic, partition), 0)
        result = await self.stage(topic, partition, sequence, *values)
        self._count(b"", topic, partition, result)

    async def send_timed(self, topic: str, partition: int, *messages: Timed) -> None:
        """Stage one batch of timed messages, until it is staged."""
        sequence = self.sequences.get((DELAYED_BRANCH, topic, partition), 0)
        frame = timed_stage_frame(self.ref, topic, partition, sequence, messages)
        self._count(DELAYED_BRANCH, topic, partition, await self._stage(frame, delayed=True))

    def _count(self, branch: bytes, topic: str, partition: int, result: pb.StageResult) -> None:
        sequence = self.sequences.get((branch, topic, partition), 0)
        self.sequences[branch, topic, partition] = sequence + 1
        counts = self._part(result.bundle).counts
        at = branch, result.topic_id, partition
        found = next((count for count in counts if (count.branch, count.topic_id, count.partition) == at), None)
        if found is None:
            found = counts.add(branch=branch, topic_id=result.topic_id, partition=partition)
        found.batches = sequence + 1

    async def stage(self, topic: str, partition: int, sequence: int, *values: bytes) -> pb.StageResult:
        """Raises the error of the result, unless it is to be repeated."""
        return await self._stage(stage_frame(self.ref, (topic, partition, sequence, values)))

    async def _stage(self, frame: StageFrame, *, delayed: bool = False) -> pb.StageResult:
        address = self.cluster.network.addresses()[0]
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    [result] = await stage_once(self.cluster, address, frame, delayed=delayed)
                    if not result.HasField("error"):
                        return result
                    raise error_from_proto(result.error)
                except NotOwner as error:
                    address, wait_s = error.owner or address, (error.retry_after_ms or 10) / 1000
                except RetriableError as error:
                    address, wait_s = self.cluster.network.addresses()[0], (error.retry_after_ms or 50) / 1000
                await asyncio.sleep(wait_s)

    async def stage_offset(self, group: str, topic: str, partition: int, offset: int) -> str:
        """Its error code; "" where it is staged. Outside of membership, from what it has fetched."""
        key = group, topic, partition
        if key not in self.tokens:
            [found] = await committed(self.cluster, group, (topic, partition))
            self.tokens[key] = found.epoch, found.counter
        epoch, counter = self.tokens[key]
        self.tokens[key] = epoch, counter + 1
        request = pb.StageOffsetsRequest(transaction=self.ref, group=group)
        request.commits.add(topic=topic, partition=partition, offset=offset, epoch=epoch, counter=counter + 1)
        answer = await ask(self.cluster, lambda line: line.stage_offsets(request))
        if not answer.results[0].HasField("error"):
            part = self._part(answer.bundle)
            if group not in part.groups:
                part.groups.append(group)
        return answer.results[0].error.code

    async def commit(self) -> int:
        return await self.end(pb.COMMITTED)

    async def abort(self) -> int:
        return await self.end(pb.ABORTED)

    async def end(self, outcome: pb.TransactionState) -> int:
        request = pb.EndTransactionRequest(transaction=self.ref, outcome=outcome, parts=self.parts.values())
        return (await ask(self.cluster, lambda line: line.end_transaction(request))).state

    async def is_complete(self) -> bool:
        request = pb.TransactionOutcomeRequest(transactional_id=self.name, epoch=self.ref.epoch, number=self.ref.number)
        return (await ask(self.cluster, lambda line: line.transaction_outcome(request))).complete

    async def completed(self, timeout_s: float = 30.0) -> None:
        await until(self.is_complete, timeout_s, every_s=0.05)

    def _part(self, bundle: int) -> pb.TransactionPart:
        return self.parts.setdefault(bundle, pb.TransactionPart(bundle=bundle))


def constants_of(carry_slots: int = 2048, **limits: int) -> BrokerConstants:
    """`limits`: of transactions."""
    return replace(FAST_CONSTANTS, carry_slots=carry_slots, limits=(TransactionLimits(**limits),))


async def beginner(cluster: Cluster, name: str, **more: object) -> Producer:
    """A producer that has begun its first transaction."""
    producer = Producer(cluster, name)
    await producer.init(**more)
    producer.begin()
    return producer


def served(cluster: Cluster) -> dict[int, TransactionPartition]:
    """The partitions of `__transactions` that are served now, by their bundles."""
    return {
        found.bundle: found
        for broker in cluster.brokers.values()
        for found in broker.transactions.served()
        if found.lost is None
    }


def coordinator_bundle(cluster: Cluster, name: str) -> int:
    broker = next(iter(cluster.brokers.values()))
    topic = broker.metadata.catalog.living(keys.TRANSACTIONS_TOPIC)
    return topic.bundles[partition_of(name, topic)]


async def code_of(call: Callable[[], object]) -> str:
    try:
        await call()  # type: ignore[misc]
    except LedgerMQError as error:
        return error.code
    return ""


def stand_still_after(copier: Copier, chunks: int) -> asyncio.Event:
    """The copier hangs after so many chunks, which are durable when the event is set."""
    real, stands, done = copier._copy_chunk, asyncio.Event(), 0

    async def copy(chunk: Chunk) -> None:
        nonlocal done
        if done == chunks:
            await copier._state.durable()
            stands.set()
            await asyncio.Event().wait()
        done += 1
        await real(chunk)

    copier._copy_chunk = copy  # type: ignore[method-assign]
    return stands
