"""raw: limits of the machine, in the same run: one write with fsync, Arrow encoding, a copy in
memory, and an empty gRPC call.

The gRPC server is a separate process, `python -m bench.limits`. It prints its port, and ends when
its standard input closes.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pyarrow as pa

from bench.load import DISTINCT_VALUES, values
from bench.measures import Results
from bench.percentiles import at
from ledgermq.protocol.records import encode_batch
from stateless_broker.process import loop_factory
from tests.worlds.batches import batch_of

ROW = "raw"
SUBJECT = "this machine"
WRITES, WRITE_BYTES = 200, 64 * 1024
COPIES, COPY_BYTES = 16, 256 * 1024 * 1024
ENCODINGS = 100
CALLS, AT_ONCE = 3000, 32
METHOD = "/empty/Call"


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


def encoding(value_bytes: int, count: int) -> float:
    """Megabytes of values a second, from Python's bytes to the bytes of a batch; no compression."""
    rows = [{"value": value} for value in values(DISTINCT_VALUES // 10, value_bytes, random_bytes=True)]
    template = batch_of(rows)
    at_value = template.schema.get_field_index("value")
    given = [row["value"] for row in rows]

    def once() -> None:
        columns = template.columns
        columns[at_value] = pa.array(given, pa.binary())
        encode_batch(pa.RecordBatch.from_arrays(columns, schema=template.schema))

    return len(given) * value_bytes * count / 1e6 / seconds_of(once, count)


def copying(count: int) -> float:
    """Gigabytes a second."""
    source, target = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    view = memoryview(target)

    def once() -> None:
        view[:] = source

    once()  # the pages are there from now on
    return COPY_BYTES * count / 1e9 / seconds_of(once, count)


def seconds_of(work: Callable[[], None], count: int) -> float:
    begun_s = time.perf_counter()
    for _ in range(count):
        work()
    return time.perf_counter() - begun_s


def empty_calls(count: int) -> tuple[list[float], float]:
    """(ms of calls one after the other, sorted; calls a second with several on their way), to a
    server in another process.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "bench.limits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            return asyncio.run(_call(int(server.stdout.readline()), count))
        finally:
            server.stdin.close()


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


async def serve() -> None:
    async def answer(_: bytes, __: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return b""

    server = grpc.aio.server()
    service, method = METHOD.strip("/").split("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve())
