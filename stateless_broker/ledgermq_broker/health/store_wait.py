"""Wait at the start while the store is down: log the reason, continue when it answers.

Errors that waiting cannot fix are raised at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ledgermq.errors import RetriableError
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources
from ledgermq_broker.health.readiness import Health
from ledgermq_broker.logs import get_logger

PAUSE_FIRST_S, PAUSE_S_MAX = 0.5, 10.0

T = TypeVar("T")

log = get_logger(__name__)


async def when_store_answers(step: Callable[[], Awaitable[T]], url: str, health: Health, sources: Sources) -> T:
    """Return the result of `step`, which is repeated for as long as necessary.

    Raises what is not retriable: wrong credentials, no such bucket, damage.
    """
    backoff = Backoff(sources, PAUSE_FIRST_S, PAUSE_S_MAX)
    begun_s = asyncio.get_running_loop().time()
    while True:
        try:
            return await step()
        except RetriableError as error:
            pause_s = backoff.next_s()
            waited_s = round(asyncio.get_running_loop().time() - begun_s, 1)
            health.waits(f"waiting for the object store {url}, for {waited_s} s so far: {error.message}")
            log.warning(
                "waiting for the object store",
                root=url,
                waited_s=waited_s,
                retry_s=round(pause_s, 1),
                error=error.message,
            )
        await asyncio.sleep(pause_s)
