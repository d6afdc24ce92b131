"""Answer Produce: record batches become our batches, which go the way of all batches.

Requests of a connection are admitted in their order and answered in their order, several at a time. A
request that has waited for longer than its client does is not admitted: its client sends it again. What
the broker has no room for is tried again while nothing of the connection is behind it; else its client
is asked to send it again. `acks = 0` gets no answer, and an error of it ends the connection: there is no
other way to make the client look for the partition's new leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from ledgermq.buffers import KIB, Buffer
from ledgermq.errors import (
    DeadlineExceeded,
    InvalidRecord,
    InvalidRequest,
    LedgerMQError,
    MessageTooLarge,
    ResourceExhausted,
    StoreFull,
    Unavailable,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import Frame, ProduceFrame, StageFrame
from ledgermq.protocol.limits import BATCHES_PER_FRAME_MAX, FRAME_PAYLOAD_BYTES_MAX
from ledgermq.protocol.status import error_from_proto, error_to_proto
from ledgermq.runtime.ports.turns import give_way
from ledgermq.runtime.tasks import end
from ledgermq_broker.kafka.handlers.sessions import Place, Sessions, stated
from ledgermq_broker.kafka.handlers.transactions.producers import ADDS_FROM, staged_error, transaction_ref
from ledgermq_broker.kafka.wire.answers import produce_batch, produced, refused
from ledgermq_broker.kafka.wire.batches.decoding import ProducedBatch, decode_records
from ledgermq_broker.kafka.wire.batches.head import BatchHead, read_head
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import produce_request as asked
from ledgermq_broker.kafka.wire.generated import produce_response as answered

ACKS_ALL, ACKS_LEADER, ACKS_NONE = -1, 1, 0
INLINE_BYTES_MAX = 256 * KIB
"""Above this size a batch is converted in a thread."""
BATCHES_AT_ONCE = 64
"""So many are converted or answered while others of the broker wait."""
MEMORY_OF_A_BATCH = 5
"""Memory that converting takes, as a multiple of the batch."""
HELD_S_MAX = 10.0
TRY_AGAIN_S_MIN = 0.02
ADDED_AT_ONCE_MAX = 1000
"""Partitions that the first batch of a request adds to a transaction, besides its own."""
NO_OFFSET, NO_OFFSET_OF_JAVA = -(2**31), -1
"""Java takes exactly -1 for none; the others would count on from it."""

RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function in a thread."""


Result = pb.ProduceResult | pb.StageResult
"""The second for a batch of a transaction."""


class EndConnection(Exception):
    """A client that expects no answer has to learn that something failed."""


@dataclass(slots=True)
class Entry:
    """A partition of a request. `version`: of that. `transaction`: in which it is staged. `also`: further partitions of
    the request that become part of it. `session`: of an idempotent producer. `error`: why it was not sent on; else
    `result` comes.
    """

    place: Place
    version: int
    transaction: pb.TransactionRef | None = None
    also: list[Place] = field(default_factory=list)
    session: pb.ProducerSession | None = None
    record_count: int = 0
    header: pb.ProduceBatch | None = None
    data: bytes = b""
    error: LedgerMQError | None = None
    result: asyncio.Future[Result] | None = None


@dataclass(slots=True)
class Begun:
    """A request whose batches were handed over. `held_until_s`: how long it may wait for room."""

    request: asked.ProduceRequest
    topics: list[tuple[str, list[Entry]]]
    held_until_s: float


