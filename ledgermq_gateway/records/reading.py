"""Read pages of records: of one partition by offset, or of several by cursor. A read that finds nothing may wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from msgspec import Struct

from ledgermq.client.consuming.consumer import Consumer, decoded_bytes_of
from ledgermq.client.consuming.message import Message
from ledgermq.client.consuming.start import Position
from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.client.paging.pages import PARTITION_BYTES, RECORDS_MAX, Page
from ledgermq.errors import InvalidConfig, OffsetOutOfRange, UnknownPartition
from ledgermq.runtime.tasks import end
from ledgermq_gateway.http.call import ARROW, JSON, NDJSON, OCTETS, Answer, Call
from ledgermq_gateway.http.limits import Room
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.http.requests import accepted
from ledgermq_gateway.records.cursors import PARTITIONS_MAX, cursor_of, offsets_at
from ledgermq_gateway.records.forms import FORMS, record_json
from ledgermq_gateway.resources.parameters import choice, position, whole

R = TypeVar("R")
LIMIT = 100
ORDERS = ("oldest", "newest")
READ_BYTES = 1024 * 1024
"""What a read of one partition takes of the budget of memory before it is known how much it finds. That of several asks
each for `PARTITION_BYTES` at least.
"""
PAGES_AT_LEAST = 8
"""So many pages fit into the budget at a time, of however many partitions."""
RECORD_BYTES = 200
"""What a record costs besides its data, while a page is made."""


class HeaderOut(Struct, omit_defaults=True, kw_only=True):
    key: str
    value: str | None = None
    value_base64: str | None = None


class RecordOut(Struct, kw_only=True):
    """A record that was read. Its value and its key come as `value`, `value_base64` or `value_json`; a time outside of
    the years 1 to 9999 as `timestamp_us`.
    """

    topic: str
    partition: int
    offset: int
    headers: list[HeaderOut]
    tag: str | None
    timestamp: str | None = None
    timestamp_us: int | None = None
    key: str | None = None
    key_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None
    value_json: Any = None


class PartitionPage(Struct, kw_only=True):
    """`next_offset`: where to go on. `at_end`: nothing more was there."""

    records: list[RecordOut]
    next_offset: int
    log_start: int
    high_watermark: int
    at_end: bool


class TopicPage(Struct, kw_only=True):
    """`next`: the cursor to go on with."""

    records: list[RecordOut]
    next: str
    at_end: bool


async def get_partition(call: Call) -> Answer:
    topic = await call.caller.topic(call.names["topic"])
    text = call.names["partition"]
    partition = int(text) if text.isdecimal() and len(text) < 10 else -1
    if not 0 <= partition < len(topic.partitions):
        raise UnknownPartition(f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}")
    start = _begin(call)
    page = await _read(call, topic, [partition], {partition: start} if isinstance(start, int) else start)
    following = page.next[partition]
    ends = page.log_start.get(partition, 0), page.high_watermark.get(partition, following)
    more = b'"next_offset":%d,"log_start":%d,"high_watermark":%d' % (following, *ends)
    return _answer(call, page, more, (("LedgerMQ-Next-Offset", str(following)),))


async def get_records(call: Call) -> Answer:
    topic = await call.caller.topic(call.names["topic"])
    partitions = partitions_of(call, topic)
    start: Any = offsets_at(call.query["cursor"], topic) if "cursor" in call.query else _begin(call)
    if isinstance(start, int):
        raise Problem("INVALID_REQUEST", "an offset means another record in each partition: name the partition")
    if isinstance(start, dict) and partitions is not None:
        start = {partition: offset for partition, offset in start.items() if partition in partitions}
    page = await _read(call, topic, partitions, start)
    following = cursor_of(topic.topic_id, page.next)
    return _answer(call, page, b'"next":"%s"' % following.encode(), (("LedgerMQ-Next", following),))


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


def _begin(call: Call) -> Position:
    """Return where a page begins that has no cursor. Raises Problem."""
    order = choice(call.query, "order", ORDERS)
    return position(call, "from", "earliest" if order == "oldest" else "latest")


def filter_of(call: Call) -> str:
    """Return the filter that the call gives, or makes of tags; "" for none. Raises Problem."""
    if "filter" in call.query and "tags" in call.query:
        raise Problem("INVALID_REQUEST", "give either tags or filter")
    return call.query.get("filter", "") or " || ".join(call.query.get("tags", "").split(","))


async def _read(call: Call, topic: TopicDescription, partitions: list[int] | None, start: Any) -> Page:
    settings = call.service.settings
    limit = whole(call.query, "limit", LIMIT, 1, min(settings.records_max, RECORDS_MAX))
    wait_s = whole(call.query, "wait_ms", 0, 0, settings.wait_ms_max) / 1000
    order: Any = choice(call.query, "order", ORDERS)
    wanted = filter_of(call)

    def read(wait_s: float) -> Coroutine[Any, Any, Page]:
        return call.caller.client.read(
            topic.name,
            partitions,
            start,
            order=order,
            records_max=limit,
            bytes_max=settings.page_bytes_max,
            wait=wait_s,
            filter=wanted,
        )

    count = len(topic.partitions if partitions is None else partitions)
    asked_bytes = count * PARTITION_BYTES + settings.page_bytes_max if count > 1 else 0
    call.share.take(max(READ_BYTES, min(asked_bytes, settings.memory_bytes // PAGES_AT_LEAST)))
    with call.waiting() if wait_s else nullcontext():
        try:
            page = await (unless_stopping(call, read, wait_s) if wait_s else read(0.0))
        except InvalidConfig as error:
            raise Problem(error.code, error.message, status=400) from None
        except OffsetOutOfRange as error:
            places = start if isinstance(start, dict) else {}
            raise out_of_range(topic, places, await bounds_of(call, topic.name)) or error from None
    call.share.take(2 * (page.table.nbytes + RECORD_BYTES * page.table.num_rows))
    return page


@asynccontextmanager
async def streaming(
    call: Call,
    topic: str,
    partitions: list[int] | None,
    start: Any,
    *,
    taken_bytes: int,
    prefetch_bytes: int,
    read_ahead_bytes: int = 0,
    **settings: Any,
) -> AsyncIterator[tuple[Consumer, Room]]:
    """Yield a consumer at its first positions, and its room in the budget of memory, of which `taken_bytes` are taken
    at once. `prefetch_bytes`: what it asks for at once, and the size of a chunk. `settings`: others of the consumer.
    Raises Problem.
    """
    call.share.take(taken_bytes)
    try:
        consumer: Consumer = call.caller.client.consumer(
            topic, partitions, start, prefetch_bytes_max=prefetch_bytes, fetch_bytes_max=prefetch_bytes, **settings
        )
    except InvalidConfig as error:
        raise Problem(error.code, error.message, status=400) from None
    async with consumer:
        await consumer.wait_ready()
        yield (
            consumer,
            Room(
                call.share,
                partial(decoded_bytes_of, consumer),
                taken_bytes=taken_bytes,
                read_ahead_bytes=read_ahead_bytes,
                chunk_bytes=prefetch_bytes,
            ),
        )


async def unless_stopping(call: Call, read: Callable[[float], Coroutine[Any, Any, R]], wait_s: float) -> R:
    """Return what was read. Once the gateway stops, the wait ends."""
    reading = asyncio.create_task(read(wait_s))
    stopping = asyncio.create_task(call.service.stopping.wait())
    try:
        await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            return reading.result()
    finally:
        await end(reading, stopping)
    return await read(0.0)


def size_of(message: Message) -> int:
    """Return what a record takes of the budget of memory, once."""
    data = len(message.value or b"") + len(message.key or b"")
    return data + RECORD_BYTES + sum(len(name) + len(value or b"") for name, value in message.headers)


async def bounds_of(call: Call, topic: str) -> dict[int, tuple[int, int]]:
    """Return the first offset that is kept, and the end, of each partition."""
    client = call.caller.client
    first, ends = await asyncio.gather(client.list_offsets(topic, "earliest"), client.list_offsets(topic, "latest"))
    return {partition: (first[partition], offset) for partition, offset in ends.items() if partition in first}


def gone(places: Mapping[int, int], bounds: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Return the bounds of the partitions where the place is not in the log."""
    return {
        partition: bounds[partition]
        for partition, offset in places.items()
        if partition in bounds and not bounds[partition][0] <= offset <= bounds[partition][1]
    }


