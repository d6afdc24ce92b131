"""What browsers differ in: functions that older ones lack, and when they report that a link was followed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.console.test_flows import browsing, fill, show
from tests.console.test_tabs import set_hidden
from tests.gateway.world import world

pytestmark = [pytest.mark.console, pytest.mark.timeout(240)]

COUNT_LISTENERS = """
globalThis.listeners = 0;
for (const kind of [Document, AbortSignal]) {
  for (const [name, more] of [["addEventListener", 1], ["removeEventListener", -1]]) {
    const real = kind.prototype[name];
    kind.prototype[name] = function (...given) {
      globalThis.listeners += more;
      return real.apply(this, given);
    };
  }
}
"""
NEWER = "delete AbortSignal.any; delete globalThis.TextDecoderStream;"
"""AbortSignal.any came with Firefox 124; the console is built for Firefox 120."""
PRESS = """
async (keys) => {
  const press = (key) => document.activeElement.dispatchEvent(
    new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  for (const key of keys) {
    press(key);
    if (key === "Enter") document.activeElement.click();
  }
  await null;
  await null;
  press("/");
}
"""
"""Press keys, and then `/` before the browser has reported where they lead."""
LIVE = "text=Live: new records"


async def test_the_tail_needs_nothing_that_the_oldest_browsers_lack() -> None:
    async with world(console="read") as at, browsing() as (page, _):
        await page.add_init_script(NEWER)
        await fill(at, "before")
        await page.goto(f"{at.url}/console#/topics/orders?live=1")
        async with asyncio.timeout(20):
            while not await page.locator("text=of the tail").count():
                await fill(at, "of the tail")
                await asyncio.sleep(0.5)
        assert await page.locator(LIVE).count() == 1


async def test_a_tail_that_cannot_go_on_says_why_and_does_not_try_again() -> None:
    """An error of the page itself looked like a gateway that does not answer."""
    async with world(console="read") as at, browsing() as (page, seen):
        await page.add_init_script("TextDecoder.prototype.decode = () => { throw new Error('broken by the test'); };")
        await fill(at, "before")
        await page.goto(f"{at.url}/console#/topics/orders?live=1")
        await page.wait_for_selector("text=broken by the test")
        assert "The stream has ended" in await page.locator("[role=status]").first.inner_text()
        asked = [url for url in seen.calls if "/events" in url]
        await page.wait_for_timeout(2_500)  # longer than the pause after which it would connect again
        assert [url for url in seen.calls if "/events" in url] == asked
        assert len(asked) == 1


async def test_a_tail_hidden_and_shown_again_and_again_keeps_no_listener() -> None:
    async with world(console="read") as at, browsing() as (page, _):
        await page.add_init_script(COUNT_LISTENERS)
        await fill(at, "before")
        await page.goto(f"{at.url}/console#/topics/orders?live=1")
        await page.wait_for_selector(LIVE)
        before = await page.evaluate("listeners")
        for _ in range(10):
            await set_hidden(page, True)
            await page.wait_for_timeout(30)
            await set_hidden(page, False)
            await page.wait_for_selector(LIVE)
        assert await page.evaluate("listeners") == before
        await page.get_by_role("button", name="Stop").click()
        await page.wait_for_selector("text=before")
        assert await page.evaluate("listeners") < before


@pytest.mark.parametrize("leave", [("Enter",), ("g", "t")], ids=["a link", "a key"])
async def test_a_key_right_after_another_page_was_asked_for_meets_that_page(leave: tuple[str, ...]) -> None:
    """The topics' list has a search, and so has a topic; the first one must not take what is typed for the second."""
    async with world(console="read") as at, browsing() as (page, _):
        await fill(at, "a")

        async def slowly(route: Any) -> None:
            await asyncio.sleep(1)
            with suppress(Exception):  # the page no longer waits for it
                await route.continue_()

        await show(page, at, "topics" if leave == ("Enter",) else "topics/orders")
        await page.wait_for_selector("[data-row]")
        await page.route("**/v1/topics*", slowly)
        await page.route("**/v1/topics/orders*", slowly)
        await page.keyboard.press("j")
        old = await page.query_selector("[data-search]")
        await page.evaluate(PRESS, list(leave))
        assert old is not None
        assert not await old.evaluate("(each) => each === document.activeElement")
        await page.wait_for_selector("[data-search]:focus")
        assert page.url.endswith("#/topics/orders" if leave == ("Enter",) else "#/topics")
