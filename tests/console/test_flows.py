"""The console in a real Chromium: what operators do, what hostile messages may not, keys, axe, calls of each page."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import ledgermq
from ledgermq_gateway.console.cookies import COOKIE
from tests.gateway.test_operating import bury
from tests.gateway.world import World, world

pytestmark = [pytest.mark.console, pytest.mark.timeout(240)]

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WAIT_MS = 20_000
CALLS_MAX = 5
HOSTILE = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>',
    '"><svg onload=window.hacked=1>',
    "javascript:window.hacked=1",
    "\u202egnp.exe \u200b\u0000\x1b[31m",
    '{"__html": "<b>x</b>", "type": "script", "props": {"dangerouslySetInnerHTML": {"__html": "<img src=x>"}}}',
    "[" * 100_000,
)
PAGES = (
    *("", "topics", "topics/orders", "topics/orders/partitions", "topics/orders/settings", "topics/orders/groups"),
    *(
        "groups",
        "groups/billing",
        "queues",
        "letters",
        "letters/mailer",
        "timed",
        "transactions",
        "trace?id=orders:0:0",
        "lake",
        "access",
        "connections",
    ),
)


class Seen:
    """What a page has done. `errors`: lines that the browser reports, such as breaches of the policy."""

    def __init__(self, page: Any) -> None:
        self.calls: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.calls.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._said)

    def _said(self, line: Any) -> None:
        if line.type in ("error", "warning") and not re.search(r"status of (400|401|403|404|409|416)", line.text):
            self.errors.append(line.text)


@asynccontextmanager
async def browsing(**context: Any) -> AsyncIterator[tuple[Any, Seen]]:
    """Yield a page of a browser with an empty profile. At its end it must have reported no error."""
    api = pytest.importorskip("playwright.async_api")
    async with api.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = await (await browser.new_context(**context)).new_page()
            page.set_default_timeout(WAIT_MS)
            seen = Seen(page)
            yield page, seen
            assert not seen.errors
            assert await page.evaluate("window.hacked") is None
        finally:
            await browser.close()


def axe_script() -> str:
    return Path(os.environ["CONSOLE_AXE"]).read_text("utf-8")


async def show(page: Any, at: World, path: str) -> None:
    await page.goto("about:blank")
    await page.goto(f"{at.url}/console#/{path}")
    await page.wait_for_selector("h1")
    await page.wait_for_load_state("networkidle")


async def until_rows(page: Any, count: int) -> None:
    """Wait until the table has so many rows."""
    async with asyncio.timeout(WAIT_MS / 1000):
        while await page.locator("tbody tr").count() != count:
            await asyncio.sleep(0.05)


async def fill(at: World, *values: str, topic: str = "orders", secret: str = "") -> None:
    async with at.client(secret) as client:
        if topic not in {each.name for each in await client.list_topics()}:
            await client.create_topic(topic, 2)
        async with client.producer() as producer:
            for number, value in enumerate(values):
                await producer.send(topic, value, key=f"key-{number}")


async def commit(at: World, group: str, topic: str = "orders") -> None:
    async with at.client() as client:
        topic_id = (await client.describe_topic(topic)).topic_id
        await client.groups.commit(group, {ledgermq.TopicPartition(topic, 0): (topic_id, 1)})


async def test_a_message_is_found_by_its_key_and_its_place_stands_in_the_url() -> None:
    async with world(console="read") as at, browsing() as (page, _):
        await fill(at, *(json.dumps({"number": number, "big": 12345678901234567890}) for number in range(40)))
        await show(page, at, "topics/orders")
        await page.get_by_label("Key", exact=True).fill("key-7")
        await page.keyboard.press("Enter")
        await until_rows(page, 1)
        await page.click("[data-row]")
        await page.wait_for_selector(".tree")
        assert "12345678901234567890" in await page.inner_text(".tree"), "digits are those that were written"
        await page.get_by_role("button", name="Hex").click()
        assert "7b 22 6e 75 6d 62 65 72" in await page.inner_text("pre")
        await page.reload()
        await page.wait_for_selector(".tree")
        assert "key=key-7" in page.url


async def test_the_tail_shows_what_comes_and_stops() -> None:
    async with world(console="read") as at, browsing() as (page, _):
        await fill(at, "before")
        await show(page, at, "topics/orders")
        await page.get_by_role("button", name="Live").click()
        await page.wait_for_selector("text=Live: new records")
        await page.mouse.move(5, 5)
        await asyncio.sleep(0.5)
        await fill(at, *(f"live {number}" for number in range(100)))
        await until_rows(page, 100)
        await page.get_by_role("button", name="Stop").click()
        await page.wait_for_selector("text=before >> visible=true", state="detached")
        await fill(at, "after the stop")
        await page.get_by_role("button", name="Reload").click()
        await page.wait_for_selector("text=after the stop")


async def test_the_tail_of_many_partitions_follows_the_first_ones() -> None:
    async with world(console="read") as at, browsing() as (page, _), at.client() as client:
        await client.create_topic("wide", 257)
        await page.goto(f"{at.url}/console#/topics/wide?live=1")
        async with client.producer() as producer, asyncio.timeout(WAIT_MS / 1000):
            while not await page.locator("tbody tr").count():
                await producer.send("wide", "here", partition=3)
                await asyncio.sleep(0.5)


async def test_a_group_is_reset_to_what_the_preview_has_shown() -> None:
    async with world(console="write") as at, browsing() as (page, _):
        await fill(at, *map(str, range(20)))
        await commit(at, "billing")
        await show(page, at, "groups/billing")
        await page.get_by_role("button", name="Reset offsets…").click()
        await page.get_by_label("To", exact=True).select_option("latest")
        await page.get_by_role("button", name="Preview").click()
        await page.wait_for_selector("dialog tbody tr")
        assert await page.get_by_role("button", name="Reset", exact=True).is_disabled(), "its name is not typed yet"
        await page.get_by_label("Type billing to confirm").fill("billing")
        await page.get_by_role("button", name="Reset", exact=True).click()
        await page.wait_for_selector("dialog", state="detached")
        await page.wait_for_selector("text=billing is 0 behind")


async def test_a_reset_stops_where_the_group_has_moved_since_the_preview() -> None:
    async with world(console="write") as at, browsing() as (page, _):
        await fill(at, *map(str, range(20)))
        await commit(at, "billing")
        await show(page, at, "groups/billing")
        await page.get_by_role("button", name="Reset offsets…").click()
        await page.get_by_role("button", name="Preview").click()
        await page.wait_for_selector("dialog tbody tr")
        async with at.client() as client:
            topic_id = (await client.describe_topic("orders")).topic_id
            await client.groups.commit("billing", {ledgermq.TopicPartition("orders", 0): (topic_id, 2)})
        await page.get_by_label("Type billing to confirm").fill("billing")
        await page.get_by_role("button", name="Reset", exact=True).click()
        await page.wait_for_selector("text=stands at 2 by now, not at 1")


async def test_dead_letters_are_redriven_as_previewed_and_dropped_by_name() -> None:
    async with world(console="write") as at, browsing() as (page, _):
        await bury(at, "mailer", 4)
        await show(page, at, "letters/mailer")
        await page.get_by_label("Choose 0:1").check()
        await page.get_by_role("button", name="Redrive 1…").click()
        await page.wait_for_selector("dialog >> text=timed out")
        await page.get_by_role("button", name="Redrive 1", exact=True).click()
        await page.wait_for_selector("dialog", state="detached")
        await page.reload()
        await until_rows(page, 3)
        await page.get_by_label("Choose 0:2").check()
        await page.get_by_role("button", name="Drop 1…").click()
        await page.get_by_label("Type mailer to confirm").fill("mailer")
        await page.get_by_role("button", name="Drop 1", exact=True).click()
        await page.wait_for_selector("dialog", state="detached")
        await page.reload()
        await until_rows(page, 2)


async def test_who_may_not_sees_no_buttons_and_a_session_that_ends_leads_back() -> None:
    async with world(console="write", rules=True) as at, browsing() as (page, _):
        root = (await at.user("root"))["Authorization"].removeprefix("Bearer ")
        await fill(at, "a", "b", secret=root)
        alice = (await at.user("alice", "describe,consume orders"))["Authorization"].removeprefix("Bearer ")

        async def sign_in(token: str) -> None:
            await page.get_by_label("Token").fill(token)
            await page.get_by_role("button", name="Sign in").click()

        await page.goto(f"{at.url}/console#/topics/orders/settings")
        await sign_in("lmq_wrong")
        await page.wait_for_selector("[role=alert]")
        await sign_in(alice)
        await page.wait_for_selector("text=No setting was set")
        assert await page.get_by_role("button", name="Delete topic…").count() == 0
        assert await page.get_by_role("link", name="Connections").count() == 0
        assert await page.evaluate("document.cookie") == "", "scripts cannot read the cookie"
        [cookie] = await page.context.cookies()
        assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
        assert alice not in cookie["value"]
        async with at.client(root) as client:
            [mine] = [each for each in await client.access.list_tokens() if each.user == "alice"]
            await client.access.revoke_token(mine.token_id)
        await page.get_by_role("link", name="Groups").last.click()
        await page.wait_for_selector("text=Sign in")
        await sign_in(root)
        await page.wait_for_selector("text=No group has committed offsets")
        assert page.url.endswith("#/topics/orders/groups")
        await page.get_by_role("link", name="Settings").click()
        await page.get_by_role("button", name="Delete topic…").click()
        await page.get_by_label("Type orders to confirm").fill("orders")
        await page.get_by_role("button", name="Delete", exact=True).click()
        await page.wait_for_selector("text=There is no topic")


async def test_a_cookie_of_another_gateway_does_not_lock_an_open_cluster() -> None:
    """Cookies know no ports: a gateway on another port of this machine has made it."""
    async with world(console="read") as at, browsing() as (page, _):
        planted = {"name": COOKIE, "value": "other", "secure": True, "httpOnly": True, "sameSite": "Strict"}
        await page.context.add_cookies([planted | {"domain": "127.0.0.1", "path": "/"}])
        await show(page, at, "topics")
        await page.wait_for_selector("text=There is no topic")
        assert await page.context.cookies() == []


async def test_a_token_too_long_for_a_cookie_counts_beside_an_old_cookie(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(console="read", rules=True) as at, browsing() as (page, _):
        root = (await at.user("root"))["Authorization"].removeprefix("Bearer ")
        await page.goto(f"{at.url}/console#/topics")
        await page.wait_for_selector("text=Sign in")
        planted = {"name": COOKIE, "value": "old", "secure": True, "httpOnly": True, "sameSite": "Strict"}
        await page.context.add_cookies([planted | {"domain": "127.0.0.1", "path": "/"}])
        monkeypatch.setattr("ledgermq_gateway.console.cookies.TOKEN_CHARS_MAX", len(root) - 1)
        await page.get_by_label("Token").fill(root)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_selector("text=The token is too long for a cookie")
        await page.get_by_role("button", name="Sign out").click()
        await page.wait_for_selector("text=You have signed out")


async def test_a_page_shows_what_takes_longer_than_its_pause() -> None:
    """A broker that hangs makes these answers slow, and that is when operators look."""
    async with world(console="read") as at, browsing() as (page, _):
        await fill(at, "a", "b", "c", "d")
        await commit(at, "billing")

        async def slowly(route: Any) -> None:
            await asyncio.sleep(7)
            with suppress(Exception):  # the page no longer waits for it
                await route.continue_()

        await page.route("**/v1/lags*", slowly)
        await page.goto(f"{at.url}/console#/groups")  # it asks for lags every five seconds
        await page.wait_for_selector("[data-row]")
        async with asyncio.timeout(WAIT_MS / 1000):
            while "–" in await page.inner_text("tbody tr td:nth-child(4)"):
                await asyncio.sleep(0.05)


async def test_what_producers_write_never_becomes_markup() -> None:
    async with world(console="write") as at, browsing() as (page, _):
        await fill(at, "a")
        await bury(at, "mailer", 1)
        async with at.client() as client, client.producer() as producer:
            for value in HOSTILE:
                short = value[:200]
                headers = [(short.replace("\x00", "")[:60], value[:4000].encode())]
                await producer.send("orders", value, key=short, tag="<b>tag</b>", headers=headers, partition=0)
            await client.alter_topic("orders", settings={"retention.ms": 86_400_000})
        for path in ("topics/orders", "letters/mailer", "topics/mailer.dlq"):
            await show(page, at, path)
            for number in range(await page.locator("[data-row]").count()):
                await page.locator("[data-row]").nth(number).click()
                await page.wait_for_selector(".panel")
                for kind in ("Text", "Hex", "Tree"):
                    if await page.get_by_role("button", name=kind, exact=True).count():
                        await page.get_by_role("button", name=kind, exact=True).click()
                text = await page.inner_text("main")
                assert "\u202e" not in text
                assert "\u200b" not in text
                await page.locator("[data-row]").nth(number).click()
            made = "main img, main script, main svg, main b, main iframe, main a[href^='javascript']"
            assert await page.locator(made).count() == 0
        hostile = '"><img src=x onerror=window.hacked=1>'
        pages = ("topics/{}", "groups/{}", "topics?prefix={}", "x{}")
        for path in (*(each.format(hostile) for each in pages), "%E0%A4%A", "groups/.."):
            await show(page, at, path)
            assert await page.locator("main img").count() == 0


async def test_each_page_makes_few_calls_and_reports_no_error() -> None:
    async with world(console="write") as at, browsing() as (page, seen):
        await fill(at, *map(str, range(60)))
        for number in range(12):
            await commit(at, f"group-{number}")
        await commit(at, "billing")
        await bury(at, "mailer", 3)
        for path in PAGES:
            await page.goto("about:blank")
            await page.goto(f"{at.url}/console#/{path}")
            await page.wait_for_selector("h1")
            await page.wait_for_timeout(900)  # shorter than the pause after which a page asks again
            calls = [url for url in seen.calls if "/v1/" in url or "/console/rights" in url]
            assert 1 <= len(calls) <= CALLS_MAX, (path, calls)
            assert all(url.startswith(at.url) for url in seen.calls if url != "about:blank"), "no other host"
            seen.calls.clear()


async def test_keys_lead_through_the_pages_and_can_be_switched_off() -> None:
    async with world(console="read") as at, browsing() as (page, _):
        await fill(at, "a")
        await show(page, at, "")
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        await page.wait_for_selector("a[data-row]")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", level=1).filter(has_text="orders").wait_for()  # the list has a search, too
        await page.wait_for_selector("[data-search]")
        assert page.url.endswith("#/topics/orders")
        await page.keyboard.press("/")
        await page.wait_for_selector("[data-search]:focus")
        await page.keyboard.press("Escape")
        await page.locator("h1").click()
        await page.keyboard.press("?")
        await page.get_by_label("Keys are on").uncheck()
        await page.get_by_role("button", name="Close").click()
        await page.keyboard.press("g")
        await page.keyboard.press("g")
        await page.wait_for_timeout(300)
        assert page.url.endswith("#/topics/orders")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing(scheme: str) -> None:
    axe = axe_script()
    context = {"color_scheme": scheme, "viewport": {"width": 390, "height": 844}}
    async with world(console="write") as at, browsing(**context) as (page, _):
        await fill(at, '{"a": [1, {"b": "c"}]}', "text")
        await commit(at, "billing")
        await bury(at, "mailer", 2)
        for path in PAGES:
            await show(page, at, path)
            if path in ("topics/orders", "letters/mailer"):
                await page.locator("[data-row]").first.click()
                await page.wait_for_selector(".panel")
            await page.evaluate(axe)
            found = await page.evaluate("axe.run()")
            shown = [(each["id"], [node["html"][:120] for node in each["nodes"][:3]]) for each in found["violations"]]
            assert not shown, (path, shown)
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, f"{path}: the page is {width} px wide"
