"""Floods of complete requests: a principal, a host, and what both leave to others."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from ledgermq_gateway.http import server
from tests.gateway.world import get, raw, status_of, world
from tests.waiting import until

SLOW_POST = "POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"


async def held(port: int, count: int, proof: str, host: str = "127.0.0.1") -> list[asyncio.StreamWriter]:
    """Begin requests of one principal, each with a body that does not come."""
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        writer.write(f"{SLOW_POST}Authorization: {proof}\r\n\r\n".encode())
        writers.append(writer)
    return writers


async def test_a_principal_takes_no_places_of_others() -> None:
    async with world(rules=True, calls_max=8, body_timeout_ms=60_000) as at:
        mallory, victim = await at.user("mallory", "create mine*"), await at.user("victim", "create,describe *")
        assert (await at.http.get("/v1/topics", headers=mallory)).status_code == 200
        turns = at.gateway.service.turns
        writers = await held(at.port, 20, mallory["Authorization"])
        await until(lambda: turns.under_way == 4 and turns.waiting == 16)
        for _ in range(5):
            assert (await at.http.get("/v1/topics", headers=victim)).status_code == 200
        assert (turns.under_way, turns.waiting) == (4, 16)
        for writer in writers:
            writer.transport.abort()
        await until(lambda: (turns.under_way, turns.waiting) == (0, 0))


async def test_a_stranger_takes_no_places_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wrong tokens wait, each of them another one, and brokers do not answer."""
    async with world(rules=True, calls_max=8) as at:
        victim, newcomer = await at.user("victim", "create,describe *"), await at.user("newcomer", "create,describe *")
        assert (await at.http.get("/v1/topics", headers=victim)).status_code == 200
        admit, silent = at.gateway.callers._admit, asyncio.Event()

        async def slowly(digest: bytes, token: str, host: str) -> object:
            if token.startswith("wrong"):
                await silent.wait()
            return await admit(digest, token, host)

        monkeypatch.setattr(at.gateway.callers, "_admit", slowly)
        lines = [await asyncio.open_connection("127.0.0.1", at.port) for _ in range(20)]
        for number, (_, writer) in enumerate(lines):
            writer.write(get("/v1/topics", f"Authorization: Bearer wrong-{number}"))
        turns = at.gateway.service.turns
        await until(lambda: turns.under_way == 4 and turns.waiting == 16)
        assert (await at.http.get("/v1/topics", headers=victim)).status_code == 200, "known, from the same host"
        away = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=at.url, timeout=60, transport=away) as http:
            assert (await http.get("/v1/topics", headers=newcomer)).status_code == 200, "unknown, from another host"
        assert (await at.http.get("/readyz")).status_code == 200, "public paths take turns apart from the others"
        silent.set()
        for _, writer in lines:
            writer.close()


