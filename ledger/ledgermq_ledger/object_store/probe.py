"""Probe a store at start-up: one that lets two processes create the same key must never hold a
ledger.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ledgermq.errors import LedgerMQError, StoreUnusable, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import AlreadyExists, ObjectStore, StoreUncertain

ATTEMPTS_MAX = 5
CLEANING_S_MAX = 2.0
"""Time limit for deleting the key, because the store may be down; the key is hidden and does no
harm.
"""


async def probe_store(
    store: ObjectStore, sources: Sources, attempts_max: int = ATTEMPTS_MAX, *, below: str = ""
) -> None:
    """Create a hidden key twice: the second put has to fail, and the content of the first has to
    stay. `below`: the prefix of the key.

    Raises StoreUnusable (the store ignores create-if-absent, is read-only, is full, does not
    exist), Unauthorized, Unavailable.
    """
    last: StoreUncertain | None = None
    for _ in range(attempts_max):
        key = f"{below}.probe-{sources.new_id().hex()}"
        try:
            await _probe(store, key)
            return
        except StoreUncertain as error:
            last = error
        finally:
            with suppress(LedgerMQError, TimeoutError):
                async with asyncio.timeout(CLEANING_S_MAX):
                    await store.delete([key])
    raise Unavailable(f"{store.url}: the object store does not answer: {last}") from last


async def _probe(store: ObjectStore, key: str) -> None:
    await store.put_if_absent(key, [b"first"])
    try:
        await store.put_if_absent(key, [b"second"])
    except AlreadyExists:
        if await store.get(key) == b"first":
            return
    raise StoreUnusable(
        f"{store.url}: this store lets an existing object be created again (it ignores 'If-None-Match: *'), "
        "so two brokers could own one ledger at the same time; use a store with conditional writes"
    )
