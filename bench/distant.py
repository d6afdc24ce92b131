"""A store at the distance of S3: a line to a near one whose answers come as late as those of S3
Standard do.

    python -m bench.distant HOST:PORT        prints its own port, ends with its standard input

Each answer is late by a log-normal draw with a median of 100 ms and a 99th percentile of 195 ms;
several on one connection stay in order.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ledgermq.runtime.tasks import end

MEDIAN_S, P99_S = 0.100, 0.195
Z99 = 2.326
"""Standard deviations of the 99th percentile from the median."""
PIECE_BYTES, PIECES_MAX = 256 * 1024, 256


def late_s(chance: random.Random) -> float:
    """Return how late one answer is."""
    return chance.lognormvariate(math.log(MEDIAN_S), math.log(P99_S / MEDIAN_S) / Z99)


class Line:
    def __init__(self, host: str, port: int, seed: int) -> None:
        self._host, self._port = host, port
        self._random = random.Random(seed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
            late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_MAX)
            pumps = [
                asyncio.create_task(pump)
                for pump in (_copy(reader, up_writer), self._delay(up_reader, late), _deliver(late, writer))
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end(*pumps)
                up_writer.close()
                writer.close()

    async def _delay(self, reader: asyncio.StreamReader, late: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop, due_s = asyncio.get_running_loop(), 0.0
        while data := await reader.read(PIECE_BYTES):
            due_s = max(due_s, loop.time() + late_s(self._random))
            await late.put((due_s, data))
        await late.put((due_s, b""))
        await asyncio.sleep(math.inf)  # the end is delivered as late as the rest


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PIECE_BYTES):
        writer.write(data)
        await writer.drain()


async def _deliver(late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due_s, data = await late.get()
        if not data:
            return
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        writer.write(data)
        await writer.drain()


async def serve(host: str, port: int, seed: int = 7) -> None:
    line = Line(host, port, seed)
    server = await asyncio.start_server(line.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


@contextmanager
def running(endpoint: str) -> Iterator[str]:
    """Run a line to another server in a separate process; return its endpoint, http://host:port."""
    command = [sys.executable, "-m", "bench.distant", endpoint.removeprefix("http://")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("upstream")
    host, _, port = parser.parse_args().upstream.partition(":")
    asyncio.run(serve(host, int(port)))


if __name__ == "__main__":
    main()
