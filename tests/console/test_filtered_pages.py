"""The console's page of messages by tag, in a real Chromium, where none of the newest ones has it."""

from __future__ import annotations

import asyncio

import pytest

from tests.console.test_flows import WAIT_MS, browsing, show
from tests.gateway.world import world

pytestmark = [pytest.mark.console, pytest.mark.timeout(240)]


async def test_a_filter_that_nothing_has_passed_so_far_leads_further() -> None:
    """The page said that no records are here."""
    is_older = "each => each.textContent.startsWith('Older ')"
    async with world(console="read", page_bytes_max=2_000) as at, browsing() as (page, _):
        async with at.client() as client, client.producer() as producer:
            await client.create_topic("orders", 1, {"compression.type": "none"})
            await producer.send("orders", b"wanted", tag="eu")
            for number in range(300):
                producer.send("orders", bytes(1_000), tag="us")
                if number % 20 == 0:
                    await producer.flush()
        await show(page, at, "topics/orders?tags=eu")
        await page.get_by_text("Nothing that was looked at passes").wait_for()
        async with asyncio.timeout(WAIT_MS / 1000):
            while await page.locator("tbody [data-row]").count() != 1:
                await page.evaluate(f"[...document.querySelectorAll('button')].find({is_older})?.click()")
                await asyncio.sleep(0.05)
        assert "wanted" in await page.inner_text("tbody")
