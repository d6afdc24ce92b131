"""Read one stream of batches from one broker, for some partitions of a consumer.

The stream ends when the broker ends it, when it fails, when no batch came for a while (the owner
may have changed), when the program has taken no messages for a while, and when it is cancelled
because one of its partitions was moved. The fetcher then opens another stream. Every answer of a
broker is checked before it is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any, NamedTuple, cast

from ledgermq.client.connection.routing import SUSPICION_S, ask_at_s
from ledgermq.client.consuming.fetching.direct_reads import DirectReads
from ledgermq.client.consuming.fetching.prefetch import Prefetch
from ledgermq.client.consuming.reading import FetchedRun, Reading
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import CorruptFrame, LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import FetchFrame
from ledgermq.protocol.limits import OFFSET_MAX
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.tasks import end


class AtBrokers(NamedTuple):
    """What brokers may leave out of a topic. `tags`: those that are wanted; none: all records are. `function`: the
    filter function that says which records are; empty: none.
    """

    tags: Sequence[str] = ()
    function: str = ""


ALL_RECORDS = AtBrokers()
AtBrokersOf = Callable[[str], AtBrokers]

FIRST_FRAME_S = 10.0
IDLE_S = 10.0
FULL_S = 5.0
"""How long a stream may wait for room in the buffer. A waiting answer occupies memory of the
broker, so the stream is ended after this time.
"""


class FetchStream:
    """One stream. `on_error(reading, error)` is called when the broker does not serve this
    partition, but serves the others.

    `is_moved()` returns whether other brokers name another owner for one of the partitions; it is
    called when no batch comes although one should.
    """

    def __init__(
        self,
        connection: Connection,
        readings: Sequence[Reading],
        prefetch: Prefetch,
        bytes_max: int,
        on_error: Callable[[Reading, LedgerMQError], None],
        is_moved: Callable[[], Coroutine[Any, Any, bool]],
        direct: DirectReads | None = None,
        wanted_of: AtBrokersOf = lambda topic: ALL_RECORDS,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._prefetch = prefetch
        self._bytes_max = bytes_max
        self._on_error = on_error
        self._is_moved = is_moved
        self._direct = direct
        self._wanted_of = wanted_of
        self._answered = answered
        self._readings: dict[TopicPartition, tuple[Reading, int]] = {
            reading.partition: (reading, reading.generation) for reading in readings
        }

    async def run(self) -> bool:
        """Read until another stream is needed. Return False if there was no room in the
        buffer.

        Raises the error that ended the stream, also CannotRead.
        """
        request = pb.FetchRequest(
            partitions=[
                pb.FetchPartition(
                    topic=reading.partition.topic,
                    topic_id=reading.topic_id,
                    partition=reading.partition.partition,
                    offset=reading.fetch_at,
                    tags=self._wanted_of(reading.partition.topic).tags,
                    function=self._wanted_of(reading.partition.topic).function,
                )
                for reading, _ in self._readings.values()
            ],
            max_bytes=self._bytes_max,
            direct=self._direct is not None,
        )
        # BrokerApi promises an iterator; all our implementations are generators, which must be closed.
        frames, credential = cast(Any, self._connection.fetch(request)), self._connection.credential()
        lost = asyncio.create_task(self._connection.wait_lost())
        timeout_s, expects = FIRST_FRAME_S, True
        try:
            async with aclosing(frames):
                while self._readings:
                    frame = await self._next(frames, lost, timeout_s, expects=expects)
                    if frame is None:
                        return True
                    timeout_s, expects = (
                        IDLE_S,
                        any(part.batches or part.next_offset for part in frame.header.partitions),
                    )
                    self._take(frame, await self._read_located(frame.header))
                    self._answered()
                    if self._connection.credential() != credential:
                        return True  # the next stream is that of the present principal
                    if not await self._prefetch.wait_for_room(FULL_S):
                        return False
                return True
        finally:
            await end(lost)

    async def _next(
        self, frames: AsyncIterator[FetchFrame], lost: asyncio.Task[bool], timeout_s: float, *, expects: bool
    ) -> FetchFrame | None:
        """Return the next frame; None: no frame came for a while, or a partition has moved.

        `expects`: a frame should come soon, because this is the first one, or because records came
        a moment ago.
        """
        pull = asyncio.create_task(_pull(frames))
        questions: list[asyncio.Task[None]] = []
        try:
            quiet_s = SUSPICION_S if expects else timeout_s
            await asyncio.wait([pull, lost], timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
            if expects and not pull.done() and not lost.done():
                questions = [asyncio.create_task(self._ask_others())]
                await asyncio.wait(
                    [pull, lost, *questions], timeout=timeout_s - quiet_s, return_when=asyncio.FIRST_COMPLETED
                )
            if pull.done():
                return pull.result()
            if lost.done():
                raise Unavailable(f"the connection to {self._connection.address} was lost")
            if timeout_s == FIRST_FRAME_S and not any(question.done() for question in questions):
                raise Unavailable(f"{self._connection.address} did not begin to answer within {timeout_s} s")
            return None
        except StopAsyncIteration as error:
            raise Unavailable(f"{self._connection.address} ended the stream") from error
        finally:
            await end(pull, *questions)

    async def _ask_others(self) -> None:
        """Query other brokers repeatedly. Return once one of them reports that a partition has
        moved.
        """
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        since_s = asked_s - SUSPICION_S
        while not await self._is_moved():
            await asyncio.sleep(ask_at_s(since_s, asked_s) - loop.time())
            asked_s = loop.time()

    async def _read_located(self, header: pb.FetchHeader) -> Sequence[memoryview]:
        return await self._direct.read(header) if self._direct is not None else ()

    def _take(self, frame: FetchFrame, located: Sequence[memoryview]) -> None:
        """Queue the batches of a frame. `located`: the bytes of the batches that are not in the
        payload, in their order.
        """
        payload = frame.payload[0] if len(frame.payload) == 1 else b"".join(frame.payload)
        view = memoryview(payload)
        batches = [batch for part in frame.header.partitions for batch in part.batches]
        named = sum(batch.length for batch in batches if not batch.object)
        if named != len(view) or sum(1 for batch in batches if batch.object) != len(located):
            raise CorruptFrame(
                f"{self._connection.address} sent {len(view)} bytes but its header names {named}, or locations that"
                " differ from its header"
            )
        pieces = _pieces(batches, view, iter(located))
        for part in frame.header.partitions:
            own = list(islice(pieces, len(part.batches)))
            reading, generation = self._readings.get(TopicPartition(part.topic, part.partition), (None, 0))
            if reading is not None and generation == reading.generation:
                self._take_partition(reading, part, own)

    def _take_partition(self, reading: Reading, part: pb.FetchedPartition, pieces: Sequence[memoryview]) -> None:
        if part.HasField("error"):
            del self._readings[reading.partition]
            self._on_error(reading, error_from_proto(part.error))
            return
        function = self._wanted_of(reading.partition.topic).function
        if function and part.batches and not part.judged:
            del self._readings[reading.partition]
            self._on_error(
                reading, Unavailable(f"{self._connection.address} is of a release that runs no filter functions")
            )
            return
        reading.answered()
        reading.high_watermark = part.high_watermark
        if reading.topic_id == 0:
            reading.topic_id = part.topic_id
        reading.failed_in_filter += part.failed if function else 0
        for batch, piece in zip(part.batches, pieces, strict=True):
            end = batch.base_offset + batch.record_count
            if batch.record_count == 0 or end > OFFSET_MAX:
                raise CorruptFrame(
                    f"{self._connection.address} sent a batch of {batch.record_count} records at {batch.base_offset}"
                )
            if function and len(batch.passes) != -(-batch.record_count // 8):
                raise CorruptFrame(
                    f"{self._connection.address} sent {len(batch.passes)} bytes of verdicts on {batch.record_count}"
                    " records"
                )
            if end > reading.fetch_at:
                run = FetchedRun(
                    reading,
                    reading.generation,
                    batch.base_offset,
                    batch.record_count,
                    batch.crc,
                    piece,
                    batch.passes if function else None,
                )
                reading.fetch_at = end
                self._prefetch.add(run)
        self._take_next_offset(reading, part)

    def _take_next_offset(self, reading: Reading, part: pb.FetchedPartition) -> None:
        """Fetch from behind what the broker has left out, by the tags or the function that were asked for."""
        if part.next_offset <= reading.fetch_at or self._wanted_of(reading.partition.topic) == ALL_RECORDS:
            return
        if part.next_offset > part.high_watermark:
            raise CorruptFrame(
                f"{self._connection.address} left out offsets up to {part.next_offset} of {reading.partition}, which"
                f" ends at {part.high_watermark}"
            )
        reading.fetch_at = part.next_offset
        self._prefetch.changed.set()


def _pieces(
    batches: Iterable[pb.FetchedBatch], payload: memoryview, located: Iterator[memoryview]
) -> Iterator[memoryview]:
    at = 0
    for batch in batches:
        if batch.object:
            yield next(located)
        else:
            yield payload[at : at + batch.length]
            at += batch.length


async def _pull(frames: AsyncIterator[FetchFrame]) -> FetchFrame:
    return await anext(frames)
