"""Gateways that are restarted one after the other, or reach no broker: what load balancers see, and what callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx
import pytest

import ledgermq
from ledgermq_gateway import gateway
from ledgermq_gateway.cluster.clock import ClusterClock
from ledgermq_gateway.gateway import Gateway
from ledgermq_gateway.settings import GatewaySettings
from tests.gateway.world import World, world

SEEN_LATE_S = 0.5
"""A load balancer learns so late that a gateway stops, and later still where all of them share a busy machine."""
DRAIN_MS, STREAMS_END_MS = 5_000, 1_000


@dataclass
class Balancer:
    """Sends requests to gateways in turn, over connections that stay open. It looks at /readyz now and then only."""

    urls: list[str] = field(default_factory=list)
    healthy: list[str] = field(default_factory=list)
    sent: int = 0

    async def look(self, http: httpx.AsyncClient) -> None:
        while True:
            found = []
            for url in list(self.urls):
                with suppress(httpx.TransportError):
                    if (await http.get(f"{url}/readyz")).status_code == 200:
                        found.append(url)
            self.healthy = found
            await asyncio.sleep(SEEN_LATE_S)

    def next(self) -> str:
        self.sent += 1
        return self.healthy[self.sent % len(self.healthy)]


@asynccontextmanager
async def gateway_at(base: ledgermq.Client, balancer: Balancer) -> AsyncIterator[str]:
    settings = GatewaySettings(port=0, drain_ms=DRAIN_MS, streams_end_ms=STREAMS_END_MS, shutdown_ms=5_000)
    made = Gateway(settings, ClusterClock(), base.as_caller, base.as_caller)
    async with made.running():
        url = f"http://127.0.0.1:{made.port}"
        async with httpx.AsyncClient() as http, asyncio.timeout(60):
            while (await http.get(f"{url}/readyz")).status_code != 200:
                await asyncio.sleep(0.05)
        balancer.urls.append(url)
        yield url
    balancer.urls.remove(url)


@pytest.mark.slow
async def test_no_call_fails_while_three_gateways_are_rolled_and_readers_return_one_by_one() -> None:
    async with world() as at, at.client() as base, AsyncExitStack() as stack:
        assert (await at.http.post("/v1/topics", json={"name": "t", "partitions": 4})).status_code == 201
        balancer = Balancer()
        running = []
        for _ in range(3):
            own = await stack.enter_async_context(AsyncExitStack())
            running.append((own, await own.enter_async_context(gateway_at(base, balancer))))
        limits = httpx.Limits(max_keepalive_connections=50)
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=60, limits=limits))
        looking = asyncio.create_task(balancer.look(http))
        stopping, failed, stored = asyncio.Event(), list[str](), list[str]()

        async def load(number: int) -> None:
            count = 0
            while not stopping.is_set():
                value, url = f"{number}.{count}", balancer.next()
                count += 1
                try:
                    answer = await http.post(f"{url}/v1/topics/t/records", json={"records": [{"value": value}]})
                    failed.extend([] if answer.status_code == 200 else [answer.text])
                    stored.append(value)
                except httpx.TransportError as error:
                    failed.append(repr(error))
                await asyncio.sleep(0.01)

        returns: list[float] = []
        """When each reader comes back, by the loop's clock."""

        async def listen(url: str) -> None:
            retry_ms = 0
            async with http.stream("GET", f"{url}/v1/topics/t/events?partitions=0") as response:
                async for line in response.aiter_lines():
                    if line.startswith("retry: "):
                        retry_ms = int(line.removeprefix("retry: "))
            returns.append(asyncio.get_running_loop().time() + retry_ms / 1000)

        async with asyncio.timeout(60):
            while len(balancer.healthy) < 3:
                await asyncio.sleep(0.05)
        loads = [asyncio.create_task(load(number)) for number in range(6)]
        listeners = [asyncio.create_task(listen(running[0][1])) for _ in range(15)]
        await asyncio.sleep(1)
        for old, _ in running:
            new = await stack.enter_async_context(AsyncExitStack())
            await new.enter_async_context(gateway_at(base, balancer))
            await asyncio.sleep(3 * SEEN_LATE_S)  # the new one is in use
            await old.aclose()
        stopping.set()
        await asyncio.gather(*loads, *listeners)
        looking.cancel()
        assert not failed, failed[:3]
        async with base.consumer("t", start="earliest", until_end=True) as consumer:
            found = [(message.value or b"").decode() async for message in consumer]
        assert sorted(found) == sorted(stored)
        assert len(stored) > 50
        assert max(returns) - min(returns) >= 4, "they come back over some ten seconds"
        fullest = max(sum(first <= each < first + 1 for each in returns) for first in returns)
        assert fullest <= 10, "and most of them not within one second"


async def test_a_gateway_that_reaches_no_broker_is_not_ready_until_one_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Alive it stays: a restart would change nothing."""
    assert gateway.READY_S + gateway.WATCH_S <= 40, "out of the load balancer in 40 s"
    monkeypatch.setattr(gateway, "READY_S", 1.0)
    monkeypatch.setattr(gateway, "WATCH_S", 0.1)

    async def is_ready(at: World) -> bool:
        return (await at.http.get("/readyz")).status_code == 200

    async with world() as at, asyncio.timeout(120):
        while not await is_ready(at):
            await asyncio.sleep(0.05)
        [(address, broker)] = at.cluster.brokers.items()
        at.cluster.network.stop_listening(address)
        while await is_ready(at):
            await asyncio.sleep(0.05)
        assert (await at.http.get("/livez")).status_code == 200
        assert "no broker has answered" in at.gateway.why_not_ready
        at.cluster.network.listen(address, broker.service, broker.door)
        while not await is_ready(at):
            await asyncio.sleep(0.05)
        assert (await at.http.get("/v1/topics")).status_code == 200
