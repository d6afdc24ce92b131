"""Fetch: batches of many partitions, now, after a long poll, or pushed for as long as the caller listens.

A partition's error (unknown, not served here, offset out of range) is in the answer beside the other partitions' batches. A stream goes on
without the partition that had one, and ends with the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from ledger.catalog import Topic
from ledgermq.errors import CorruptFrame, InvalidRequest, LedgerMQError, SubscribeNotAccepted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batch_header import Buffer
from ledgermq.protocol.frames import FetchFrame, Frame
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from ledgermq.tasks import end
from stateless_broker.bundle.context import BundleMetrics
from stateless_broker.bundle.owner import BundleOwner
from stateless_broker.logs import get_logger, logs_debug
from stateless_broker.ownership import Ownership
from stateless_broker.topics import Lookup, Topics

PARTITIONS_MAX = 4096
PARALLEL_PARTITIONS = 8
STREAM_WAIT_S = 30.0
OBJECTS_MAX = 64
"""From here on an answer takes in no more partitions: a bound on what the URLs of objects take in its header."""

log = get_logger(__name__)


@dataclass(slots=True)
class _Cursor:
    """Where a reader is in one partition. `told`: the high watermark that the reader was told last."""

    name: str
    partition: int
    topic_id: int
    offset: int
    topic: Topic | None = None
    bundle: int | None = None
    high_watermark: int = 0
    told: int = -1


@dataclass(slots=True)
class _Found:
    """`urls`: of the batches that are not in `data`, one for each of the header's batches."""

    header: pb.FetchedPartition
    data: list[Buffer] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)

    @property
    def payload_bytes(self) -> int:
        return sum(len(piece) for piece in self.data)

    @property
    def size_bytes(self) -> int:
        """Also of what the caller reads by itself."""
        return sum(batch.length for batch in self.header.batches)


