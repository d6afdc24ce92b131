"""Send, recall and watch timed messages as clients do, for tests in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from ledgermq.errors import LedgerMQError, NotOwner, RetriableError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import SCHEMA, decode_batch, encode_batch
from ledgermq.protocol.frames import Frame, ProduceFrame
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_broker.timed.partition import TimerPartition
from ledgermq_broker.timed.state.limits import TimerLimits
from ledgermq_ledger.keys import PartitionId
from tests.broker.cluster import FAST_CONSTANTS, Cluster, batch_header, fetch_of
from tests.broker.groups import ask
from tests.virtual_time import EPOCH_US

PATIENCE_S = 60.0
SECOND_US = 1_000_000

Timed = tuple[bytes, float]
"""(value, due time in seconds of the loop's clock)."""


def constants_of(**limits: int) -> BrokerConstants:
    return replace(FAST_CONSTANTS, limits=(TimerLimits(**limits),))


def now_s() -> float:
    return asyncio.get_running_loop().time()


def us_of(at_s: float) -> int:
    """The store's time at a time of the loop, in microseconds."""
    return EPOCH_US + round(at_s * SECOND_US)


def timed_data(messages: Sequence[Timed]) -> bytes:
    columns = [
        [None] * len(messages),
        [value for value, _ in messages],
        [None] * len(messages),
        [us_of(due_s) for _, due_s in messages],
        [0] * len(messages),
        [None] * len(messages),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return encode_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))


def timed_frame(
    topic: str,
    partition: int,
    messages: Sequence[Timed],
    session: pb.ProducerSession | None = None,
    acks: pb.Acks = pb.DURABLE,
) -> ProduceFrame:
    header, data = timed_batch(topic, partition, messages, session)
    return Frame(pb.ProduceHeader(batches=[header], acks=acks), [data])


def timed_batch(
    topic: str, partition: int, messages: Sequence[Timed], session: pb.ProducerSession | None = None
) -> tuple[pb.ProduceBatch, bytes]:
    data = timed_data(messages)
    header = batch_header(topic, partition, data, len(messages), session)
    header.timestamp_min_us = us_of(min(due_s for _, due_s in messages))
    header.timestamp_max_us = us_of(max(due_s for _, due_s in messages))
    return header, data


async def send_once(cluster: Cluster, address: str, frame: ProduceFrame) -> pb.ProduceResult:
    [result] = (await cluster.line(address).produce_delayed_once(frame)).results
    return result


@dataclass
class Sender:
    """One producer of timed messages of one partition."""

    cluster: Cluster
    topic: str
    partition: int
    session: pb.ProducerSession = field(default_factory=pb.ProducerSession)
    sent: int = 0

    async def open(self) -> Sender:
        request = pb.OpenProducerRequest(partitions=[pb.TopicPartition(topic=self.topic, partition=self.partition)])
        owner = await self.cluster.owner_of(self.topic, self.partition)
        answer = await self.cluster.line(owner).open_producer(request)
        number = next(self.cluster.client_seeds)
        self.session = pb.ProducerSession(
            id=number.to_bytes(16, "big"), epoch=0, opened_slot=answer.partitions[0].opened_slot
        )
        return self

    async def send(self, *messages: Timed) -> int:
        """Send one batch until it is durable; return the offset of its block."""
        offset = await self.repeat(self.sent, *messages)
        self.sent += 1
        return offset

    async def repeat(self, sequence: int, *messages: Timed) -> int:
        """Send a batch with this sequence until it is durable. Raises errors that are not to be repeated."""
        session = pb.ProducerSession()
        session.CopyFrom(self.session)
        session.sequence = sequence
        frame = timed_frame(self.topic, self.partition, messages, session if self.session.id else None)
        return await deliver_later(self.cluster, frame)


async def deliver_later(cluster: Cluster, frame: ProduceFrame) -> int:
    """Send a frame of one batch to the owner of its partition until it is durable; return the offset."""
    address = cluster.network.addresses()[0]
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                result = await send_once(cluster, address, frame)
                if not result.HasField("error"):
                    return result.base_offset
                raise error_from_proto(result.error)
            except NotOwner as error:
                address, wait_s = error.owner or address, (error.retry_after_ms or 10) / 1000
            except RetriableError as error:
                address, wait_s = cluster.network.addresses()[0], (error.retry_after_ms or 50) / 1000
            await asyncio.sleep(wait_s)