@pytest.mark.parametrize(
    ("trusted", "expected"),
    [("127.0.0.0/8", ["host 198.51.100.1", "host 2001:db8::", "host 127.0.0.1"]), ("", ["host 127.0.0.1"] * 3)],
)
async def test_strangers_behind_a_proxy_take_turns_by_their_own_addresses(
    trusted: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All strangers of the proxy had the turns of one host. A header of a peer that is no trusted proxy moves none."""
    async with world(rules=True, trusted_proxies=trusted) as at:
        turns, examined = list[str](), list[str]()
        begin, one = at.gateway.service.turns.begin, at.gateway.callers._turns.one

        def noted(who: str, places: int, wait_s: float) -> object:
            turns.append(who)
            return begin(who, places, wait_s)

        def noted_too(who: str, wait_s: float) -> object:
            examined.append(f"host {who}")
            return one(who, wait_s)

        monkeypatch.setattr(at.gateway.service.turns, "begin", noted)
        monkeypatch.setattr(at.gateway.callers._turns, "one", noted_too)
        addresses = ("6.6.6.6, 198.51.100.1", "2001:db8::7", "nonsense")
        for number, forwarded in enumerate(addresses):
            headers = {"X-Forwarded-For": forwarded, "Authorization": f"Bearer wrong-{number}"}
            assert (await at.http.get("/v1/topics", headers=headers)).status_code == 401
        assert turns == examined == expected


async def test_wrong_tokens_of_a_host_do_not_hold_up_those_of_another() -> None:
    """Sixteen at a time were examined, in the order in which they came."""
    async with world(rules=True) as at:
        newcomer = await at.user("newcomer", "create,describe *")
        examined, silent = at.gateway.callers._turns, asyncio.Event()

        async def examine(number: int) -> None:
            async with examined.one("127.0.0.1", 600):
                await silent.wait()

        strangers = [asyncio.create_task(examine(number)) for number in range(100)]
        await until(lambda: examined.under_way == 8)
        away = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=at.url, timeout=60, transport=away) as http:
            assert (await http.get("/v1/topics", headers=newcomer)).status_code == 200
        silent.set()
        await asyncio.gather(*strangers)


async def test_who_waits_too_long_gets_429_before_its_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TURN_S_MAX", 0.2)
    async with world(rules=True, calls_max=2, body_timeout_ms=60_000) as at:
        mallory = await at.user("mallory", "create mine*")
        assert (await at.http.get("/v1/topics", headers=mallory)).status_code == 200
        [writer] = await held(at.port, 1, mallory["Authorization"])
        await until(lambda: at.gateway.service.turns.under_way == 1)
        refused = await raw(at.port, f"{SLOW_POST}Authorization: {mallory['Authorization']}\r\n\r\n".encode())
        assert status_of(refused) == 429
        assert b"retry-after: 1" in refused.lower()
        writer.transport.abort()


async def test_streams_and_waiting_reads_leave_their_places() -> None:
    async with world(calls_max=2) as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        turns = at.gateway.service.turns
        async with (
            at.http.stream("GET", "/v1/topics/t/events?from=earliest") as first,
            at.http.stream("GET", "/v1/topics/t/events?from=earliest") as second,
        ):
            assert {first.status_code, second.status_code} == {200}
            waiting = asyncio.create_task(at.http.get("/v1/topics/t/records?from=latest&wait_ms=30000"))
            await until(lambda: at.gateway.service.streams.count == 3)
            assert turns.under_way == 0
            stored = await at.http.post("/v1/topics/t/records", json={"records": [{"value": "x"}]})
            assert stored.status_code == 200
            assert (await waiting).status_code == 200


async def test_a_change_whose_caller_left_holds_its_place_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(calls_max=8) as at:
        turns, going_on = at.gateway.service.turns, asyncio.Event()
        changed = at.gateway.server._changed

        async def slowly(*given: object) -> object:
            await going_on.wait()
            return await changed(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(at.gateway.server, "_changed", slowly)
        _, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write((SLOW_POST + "\r\n" + '{"a": 1} ').encode())
        await until(lambda: turns.under_way == 1 and bool(at.gateway.server._changes))
        writer.transport.abort()
        await until(lambda: not at.gateway.server.connections)
        assert turns.under_way == 1
        going_on.set()
        await until(lambda: turns.under_way == 0)


async def test_a_host_takes_no_connections_of_others() -> None:
    """Those with a request under way are never closed, so one host could have all, and newcomers were closed."""
    async with world(connections_max=10, body_timeout_ms=600_000) as at:
        writers = await held(at.port, 5, "Bearer x")
        await until(lambda: at.gateway.service.turns.under_way == 5)
        more, further = await asyncio.open_connection("127.0.0.1", at.port)
        assert await more.read() == b"", "it has half, which all are busy"
        further.close()
        for host in ("127.0.0.2", "127.0.0.3"):
            away = httpx.AsyncHTTPTransport(local_address=host)
            async with httpx.AsyncClient(base_url=at.url, timeout=60, transport=away) as http:
                assert (await http.get("/livez")).status_code == 200
        for writer in writers:
            writer.transport.abort()
