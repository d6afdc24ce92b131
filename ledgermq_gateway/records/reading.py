"""Read pages of records: of one partition by offset, or of several by cursor. A read that finds nothing may wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from msgspec import Struct

from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import TABLE_SCHEMA, Message
from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.errors import InvalidConfig, OffsetOutOfRange, UnknownPartition
from ledgermq.runtime.tasks import end
from ledgermq_gateway.http.call import ARROW, JSON, NDJSON, OCTETS, Answer, Call
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.http.requests import accepted
from ledgermq_gateway.records.cursors import PARTITIONS_MAX, cursor_of, offsets_at
from ledgermq_gateway.records.forms import FORMS, record_json
from ledgermq_gateway.resources.parameters import choice, position, whole

LIMIT = 100
PREFETCH_BYTES = 1024 * 1024
FIRST_RECORDS = 16
RECORD_BYTES = 200
"""What a record costs besides its data, while a page is made."""
ARRIVES_S = 10.0
"""How long a page waits for records that are there."""


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


class Page(Struct, kw_only=True):
    """`next`: the cursor to go on with."""

    records: list[RecordOut]
    next: str
    at_end: bool


@dataclass(frozen=True, slots=True)
class Found:
    """`places`: where to go on in each partition. `bounds`: first offset and end of each."""

    messages: Sequence[Message]
    places: Mapping[int, int]
    bounds: Mapping[int, tuple[int, int]]

    @property
    def at_end(self) -> bool:
        return all(offset >= self.bounds[partition][1] for partition, offset in self.places.items())


async def get_partition(call: Call) -> Answer:
    topic = await call.caller.topic(call.names["topic"])
    partition = int(call.names["partition"]) if call.names["partition"].isdecimal() else -1
    if not 0 <= partition < len(topic.partitions):
        raise UnknownPartition(f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}")
    start = position(call, "from", "earliest")
    found = await _read(call, topic, [partition], {partition: start} if isinstance(start, int) else start)
    log_start, high_watermark = found.bounds[partition]
    headers = (("LedgerMQ-Next-Offset", str(found.places[partition])),)
    more = b'"next_offset":%d,"log_start":%d,"high_watermark":%d' % (found.places[partition], log_start, high_watermark)
    return _answer(call, found, more, headers)


async def get_records(call: Call) -> Answer:
    topic = await call.caller.topic(call.names["topic"])
    partitions = partitions_of(call, topic)
    start: Any = (
        offsets_at(call.query["cursor"], topic) if "cursor" in call.query else position(call, "from", "earliest")
    )
    if isinstance(start, int):
        raise Problem("INVALID_REQUEST", "an offset means another record in each partition: name the partition")
    if isinstance(start, dict) and partitions is not None:
        start = {partition: offset for partition, offset in start.items() if partition in partitions}
    found = await _read(call, topic, partitions, start)
    following = cursor_of(topic.topic_id, found.places)
    return _answer(call, found, b'"next":"%s"' % following.encode(), (("LedgerMQ-Next", following),))


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


@asynccontextmanager
async def reading(
    call: Call, topic: TopicDescription, partitions: list[int] | None, start: Any, prefetch_bytes: int
) -> AsyncIterator[Consumer]:
    """Yield a consumer at its first positions, with the filter of the call. Raises Problem."""
    if "filter" in call.query and "tags" in call.query:
        raise Problem("INVALID_REQUEST", "give either tags or filter")
    wanted = call.query.get("filter", "") or " || ".join(call.query.get("tags", "").split(","))
    call.share.take(prefetch_bytes)
    try:
        made: Consumer = call.caller.client.consumer(
            topic.name,
            partitions,
            start,
            filter=wanted,
            prefetch_bytes_max=prefetch_bytes,
            fetch_bytes_max=prefetch_bytes,
        )
    except InvalidConfig as error:
        raise Problem(error.code, error.message, status=400) from None
    async with made:
        await made.wait_ready()
        yield made


async def _read(call: Call, topic: TopicDescription, partitions: list[int] | None, start: Any) -> Found:
    limit = whole(call.query, "limit", LIMIT, 1, call.service.settings.records_max)
    wait_s = whole(call.query, "wait_ms", 0, 0, call.service.settings.wait_ms_max) / 1000
    async with AsyncExitStack() as held:
        if wait_s:
            held.enter_context(call.service.streams.one(call.caller.principal))
        consumer = await held.enter_async_context(reading(call, topic, partitions, start, PREFETCH_BYTES))
        bounds = await bounds_of(call, topic.name)
        check_places(topic, places_of(consumer), bounds)
        bytes_max, messages, size = call.service.settings.page_bytes_max, list[Message](), 0
        loop = asyncio.get_running_loop()
        wait_until_s, arrive_until_s = loop.time() + wait_s, loop.time() + ARRIVES_S
        while len(messages) < limit and size < bytes_max:
            is_behind = any(offset < bounds[at][1] for at, offset in places_of(consumer).items() if at in bounds)
            until_s = arrive_until_s if is_behind else wait_until_s if not messages else loop.time()
            if loop.time() >= until_s:
                break
            count = min(limit - len(messages), _fitting(len(messages), size, bytes_max))
            got = await _unless_stopping(call, consumer, count, until_s - loop.time())
            if got is None:
                break
            more = sum(map(_size, got))
            call.share.take(2 * more)
            messages += got
            size += more
        if not messages:
            bounds = await bounds_of(call, topic.name)
        return Found(messages, places_of(consumer), bounds)


async def _unless_stopping(call: Call, consumer: Consumer, count: int, timeout_s: float) -> list[Message] | None:
    """Return what was fetched; None: the gateway stops, and nothing came."""
    fetching = asyncio.create_task(consumer.fetch(count, timeout=timeout_s))
    stopping = asyncio.create_task(call.service.stopping.wait())
    try:
        await asyncio.wait([fetching, stopping], return_when=asyncio.FIRST_COMPLETED)
        return fetching.result() if fetching.done() else None
    finally:
        await end(fetching, stopping)


def _fitting(count: int, size: int, bytes_max: int) -> int:
    """Return how many records more may fit, by the mean size of those before."""
    return FIRST_RECORDS if not count else max(1, (bytes_max - size) // max(1, size // count))


def _size(message: Message) -> int:
    data = len(message.value or b"") + len(message.key or b"")
    return data + RECORD_BYTES + sum(len(name) + len(value or b"") for name, value in message.headers)


async def bounds_of(call: Call, topic: str) -> dict[int, tuple[int, int]]:
    """Return the first offset that is kept, and the end, of each partition."""
    client = call.caller.client
    first, ends = await asyncio.gather(client.list_offsets(topic, "earliest"), client.list_offsets(topic, "latest"))
    return {partition: (first[partition], offset) for partition, offset in ends.items() if partition in first}


def places_of(consumer: Consumer) -> dict[int, int]:
    return {at.partition: offset for at, offset in consumer.positions().items()}


def gone(places: Mapping[int, int], bounds: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Return the bounds of the partitions where the place is not in the log."""
    return {
        partition: bounds[partition]
        for partition, offset in places.items()
        if partition in bounds and not bounds[partition][0] <= offset <= bounds[partition][1]
    }


