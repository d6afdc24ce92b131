"""A gateway whose machine has a wrong clock: all that goes by the time of day goes by the brokers'."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from ledgermq.errors import Unavailable
from ledgermq.sources import Sources
from ledgermq_gateway.admin_port import admin_port
from ledgermq_gateway.cluster import clock as clocks
from ledgermq_gateway.cluster.clock import ClusterClock
from tests.gateway.test_events import listening, next_data
from tests.gateway.world import World, world

HOUR_S = 3600.0
NEAR = timedelta(minutes=2)
"""A machine that is five times slower takes less for a test."""
both_ways = pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S])


def machine(off_s: float) -> Sources:
    """Sources of a machine whose clock is ahead by so many seconds."""
    return Sources(lambda: time.time_ns() // 1000 + round(off_s * 1e6))


async def opened(at: World, *, rules: bool = False) -> dict[str, str]:
    """Make the topic, and return headers of a caller who may use it."""
    who = await at.user("alice", "produce,consume,describe,create,delete t") if rules else {}
    made = await at.http.post("/v1/topics", json={"name": "t", "partitions": 1}, headers=who)
    assert made.status_code == 201, made.text
    return who


async def put(at: World, who: dict[str, str], *records: dict[str, Any]) -> None:
    stored = await at.http.post("/v1/topics/t/records", json={"records": records}, headers=who)
    assert stored.status_code == 200, stored.text


async def values(at: World, who: dict[str, str], begin: str) -> Sequence[str]:
    page = await at.http.get(f"/v1/topics/t/records?values=text&from={begin}", headers=who)
    assert page.status_code == 200, page.text
    return [record["value"] for record in page.json()["records"]]


@both_ways
@pytest.mark.parametrize("rules", [False, True])
async def test_records_and_ages_go_by_the_brokers_time(off_s: float, rules: bool) -> None:
    """Already those of a caller's first request."""
    async with world(rules=rules, machine=machine(off_s)) as at:
        who = await opened(at, rules=rules)
        earlier = datetime.now(UTC) - timedelta(minutes=30)
        await put(at, who, {"value": "earlier", "timestamp": earlier.isoformat()}, {"value": "now"})
        page = (await at.http.get("/v1/topics/t/records?from=earliest", headers=who)).json()
        stamped = datetime.fromisoformat(page["records"][1]["timestamp"])
        assert abs(stamped - datetime.now(UTC)) < NEAR
        assert await values(at, who, "10m") == ["now"]
        assert await values(at, who, "50m") == ["earlier", "now"]


@both_ways
async def test_delays_and_times_to_live_go_by_the_brokers_time(off_s: float) -> None:
    async with world(machine=machine(off_s)) as at:
        await opened(at)
        begun_s = time.monotonic()
        await put(
            at,
            {},
            {"value": "over", "ttl_ms": 1},
            {"value": "lasts", "ttl_ms": 600_000},
            {"value": "late", "delay_ms": 1_500},
        )
        await asyncio.sleep(0.01)  # the first one is over by now
        async with listening(at, "/v1/topics/t/events?from=earliest") as found, asyncio.timeout(60):
            assert (await next_data(found)).data["value"] == "lasts"
            event = await next_data(found)
            assert event.data["value"] == "late"
            assert time.monotonic() - begun_s >= 1.4
        async with at.client() as native, native.consumer("t", start="earliest") as consumer, asyncio.timeout(60):
            assert (await anext(consumer)).value == b"lasts", "a reader with a right clock sees the same"


@both_ways
async def test_an_operator_learns_of_it(off_s: float) -> None:
    async with world(machine=machine(off_s), admin_port=0) as at, admin_port(at.gateway) as port:
        await opened(at)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as admin:
            ready = await admin.get("/readyz")
            metrics = (await admin.get("/metrics")).text
        assert (ready.status_code, ready.json()["ready"]) == (200, True)
        [note] = ready.json()["notes"]
        assert ("ahead of" if off_s > 0 else "behind") in note
        [line] = [line for line in metrics.splitlines() if line.startswith("ledgermq_gateway_clock_ahead_seconds")]
        assert abs(float(line.split()[1]) - off_s) < NEAR.total_seconds()
    async with world(admin_port=0) as at:
        await opened(at)
        assert at.gateway.notes() == []


class Reporting:
    """A client whose broker reports these times, each after so many seconds; None: it has none, an error: it fails."""

    def __init__(self, *answers: tuple[float, Any]) -> None:
        self.answers = list(answers)

    async def cluster_time(self) -> datetime | None:
        after_s, answer = self.answers.pop(0)
        await asyncio.sleep(after_s)
        if isinstance(answer, Exception):
            raise answer
        return None if answer is None else datetime.fromtimestamp(answer, UTC)


async def test_the_time_is_asked_for_until_it_is_known_and_again_when_it_is_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clocks, "OLD_S", 0.0)
    monkeypatch.setattr(clocks, "AGAIN_S", 0.0)
    made = ClusterClock(Sources(lambda: 1_000_000_000))
    reporting = Reporting((0, Unavailable("none")), (0, None), (0, 5_000.0), (0.2, 9_000.0), (0, 7_000.0))
    for number in range(2):
        await made.refresh(reporting)  # type: ignore[arg-type]  # it needs the time alone
        assert (made.ahead_s, made.sources.now_us() // 10**6, number) == (0.0, 1_000, number)
    for expected_s in (5_000, 5_000, 7_000):  # the second answer took long, so it says less than what is known
        await made.refresh(reporting)  # type: ignore[arg-type]  # as above
        assert expected_s <= made.sources.now_us() / 1e6 < expected_s + 60
    assert not reporting.answers
    monkeypatch.undo()
    await made.refresh(Reporting((0, 8_000.0)))  # type: ignore[arg-type]  # as above
    await made.refresh(Reporting())  # type: ignore[arg-type]  # it is not old, so nothing is asked
