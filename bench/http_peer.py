"""Measure Webdis before Redis Streams by the requests of the rows G1, G4 and G6, as many at once and as large.

A record is an entry of a stream with one field, and all are in one stream. A page is XRANGE. A lease is XREADGROUP of a
consumer of each connection, an acknowledgement XACK of all entries that came, which Redis syncs, too. Both reads go
through a script in Redis that makes one flat list of ids and values, for this Webdis shows lists in lists as null.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import aiohttp

from bench.http_load import (
    CONNECTIONS,
    LEASE,
    LEASE_CPU,
    LEASED,
    PAGE,
    PAGE_OF,
    POST,
    POST_CPU,
    POST_P99,
    VALUE_BYTES,
    Served,
    many,
    ok,
    timed,
)
from bench.percentiles import at

VALUE = b"x" * VALUE_BYTES
FLAT = "local flat = {{}} for _, entry in ipairs({entries}) do "
FLAT += "table.insert(flat, entry[1]) table.insert(flat, entry[2][2]) end return flat"
PAGE_SCRIPT = FLAT.format(entries=f"redis.call('XRANGE', KEYS[1], '0', '9999999999999', 'COUNT', {PAGE})")
READ = f"redis.call('XREADGROUP', 'GROUP', 'workers', ARGV[1], 'COUNT', {LEASED}, 'STREAMS', KEYS[1], '>')"
LEASE_SCRIPT = f"local found = {READ} if not found then return {{}} end " + FLAT.format(entries="found[1][2]")
"""They have neither "/", which divides a command, nor "+", which would be decoded to a space."""
Found = list[tuple[str, str, float]]
"""What was measured, its unit, and the value."""


class Webdis:
    """Commands by HTTP. All raise RuntimeError where Redis refuses: Webdis answers 200 then, too."""

    def __init__(self, http: aiohttp.ClientSession, server: Served) -> None:
        self._http, self.server = http, server

    async def add(self, stream: str) -> None:
        body = await ok(self._http.put(f"/XADD/{stream}/*/value", data=VALUE))
        if not body.startswith(b'{"XADD":"'):
            raise RuntimeError(f"XADD: {body[:300]!r}")

    async def run(self, *words: str) -> Any:
        found = json.loads(await self.raw(*words))[words[0]]
        if isinstance(found, list) and found and found[0] is False:
            raise RuntimeError(f"{words[0]}: {found[1]}")
        return found

    async def raw(self, *words: str) -> bytes:
        return await ok(self._http.post("/", data="/".join(words)))


async def posts(webdis: Webdis, records: Callable[[int], int]) -> Found:
    sent = records(5_000)
    took_s, cpu_s, took = await timed(webdis.server, sent, lambda: webdis.add("posts"))
    return [
        (POST_CPU, "µs", 1e6 * cpu_s / sent),
        (POST, "requests/s", sent / took_s),
        (POST_P99, "ms", at(sorted(took), 0.99)),
    ]


async def pages(webdis: Webdis, records: Callable[[int], int]) -> Found:
    await many(PAGE, lambda: webdis.add("pages"))
    page = ("EVAL", PAGE_SCRIPT, "1", "pages")
    found = await webdis.run(*page)
    if len(found) != 2 * PAGE or found[1] != VALUE.decode():
        raise RuntimeError(f"a page has {len(found) // 2} entries, the first one of {found[:2]}")
    gets = records(100)
    took_s, cpu_s, _ = await timed(webdis.server, gets, lambda: webdis.raw(*page))
    return [
        (f"{PAGE_OF}, JSON", "records/s", PAGE * gets / took_s),
        (f"{PAGE_OF}, JSON, CPU of a record", "µs", 1e6 * cpu_s / gets / PAGE),
    ]


async def leases(webdis: Webdis, records: Callable[[int], int]) -> Found:
    sent, done = records(25_000), 0
    await many(sent, lambda: webdis.add("jobs"))
    await webdis.run("XGROUP", "CREATE", "jobs", "workers", "0")
    names = count()

    async def work() -> None:
        nonlocal done
        name = f"worker-{next(names)}"
        while found := await webdis.run("EVAL", LEASE_SCRIPT, "1", "jobs", name):
            acknowledged = await webdis.run("XACK", "jobs", "workers", *found[::2])
            done += acknowledged

    begun_s, cpu_s = time.perf_counter(), webdis.server.cpu_s
    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    took_s, cpu_s = time.perf_counter() - begun_s, webdis.server.cpu_s - cpu_s
    if done != sent:
        raise RuntimeError(f"{done} of {sent} entries were acknowledged")
    return [(LEASE, "messages/s", done / took_s), (LEASE_CPU, "µs", 1e6 * cpu_s / done)]


ROWS: dict[str, Callable[[Webdis, Callable[[int], int]], Awaitable[Found]]] = {"G1": posts, "G4": pages, "G6": leases}


async def measured(row: str, server: Served, records: Callable[[int], int]) -> Found:
    """Measure a row; `records`: the share of a number that this run takes."""
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(server.url, connector=connector) as http:
        return await ROWS[row](Webdis(http, server), records)
