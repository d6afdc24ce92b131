"""G8: pages of the console in a real Chromium, on 1,000 topics of 10 partitions and 500 groups (`bench.large_root`).

One broker on local files, a gateway with its defaults, and the browser share the machine. A page counts from the
navigation until the last change of the document that its first calls make: every call is answered, and everything is
drawn. Before each page the last look at lags has become old, so that every page waits for a fresh one. `python -m
bench.console 2` measures two rounds, and prints the calls of each page.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledgermq
from bench.gateway import GATEWAY, gateway_of
from bench.large_root import BUSY_TOPIC, TIMEOUT_S, fill, topic_names
from bench.measures import Results
from bench.ours import Cluster
from infra.console_browser import provided
from tests.console.test_flows import CHROMIUM, FLAGS

ROW = "G8"
PAGES = {
    "Overview": "",
    "Topics": "topics",
    "Topics by prefix": "topics?prefix=shop-09",
    "Messages": f"topics/{BUSY_TOPIC}",
    "Messages by key": f"topics/{BUSY_TOPIC}?key=table-7",
    "Partitions of a topic": f"topics/{topic_names()[7]}/partitions",
    "Groups of a topic": f"topics/{topic_names()[7]}/groups",
    "Groups": "groups",
    "A group": "groups/reader-007",
    "Queues": "queues",
    "Dead letters": "letters",
    "Timed": "timed",
    "Transactions": "transactions",
    "Trace": f"trace?id={BUSY_TOPIC}:0:17",
    "Lake": "lake",
    "Access": "access",
    "Connections": "connections",
}
SLOWEST = "the slowest page"
WAIT_MS = 60_000
REST_S = 1.5
"""A look at lags is older than its pause by then: ten times as long as it takes, a second at least."""
WATCH = """
window.changed = 0;
new MutationObserver(() => { window.changed = performance.now(); })
  .observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
"""
CALLS = """
() => performance.getEntriesByType("resource").filter((each) => /\\/v1\\/|\\/console\\//.test(each.name))
  .map((each) => [each.name.replace(location.origin, ""), each.responseEnd - each.startTime, each.transferSize])
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """`took_ms`: until the page is whole. `calls`: path, ms and bytes of each."""

    took_ms: float
    calls: list[tuple[str, float, int]]


class Console:
    """Measure how long pages take. `scale`: share of the topics and groups."""

    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._scale = results, rounds, scale

    def run(self) -> None:
        sys.path.insert(0, provided()["PYTHONPATH"])
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
            folder = Path(name)
            (folder / "root").mkdir()
            with closing(Cluster(folder, (folder / "root").as_uri(), 1)) as cluster:
                asyncio.run(self._fill(cluster))
                with gateway_of(folder, cluster.brokers.addresses, "--console=read") as gateway:
                    self._browse(gateway.url)

    async def _fill(self, cluster: Cluster) -> None:
        async with ledgermq.connect(cluster.brokers.addresses, timeout_s=TIMEOUT_S) as client:
            await fill(client, int(1_000 * self._scale), int(500 * self._scale))

    def _browse(self, url: str) -> None:
        with importlib.import_module("playwright.sync_api").sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page()
            page.set_default_timeout(WAIT_MS)
            page.add_init_script(WATCH)
            show(page, url, "")  # warm: the browser has compiled the script
            for _ in range(self._rounds):
                took = {name: self._shown(page, url, name) for name in PAGES}
                self._results.add(ROW, SLOWEST, GATEWAY, "ms", max(took.values()))
            browser.close()

    def _shown(self, page: Any, url: str, name: str) -> float:
        time.sleep(REST_S)
        shown = show(page, url, PAGES[name])
        self._results.add(ROW, f"page {name}", GATEWAY, "ms", shown.took_ms)
        for path, took_ms, size in sorted(shown.calls, key=lambda call: -call[1]):
            print(f"      {path[:100]:100} {took_ms:8.0f} ms {size / 1024:8.1f} KiB", file=sys.stderr)
        return shown.took_ms


def show(page: Any, url: str, path: str) -> Shown:
    """Open a page, and wait until it is whole. Raises the driver's TimeoutError."""
    page.goto("about:blank")
    page.goto(f"{url}/console#/{path}")
    page.wait_for_selector("h1")
    page.wait_for_load_state("networkidle")
    return Shown(page.evaluate("window.changed"), [tuple(call) for call in page.evaluate(CALLS)])


if __name__ == "__main__":
    Console(Results.begin(), int(sys.argv[1]), 1.0).run()
