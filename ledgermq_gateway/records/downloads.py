"""A range of a topic as a file: GET /v1/topics/{topic}/download.

The range is fixed when the download begins. It is sent as it is read, so it may be larger than the gateway's memory. A
download that cannot go on breaks its connection: a browser, or curl, then says that the file is incomplete. Over
HTTP/1.0 no reader could tell, so that is refused.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import pyarrow as pa

from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import TABLE_SCHEMA
from ledgermq.errors import LedgerMQError
from ledgermq.runtime.process.log import get_log
from ledgermq_gateway.http.call import ARROW, NDJSON, BrokenAnswer, Call, Stream
from ledgermq_gateway.http.limits import Room
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.records.forms import FORMS, record_json
from ledgermq_gateway.records.reading import filter_of, partitions_of, streaming
from ledgermq_gateway.resources.parameters import choice, position, whole

FORMATS = ("ndjson", "arrow")
RECORDS, RECORDS_MAX = 100_000, 100_000_000
PREFETCH_BYTES = 1024 * 1024
HELD_BYTES = 4 * PREFETCH_BYTES
"""What a download takes of the budget of memory."""
AT_ONCE, ROWS_AT_ONCE = 500, 5_000
POLL_S = 1.0
_SCHEMA = pa.schema([field for field in TABLE_SCHEMA if field.name != "timestampType"])
_SAFE = ("Content-Security-Policy", "sandbox; default-src 'none'")
_log = get_log("ledgermq.gateway")


async def get_download(call: Call) -> Stream:
    topic = await call.caller.topic(call.names["topic"])
    partitions = partitions_of(call, topic)
    kind, form = choice(call.query, "format", FORMATS), choice(call.query, "values", FORMS)
    limit = whole(call.query, "limit", RECORDS, 1, RECORDS_MAX)
    start: Any = _place(call, "from", "earliest", partitions)
    end: Any = _place(call, "to", "latest", partitions)
    if isinstance(end, dict):  # a place that is not written yet would be waited for
        latest = await call.caller.client.list_offsets(topic.name, "latest")
        end = {partition: min(offset, latest[partition]) for partition, offset in end.items() if partition in latest}
    wanted = filter_of(call)
    async with AsyncExitStack() as held:
        held.enter_context(call.waiting())
        consumer, room = await held.enter_async_context(
            streaming(
                call,
                topic.name,
                partitions,
                start,
                taken_bytes=HELD_BYTES,
                prefetch_bytes=PREFETCH_BYTES,
                read_ahead_bytes=PREFETCH_BYTES,
                end=end,
                filter=wanted,
                deliver_expired=True,
            )
        )
        chunks = _arrow(consumer, limit, room) if kind == "arrow" else _lines(consumer, limit, form, room)
        name = ("Content-Disposition", f'attachment; filename="{topic.name}.{kind}"')
        content_type = ARROW if kind == "arrow" else NDJSON
        return Stream(_whole_or_broken(call, chunks), held.pop_all(), content_type, (name, _SAFE), is_file=True)


def _place(call: Call, name: str, default: str, partitions: list[int] | None) -> Any:
    """Return where the range begins or ends, as a consumer takes it. Raises Problem."""
    found = position(call, name, default)
    if not isinstance(found, int):
        return found
    if partitions is None or len(partitions) != 1:
        raise Problem("INVALID_REQUEST", "an offset means another record in each partition: name one partition")
    return {partitions[0]: found}


async def _lines(consumer: Consumer, left: int, form: str, room: Room) -> AsyncGenerator[bytes, None]:
    while left and not consumer.at_end:
        messages = await consumer.fetch(min(left, room.rows), timeout=POLL_S)
        left -= len(messages)
        if messages:
            yield room.hold(b"".join(record_json(message, form) + b"\n" for message in messages), AT_ONCE)


async def _arrow(consumer: Consumer, left: int, room: Room) -> AsyncGenerator[bytes, None]:
    sink = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), _SCHEMA) as writer:
        yield sink.taken()
        while left and not consumer.at_end:
            table = await consumer.fetch_arrow(min(left, room.rows), timeout=POLL_S)
            left -= table.num_rows
            if table.num_rows:
                writer.write_table(table.select(_SCHEMA.names))
                yield room.hold(sink.taken(), ROWS_AT_ONCE)
    yield sink.taken()


class _Pieces(io.RawIOBase):
    """Keeps what is written to it until it is taken."""

    def __init__(self) -> None:
        self._data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._data += data
        return len(data)

    def taken(self) -> bytes:
        """Return what was written since the call before."""
        data = bytes(self._data)
        self._data.clear()
        return data


async def _whole_or_broken(call: Call, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the chunks. Raises BrokenAnswer when they cannot go on, also because the gateway has ended."""
    stopping = call.service.stopping
    until_s = float("inf")
    loop = asyncio.get_running_loop()
    try:
        async for chunk in chunks:
            if stopping.is_set() and until_s == float("inf"):
                until_s = loop.time() + (call.service.settings.drain_ms + call.service.settings.streams_end_ms) / 1000
            if loop.time() > until_s:
                raise BrokenAnswer("the gateway stops")
            if chunk:
                yield chunk
    except LedgerMQError as error:
        _log.warning("a download was broken off: %s", error.message)
        raise BrokenAnswer(error.message) from None
    except Problem as error:
        _log.warning("a download was broken off: %s", error.detail)
        raise BrokenAnswer(error.detail) from None
    finally:
        await chunks.aclose()