async def send(cluster: Cluster, topic: str, partition: int, *messages: Timed) -> int:
    """Send one batch without a session."""
    return await deliver_later(cluster, timed_frame(topic, partition, messages))


async def recall(cluster: Cluster, topic: str, partition: int, offset: int, row: int, due_s: float) -> str:
    catalog = next(iter(cluster.brokers.values())).metadata.catalog
    request = pb.RecallDelayedRequest(
        topic=topic,
        topic_id=catalog.topics_by_name[topic].id,
        partition=partition,
        offset=offset,
        row=row,
        due_us=us_of(due_s),
    )
    answer = await ask(cluster, lambda line: line.recall_delayed(request))
    return pb.RecallOutcome.Name(answer.outcome)


async def listed(cluster: Cluster, bundle: int, **more: object) -> pb.ListDelayedResponse:
    request = pb.ListDelayedRequest(bundle=bundle, **more)  # type: ignore[arg-type]
    return await ask(cluster, lambda line: line.list_delayed(request))


def served(cluster: Cluster) -> dict[int, TimerPartition]:
    """The timed messages of each bundle where they are served now."""
    return {found.bundle: found for broker in cluster.brokers.values() for found in broker.timers.served()}


async def bundle_of(cluster: Cluster, topic: str, partition: int) -> int:
    broker = next(iter(cluster.brokers.values()))
    return broker.metadata.catalog.topics_by_name[topic].bundles[partition]


def pass_time(cluster: Cluster, now_us: int) -> None:
    """Let the store's clock show a later time to the timed messages of all brokers, and let them look at it:
    months pass without the work that everything else does meanwhile.
    """
    for broker in cluster.brokers.values():
        broker.timers._clock.learn(now_us // 1000, now_s())
    for found in served(cluster).values():
        found.held.note_moved()


class Watcher:
    """Reads one partition as soon as something comes. `seen`: (value, when it was seen first), in order of
    offsets.
    """

    def __init__(self, cluster: Cluster, topic: str, partition: int) -> None:
        self.seen: list[tuple[bytes, float]] = []
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._new = asyncio.Event()
        self._offset = 0
        self._task = asyncio.create_task(self._watch())

    @property
    def values(self) -> list[bytes]:
        return [value for value, _ in self.seen]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def until(self, count: int, within_s: float = 600.0) -> list[bytes]:
        """Return the values when there are so many, and a moment later no others."""
        async with asyncio.timeout(within_s):
            while len(self.seen) < count:
                self._new.clear()
                await self._new.wait()
        await asyncio.sleep(1)
        return self.values

    async def _watch(self) -> None:
        while True:
            for address in self._cluster.serving(self._topic, self._partition):
                with suppress(LedgerMQError):
                    await self._read(address)
                    await self._wait(address)
                    break
            else:
                await asyncio.sleep(0.05)

    async def _wait(self, address: str) -> None:
        """Wait until there is more to read, or the broker no longer owns the partition."""
        broker = self._cluster.brokers[address]
        topic = broker.metadata.catalog.topics_by_name[self._topic]
        owner = broker.ownership.opened.get(topic.bundles[self._partition])
        if owner is not None:
            await owner.wait_for_data({PartitionId(topic.id, self._partition): self._offset})

    async def _read(self, address: str) -> None:
        frame = await self._cluster.line(address).fetch_once(fetch_of(self._topic, self._partition, self._offset))
        part = frame.header.partitions[0]
        if part.HasField("error"):
            raise error_from_proto(part.error)
        payload, at = memoryview(b"".join(frame.payload)), 0
        for batch in part.batches:
            records = decode_batch(payload[at : at + batch.length])
            at += batch.length
            skip = max(0, self._offset - batch.base_offset)
            for value in records.column("value").to_pylist()[skip:]:
                self.seen.append((value, now_s()))
                self._new.set()
            self._offset = max(self._offset, batch.base_offset + batch.record_count)


@asynccontextmanager
async def watched(cluster: Cluster, topic: str, partition: int) -> AsyncIterator[Watcher]:
    watcher = Watcher(cluster, topic, partition)
    try:
        yield watcher
    finally:
        await watcher.close()


def held_of(cluster: Cluster, bundle: int | None = None):  # type: ignore[no-untyped-def]
    found = served(cluster)
    chosen = bundle if bundle is not None else next(b for b, part in sorted(found.items()) if part.held.size_bytes)
    return found[chosen].held
