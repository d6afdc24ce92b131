"""Times on the console's pages, in browsers of several time zones whose machines have a wrong clock (hole 39)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.console.test_flows import browsing, show
from tests.gateway.test_clock import machine
from tests.gateway.world import World, world

pytestmark = [pytest.mark.console, pytest.mark.timeout(240)]

HOUR_S = 3600
ZONES = ("Pacific/Kiritimati", "America/St_Johns")
"""UTC+14:00, and UTC-03:30 with summer time."""
FAKE_CLOCK = """
const RealDate = Date;
globalThis.Date = class extends RealDate {
  constructor(...given) { given.length ? super(...given) : super(RealDate.now() + AHEAD); }
  static now() { return RealDate.now() + AHEAD; }
};
"""
SUMMER_TIME_BEGINS = datetime(2026, 3, 8, 5, 30, tzinfo=UTC)
"""The time 02:00 follows on 01:59 in St. John's: a day of 23 hours."""


async def fill(at: World) -> datetime:
    """Write one record of now and one of the hour that St. John's lacks; return the time of the first one."""
    written = datetime.now(UTC)
    async with at.client() as client:
        await client.create_topic("orders", 1)
        async with client.producer() as producer:
            await producer.send("orders", "of the lost hour", timestamp=SUMMER_TIME_BEGINS)
            await producer.send("orders", "of now", timestamp=written)
    return written


async def times_of(page: Any, at: World, path: str) -> list[tuple[str, str]]:
    """Return what stands in each row's first cell, and its title."""
    await show(page, at, path)
    await page.wait_for_selector("tbody time")
    found = await page.locator("tbody time").all()
    return [(await each.inner_text(), await each.get_attribute("title")) for each in found]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("browser_ahead_s", [25 * HOUR_S, -25 * HOUR_S])
async def test_pages_show_utc_and_ages_by_the_brokers_time(zone: str, browser_ahead_s: int) -> None:
    """The gateway's machine has a wrong clock, too, by another difference."""
    off = machine(float(-browser_ahead_s // 5))
    async with world(console="read", machine=off) as at, browsing(timezone_id=zone) as (page, _):
        await page.add_init_script(f"const AHEAD = {browser_ahead_s * 1000};{FAKE_CLOCK}")
        written = await fill(at)
        [(age, title), (old_age, old_title)] = await times_of(page, at, "topics/orders")
        assert await page.evaluate("new Date().getTimezoneOffset()") in (-840, 150, 210), "the browser has the zone"
        assert abs(await page.evaluate("Date.now()") / 1000 - written.timestamp() - browser_ahead_s) < HOUR_S
        assert re.fullmatch(r"\d+ s ago|[1-3] min ago", age), age
        assert title == f"{written:%Y-%m-%d %H:%M:%S}.{written.microsecond // 1000:03} UTC"
        assert old_title == "2026-03-08 05:30:00.000 UTC"
        assert old_age == f"{(datetime.now(UTC) - SUMMER_TIME_BEGINS).days} d ago"
        # What is typed means the same everywhere: an age counts from the brokers' time, a time names its zone.
        assert len(await times_of(page, at, "topics/orders?from=30m")) == 1
        begin = (written - timedelta(minutes=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
        assert len(await times_of(page, at, f"topics/orders?from={begin}")) == 1
        await show(page, at, f"topics/orders?from={begin[:-1]}")
        assert "zone" in await page.inner_text("[role=status]")
