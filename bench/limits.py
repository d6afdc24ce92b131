"""raw: limits of the machine, without LedgerMQ: one write with fsync, Arrow encoding, a copy in
memory, and an empty gRPC call.

Rows whose distance to a limit is shown measure the limit themselves, just before, because the speed
of a machine changes with the hour: `measure` for each row of `LIMITS`. The gRPC server is a separate
process, `python -m bench.limit_server [ROOT]`. It prints its port, and ends when its standard input closes.
With a root it also puts what it is sent there: all that an acknowledgement has to wait for.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pyarrow as pa

from bench.limit_server import ECHO, MESSAGE_BYTES, METHOD, PUT, READ, served
from bench.load import DISTINCT_VALUES, values
from bench.measures import Results
from bench.ours import cpu_s_of
from bench.percentiles import at
from ledgermq.protocol.batches.records import Compression, decode_batch, encode_batch
from ledgermq.protocol.limits import GRPC_OPTIONS
from tests.worlds.batches import batch_of

ROW = "raw"
SUBJECT = "this machine"
WRITES, WRITE_BYTES = 200, 64 * 1024
COPIES, COPY_BYTES = 16, 256 * 1024 * 1024
ENCODINGS = 100
CALLS, AT_ONCE = 3000, 32
MESSAGES = 500
DECODINGS = 50
SMALL_DECODINGS = 3000


class Limits:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._scale = results, rounds, scale

    def run(self) -> None:
        for _ in range(self._rounds):
            writes = fsyncs(int(WRITES * self._scale))
            self._add("write of 64 KiB and fsync, p50", "ms", at(writes, 0.5))
            self._add("write of 64 KiB and fsync, p99", "ms", at(writes, 0.99))
            for size in (100, 1000):
                self._add(
                    f"Arrow encoding, values of {size} B, one core",
                    "MB/s",
                    encoding(size, int(ENCODINGS * self._scale)),
                )
            self._add("copy in memory, one core", "GB/s", copying(int(COPIES * self._scale)))
            alone, together = empty_calls(int(CALLS * self._scale))
            self._add("empty gRPC call, p50", "ms", at(alone, 0.5))
            self._add("empty gRPC call, p99", "ms", at(alone, 0.99))
            self._add(f"empty gRPC calls, {AT_ONCE} at once", "calls/s", together)

    def _add(self, what: str, unit: str, value: float) -> None:
        self._results.add(ROW, what, SUBJECT, unit, value)


def fsyncs(count: int) -> list[float]:
    """Milliseconds, sorted."""
    data = os.urandom(WRITE_BYTES)
    took_ms: list[float] = []
    with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as folder:
        for number in range(count):
            begun_s = time.perf_counter()
            file = os.open(Path(folder, str(number)), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(file, data)
            os.fsync(file)
            os.close(file)
            took_ms.append(1000 * (time.perf_counter() - begun_s))
    return sorted(took_ms)


def encoding(value_bytes: int, count: int, compression: Compression = "none") -> float:
    """Megabytes of values a second, from Python's bytes to the bytes of a batch."""
    given, once = _encoder(value_bytes, compression, random_bytes=compression == "none")
    return len(given) * value_bytes * count / 1e6 / seconds_of(once, count)