class FetchPath:
    """`direct`: callers that can read objects by themselves are told where batches are."""

    def __init__(
        self,
        topics: Topics,
        ownership: Ownership,
        bytes_default: int,
        wait_s_max: float,
        metrics: BundleMetrics,
        *,
        direct: bool = False,
    ) -> None:
        self._topics = topics
        self._ownership = ownership
        self.bytes_default = bytes_default
        self.wait_s_max = wait_s_max
        self._metrics = metrics
        self._direct = direct

    async def once(self, request: pb.FetchRequest) -> FetchFrame:
        """Long poll. Raises InvalidRequest for a request without partitions, or with too many."""
        cursors = _cursors(request)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.max_wait_ms / 1000, self.wait_s_max)
        is_over = False
        while True:
            found = await self._collect(cursors, request)
            enough = sum(part.size_bytes for part in found) >= max(1, request.min_bytes)
            if enough or any(part.header.HasField("error") for part in found) or is_over or loop.time() >= deadline:
                return _frame(found)
            is_over = not await self._wait(cursors, deadline)

    async def stream(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        """The first frame comes at once, even if empty: it tells the high watermarks."""
        cursors = _cursors(request)
        while cursors:
            found = await self._collect(cursors, request)
            news = [part for part, cursor in zip(found, cursors, strict=False) if _is_news(part, cursor)]
            failed = {(part.header.topic, part.header.partition) for part in found if part.header.HasField("error")}
            for part, cursor in zip(found, cursors, strict=False):
                _advance(cursor, part)
            if news:
                yield _frame(news)
            served = [cursor for cursor in cursors[: len(found)] if (cursor.name, cursor.partition) not in failed]
            cursors = cursors[len(found) :] + served  # who had no turn is first in the next answer
            if cursors and not any(part.header.batches for part in found):
                await self._wait(cursors, asyncio.get_running_loop().time() + STREAM_WAIT_S)

    def _bytes_max(self, request: pb.FetchRequest) -> int:
        return min(request.max_bytes or self.bytes_default, FRAME_PAYLOAD_BYTES_MAX)

    async def _collect(self, cursors: Sequence[_Cursor], request: pb.FetchRequest) -> list[_Found]:
        """What the first of the cursors have, some at a time, until the answer is full: a prefix of `cursors`, in their order."""
        found: list[_Found] = []
        lookup = self._topics.lookup()
        room = self._bytes_max(request)
        direct = self._direct and request.direct
        for first in range(0, len(cursors), PARALLEL_PARTITIONS):
            group = cursors[first : first + PARALLEL_PARTITIONS]
            for part in await asyncio.gather(*(self._read(lookup, cursor, max(1, room // len(group)), direct) for cursor in group)):
                if found and sum(p.payload_bytes for p in found) + part.payload_bytes > FRAME_PAYLOAD_BYTES_MAX:
                    return found
                found.append(part)
                room -= part.size_bytes
            if room <= 0 or len({url for part in found for url in part.urls}) >= OBJECTS_MAX:
                break
        return found

    async def _read(self, lookup: Lookup, cursor: _Cursor, bytes_max: int, direct: bool) -> _Found:
        header = pb.FetchedPartition(topic=cursor.name, topic_id=cursor.topic_id, partition=cursor.partition)
        found = _Found(header)
        try:
            owner = await self._locate(lookup, cursor)
            assert cursor.topic is not None
            header.topic_id = cursor.topic.id
            fetched = await owner.fetch(cursor.topic, cursor.partition, cursor.offset, bytes_max, direct=direct)
        except LedgerMQError as error:
            header.error.CopyFrom(self._topics.error(error, cursor.bundle))
            return found
        cursor.high_watermark = header.high_watermark = fetched.high_watermark
        header.log_start = fetched.log_start
        for batch in fetched.batches:
            assert batch.base_offset + batch.record_count <= fetched.high_watermark, "nobody reads above the high watermark"
            header.batches.add(base_offset=batch.base_offset, record_count=batch.record_count, length=len(batch.data), crc=batch.crc)
            found.data.append(batch.data)
        for located in fetched.located:
            at = located.batch
            assert at.end <= fetched.high_watermark, "nobody reads above the high watermark"
            header.batches.add(base_offset=at.base_offset, record_count=at.record_count, length=at.length, crc=at.crc, position=at.position)
            found.urls.append(located.url)
        if header.batches:
            if logs_debug(__name__):
                self._tell(cursor, header)
            self._metrics.delivered(cursor.topic.id, sum(batch.record_count for batch in header.batches), found.size_bytes)
        return found

    @staticmethod
    def _tell(cursor: _Cursor, header: pb.FetchedPartition) -> None:
        end = header.batches[-1].base_offset + header.batches[-1].record_count
        log.debug("batches sent", bundle=cursor.bundle, topic=cursor.name, partition=cursor.partition, asked=cursor.offset, end=end)

    async def _locate(self, lookup: Lookup, cursor: _Cursor) -> BundleOwner:
        topic, cursor.bundle = await lookup.partition(cursor.name, cursor.partition, cursor.topic_id)
        if not topic.settings.accept_subscribe:
            raise SubscribeNotAccepted(f"topic {topic.name!r} does not accept fetching at present (accept.subscribe = false)")
        cursor.topic, cursor.topic_id = topic, topic.id
        return await self._ownership.owner(cursor.bundle)

    async def _wait(self, cursors: Sequence[_Cursor], deadline: float) -> bool:
        """Until any partition has something above the high watermark last seen, or changes hands. False: the time was up before.

        Who asks the clock instead may ask in vain: a loop fires its timers up to the resolution of its clock too early.
        """
        positions: dict[int, dict[tuple[int, int], int]] = {}
        for cursor in cursors:
            if cursor.topic is not None and cursor.bundle is not None:
                positions.setdefault(cursor.bundle, {})[(cursor.topic.id, cursor.partition)] = cursor.high_watermark
        tasks = []
        for bundle, wanted in positions.items():
            owner = self._ownership.terms.opened.get(bundle)
            if owner is None:
                return True
            tasks.append(asyncio.create_task(owner.wait_for_data(wanted), name=f"fetch of bundle {bundle}"))
        timeout_s = max(0.0, deadline - asyncio.get_running_loop().time())
        try:
            done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*tasks)
        return bool(done)


def _cursors(request: pb.FetchRequest) -> list[_Cursor]:
    if not 0 < len(request.partitions) <= PARTITIONS_MAX:
        raise InvalidRequest(f"a fetch names 1 to {PARTITIONS_MAX} partitions, not {len(request.partitions)}")
    cursors = [_Cursor(wanted.topic, wanted.partition, wanted.topic_id, wanted.offset) for wanted in request.partitions]
    if len({(cursor.name, cursor.partition) for cursor in cursors}) < len(cursors):
        raise InvalidRequest("a fetch names each partition once")
    return cursors


def _frame(found: Sequence[_Found]) -> FetchFrame:
    objects: dict[str, int] = {}
    for part in found:
        for batch, url in zip(part.header.batches, part.urls, strict=False):
            batch.object = objects.setdefault(url, len(objects) + 1)
    header = pb.FetchHeader(partitions=[part.header for part in found], objects=objects)
    return Frame(header, [piece for part in found for piece in part.data])


def _is_news(part: _Found, cursor: _Cursor) -> bool:
    return bool(part.header.batches) or part.header.HasField("error") or part.header.high_watermark > cursor.told


def _advance(cursor: _Cursor, part: _Found) -> None:
    cursor.told = max(cursor.told, part.header.high_watermark)
    if part.header.batches:
        last = part.header.batches[-1]
        if last.base_offset + last.record_count <= cursor.offset:
            raise CorruptFrame(f"{cursor.name}/{cursor.partition}: batches below offset {cursor.offset} were read")
        cursor.offset = last.base_offset + last.record_count
