"""Serve FindMessages: look messages of a partition up by their key, or one by its offset.

A call reads a bounded part of the log and answers what it has found, and what is left to search. Few calls
search at a time, because a search decodes much more than it answers with. The answer is final for what it has
searched: it leaves after a fence check, so that a former owner never says "not found" about what its successor
has stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pyarrow as pa

from ledgermq.errors import InvalidRequest, NotOwner, ResourceExhausted, SubscribeNotAccepted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import encode_batch
from ledgermq.protocol.limits import BATCH_BYTES_TYPICAL, FRAME_PAYLOAD_BYTES_MAX, OFFSET_MAX
from ledgermq.protocol.naming.producer_ids import shown_producer_id
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.budgets import AnswerBudget, AnswerReader
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_broker.paths.fetching.fetch_path import refuse_unreadable
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.find import Finder, FoundRecord, KeySearch, SearchResult, segment_key

MESSAGES_MAX = 1000
"""Of one answer."""
READ_BYTES_MAX = 64 * 1024 * 1024
"""Of one call, about: the last piece may exceed it."""
SEARCH_S = 2.0
"""How long one call searches, about."""
SEARCHES_AT_ONCE = 2
WAIT_S = 2.0
"""How long a call waits until others have searched, and for room for its answer."""

T = TypeVar("T")


class FindPath:
    def __init__(self, metadata: Metadata, ownership: Ownership, answers: AnswerBudget) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._answers = answers
        self._searches = asyncio.Semaphore(SEARCHES_AT_ONCE)

    async def find_messages(self, request: pb.FindMessagesRequest) -> pb.FindMessagesResponse:
        """Raises InvalidRequest, UnknownTopic, UnknownPartition, OffsetOutOfRange, SubscribeNotAccepted,
        ResourceExhausted, NotOwner, Unavailable, DataDamaged, the store's errors.
        """
        by = request.WhichOneof("by")
        if by is None:
            raise InvalidRequest("a look-up names a key or an offset")
        if max(request.offset, request.first, request.end) > OFFSET_MAX:
            raise InvalidRequest(f"offsets go up to {OFFSET_MAX}")
        topic, bundle = await self._metadata.lookup().partition(request.topic, request.partition, request.topic_id)
        refuse_unreadable(topic)
        if not topic.settings.accept_subscribe:
            raise SubscribeNotAccepted(
                f"topic {topic.name!r} does not accept fetching at present (accept.subscribe = false)"
            )
        look = self._one if by == "offset" else self._search
        reader = self._answers.reader(once=True, urgent=False)
        try:
            answer = await self._in_turn(partial(look, await self._ownership.owner(bundle), topic, request, reader))
            reader.hand_over()
            return answer
        except NotOwner as error:
            reader.leave()
            raise error if error.owner else self._ownership.not_owner(bundle) from error
        except BaseException:
            reader.leave()
            raise
        finally:
            if reader.caller is None:  # the answer has arrived
                reader.leave()

    async def _in_turn(self, look: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(WAIT_S):
                await self._searches.acquire()
        except TimeoutError:
            raise ResourceExhausted(
                f"this broker serves {SEARCHES_AT_ONCE} look-ups at a time, and none has ended within {WAIT_S:g} s;"
                " retry later",
                retry_after_ms=1000,
            ) from None
        try:
            return await look()
        finally:
            self._searches.release()

    async def _one(
        self, owner: BundleOwner, topic: Topic, request: pb.FindMessagesRequest, reader: AnswerReader
    ) -> pb.FindMessagesResponse:
        place = PartitionId(topic.id, request.partition)
        await _take(reader, BATCH_BYTES_TYPICAL)
        answer = pb.FindMessagesResponse(topic_id=topic.id)

        async def look(finder: Finder) -> None:
            record = await finder.record(place, request.offset, topic)
            if record is None:
                return
            await _fill(answer, owner.bundle, [record], reader)
            if (stored := await finder.stored_by(place, record)) is not None:
                index, entry = stored
                answer.messages[0].stored_ms = index.created_ms
                answer.messages[0].stored_by.CopyFrom(
                    pb.StoredBy(
                        broker=index.broker,
                        epoch=index.epoch,
                        base_offset=entry.base_offset,
                        record_count=entry.record_count,
                        producer_id=shown_producer_id(entry.producer_id),
                        producer_epoch=entry.producer_epoch,
                        sequence=entry.sequence,
                    )
                )

        await owner.look_up(topic, request.partition, look)
        return answer

    async def _search(
        self, owner: BundleOwner, topic: Topic, request: pb.FindMessagesRequest, reader: AnswerReader
    ) -> pb.FindMessagesResponse:
        room = reader.room(BATCH_BYTES_TYPICAL)
        await _take(reader, room)
        wanted = KeySearch(
            place=PartitionId(topic.id, request.partition),
            key=request.key,
            first=request.first,
            end=request.end or OFFSET_MAX,
            oldest_first=request.oldest_first,
            records_max=min(request.max_messages or MESSAGES_MAX, MESSAGES_MAX),
            answer_bytes_max=room,
            read_bytes_max=min(request.max_read_bytes or READ_BYTES_MAX, READ_BYTES_MAX),
            until_s=asyncio.get_running_loop().time() + SEARCH_S,
        )

        async def look(finder: Finder) -> SearchResult:
            return await finder.search(wanted, topic)

        result = await owner.look_up(topic, request.partition, look)
        await owner.check_fence()
        answer = pb.FindMessagesResponse(
            topic_id=topic.id, left_first=result.first, left_end=result.end, read_bytes=result.read_bytes
        )
        await _fill(answer, owner.bundle, result.records, reader)
        return answer


async def _take(reader: AnswerReader, size_bytes: int) -> None:
    if not await reader.take(size_bytes, asyncio.get_running_loop().time() + WAIT_S):
        raise ResourceExhausted("there is no room for the answer of a look-up at present; retry", retry_after_ms=1000)


async def _fill(answer: pb.FindMessagesResponse, bundle: int, records: list[FoundRecord], reader: AnswerReader) -> None:
    for record in records:
        answer.messages.add(
            offset=record.offset,
            segment=segment_key(bundle, record.at),
            position=record.at.position,
            file=record.at.file,
            stored_ms=record.at.stored_ms,
            compacted_ms=record.at.compacted_ms,
        )
    if records:
        answer.batch = encode_batch(pa.concat_batches([record.row for record in records]))
    if len(answer.batch) > FRAME_PAYLOAD_BYTES_MAX:
        raise ResourceExhausted(f"the message at offset {records[0].offset} is too large for an answer")
    if not reader.fit(len(answer.batch)):
        reader.rest()
        await _take(reader, len(answer.batch))