def _encoder(
    value_bytes: int, compression: Compression, *, random_bytes: bool
) -> tuple[list[bytes], Callable[[], bytes]]:
    """Return values, and what encodes them."""
    rows = [{"value": value} for value in values(DISTINCT_VALUES // 10, value_bytes, random_bytes=random_bytes)]
    template = batch_of(rows)
    at_value = template.schema.get_field_index("value")
    given = [row["value"] for row in rows]

    def once() -> bytes:
        columns = template.columns
        columns[at_value] = pa.array(given, pa.binary())
        return encode_batch(pa.RecordBatch.from_arrays(columns, schema=template.schema), compression)

    return given, once


def decoding(value_bytes: int, count: int) -> float:
    """Records a second, from the bytes of a compressed batch to its columns, validated."""
    given, encode = _encoder(value_bytes, "lz4", random_bytes=False)
    data = encode()
    return len(given) * count / seconds_of(lambda: decode_batch(data), count)


def small_decodings(count: int) -> float:
    """Processor milliseconds for a megabyte of batches that each hold one record of 1000 B: Arrow alone."""
    _, encode = _encoder(1000, "none", random_bytes=True)
    rows = decode_batch(encode()).slice(0, 1)
    data = pa.py_buffer(encode_batch(rows))

    def once() -> None:
        pa.ipc.read_record_batch(data, rows.schema).validate(full=True)

    begun_s = time.process_time()
    seconds_of(once, count)
    return 1e6 * (time.process_time() - begun_s) / count


class _Record(NamedTuple):
    """As many fields as a message has."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: tuple[()]
    timestamp_us: int
    tag: str | None


def tuples(count: int) -> float:
    """Records a second: Python makes a named tuple of eight fields for each, and frees it."""
    columns = (
        repeat("t"),
        repeat(1),
        range(DISTINCT_VALUES),
        repeat(None),
        repeat(b"v"),
        repeat(()),
        repeat(1),
        repeat(""),
    )
    make: Any = tuple.__new__

    def once() -> list[_Record]:
        return list(map(make, repeat(_Record), zip(*columns, strict=False)))

    gc.disable()  # as the client does meanwhile
    try:
        return DISTINCT_VALUES * count / seconds_of(once, count)
    finally:
        gc.enable()


class _Buffer:
    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.times: list[float] = []

    def add(self, value: bytes) -> object:
        self.values.append(value)
        self.times.append(time.time())
        return object()


def method_calls(count: int) -> float:
    """Records a second: Python calls a method that keeps a value and the time, and returns an object."""

    def once() -> None:
        buffer = _Buffer()
        for _ in range(DISTINCT_VALUES):
            buffer.add(b"v")

    return DISTINCT_VALUES * count / seconds_of(once, count)


def copying(count: int) -> float:
    """Gigabytes a second."""
    source, target = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    view = memoryview(target)

    def once() -> None:
        view[:] = source

    once()  # the pages are there from now on
    return COPY_BYTES * count / 1e9 / seconds_of(once, count)


def seconds_of(work: Callable[[], object], count: int) -> float:
    begun_s = time.perf_counter()
    for _ in range(count):
        work()
    return time.perf_counter() - begun_s


def empty_calls(count: int) -> tuple[list[float], float]:
    """(ms of calls one after the other, sorted; calls a second with several on their way), to a
    server in another process.
    """
    with served() as (port, _):
        return asyncio.run(_call(port, count))


async def _call(port: int, count: int) -> tuple[list[float], float]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD, None, None)
        for _ in range(100):
            await call(b"")
        took_ms: list[float] = []
        for _ in range(count):
            begun_s = time.perf_counter()
            await call(b"")
            took_ms.append(1000 * (time.perf_counter() - begun_s))

        async def some() -> None:
            for _ in range(count // AT_ONCE):
                await call(b"")

        begun_s = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        return sorted(took_ms), count // AT_ONCE * AT_ONCE / (time.perf_counter() - begun_s)


def putting_calls(root: str, size_bytes: int, rate: float, seconds: float, calls_min: int) -> list[float]:
    """Return the milliseconds of calls, sorted, each of which puts an object of `size_bytes` into the root, one
    after the other at this rate.
    """
    with served(root) as (port, _):
        return asyncio.run(_put(port, size_bytes, rate, seconds, calls_min))


async def _put(port: int, size_bytes: int, rate: float, seconds: float, calls_min: int) -> list[float]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(PUT, None, None)
        await call(bytes(size_bytes))
        return await paced(lambda: call(bytes(size_bytes)), rate, seconds, calls_min)


async def paced(once: Callable[[], Awaitable[object]], rate: float, seconds: float, calls_min: int) -> list[float]:
    """Return the milliseconds of calls, sorted, one after the other at this rate."""
    took_ms: list[float] = []
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s or len(took_ms) < calls_min:
        begun_s = time.perf_counter()
        await once()
        took_ms.append(1000 * (time.perf_counter() - begun_s))
        await asyncio.sleep(max(0.0, 1 / rate - (time.perf_counter() - begun_s)))
    return sorted(took_ms)


def reading(count: int) -> float:
    """Megabytes a second that a gRPC stream brings from another process."""
    with served() as (port, _):
        return MESSAGE_BYTES * count / 1e6 / asyncio.run(_stream(port, READ, count))


def echoing(count: int) -> float:
    """Processor milliseconds of a gRPC server for each megabyte that it receives in a stream and sends back."""
    with served() as (port, pid):
        begun_s = cpu_s_of(pid)
        asyncio.run(_stream(port, ECHO, count))
        return 1000 * (cpu_s_of(pid) - begun_s) / (MESSAGE_BYTES * count / 1e6)


async def _stream(port: int, method: str, count: int) -> float:
    """Return the seconds until so many messages have come back."""

    async def messages() -> AsyncIterator[bytes]:
        message = bytes(MESSAGE_BYTES)
        for _ in range(count if method == ECHO else 1):
            yield message if method == ECHO else str(count).encode()

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=GRPC_OPTIONS) as channel:
        begun_s = time.perf_counter()
        async for _ in channel.stream_stream(method, None, None)(messages()):
            pass
        return time.perf_counter() - begun_s


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that the machine does without LedgerMQ. `measured`: its value, from how many times to do it."""

    what: str
    unit: str
    measured: Callable[[int], float]
    count: int


def _p50(took_ms: list[float]) -> float:
    return at(took_ms, 0.5)


ENCODES = {
    size: Limit(
        f"one core encodes values of {size} B, lz4",
        "records/s",
        partial(lambda size, count: encoding(size, count, "lz4") * 1e6 / size, size),
        DECODINGS,
    )
    for size in (100, 1000)
}
DECODES = {
    size: Limit(f"one core decodes values of {size} B, lz4", "records/s", partial(decoding, size), DECODINGS)
    for size in (100, 1000)
}
KEEPS = Limit("one core calls a method that keeps a value", "records/s", method_calls, DECODINGS)
MAKES = Limit("one core makes named tuples", "records/s", tuples, DECODINGS)
WRITE = Limit("a write of 64 KiB with fsync, p50", "ms", lambda count: _p50(fsyncs(count)), WRITES)
CALL = Limit("an empty gRPC call, p50", "ms", lambda count: _p50(empty_calls(count)[0]), 1000)
STREAM = Limit("a gRPC stream between two processes", "MB/s", reading, MESSAGES)
ECHOES = Limit("a gRPC server receives a megabyte and sends it back", "ms/MB", echoing, MESSAGES)
ONE_BY_ONE = Limit("Arrow reads a megabyte of batches of one record", "ms/MB", small_decodings, SMALL_DECODINGS)
LIMITS: dict[str, tuple[Limit, ...]] = {
    "P1": (*ENCODES.values(), *DECODES.values(), KEEPS, MAKES),
    "P4": (WRITE, CALL),
    "P8": (WRITE, CALL),
    "P9": (ONE_BY_ONE,),
    "P10": (STREAM, WRITE, CALL),
    "P11": (ECHOES,),
    "P12": (STREAM,),
    "T1": (WRITE, CALL),
    "T2": (WRITE, CALL),
    "D1": (KEEPS,),
    "D2": (*DECODES.values(),),
    "D4": (WRITE, CALL),
    "X2": (WRITE, CALL),
}
"""By the row whose run measures them."""


def measure(results: Results, row: str, scale: float) -> None:
    """Measure the limits of a row."""
    for limit in LIMITS.get(row, ()):
        results.add(row, limit.what, SUBJECT, limit.unit, limit.measured(max(10, int(limit.count * scale))))
