"""Server-sent events: GET /v1/topics/{topic}/events.

    id: c1.AQIqBw              the cursor behind what was sent; `Last-Event-ID` resumes there
    data: {"topic":"orders","partition":0,"offset":41,…}

An `id` without data comes while nothing passes the filter, so that a reader that comes back does not read all again.
A stream that cannot go on ends with `event: problem`; a place that is gone is 416 at the next connect, which stops a
browser's EventSource.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import msgspec

import ledgermq
from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import Message
from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.errors import InvalidConfig, LedgerMQError, OffsetOutOfRange
from ledgermq_gateway.http.call import Call, Stream
from ledgermq_gateway.http.problems import Problem, problem_of
from ledgermq_gateway.records.cursors import PARTITIONS_MAX, cursor_of, offsets_at
from ledgermq_gateway.records.forms import FORMS, record_json
from ledgermq_gateway.resources.parameters import choice, position

STREAM_BYTES = 1024 * 1024
"""What a stream may hold: records fetched ahead, and what its connection has not taken."""
PREFETCH_BYTES = 256 * 1024
KEEP_ALIVE_S = 15.0
POLL_S = 1.0
RECORDS_AT_ONCE = 200
RETRY_MS_MIN, RETRY_MS_MAX = 1_000, 10_000


async def get_events(call: Call) -> Stream:
    topic = await call.caller.topic(call.names["topic"])
    partitions = partitions_of(call, topic)
    form, skips = choice(call.query, "values", FORMS), choice(call.query, "gap", ("fail", "skip")) == "skip"
    async with AsyncExitStack() as held:
        held.enter_context(call.service.streams.one(call.caller.principal))
        call.share.take(STREAM_BYTES)
        client = call.caller.client
        consumer = await _opened(call, client, topic, partitions)
        held.push_async_callback(consumer.close)
        gaps = await _gaps(client, topic.name, _places(consumer))
        if gaps and not skips:
            raise _gone(topic, _places(consumer), gaps)
        return Stream(_events(call, client, consumer, topic, form, skips=skips), held.pop_all())


def partitions_of(call: Call, topic: TopicDescription) -> list[int] | None:
    """Return the partitions that the call names; None: all. Raises Problem."""
    text = call.query.get("partitions", "")
    if not text:
        if len(topic.partitions) > PARTITIONS_MAX:
            raise Problem(
                "INVALID_REQUEST",
                f"topic {topic.name!r} has {len(topic.partitions)} partitions: name {PARTITIONS_MAX} at most",
            )
        return None
    parts = text.split(",")
    if len(parts) > PARTITIONS_MAX or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise Problem("INVALID_REQUEST", f"partitions are at most {PARTITIONS_MAX} numbers with commas between")
    return sorted({int(part) for part in parts})


async def _opened(
    call: Call, client: ledgermq.Client, topic: TopicDescription, partitions: list[int] | None
) -> Consumer:
    """Return a consumer at its first positions."""
    place = call.headers.get("last-event-id", "") or call.query.get("cursor", "")
    start: Any = offsets_at(place, topic) if place else position(call, "from", "latest")
    if isinstance(start, int):
        raise Problem("INVALID_REQUEST", "an offset means another record in each partition: give a time, or a cursor")
    if isinstance(start, dict) and partitions is not None:
        start = {partition: offset for partition, offset in start.items() if partition in partitions}
    wanted = call.query.get("filter", "") or " || ".join(call.query.get("tags", "").split(","))
    if "filter" in call.query and "tags" in call.query:
        raise Problem("INVALID_REQUEST", "give either tags or filter")
    try:
        made: Consumer = client.consumer(
            topic.name,
            partitions,
            start,
            filter=wanted,
            prefetch_bytes_max=PREFETCH_BYTES,
            fetch_bytes_max=PREFETCH_BYTES,
        )
        await made.wait_ready()
    except InvalidConfig as error:
        raise Problem(error.code, error.message, status=400) from None
    return made


async def _gaps(client: ledgermq.Client, topic: str, offsets: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Return by partition, where an offset is not in the log: the first offset that is kept, and the end."""
    first, ends = await asyncio.gather(client.list_offsets(topic, "earliest"), client.list_offsets(topic, "latest"))
    return {
        partition: (first[partition], ends[partition])
        for partition, offset in offsets.items()
        if partition in ends and not first[partition] <= offset <= ends[partition]
    }


