"""Conditional puts, settled: won, lost, or not to be told (design S1).

A put that did not simply succeed is a question: "exists" may be this very put, tried twice; a
time-out may have landed. The object itself answers. Every object that is put this way ends with its
last buffer, and that buffer holds a put id that is drawn anew for each put, so the end of what
stands at the key says whose it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from functools import partial

from ledger.object_store.contract import AlreadyExists, Buffer, ObjectStore, StoreUncertain
from ledgermq.errors import LedgerMQError
from ledgermq.runtime.backoff import backoff_s
from ledgermq.sources import Sources

ATTEMPTS_MAX = 12
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 10.0


class PutOutcome(Enum):
    """WON: our object is there, durable.

    LOST: another's is. UNKNOWN: the store did not let us tell within the attempts.
    """

    WON = 1
    LOST = 2
    UNKNOWN = 3


async def settle_put(
    store: ObjectStore,
    key: str,
    buffers: Sequence[Buffer],
    *,
    sources: Sources,
    hedge_after_s: float | None = None,
    is_data: bool = False,
) -> PutOutcome:
    """Put `buffers` at `key` unless something is there, and find out what became of it.

    The last buffer holds the put id. A put that takes longer than `hedge_after_s` is sent a second
    time beside the first, the same object, so it does not matter which lands. `is_data`: it may not
    use the store's reserve. Raises StoreFull, StoreUnusable and Unauthorized only where nothing was
    put: after a try that may have landed they are as uncertain as all else.
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
    """After try `attempt`, counted from 0, of a put."""
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
        while not _is_told(puts):
            await asyncio.wait([each for each in puts if not each.done()], return_when=asyncio.FIRST_COMPLETED)
        ended = [each for each in puts if each.done()]
        failures = [error for each in ended if (error := each.exception()) is not None]
        if len(failures) == len(ended):  # a final error counts only where no put of the two may have landed
            raise next((error for error in failures if isinstance(error, (AlreadyExists, StoreUncertain))), failures[0])
    finally:
        late = [each for each in puts if each.cancel()]
        for each in puts:
            if each.done() and not each.cancelled():
                each.exception()  # told above, or nobody asks any more
        if late:  # nothing is awaited without need: each record's acknowledgement comes this way
            await asyncio.gather(*late, return_exceptions=True)


def _is_told(puts: Sequence[asyncio.Task[None]]) -> bool:
    """One has created the object or found one there, or both have failed otherwise."""
    return all(put.done() for put in puts) or any(
        put.done() and (put.exception() is None or isinstance(put.exception(), AlreadyExists)) for put in puts
    )


async def _look(store: ObjectStore, key: str, buffers: Sequence[Buffer]) -> PutOutcome:
    """Whose object stands at `key`? UNKNOWN: none does now (a put may still be on its way), or the
    store does not answer.
    """
    ending = bytes(buffers[-1])
    try:
        found = await store.get_suffix(key, len(ending))
        return PutOutcome.WON if found == ending and await store.confirm(key, buffers) else PutOutcome.LOST
    except LedgerMQError:
        return PutOutcome.UNKNOWN
