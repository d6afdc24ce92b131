"""Several tabs of one browser, which has six connections to a host for all of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.test_flows import browsing, fill, show
from tests.gateway.world import world

pytestmark = [pytest.mark.console, pytest.mark.timeout(240)]

TABS = 6
SET_HIDDEN = """
(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}
"""
"""Headless Chromium takes every tab for a visible one."""


async def set_hidden(tab: Any, hidden: bool) -> None:
    await tab.evaluate(SET_HIDDEN, hidden)


async def test_hidden_tails_leave_their_connections_to_other_tabs_and_go_on_when_they_are_shown() -> None:
    async with world(console="read") as at, browsing() as (page, _):
        await fill(at, "before")
        tabs = [page, *[await page.context.new_page() for _ in range(TABS - 1)]]
        for number, tab in enumerate(tabs):
            await tab.goto(f"{at.url}/console#/topics/orders?live=1")
            await tab.wait_for_selector("text=Live: new records")
            if number == 0:
                await fill(at, "first of the tail")
                await tab.wait_for_selector("text=first of the tail")  # now it has a place
            await set_hidden(tab, True)
        await show(await page.context.new_page(), at, "topics/orders/partitions")
        await fill(at, "while it was hidden")
        await set_hidden(page, False)
        await page.wait_for_selector("text=while it was hidden")
        assert "are left out" not in await page.inner_text("[role=status]")