def out_of_range(
    topic: TopicDescription, places: Mapping[int, int], bounds: Mapping[int, tuple[int, int]]
) -> Problem | None:
    gaps = gone(places, bounds)
    if not gaps:
        return None
    partition, (first, last) = next(iter(gaps.items()))
    resumed = dict(places) | {each: bound[0] for each, bound in gaps.items()}
    return Problem(
        OffsetOutOfRange.code,
        f"partition {partition} has offsets {first} to {last}, not {places[partition]}: go on at `resume`",
        status=416,
        more={"log_start": first, "high_watermark": last, "resume": cursor_of(topic.topic_id, resumed)},
    )


def _answer(call: Call, page: Page, more: bytes, headers: tuple[tuple[str, str], ...]) -> Answer:
    form = choice(call.query, "values", FORMS)
    kind = accepted(call.headers.get("accept", ""), (JSON, NDJSON, ARROW, OCTETS))
    if kind == OCTETS:
        return _one(page.messages, headers)
    if kind == ARROW:
        return Answer(_arrow(page.table), ARROW, headers=headers)
    lines = [record_json(message, form) for message in page.messages]
    if kind == NDJSON:
        return Answer(b"".join(line + b"\n" for line in lines), NDJSON, headers=headers)
    at_end = b"true" if page.at_end else b"false"
    return Answer(b'{"records":[%s],%s,"at_end":%s}' % (b",".join(lines), more, at_end), JSON, headers=headers)


def _one(messages: Sequence[Message], headers: tuple[tuple[str, str], ...]) -> Answer:
    """Return the value of one record as it is. It is never shown by a browser, whatever it holds."""
    if len(messages) != 1:
        raise Problem("NOT_ACCEPTABLE", f"octet-stream is for one record (limit=1), these are {len(messages)}")
    safe = (("Content-Disposition", "attachment"), ("Content-Security-Policy", "sandbox; default-src 'none'"))
    return Answer(messages[0].value or b"", OCTETS, headers=(*headers, *safe))


def _arrow(table: pa.Table) -> memoryview:
    """Return an Arrow stream with the columns of `Consumer.fetch_arrow`, without timestampType."""
    shown = table.drop_columns("timestampType")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, shown.schema) as writer:
        writer.write_table(shown)
    return memoryview(sink.getvalue())