def _gone(topic: TopicDescription, offsets: Mapping[int, int], gaps: Mapping[int, tuple[int, int]]) -> Problem:
    partition, (first, end) = next(iter(gaps.items()))
    resumed = dict(offsets) | {each: bounds[0] for each, bounds in gaps.items()}
    return Problem(
        OffsetOutOfRange.code,
        f"partition {partition} has offsets {first} to {end}, not {offsets[partition]}: go on at `resume`",
        status=416,
        more={"log_start": first, "high_watermark": end, "resume": cursor_of(topic.topic_id, resumed)},
    )


async def _events(
    call: Call, client: ledgermq.Client, consumer: Consumer, topic: TopicDescription, form: str, *, skips: bool
) -> AsyncGenerator[bytes, None]:
    loop, stopping = asyncio.get_running_loop(), call.service.stopping
    until_s = float("inf")
    try:
        yield b"retry: %d\n%s\n" % (RETRY_MS_MIN, _id(topic, consumer))
        sent_s = loop.time()
        while loop.time() < until_s:
            if stopping.is_set() and until_s == float("inf"):
                until_s = (
                    loop.time() + call.service.sources.random.random() * call.service.settings.streams_end_ms / 1000
                )
            try:
                messages = await consumer.fetch(RECORDS_AT_ONCE, timeout=min(POLL_S, max(0.0, until_s - loop.time())))
            except OffsetOutOfRange:
                if not skips:
                    raise
                async for chunk in _skip(client, consumer, topic):
                    yield chunk
                continue
            if messages:
                yield _data(messages, form) + _id(topic, consumer) + b"\n"
                sent_s = loop.time()
            elif loop.time() - sent_s >= KEEP_ALIVE_S:
                yield _id(topic, consumer) + b"\n"
                sent_s = loop.time()
        retry_ms = call.service.sources.random.randrange(RETRY_MS_MIN, RETRY_MS_MAX)
        yield b"retry: %d\n%s\n" % (retry_ms, _id(topic, consumer))
    except LedgerMQError as error:
        positions = _places(consumer)
        more: dict[str, object] = (
            {"resume": cursor_of(topic.topic_id, positions)} if len(positions) <= PARTITIONS_MAX else {}
        )
        if isinstance(error, OffsetOutOfRange):
            gaps = await _gaps(client, topic.name, positions)
            more |= {} if not gaps else _gone(topic, positions, gaps).more
        yield b"event: problem\ndata: " + problem_of(error, more).document(call.request_id) + b"\n\n"


async def _skip(client: ledgermq.Client, consumer: Consumer, topic: TopicDescription) -> AsyncGenerator[bytes, None]:
    """Go on where the log begins now, and say which offsets are left out."""
    positions = _places(consumer)
    for partition, (first, end) in (await _gaps(client, topic.name, positions)).items():
        place = first if positions[partition] < first else end
        await consumer.seek(place, partition)
        gap = {"partition": partition, "from": positions[partition], "to": place}
        yield b"event: gap\ndata: " + msgspec.json.encode(gap) + b"\n" + _id(topic, consumer) + b"\n"


def _places(consumer: Consumer) -> dict[int, int]:
    return {at.partition: offset for at, offset in consumer.positions().items()}


def _data(messages: list[Message], form: str) -> bytes:
    """Return the events; the last one has no end, so that the cursor can follow."""
    lines = [b"data: " + record_json(message, form) + b"\n" for message in messages]
    return b"\n".join(lines)


def _id(topic: TopicDescription, consumer: Consumer) -> bytes:
    offsets = _places(consumer)
    if len(offsets) > PARTITIONS_MAX:  # the topic has grown: its reader must name partitions
        raise InvalidConfig("the topic has more partitions now than fit into a cursor: name them")
    return b"id: " + cursor_of(topic.topic_id, offsets).encode() + b"\n"
