"""Settle conditional puts: won, lost, or unknown (design S1).

A put without a clear success has an open outcome: "exists" may mean this very put, sent twice; one
that timed out may have landed. The object itself decides. Every object that is put this way ends
with its last buffer, which holds a put id drawn for that put. So the end of the object at the key
shows whose it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from functools import partial

from ledgermq.errors import LedgerMQError
from ledgermq.runtime.backoff import backoff_s
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import AlreadyExists, Buffer, ObjectStore, StoreUncertain

ATTEMPTS_MAX = 12
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 10.0
LATENCY_SAMPLES = 128
LATENCY_SAMPLES_MIN = 32
HEDGED_ABOVE = 0.95
"""Share of recent puts that were faster than one that is sent a second time. All later segments wait for it, so a
fifteenth more PUTs takes a tenth from the ninety-ninth percentile of acknowledgements (decision 93).
"""
HEDGE_MIN_S = 0.05


class PutOutcome(Enum):
    """WON: this put's object is there, durable.

    LOST: another put's is. UNKNOWN: the store did not answer within the attempts.
    """

    WON = 1
    LOST = 2
    UNKNOWN = 3


class PutLatency:
    """Decides when to send a put a second time: after a high percentile of the store's
    recent puts (`HEDGED_ABOVE`).
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=LATENCY_SAMPLES)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def hedge_after_s(self) -> float | None:
        """Return the delay before a second put, or None until there are enough measurements.

        Never below HEDGE_MIN_S: on a fast store a second put would only add load.
        """
        if len(self._seconds) < LATENCY_SAMPLES_MIN:
            return None
        ranked = sorted(self._seconds)
        return max(HEDGE_MIN_S, ranked[int(len(ranked) * HEDGED_ABOVE)])


async def settle_put(
    store: ObjectStore,
    key: str,
    buffers: Sequence[Buffer],
    *,
    sources: Sources,
    hedge_after_s: float | None = None,
    is_data: bool = False,
) -> PutOutcome:
    """Put `buffers` at `key` unless an object is there, and find out the outcome.

    The last buffer holds the put id. A put that takes longer than `hedge_after_s` is sent a second
    time beside the first; it is the same object, so it does not matter which one lands. `is_data`:
    it may not use the store's reserve. Raises StoreFull, StoreUnusable and Unauthorized only if
    nothing was put: after a try that may have landed, they are as uncertain as any other error.
    """
    put = partial(store.put_data if is_data else store.put_if_absent, key, buffers)
    may_have_landed = False
    for attempt in range(ATTEMPTS_MAX):
        try:
            await _put_hedged(put, key, hedge_after_s)
            return PutOutcome.WON
        except (AlreadyExists, StoreUncertain):
            may_have_landed = True
        except LedgerMQError:
            if not may_have_landed:
                raise
        outcome = await _look(store, key, buffers)
        if outcome is not PutOutcome.UNKNOWN:
            return outcome
        if attempt + 1 < ATTEMPTS_MAX:
            await pause_before_retry(attempt, sources)
    return PutOutcome.UNKNOWN


async def pause_before_retry(attempt: int, sources: Sources) -> None:
    """Pause after try `attempt` of a put, counted from 0."""
    await asyncio.sleep(backoff_s(attempt, BACKOFF_FIRST_S, BACKOFF_MAX_S, sources.random))


async def _put_hedged(put: Callable[[], Coroutine[None, None, None]], key: str, hedge_after_s: float | None) -> None:
    if hedge_after_s is None:
        await put()
        return
    puts = [asyncio.create_task(put(), name=f"put {key}")]
    try:
        await asyncio.wait(puts, timeout=hedge_after_s)
        if not puts[0].done():
            puts.append(asyncio.create_task(put(), name=f"hedged put {key}"))
        while not _is_decided(puts):
            await asyncio.wait([each for each in puts if not each.done()], return_when=asyncio.FIRST_COMPLETED)
        ended = [each for each in puts if each.done()]
        failures = [error for each in ended if (error := each.exception()) is not None]
        if len(failures) == len(ended):  # a final error counts only where no put of the two may have landed
            raise next((error for error in failures if isinstance(error, (AlreadyExists, StoreUncertain))), failures[0])
    finally:
        late = [each for each in puts if each.cancel()]
        for each in puts:
            if each.done() and not each.cancelled():
                each.exception()  # raised above, or no caller waits any longer
        if late:  # await only if needed: each record's acknowledgement passes here
            await asyncio.gather(*late, return_exceptions=True)


def _is_decided(puts: Sequence[asyncio.Task[None]]) -> bool:
    """Return True if one put has created or found the object, or both have failed otherwise."""
    return all(put.done() for put in puts) or any(
        put.done() and (put.exception() is None or isinstance(put.exception(), AlreadyExists)) for put in puts
    )


async def _look(store: ObjectStore, key: str, buffers: Sequence[Buffer]) -> PutOutcome:
    """Return whose object is at `key`. UNKNOWN: none is there now (a put may still be in flight),
    or the store does not answer.
    """
    ending = bytes(buffers[-1])
    try:
        found = await store.get_suffix(key, len(ending))
        return PutOutcome.WON if found == ending and await store.confirm(key, buffers) else PutOutcome.LOST
    except LedgerMQError:
        return PutOutcome.UNKNOWN
