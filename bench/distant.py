"""A store as far away as S3: a proxy to a near one, whose answers come as late as S3's, and which
refuses what S3 would refuse.

    python -m bench.distant standard HOST:PORT        prints its own port, ends with its standard input

The delay of an answer is drawn from a log-normal distribution for each request: one half of it passes before the
request reaches the near store, the other half before the answer leaves. A prefix that gets more
requests in a second than S3 serves is answered with 503 SlowDown.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from yarl import URL

Z99 = 2.326
"""Standard deviations of the 99th percentile from the median."""
BODY_BYTES_MAX = 64 * 1024 * 1024
READS = frozenset({"GET", "HEAD"})
READING = frozenset({"get", "get_range", "get_suffix", "head"})
"""Operations of the store contract that are one GET or HEAD of an object."""
HOPS = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})
SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


@dataclass(frozen=True, slots=True)
class Late:
    """How late answers are, in seconds."""

    median_s: float
    p99_s: float

    @property
    def _sigma(self) -> float:
        return math.log(self.p99_s / self.median_s) / Z99

    @property
    def mean_s(self) -> float:
        return self.median_s * math.exp(self._sigma**2 / 2)

    def draw_s(self, chance: random.Random) -> float:
        return chance.lognormvariate(math.log(self.median_s), self._sigma)


@dataclass(frozen=True, slots=True)
class Distance:
    """`read`: of a GET or HEAD of an object; `write`: of all other requests, LIST among them.
    Requests above `reads_per_s` and `writes_per_s` to one prefix are refused.
    """

    read: Late
    write: Late
    reads_per_s: int = 5_500
    writes_per_s: int = 3_500

    def late(self, operation: str) -> Late:
        """Return how late an operation of the store contract is."""
        return self.read if operation in READING else self.write


FAR = "far"
"""100 ms for whatever is asked, which is what PUTs of a megabyte take."""
STANDARD, EXPRESS = "standard", "express"
DISTANCES = {
    FAR: Distance(Late(0.100, 0.195), Late(0.100, 0.195)),
    STANDARD: Distance(Late(0.025, 0.100), Late(0.060, 0.250)),
    EXPRESS: Distance(Late(0.005, 0.015), Late(0.005, 0.015), 200_000, 100_000),
}


class Limits:
    """What S3 serves of a prefix within each second."""

    def __init__(self, distance: Distance) -> None:
        self._distance = distance
        self._second = -1
        self._counts: Counter[tuple[str, bool]] = Counter()

    def refuses(self, path: str, *, is_read: bool, now_s: float) -> bool:
        """Count a request for a path of the bucket."""
        if int(now_s) != self._second:
            self._second = int(now_s)
            self._counts.clear()
        prefix = path.rpartition("/")[0]
        self._counts[prefix, is_read] += 1
        return self._counts[prefix, is_read] > (self._distance.reads_per_s if is_read else self._distance.writes_per_s)


class Proxy:
    """`upstream`: host:port. Requests are passed on as they came, the signed host among their
    headers.
    """

    def __init__(self, upstream: str, distance: Distance, seed: int = 7) -> None:
        self._upstream, self._distance = upstream, distance
        self._chance = random.Random(seed)
        self._limits = Limits(distance)
        self._session = aiohttp.ClientSession(
            auto_decompress=False, connector=aiohttp.TCPConnector(limit=0), skip_auto_headers=("User-Agent", "Accept")
        )

    async def serve(self, request: web.Request) -> web.Response:
        is_read = request.method in READS and request.path.count("/") > 1 and "list-type" not in request.query
        if self._limits.refuses(request.path, is_read=is_read, now_s=asyncio.get_running_loop().time()):
            await request.read()
            return web.Response(status=503, body=SLOW_DOWN, content_type="application/xml")
        late_s = (self._distance.read if is_read else self._distance.write).draw_s(self._chance)
        body = await request.read()
        await asyncio.sleep(late_s / 2)
        url = URL(f"http://{self._upstream}{request.raw_path}", encoded=True)
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOPS]
        async with self._session.request(
            request.method, url, headers=headers, data=body or None, allow_redirects=False
        ) as answer:
            found = await answer.read()
        await asyncio.sleep(late_s / 2)
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOPS}
        if request.method == "HEAD":
            kept["Content-Length"] = answer.headers.get("Content-Length", "0")
        return web.Response(status=answer.status, headers=kept, body=None if request.method == "HEAD" else found)

    async def close(self) -> None:
        await self._session.close()


async def serve(upstream: str, distance: Distance) -> None:
    proxy = Proxy(upstream, distance)
    application = web.Application(client_max_size=BODY_BYTES_MAX)
    application.router.add_route("*", "/{path:.*}", proxy.serve)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    _, port = runner.addresses[0][:2]
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()
    await proxy.close()


@contextmanager
def running(endpoint: str, distance: str = FAR) -> Iterator[str]:
    """Run a proxy to another server in a separate process; return its endpoint, http://host:port."""
    command = [sys.executable, "-m", "bench.distant", distance, endpoint.removeprefix("http://")]
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
    parser.add_argument("distance", choices=DISTANCES)
    parser.add_argument("upstream")
    options = parser.parse_args()
    asyncio.run(serve(options.upstream, DISTANCES[options.distance]))


if __name__ == "__main__":
    main()
