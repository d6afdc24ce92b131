"""Requests over HTTP, many at once, and the processor time that they take of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bench.ours import cpu_s_of

CONNECTIONS, VALUE_BYTES = 32, 1000
POST, POST_CPU, POST_P99 = "POST 1 KB", "POST 1 KB, CPU of a request", "p99 of a record"
PAGE, LEASED = 1_000, 50
PAGE_OF = f"page of {PAGE:,} × 1 KB"
LEASE, LEASE_CPU = f"lease and ack, {LEASED} a call", "lease and ack, CPU of a message"


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs as a process."""

    url: str
    pid: int

    @property
    def cpu_s(self) -> float:
        return cpu_s_of(self.pid)


async def ok(answer: Any) -> bytes:
    """Return the body of an answer. Raises RuntimeError."""
    async with answer as found:
        body: bytes = await found.read()
        if found.status != 200:
            raise RuntimeError(f"{found.status}: {body[:300]!r}")
        return body


async def many(count: int, one: Callable[[], Awaitable[object]], at_once: int = CONNECTIONS) -> list[float]:
    """Do something so many times, so many at once, and return how long each took, in ms."""
    took: list[float] = []
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            begun_s = time.perf_counter()
            await one()
            took.append(1000 * (time.perf_counter() - begun_s))

    await asyncio.gather(*(work() for _ in range(at_once)))
    return took


async def timed(server: Served, count: int, one: Callable[[], Awaitable[object]]) -> tuple[float, float, list[float]]:
    """Return seconds, seconds of the server's processor time, and how long each took, in ms, after a warm-up."""
    await many(2 * CONNECTIONS, one)
    begun_s, cpu_s = time.perf_counter(), server.cpu_s
    took = await many(count, one)
    return time.perf_counter() - begun_s, server.cpu_s - cpu_s, took
