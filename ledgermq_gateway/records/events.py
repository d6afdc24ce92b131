"""Server-sent events: GET /v1/topics/{topic}/events.

    id: c1.AQIqBw              the cursor behind what was sent; `Last-Event-ID` resumes there
    data: {"topic":"orders","partition":0,"offset":41,…}

An `id` without data comes while nothing passes the filter, so that a reader that comes back does not read all again.
A stream that cannot go on ends with `event: problem`; a place that is gone is 416 at the next connect, which stops a
browser's EventSource.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import Message
from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.errors import InvalidConfig, LedgerMQError, OffsetOutOfRange
from ledgermq_gateway.http.call import Call, Stream
from ledgermq_gateway.http.limits import Room
from ledgermq_gateway.http.problems import Problem, problem_of
from ledgermq_gateway.records.cursors import PARTITIONS_MAX, cursor_of, offsets_at
from ledgermq_gateway.records.forms import FORMS, record_json
from ledgermq_gateway.records.reading import (
    bounds_of,
    filter_of,
    gone,
    out_of_range,
    partitions_of,
    streaming,
)
from ledgermq_gateway.resources.parameters import choice, position

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
        held.enter_context(call.waiting())
        start = _start(call, topic, partitions)
        wanted = filter_of(call)
        consumer, room = await held.enter_async_context(
            streaming(
                call,
                topic.name,
                partitions,
                start,
                taken_bytes=PREFETCH_BYTES,
                prefetch_bytes=PREFETCH_BYTES,
                filter=wanted,
            )
        )
        if not skips:
            places, bounds = _places_of(consumer), await bounds_of(call, topic.name)
            if problem := out_of_range(topic, places, bounds):
                raise problem
        return Stream(_events(call, consumer, room, topic, form, skips=skips), held.pop_all())


def _start(call: Call, topic: TopicDescription, partitions: list[int] | None) -> Any:
    """Return where the stream begins, as a consumer takes it. Raises Problem."""
    place = call.headers.get("last-event-id", "") or call.query.get("cursor", "")
    start: Any = offsets_at(place, topic) if place else position(call, "from", "latest")
    if isinstance(start, int):
        raise Problem("INVALID_REQUEST", "an offset means another record in each partition: give a time, or a cursor")
    if isinstance(start, dict) and partitions is not None:
        start = {partition: offset for partition, offset in start.items() if partition in partitions}
    return start


async def _events(
    call: Call, consumer: Consumer, room: Room, topic: TopicDescription, form: str, *, skips: bool
) -> AsyncGenerator[bytes, None]:
    loop, stopping = asyncio.get_running_loop(), call.service.stopping
    until_s = float("inf")
    try:
        yield b"retry: %d\n%s\n" % (RETRY_MS_MIN, _id(topic, consumer))
        sent_s = loop.time()
        while loop.time() < until_s:
            if stopping.is_set() and until_s == float("inf"):
                until_s = loop.time() + _ends_in_s(call)
            try:
                messages = await consumer.fetch(room.rows, timeout=min(POLL_S, max(0.0, until_s - loop.time())))
            except OffsetOutOfRange:
                if not skips:
                    raise
                async for chunk in _skip(call, consumer, topic):
                    yield chunk
                continue
            if messages:
                yield room.hold(_data(messages, form) + _id(topic, consumer) + b"\n", RECORDS_AT_ONCE)
                sent_s = loop.time()
            elif loop.time() - sent_s >= KEEP_ALIVE_S:
                yield _id(topic, consumer) + b"\n"
                sent_s = loop.time()
        retry_ms = call.service.sources.random.randrange(RETRY_MS_MIN, RETRY_MS_MAX)
        yield b"retry: %d\n%s\n" % (retry_ms, _id(topic, consumer))
    except LedgerMQError as error:
        more: dict[str, Any] = {}
        if isinstance(error, OffsetOutOfRange):
            found = out_of_range(topic, _places_of(consumer), await bounds_of(call, topic.name))
            more = {} if found is None else found.more
        yield _problem(call, problem_of(error, more))
    except Problem as error:
        yield _problem(call, error)


def _problem(call: Call, problem: Problem) -> bytes:
    return b"event: problem\ndata: " + problem.document(call.request_id) + b"\n\n"


def _ends_in_s(call: Call) -> float:
    """Return when a stream ends after the gateway began to stop: once load balancers send its reader elsewhere."""
    settings = call.service.settings
    return (settings.drain_ms + call.service.sources.random.random() * settings.streams_end_ms) / 1000


async def _skip(call: Call, consumer: Consumer, topic: TopicDescription) -> AsyncGenerator[bytes, None]:
    """Go on where the log begins now, and say which offsets are left out."""
    places = _places_of(consumer)
    for partition, (first, last) in gone(places, await bounds_of(call, topic.name)).items():
        place = first if places[partition] < first else last
        await consumer.seek(place, partition)
        gap = {"partition": partition, "from": places[partition], "to": place}
        yield b"event: gap\ndata: " + msgspec.json.encode(gap) + b"\n" + _id(topic, consumer) + b"\n"


def _data(messages: list[Message], form: str) -> bytes:
    """Return the events; the last one has no end, so that the cursor can follow."""
    lines = [b"data: " + record_json(message, form) + b"\n" for message in messages]
    return b"\n".join(lines)


def _id(topic: TopicDescription, consumer: Consumer) -> bytes:
    offsets = _places_of(consumer)
    if len(offsets) > PARTITIONS_MAX:  # the topic has grown: its reader must name partitions
        raise InvalidConfig("the topic has more partitions now than fit into a cursor: name them")
    return b"id: " + cursor_of(topic.topic_id, offsets).encode() + b"\n"


def _places_of(consumer: Consumer) -> dict[int, int]:
    return {at.partition: offset for at, offset in consumer.positions().items()}
