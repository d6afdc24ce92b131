"""`ResilientStore`: bound the requests in flight, and retry what is safe to retry.

Reads, lists, deletes and fences are retried with back-off and jitter after StoreUncertain and
StoreThrottled. Puts are sent once: `settle` finds out whether one that failed has landed. Puts and
all other requests are admitted separately, so many readers cannot delay a put. A request that
pauses between two tries holds no place.

The retry loop is not a library's: the pause draws from the injected randomness and respects the
store's own wish, and a list resumes after the last key that it returned. A library would only save
the `for`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from ledger.object_store.admission import Admission
from ledger.object_store.contract import ObjectInfo, ObjectStore, StoreUncertain
from ledger.object_store.wrapper import PUTS, StoreWrapper
from ledgermq.runtime.backoff import backoff_s
from ledgermq.sources import Sources

IN_FLIGHT_MAX = 64
BYTES_IN_FLIGHT_MAX = 256 << 20
WAITING_MAX = 10_000
TRIES_MAX = 8
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 5.0

T = TypeVar("T")


class ResilientStore(StoreWrapper):
    """Admits `in_flight_max` requests and `bytes_in_flight_max` bytes of puts, and as many of all
    other requests.

    An operation that fails TRIES_MAX times raises its last error; one that finds WAITING_MAX others
    waiting raises ResourceExhausted.
    """

    def __init__(
        self,
        inner: ObjectStore,
        sources: Sources,
        in_flight_max: int = IN_FLIGHT_MAX,
        bytes_in_flight_max: int = BYTES_IN_FLIGHT_MAX,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        super().__init__(inner)
        self._random = sources.random
        self._puts = Admission(in_flight_max, bytes_in_flight_max, waiting_max)
        self._others = Admission(in_flight_max, bytes_in_flight_max, waiting_max)

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if operation in PUTS:
            async with self._puts.admit(bytes_known):
                return await step()
        tries = 0
        while True:
            try:
                async with self._others.admit(bytes_known):
                    return await step()
            except StoreUncertain as error:
                tries += 1
                await self._pause(tries, error)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        tries = 0
        while True:
            try:
                # Lists are few and their callers slow: they hold no place, each only a page at a
                # time.
                async for info in self.inner.list(prefix, start_after):
                    start_after, tries = info.key, 0
                    yield info
                return
            except StoreUncertain as error:
                tries += 1
                await self._pause(tries, error)

    async def _pause(self, tries: int, error: StoreUncertain) -> None:
        if tries >= TRIES_MAX:
            raise error
        pause_s = backoff_s(tries, PAUSE_FIRST_S, PAUSE_MAX_S, self._random)
        wished_s = min(PAUSE_MAX_S, (error.retry_after_ms or 0) / 1000)
        await asyncio.sleep(max(pause_s, wished_s))
