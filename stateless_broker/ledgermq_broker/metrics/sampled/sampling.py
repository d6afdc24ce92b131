"""Sample metrics in the background that are too dear for a scrape, while the process runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ledgermq_broker.logs import get_logger

EVERY_S = 15.0
PAIRS_MAX = 200
"""Pairs of a group and a topic that have a label each, at most."""
PARTITIONS_MAX = 5000
"""Partitions that one sample looks at, at most."""

log = get_logger(__name__)


async def sample_on(sample: Callable[[], Awaitable[None]], what: str) -> None:
    """Sample until cancelled. `what`: for the log, where a sample fails."""
    while True:
        try:
            await sample()
        except Exception:  # a broker works without its metrics, too
            log.exception("metric not sampled", metric=what)
        await asyncio.sleep(EVERY_S)