def check_places(topic: TopicDescription, places: Mapping[int, int], bounds: Mapping[int, tuple[int, int]]) -> None:
    """Raise Problem (416) for a place that is not in the log."""
    if problem := out_of_range(topic, places, bounds):
        raise problem


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


def _answer(call: Call, found: Found, more: bytes, headers: tuple[tuple[str, str], ...]) -> Answer:
    form = choice(call.query, "values", FORMS)
    kind = accepted(call.headers.get("accept", ""), (JSON, NDJSON, ARROW, OCTETS))
    if kind == OCTETS:
        return _one(found.messages, headers)
    if kind == ARROW:
        return Answer(_arrow(found.messages), ARROW, headers=headers)
    lines = [record_json(message, form) for message in found.messages]
    if kind == NDJSON:
        return Answer(b"".join(line + b"\n" for line in lines), NDJSON, headers=headers)
    at_end = b"true" if found.at_end else b"false"
    return Answer(b'{"records":[%s],%s,"at_end":%s}' % (b",".join(lines), more, at_end), JSON, headers=headers)


def _one(messages: Sequence[Message], headers: tuple[tuple[str, str], ...]) -> Answer:
    """Return the value of one record as it is. It is never shown by a browser, whatever it holds."""
    if len(messages) != 1:
        raise Problem("NOT_ACCEPTABLE", f"octet-stream is for one record (limit=1), these are {len(messages)}")
    safe = (("Content-Disposition", "attachment"), ("Content-Security-Policy", "sandbox; default-src 'none'"))
    return Answer(messages[0].value or b"", OCTETS, headers=(*headers, *safe))


def _arrow(messages: Sequence[Message]) -> bytes:
    """Return an Arrow stream with the columns of `Consumer.fetch_arrow`, without timestampType."""
    columns = dict(zip(Message._fields, zip(*messages, strict=True), strict=True)) if messages else {}
    columns["timestamp"] = columns.get("timestamp_us", ())
    arrays, fields = [], []
    for field in TABLE_SCHEMA:
        if field.name == "timestampType":
            continue
        values: Any = columns.get(field.name, ())
        if field.name == "headers":
            values = [[{"key": name, "value": value} for name, value in row] for row in values]
        made = pa.array(values, pa.int64() if field.name == "timestamp" else field.type)
        arrays.append(made.cast(field.type) if field.name == "timestamp" else made)
        fields.append(field)
    schema = pa.schema(fields)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue().to_pybytes())
