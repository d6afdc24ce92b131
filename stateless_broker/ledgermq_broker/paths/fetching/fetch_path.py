"""Serve Fetch: batches of many partitions, at once, after a long poll, or pushed until the caller
disconnects.

A partition's error (unknown, not served here, offset out of range) is in the answer beside the
other partitions' batches. A stream goes on without the partition that had one, and ends with the
last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from ledgermq.errors import InvalidRequest, LedgerMQError, SubscribeNotAccepted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import FetchFrame, Frame
from ledgermq.protocol.limits import BATCH_BYTES_TYPICAL, FRAME_PAYLOAD_BYTES_MAX
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.budgets import AnswerBudget, AnswerReader
from ledgermq_broker.bundle.shared.context import BundleMetrics
from ledgermq_broker.bundle.shared.waiters import one_ends
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.filter_functions.judging import BatchPlace, FilterFunctions, Judgement, NoFilterFunctions
from ledgermq_broker.logs import get_logger, logs_debug
from ledgermq_broker.metadata.followed import Lookup, Metadata
from ledgermq_broker.paths.fetching.fetched import Cursor, Found, advance, is_news, news_first, pieces
from ledgermq_broker.paths.fetching.giving_way import GivingWay
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from ledgermq_ledger.log.segments.tag_summary import masks_of
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.partition_index import LeftOut
from ledgermq_ledger.view.reader import PartitionRead

PARTITIONS_MAX = 4096
PARALLEL_PARTITIONS = 8
TAGS_MAX = 256
"""A reader that wants more tags gets all batches."""
JUDGE_S = 1.0
"""How long functions judge batches of a partition for one answer; at least one batch is judged."""
STREAM_WAIT_S = 30.0
LOOK_AT_ALL_S = 1.0
"""A stream looks at its partitions without news at this interval, for what no record tells: that a topic is deleted, or
takes no readers. Otherwise a reader of many partitions would cost a look at each for every record of one of them.
"""
ROOM_WAIT_S = 5.0
"""A reader for which there is no room gets the ends of its partitions at this interval, as a sign
that the broker still serves it.
"""
ROOM_WAIT_LEAST_S = 1.0
"""A fetch that does not wait for records waits this long for room."""
READ_BYTES_LEAST = 256 * 1024
"""Room for each partition that is read side by side with others, because every read returns at
least one batch.
"""
OBJECTS_MAX = 64
"""From this number of objects on, an answer takes in no more partitions. It bounds the space that
the URLs of objects take in the header of the answer.
"""

log = get_logger(__name__)


class FetchPath:
    """`direct`: callers that can read objects themselves receive the locations of batches. `give_way`: returns how
    a stream that reads a backlog gives way to producers.
    """

    def __init__(
        self,
        metadata: Metadata,
        ownership: Ownership,
        wait_s_max: float,
        metrics: BundleMetrics,
        answers: AnswerBudget,
        *,
        direct: bool = False,
        functions: FilterFunctions | None = None,
        give_way: Callable[[], GivingWay],
    ) -> None:
        self._functions = functions or NoFilterFunctions()
        self._metadata = metadata
        self._ownership = ownership
        self.wait_s_max = wait_s_max
        self._metrics = metrics
        self._answers = answers
        self._direct = direct
        self._give_way = give_way

    async def fetch_once(self, request: pb.FetchRequest) -> FetchFrame:
        """Answer one long poll. Raises InvalidRequest for a request with no partition or with too
        many.
        """
        cursors = _cursors(request)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.max_wait_ms / 1000, self.wait_s_max)
        room_until = max(deadline, loop.time() + ROOM_WAIT_LEAST_S)
        is_over = False
        reader = self._reader(cursors, once=True)
        try:
            while True:
                found, _ = await self._next_answer(reader, cursors, request, room_until)
                enough = sum(part.size_bytes for part in found) >= max(1, request.min_bytes)
                if enough or any(part.header.HasField("error") for part in found) or is_over or loop.time() >= deadline:
                    reader.hand_over()
                    return self._frame(found)
                reader.rest()
                is_over = not await self._wait(cursors, deadline)
        except BaseException:
            reader.leave()
            raise
        finally:
            if reader.caller is None:  # the answer has arrived
                reader.leave()

    async def fetch(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        """Yield the frames of a stream. The first frame comes at once, even if it is empty: it
        carries the high watermarks.
        """
        cursors = _cursors(request, is_stream=True)
        room_until = 0.0
        way, is_behind = self._give_way(), False
        look_at_all_s = 0.0
        with self._reader(cursors) as reader:
            while cursors:
                if is_behind:
                    await way.give_way()
                now_s, looked_at = asyncio.get_running_loop().time(), len(cursors)
                if now_s < look_at_all_s:
                    cursors, looked_at = news_first(cursors, self._is_still)
                else:
                    look_at_all_s = now_s + LOOK_AT_ALL_S
                if not looked_at:
                    await self._wait(cursors, now_s + STREAM_WAIT_S)
                    continue
                found, had_room = await self._next_answer(reader, cursors[:looked_at], request, room_until)
                room_until = asyncio.get_running_loop().time() + ROOM_WAIT_S
                is_empty = not any(part.header.batches or part.header.next_offset for part in found)
                news = [part for part, cursor in zip(found, cursors, strict=False) if is_news(part, cursor)]
                if not had_room and not news:
                    news = found[:1]
                failed = {(part.header.topic, part.header.partition) for part in found if part.header.HasField("error")}
                for part, cursor in zip(found, cursors, strict=False):
                    advance(cursor, part)
                served = [cursor for cursor in cursors[: len(found)] if (cursor.name, cursor.partition) not in failed]
                cursors = cursors[len(found) :] + served  # a partition that had no turn is first in the next answer
                frames = [self._frame(piece) for piece in pieces(news)][::-1]
                is_behind = len(frames) > 1 and not reader.urgent
                del found, news  # only the frames hold their batches, and only its receiver holds a frame
                if frames:
                    with reader.sent():
                        while frames:
                            if is_behind:
                                await way.give_way()
                            yield frames.pop()
                reader.rest()
                if cursors and is_empty and had_room:
                    await self._wait(cursors, asyncio.get_running_loop().time() + STREAM_WAIT_S)

    def _is_still(self, cursor: Cursor) -> bool:
        """Return whether a look at the partition would find what the last one has found."""
        if cursor.topic is None or cursor.bundle is None or cursor.offset < cursor.high_watermark:
            return False
        owner = self._ownership.opened.get(cursor.bundle)
        key = PartitionId(cursor.topic.id, cursor.partition)
        return owner is not None and not owner.has_news(key, cursor.high_watermark)

    def _reader(self, cursors: Sequence[Cursor], *, once: bool = False) -> AnswerReader:
        """Return the caller's reader of the budget. Brokers that follow internal topics also fetch;
        they wait behind no consumer.
        """
        return self._answers.reader(once=once, urgent=all(keys.is_internal(cursor.name) for cursor in cursors))

    async def _next_answer(
        self, reader: AnswerReader, cursors: Sequence[Cursor], request: pb.FetchRequest, until_s: float
    ) -> tuple[list[Found], bool]:
        """Return batches of the first cursors, and True. If memory was not free by `until_s`: only the ends, and
        False.
        """
        asked = min(request.max_bytes or BATCH_BYTES_TYPICAL, FRAME_PAYLOAD_BYTES_MAX)
        direct = self._direct and request.direct
        least = 0
        while True:
            room = reader.room(asked)
            if not await reader.take(max(room, least), until_s):
                return await self._collect(cursors, 0, direct=False), False
            found = await self._collect(cursors, asked if direct else max(room, least), direct=direct)
            while not reader.fit(sum(part.answer_bytes for part in found)):
                if len(found) == 1:  # a batch is larger than the room: wait for enough, and read it again
                    least = found[0].answer_bytes
                    break
                found.pop()
            else:
                return found, True
            reader.rest()

    async def _collect(self, cursors: Sequence[Cursor], room: int, *, direct: bool) -> list[Found]:
        """Collect what the first cursors have, some at a time, until the answer is full: a prefix
        of `cursors`, in their order.

        With `room` 0: the ends of all cursors, and no batch.
        """
        found: list[Found] = []
        lookup = self._metadata.lookup()
        ends_only = room == 0
        at, payload_bytes = 0, 0
        urls: set[str] = set()
        while at < len(cursors):
            group = cursors[at : at + max(1, min(PARALLEL_PARTITIONS, room // READ_BYTES_LEAST))]
            at += len(group)
            bytes_max = 0 if ends_only else max(1, room // len(group))
            for part in await asyncio.gather(*(self._read(lookup, cursor, bytes_max, direct) for cursor in group)):
                payload_bytes += part.payload_bytes
                if found and payload_bytes > FRAME_PAYLOAD_BYTES_MAX:
                    return found
                found.append(part)
                urls.update(part.urls)
                room -= part.size_bytes
            if (room <= 0 and not ends_only) or len(urls) >= OBJECTS_MAX:
                break
        return found

    async def _read(self, lookup: Lookup, cursor: Cursor, bytes_max: int, direct: bool) -> Found:
        header = pb.FetchedPartition(topic=cursor.name, topic_id=cursor.topic_id, partition=cursor.partition)
        found = Found(header)
        try:
            owner = await self._locate(lookup, cursor)
            assert cursor.topic is not None
            header.topic_id = cursor.topic.id
            fetched = await owner.fetch(
                cursor.topic,
                cursor.partition,
                cursor.offset,
                bytes_max,
                direct=direct and not cursor.function,
                masks=cursor.masks,
            )
            judged = await self._judge(cursor, fetched) if cursor.function and fetched.batches else None
        except LedgerMQError as error:
            header.error.CopyFrom(self._ownership.error(error, cursor.bundle))
            return found
        if cursor.masks is not None:
            found.left_out = owner.left_out(cursor.topic, cursor.partition, cursor.offset, fetched)
        cursor.high_watermark = header.high_watermark = fetched.high_watermark
        header.log_start, header.next_offset = fetched.log_start, fetched.next_offset
        if judged is not None:
            self._add_judged(found, judged)
            return found
        for batch in fetched.batches:
            assert batch.base_offset + batch.record_count <= fetched.high_watermark, (
                "no reader gets records above the high watermark"
            )
            header.batches.add(
                base_offset=batch.base_offset, record_count=batch.record_count, length=len(batch.data), crc=batch.crc
            )
            found.data.append(batch.data)
        for located in fetched.located:
            at = located.batch
            assert at.end <= fetched.high_watermark, "no reader gets records above the high watermark"
            header.batches.add(
                base_offset=at.base_offset,
                record_count=at.record_count,
                length=at.length,
                crc=at.crc,
                position=at.position,
            )
            found.urls.append(located.url)
        if header.batches and logs_debug(__name__):
            self._log_sent(cursor, header)
        return found

    async def _judge(self, cursor: Cursor, fetched: PartitionRead) -> list[tuple[StoredBatch, Judgement]]:
        """Let the cursor's function judge batches, until it has taken JUDGE_S. Raises what it raises at the first."""
        judged: list[tuple[StoredBatch, Judgement]] = []
        loop = asyncio.get_running_loop()
        until_s = loop.time() + JUDGE_S
        for batch in fetched.batches:
            place = BatchPlace(cursor.topic_id, cursor.partition, batch.base_offset, batch.crc)
            try:
                judged.append((batch, await self._functions.judge(cursor.function, place, batch)))
            except LedgerMQError:
                if not judged:
                    raise
                break  # the next answer begins there
            if loop.time() >= until_s:
                break
        return judged

    @staticmethod
    def _add_judged(found: Found, judged: Sequence[tuple[StoredBatch, Judgement]]) -> None:
        """Add the batches of which the function keeps something; the others are left out."""
        header = found.header
        header.judged = True
        for batch, judgement in judged:
            assert batch.end <= header.high_watermark, "no reader gets records above the high watermark"
            header.next_offset = batch.end
            header.failed += judgement.failed
            if judgement.kept:
                header.batches.add(
                    base_offset=batch.base_offset,
                    record_count=batch.record_count,
                    length=len(batch.data),
                    crc=batch.crc,
                    passes=judgement.passes,
                )
                found.data.append(batch.data)
            else:
                found.left_out = found.left_out.and_(LeftOut(1, batch.record_count, len(batch.data)))

    def _frame(self, found: Sequence[Found]) -> FetchFrame:
        objects: dict[str, int] = {}
        for part in found:
            for batch, url in zip(part.header.batches, part.urls, strict=False):
                batch.object = objects.setdefault(url, len(objects) + 1)
            if part.header.batches:
                records = sum(batch.record_count for batch in part.header.batches)
                self._metrics.delivered(part.header.topic_id, records, part.size_bytes)
            if part.left_out.batches:
                self._metrics.left_out(part.header.topic_id, part.left_out)
        header = pb.FetchHeader(partitions=[part.header for part in found], objects=objects)
        return Frame(header, [piece for part in found for piece in part.data])

    @staticmethod
    def _log_sent(cursor: Cursor, header: pb.FetchedPartition) -> None:
        end = header.batches[-1].base_offset + header.batches[-1].record_count
        log.debug(
            "batches sent",
            bundle=cursor.bundle,
            topic=cursor.name,
            partition=cursor.partition,
            asked=cursor.offset,
            end=end,
        )

    async def _locate(self, lookup: Lookup, cursor: Cursor) -> BundleOwner:
        topic, cursor.bundle = await lookup.partition(cursor.name, cursor.partition, cursor.topic_id)
        refuse_unreadable(topic)
        if not topic.settings.accept_subscribe:
            raise SubscribeNotAccepted(
                f"topic {topic.name!r} does not accept fetching at present (accept.subscribe = false)"
            )
        cursor.topic, cursor.topic_id = topic, topic.id
        return await self._ownership.owner(cursor.bundle)

    async def _wait(self, cursors: Sequence[Cursor], deadline: float) -> bool:
        """Wait until a partition has something above the high watermark last sent, or changes
        owners. Return False if the time was up first.

        Check the result, not the clock: a loop fires its timers up to the resolution of its clock
        too early.
        """
        positions: dict[int, dict[PartitionId, int]] = {}
        for cursor in cursors:
            if cursor.topic is not None and cursor.bundle is not None:
                positions.setdefault(cursor.bundle, {})[PartitionId(cursor.topic.id, cursor.partition)] = (
                    cursor.high_watermark
                )
        tasks = []
        for bundle, wanted in positions.items():
            owner = self._ownership.opened.get(bundle)
            if owner is None:
                return True
            tasks.append(asyncio.create_task(owner.wait_for_data(wanted), name=f"fetch of bundle {bundle}"))
        return await one_ends(tasks, deadline)


