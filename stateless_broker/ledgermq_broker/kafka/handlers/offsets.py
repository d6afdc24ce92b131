"""Answer ListOffsets and OffsetForLeaderEpoch.

    −2, −4   the log start        −1   the end        −5   nothing: no part is in another tier
    a time   the first record at or after it, and its own timestamp; −1, −1 if there is none
    −3       the first record with the largest timestamp, likewise, found by asking for times

Nothing that a client has read is ever cut off, so every epoch ends where the log ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of
from ledgermq_broker.kafka.wire.generated import list_offsets_request as asked
from ledgermq_broker.kafka.wire.generated import list_offsets_response as answered
from ledgermq_broker.kafka.wire.generated import offset_for_leader_epoch_request as epochs_asked
from ledgermq_broker.kafka.wire.generated import offset_for_leader_epoch_response as epochs_answered

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
UNCOMMITTED = 0
"""The isolation level of programs that want an end which no transaction is about to move (X25)."""
TIME_US_MAX = 2**62
TIME_MS_MAX = TIME_US_MAX // 1000
QUERIES_PER_CALL = 5_000
NOTHING = -1


class OffsetsHandler:
    async def list_offsets(
        self, api: BrokerApi, request: asked.ListOffsetsRequest, version: int
    ) -> answered.ListOffsetsResponse:
        times = Counter((topic.name, one.partition_index) for topic in request.topics for one in topic.partitions)
        wanted = [
            (topic.name, partition)
            for topic in request.topics
            for partition in topic.partitions
            if times[topic.name, partition.partition_index] == 1
        ]
        queries = [_query(name, one, settled=request.isolation_level == UNCOMMITTED) for name, one in wanted]
        found = await ask(api, [query for query in queries if query is not None])
        ends = iter(await ask(api, [_end(name, one) for name, one in wanted if one.timestamp >= 0]))
        results = iter(found)
        topics = []
        for topic in request.topics:
            partitions = []
            for one in topic.partitions:
                if times[topic.name, one.partition_index] > 1:  # as Kafka does: each may cost a search
                    partitions.append(
                        answered.ListOffsetsPartitionResponse(
                            partition_index=one.partition_index, error_code=Code.INVALID_REQUEST
                        )
                    )
                    continue
                if one.timestamp == MAX_TIMESTAMP and one.partition_index >= 0:
                    partitions.append(await _of_largest_time(api, topic.name, one.partition_index))
                    continue
                if _query(topic.name, one, settled=False) is None:
                    partitions.append(_without_query(one))
                    continue
                result = next(results)
                end = next(ends) if one.timestamp >= 0 else None
                partitions.append(await _answer(api, topic.name, one, result, end))
            topics.append(answered.ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        return answered.ListOffsetsResponse(topics=topics)

    async def epochs(
        self, api: BrokerApi, request: epochs_asked.OffsetForLeaderEpochRequest, version: int
    ) -> epochs_answered.OffsetForLeaderEpochResponse:
        queries = [
            pb.OffsetQuery(topic=topic.topic, partition=one.partition, latest=True)
            for topic in request.topics
            for one in topic.partitions
        ]
        ends = iter(await ask(api, queries))
        return epochs_answered.OffsetForLeaderEpochResponse(
            topics=[
                epochs_answered.OffsetForLeaderTopicResult(
                    topic=topic.topic, partitions=[_epoch_end(one, next(ends)) for one in topic.partitions]
                )
                for topic in request.topics
            ]
        )


async def ask(api: BrokerApi, queries: Sequence[pb.OffsetQuery]) -> list[pb.OffsetResult]:
    """Return the results in the order of the queries."""
    found: list[pb.OffsetResult] = []
    for at in range(0, len(queries), QUERIES_PER_CALL):
        answer = await api.list_offsets(pb.ListOffsetsRequest(queries=queries[at : at + QUERIES_PER_CALL]))
        found += answer.results
    return found


def _query(name: str, one: asked.ListOffsetsPartition, *, settled: bool) -> pb.OffsetQuery | None:
    query = pb.OffsetQuery(topic=name, partition=max(0, one.partition_index))
    if one.partition_index < 0 or one.timestamp in (MAX_TIMESTAMP, LATEST_TIERED) or one.timestamp < LATEST_TIERED:
        return None
    if one.timestamp == LATEST:
        query.latest, query.settled = True, settled
    elif one.timestamp in (EARLIEST, EARLIEST_LOCAL):
        query.earliest = True
    else:
        query.timestamp_us = min(one.timestamp, TIME_MS_MAX) * 1000
    return query


def _end(name: str, one: asked.ListOffsetsPartition) -> pb.OffsetQuery:
    return pb.OffsetQuery(topic=name, partition=max(0, one.partition_index), latest=True)


def _without_query(one: asked.ListOffsetsPartition) -> answered.ListOffsetsPartitionResponse:
    code = Code.NONE if one.timestamp == LATEST_TIERED else Code.UNSUPPORTED_FOR_MESSAGE_FORMAT
    if one.partition_index < 0:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION
    return answered.ListOffsetsPartitionResponse(partition_index=one.partition_index, error_code=code)


async def _answer(
    api: BrokerApi,
    name: str,
    one: asked.ListOffsetsPartition,
    result: pb.OffsetResult,
    end: pb.OffsetResult | None,
) -> answered.ListOffsetsPartitionResponse:
    part = answered.ListOffsetsPartitionResponse(partition_index=one.partition_index)
    for found in (result, end):
        if found is not None and found.HasField("error"):
            part.error_code = code_of(error_from_proto(found.error), Area.FETCH)
            return part
    if end is None:
        part.offset = result.offset
    elif result.offset < end.offset:
        part.offset = result.offset
        try:
            part.timestamp = await _timestamp_ms(api, name, one.partition_index, result.offset)
        except LedgerMQError as error:
            part.offset, part.error_code = NOTHING, code_of(error, Area.FETCH)
    return part


async def _of_largest_time(api: BrokerApi, name: str, partition: int) -> answered.ListOffsetsPartitionResponse:
    part = answered.ListOffsetsPartitionResponse(partition_index=partition)
    place = pb.OffsetQuery(topic=name, partition=partition)

    async def results(*wanted: pb.OffsetQuery) -> list[int]:
        for query in wanted:
            query.MergeFrom(place)
        found = await ask(api, wanted)
        for result in found:
            if result.HasField("error"):
                raise error_from_proto(result.error)
        return [result.offset for result in found]

    async def first_at(time_ms: int) -> Record | None:
        if time_ms > TIME_MS_MAX:
            return None
        offset, end = await results(pb.OffsetQuery(timestamp_us=time_ms * 1000), pb.OffsetQuery(latest=True))
        if offset >= end:
            return None
        found = Record(offset, await _timestamp_ms(api, name, partition, offset))
        return found if found.time_ms >= time_ms else None  # otherwise it was written between the two answers

    try:
        start, end = await results(pb.OffsetQuery(earliest=True), pb.OffsetQuery(latest=True))
        if start < end:
            newest_ms = await _timestamp_ms(api, name, partition, end - 1)
            found = await with_largest_time(first_at, newest_ms)
            if found is not None:
                part.offset, part.timestamp = found.offset, found.time_ms
    except LedgerMQError as error:
        part.error_code = code_of(error, Area.FETCH)
    return part


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    time_ms: int


async def with_largest_time(first_at: Callable[[int], Awaitable[Record | None]], newest_ms: int) -> Record | None:
    """Return the first record with the largest time; None if no record has one. `first_at`: the first record at or
    after a time. `newest_ms`: of the newest record, mostly the largest, so that three questions are enough; −1: it has
    none. Otherwise the number of questions grows with the logarithm of the difference.
    """
    best = await first_at(-TIME_MS_MAX if newest_ms == NOTHING else newest_ms)
    if best is None:
        return None
    step = 1
    while (later := await first_at(best.time_ms + step)) is not None:
        best, step = later, 2 * step
    above = best.time_ms + step
    while above - best.time_ms > 1:
        middle = (best.time_ms + above) // 2
        later = await first_at(middle)
        if later is None:
            above = middle
        else:
            best, above = later, max(above, later.time_ms + 1)
    return await first_at(best.time_ms) or best


async def _timestamp_ms(api: BrokerApi, name: str, partition: int, offset: int) -> int:
    """Return the timestamp of a record in milliseconds, −1 if it has none. Raises what reading raises."""
    request = pb.FetchRequest(
        partitions=[pb.FetchPartition(topic=name, partition=partition, offset=offset)], max_bytes=1
    )
    frame = await api.fetch_once(request)
    [part] = frame.header.partitions
    if part.HasField("error"):
        raise error_from_proto(part.error)
    if not part.batches:
        return NOTHING
    first = part.batches[0]
    payload = memoryview(frame.payload[0] if len(frame.payload) == 1 else b"".join(frame.payload))
    records = decode_batch(payload[: first.length])
    stamp = records.column("timestamp")[max(0, offset - first.base_offset)]
    return int(stamp.value // 1000) if stamp.is_valid else NOTHING


def _epoch_end(one: epochs_asked.OffsetForLeaderPartition, end: pb.OffsetResult) -> epochs_answered.EpochEndOffset:
    if end.HasField("error"):
        code = code_of(error_from_proto(end.error), Area.FETCH)
        return epochs_answered.EpochEndOffset(partition=one.partition, error_code=code)
    return epochs_answered.EpochEndOffset(partition=one.partition, leader_epoch=one.leader_epoch, end_offset=end.offset)
