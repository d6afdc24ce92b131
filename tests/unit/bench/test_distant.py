"""The proxy that makes a near store as late as S3, and refuses what S3 would refuse."""

from __future__ import annotations

import random
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.distant import DISTANCES, STANDARD, Distance, Late, Limits, Proxy

NEAR = Late(0.000_1, 0.000_2)


@asynccontextmanager
async def _behind(distance: Distance, store: dict[str, bytes]) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A store of objects, and a proxy before it: a session, and the proxy's address."""

    async def near(request: web.Request) -> web.Response:
        if request.method == "PUT":
            store[request.raw_path] = await request.read()
            return web.Response(headers={"ETag": "new", "X-Signed-Host": request.headers["Host"]})
        found = store.get(request.raw_path)
        return web.Response(status=404) if found is None else web.Response(body=found)

    def served(handler: object) -> TestServer:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
        return TestServer(application)

    async with served(near) as upstream:
        proxy = Proxy(f"{upstream.host}:{upstream.port}", distance)
        try:
            async with served(proxy.serve) as front, aiohttp.ClientSession() as session:
                yield session, f"http://{front.host}:{front.port}"
        finally:
            await proxy.close()


async def test_requests_and_answers_pass_as_they_are() -> None:
    store: dict[str, bytes] = {}
    async with _behind(Distance(NEAR, NEAR), store) as (session, address):
        async with session.put(f"{address}/bucket/a%2Bb?x=1", data=b"value") as put:
            assert (put.status, put.headers["ETag"]) == (200, "new")
            assert f"http://{put.headers['X-Signed-Host']}" == address
        assert store == {"/bucket/a%2Bb?x=1": b"value"}
        async with session.get(f"{address}/bucket/a%2Bb?x=1") as got:
            assert await got.read() == b"value"
        async with session.head(f"{address}/bucket/a%2Bb?x=1") as head:
            assert (head.status, head.headers["Content-Length"]) == (200, "5")
        async with session.get(f"{address}/bucket/none") as none:
            assert none.status == 404


async def test_a_prefix_with_too_many_requests_is_told_to_slow_down() -> None:
    async with _behind(Distance(NEAR, NEAR, writes_per_s=0), {}) as (session, address):
        async with session.put(f"{address}/bucket/a", data=b"value") as refused:
            assert refused.status == 503
            assert b"<Code>SlowDown</Code>" in await refused.read()
        async with session.get(f"{address}/bucket/a") as got:
            assert got.status == 404


def test_limits_are_those_of_one_prefix_in_one_second() -> None:
    limits = Limits(Distance(NEAR, NEAR, reads_per_s=2, writes_per_s=1))

    assert [limits.refuses("/b/x/1", is_read=True, now_s=5.1) for _ in range(3)] == [False, False, True]
    assert not limits.refuses("/b/y/1", is_read=True, now_s=5.2)
    assert [limits.refuses("/b/x/2", is_read=False, now_s=5.3) for _ in range(2)] == [False, True]
    assert not limits.refuses("/b/x/2", is_read=False, now_s=6.0)


def test_answers_are_as_late_as_said() -> None:
    chance, distance = random.Random(3), DISTANCES[STANDARD]
    drawn = sorted(distance.late("put_if_absent").draw_s(chance) for _ in range(20_000))

    assert abs(statistics.median(drawn) / 0.060 - 1) < 0.05
    assert abs(drawn[19_800] / 0.250 - 1) < 0.1
    assert distance.late("get_range") == distance.read
    assert distance.late("list") == distance.write