def refuse_unreadable(topic: Topic) -> None:
    """Raise SubscribeNotAccepted for a topic of staged or hidden batches. No client reads them or
    learns their offsets; brokers read them through the bundle's owner.
    """
    if topic.staged or topic.hidden:
        what = "transactions have not committed" if topic.name == keys.STAGED_TOPIC else "is not due yet"
        raise SubscribeNotAccepted(f"topic {topic.name!r} belongs to the system: it holds what {what}")


def _cursors(request: pb.FetchRequest, *, is_stream: bool = False) -> list[Cursor]:
    """`is_stream`: leave out batches without the tags that the request names, and what its functions leave out."""
    if not is_stream and any(wanted.function for wanted in request.partitions):
        raise InvalidRequest("a filter function is served by streams only")
    if not 0 < len(request.partitions) <= PARTITIONS_MAX:
        raise InvalidRequest(f"a fetch names 1 to {PARTITIONS_MAX} partitions, not {len(request.partitions)}")
    cursors = [
        Cursor(
            wanted.topic,
            wanted.partition,
            wanted.topic_id,
            wanted.offset,
            masks=masks_of(wanted.tags) if is_stream and 0 < len(wanted.tags) <= TAGS_MAX else None,
            function=wanted.function,
        )
        for wanted in request.partitions
    ]
    if len({(cursor.name, cursor.partition) for cursor in cursors}) < len(cursors):
        raise InvalidRequest("a fetch names each partition once")
    return cursors