class Stream:
    """One stream of batches to the broker: what is put first is admitted first, and answered first. `call`: produces,
    or stages.
    """

    def __init__(self, call: Callable[[AsyncIterator[Any]], AsyncIterator[Any]]) -> None:
        self._call = call
        self._frames: asyncio.Queue[ProduceFrame | StageFrame] = asyncio.Queue()
        self._waiting: list[list[asyncio.Future[Result]]] = []
        self._task: asyncio.Task[None] | None = None

    def is_idle(self) -> bool:
        """Return whether no frame waits for its answer."""
        return not self._waiting

    def put(self, frame: ProduceFrame | StageFrame) -> list[asyncio.Future[Result]]:
        """Hand a frame over, and return a future for each of its batches."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Result]] = [loop.create_future() for _ in frame.header.batches]
        self._waiting.append(futures)
        self._frames.put_nowait(frame)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name="Kafka batches")
        return futures

    async def _run(self) -> None:
        error: LedgerMQError = Unavailable("the stream of batches has ended")
        try:
            answers: Any = self._call(self._requests())
            async with aclosing(answers):
                async for answer in answers:
                    for future, result in zip(self._waiting.pop(0), answer.results, strict=True):
                        if not future.done():
                            future.set_result(result)
        except LedgerMQError as failed:
            error = failed
        finally:
            self._fail(error)

    async def _requests(self) -> AsyncIterator[ProduceFrame | StageFrame]:
        while True:
            yield await self._frames.get()

    def _fail(self, error: LedgerMQError) -> None:
        """End what waits. It may be stored, or not; what was not taken yet is dropped."""
        while not self._frames.empty():
            self._frames.get_nowait()
        for futures in self._waiting:
            for future in futures:
                if not future.done():
                    future.set_result(pb.ProduceResult(error=error_to_proto(error)))
        self._waiting.clear()

    async def close(self) -> None:
        """Drop what was not admitted: it is never admitted later."""
        if self._task is not None:
            await end(self._task)


class ProduceHandler:
    """Of one connection. `batch_memory_max`: what converting one batch may take. `no_offset`: the base offset that the
    client takes for none; a record of a transaction has none before the commit.
    """

    def __init__(
        self, api: BrokerApi, run_blocking: RunBlocking, batch_memory_max: int, no_offset: int = NO_OFFSET
    ) -> None:
        self._no_offset = no_offset
        self._api = api
        self._run_blocking = run_blocking
        self._batch_bytes_max = min(FRAME_PAYLOAD_BYTES_MAX, batch_memory_max // MEMORY_OF_A_BATCH)
        self._sessions = Sessions()
        self._stream = Stream(api.produce)
        self._staging = Stream(api.stage)

    async def begin(self, request: asked.ProduceRequest, version: int, arrived_s: float) -> Begun:
        """Convert the batches one by one, and hand them over."""
        loop = asyncio.get_running_loop()
        timeout_s = max(0.0, request.timeout_ms / 1000)
        topics = []
        late = None
        if timeout_s and loop.time() - arrived_s > timeout_s:
            late = DeadlineExceeded("the request waited for longer than its client; nothing of it was stored")
        for topic in request.topic_data:
            entries = []
            for one in topic.partition_data:
                entry = Entry((topic.name, one.index), version, error=late)
                if late is None:
                    await self._convert(entry, request, one.records)
                entries.append(entry)
                await _let_others_go_on(len(entries))
            topics.append((topic.name, entries))
        self._send([entry for _, entries in topics for entry in entries], request.acks)
        return Begun(request, topics, loop.time() + (min(HELD_S_MAX, timeout_s / 2) if timeout_s else HELD_S_MAX))

    async def answer(self, begun: Begun) -> answered.ProduceResponse | None:
        """Return the answer of a request; None for a client that expects none. Raises EndConnection."""
        topics, throttle_ms = [], 0
        for name, entries in begun.topics:
            parts = []
            for entry in entries:
                result = await self._result(entry, begun)
                throttle_ms = max(throttle_ms, result.error.retry_after_ms if _has_no_room(result) else 0)
                parts.append(self._part(entry, result))
                await _let_others_go_on(len(parts))
            topics.append(answered.TopicProduceResponse(name=name, partition_responses=parts))
        if begun.request.acks == ACKS_NONE:
            failed = [part for topic in topics for part in topic.partition_responses if part.error_code]
            if failed:
                raise EndConnection(f"a batch without acknowledgement failed: {Code(failed[0].error_code).name}")
            return None
        return answered.ProduceResponse(responses=topics, throttle_time_ms=throttle_ms)

    def follow(self, before: ProduceHandler) -> None:
        """Go on with the producers of another handler of the same connection, of which nothing waits."""
        self._sessions = before._sessions

    async def close(self) -> None:
        await self._stream.close()
        await self._staging.close()

    async def _convert(self, entry: Entry, request: asked.ProduceRequest, records: Any) -> None:
        try:
            if entry.place[1] < 0:
                raise InvalidRequest(f"there is no partition {entry.place[1]}")
            if request.acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
                raise InvalidRequest(f"acks is -1, 0 or 1, not {request.acks}")
            if not records:
                raise InvalidRecord("a partition of a request has exactly one record batch, this one has none")
            await self._read(entry, request, records)
        except LedgerMQError as error:
            entry.error = error

    async def _read(self, entry: Entry, request: asked.ProduceRequest, data: Buffer) -> None:
        if len(data) > self._batch_bytes_max:
            raise MessageTooLarge(
                f"a record batch of {len(data)} bytes; this broker takes {self._batch_bytes_max} at most, which its"
                " setting produce_memory_bytes_max decides"
            )
        head = read_head(data)
        if head.producer_id >= 0 and request.acks == ACKS_NONE:
            raise InvalidRecord("an idempotent producer waits for acknowledgements: set acks to all")
        entry.session = session = stated(head)
        if head.transactional:
            entry.transaction = _transaction_of(request, head)
            session = None  # its sequence is the transaction's
        else:
            entry.session = session = await self._sessions.session(self._api, entry.place, head)
        entry.record_count = head.record_count
        convert = partial(_converted, entry.place, data, session)
        if len(data) > INLINE_BYTES_MAX:
            entry.header, entry.data = await self._run_blocking(convert)
        else:
            entry.header, entry.data = convert()

    def _send(self, entries: list[Entry], acks: int) -> None:
        """Hand over what was converted, in frames that are small enough."""
        _add_together(entries)
        group: list[Entry] = []
        left = FRAME_PAYLOAD_BYTES_MAX
        for entry in entries:
            if entry.header is None:
                continue
            if entry.transaction is not None:
                self._put([entry], acks)
                continue
            if group and (len(entry.data) > left or len(group) == BATCHES_PER_FRAME_MAX):
                self._put(group, acks)
                group, left = [], FRAME_PAYLOAD_BYTES_MAX
            group.append(entry)
            left -= len(entry.data)
        if group:
            self._put(group, acks)

    def _put(self, group: list[Entry], acks: int) -> None:
        stream = self._stream_of(group[0])
        if stream is self._staging:
            [entry] = group
            [entry.result] = stream.put(_stage_frame(entry))
            return
        header = pb.ProduceHeader(
            acks=pb.RECEIVED if acks == ACKS_NONE else pb.DURABLE,
            batches=[entry.header for entry in group if entry.header is not None],
        )
        futures = stream.put(Frame(header, [entry.data for entry in group]))
        for entry, future in zip(group, futures, strict=True):
            entry.result = future

    def _stream_of(self, entry: Entry) -> Stream:
        return self._stream if entry.transaction is None else self._staging

    async def _result(self, entry: Entry, begun: Begun) -> Result:
        if entry.result is None:
            assert entry.error is not None
            return pb.ProduceResult(error=error_to_proto(entry.error))
        result = await entry.result
        loop = asyncio.get_running_loop()
        stream = self._stream_of(entry)
        while _has_no_room(result) and stream.is_idle():
            pause_s = max(TRY_AGAIN_S_MIN, result.error.retry_after_ms / 1000)
            if loop.time() + pause_s > begun.held_until_s:
                break
            await asyncio.sleep(pause_s)
            if not stream.is_idle():  # one behind it has been handed over meanwhile
                break
            self._put([entry], begun.request.acks)
            assert entry.result is not None
            result = await entry.result
        return result

    def _part(self, entry: Entry, result: Result) -> answered.PartitionProduceResponse:
        index = entry.place[1]
        error = entry.error  # its class may have a code that its wire form has not
        if error is None and result.HasField("error"):
            error = error_from_proto(result.error)
            if isinstance(result, pb.StageResult):
                error = staged_error(error, result.kafka_code, entry.version)
        final = error if entry.session is None else self._sessions.answered(entry.place, entry.session, error)
        if isinstance(result, pb.StageResult):
            if final is not None:
                return refused(final, index)
            return answered.PartitionProduceResponse(index=index, base_offset=self._no_offset, log_append_time_ms=-1)
        if final is None or (final is error and entry.error is None):
            return produced(result, index, entry.record_count)
        return refused(final, index)


def _converted(place: Place, data: Buffer, session: pb.ProducerSession | None) -> tuple[pb.ProduceBatch, bytes]:
    batch: ProducedBatch = decode_records(data)
    return produce_batch(place[0], 0, place[1], batch, session)


async def _let_others_go_on(count: int) -> None:
    if not count % BATCHES_AT_ONCE:
        await give_way()


def _has_no_room(result: Result) -> bool:
    """Return whether a batch was refused for lack of room, or by a quota, so that it may be tried again."""
    if not result.HasField("error"):
        return False
    error = error_from_proto(result.error)
    return isinstance(error, ResourceExhausted) and not isinstance(error, StoreFull)


def _transaction_of(request: asked.ProduceRequest, head: BatchHead) -> pb.TransactionRef:
    """Return the transaction of a batch. Raises InvalidRecord, InvalidRequest."""
    if request.transactional_id is None or head.producer_id < 0:
        raise InvalidRecord("a batch of a transaction comes with a transactional id and its producer id")
    if request.acks != ACKS_ALL:
        raise InvalidRecord("a transaction waits for acknowledgements: set acks to all")
    return transaction_ref(request.transactional_id, head.producer_id, head.producer_epoch)


def _add_together(entries: list[Entry]) -> None:
    """Have the first batch of a request that begins a partition of a transaction add those of the others, too: each
    addition has to be durable before the batch is staged.
    """
    begun = [entry for entry in entries if _begins(entry)]
    if begun:
        others = (entry.place for entry in begun[1:] if entry.transaction == begun[0].transaction)
        begun[0].also = list(islice(others, ADDED_AT_ONCE_MAX))


def _begins(entry: Entry) -> bool:
    """Return whether a batch is its partition's first one: where each transaction has an epoch, it has sequence 0."""
    adds = entry.transaction is not None and entry.version >= ADDS_FROM and entry.header is not None
    return adds and entry.session is not None and entry.session.sequence == 0


def _stage_frame(entry: Entry) -> StageFrame:
    assert entry.header is not None
    assert entry.session is not None
    batch = pb.StageBatch(batch=entry.header, sequence=entry.session.sequence)
    header = pb.StageHeader(
        transaction=entry.transaction,
        batches=[batch],
        added=True,
        adds=entry.version >= ADDS_FROM,
        also=[pb.TopicPartition(topic=topic, partition=partition) for topic, partition in entry.also],
    )
    return Frame(header, [entry.data])
