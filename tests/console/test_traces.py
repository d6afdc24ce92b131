"""The console's page of a trace, in a real Chromium."""

from __future__ import annotations

import re

import pytest

from tests.console.test_flows import browsing, commit, show
from tests.gateway.test_operating import bury
from tests.gateway.world import world

pytestmark = [pytest.mark.console, pytest.mark.timeout(240)]


async def test_a_message_is_traced_to_its_readers_and_its_copies() -> None:
    async with world(console="read") as at, browsing() as (page, _):
        await bury(at, "mailer", 2)
        await commit(at, "mailer", "mails")
        await show(page, at, "topics/mails")
        await page.get_by_role("button", name="0", exact=True).click()
        await page.get_by_role("link", name="Trace", exact=True).last.click()
        await page.wait_for_selector("section[aria-label=Copies] a")
        readers = await page.inner_text("section[aria-label=Readers]")
        assert re.search(r"mailer\s+read\s+1", readers), readers
        copies = await page.inner_text("section[aria-label=Copies]")
        assert "dead letter" in copies
        assert "ValueError: poison" in copies
        assert "mail 0" in await page.inner_text("section[aria-label=Message]")
        await page.get_by_role("link", name="mailer.dlq:0:0").click()
        await page.wait_for_selector("text=No retry topic and no dead-letter topic has a copy.")
        assert page.url.endswith("#/trace?id=mailer.dlq%3A0%3A0")
        await show(page, at, "letters/mailer")
        await page.get_by_role("link", name="mails:0:1").click()
        await page.wait_for_selector("text=TimeoutError: timed out")
        assert re.search(r"mailer\s+not read", await page.inner_text("section[aria-label=Readers]"))
        for wrong, text in (("mails", "is not the id of a message"), ("mails:0:99", "mails"), ("none:0:0", "none")):
            await page.get_by_label("Message (topic:partition:offset)").fill(wrong)
            await page.keyboard.press("Enter")
            await page.wait_for_selector(f".note.bad >> text={text}")
