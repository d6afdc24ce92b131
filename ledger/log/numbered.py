"""The numbered objects of a folder: segments, checkpoints, plans, pages, snapshots.

Whatever else lies there (a folder marker of a console, a file that a tool left) was not put by
LedgerMQ, has no number, and is passed over: it can hold nothing up and stand for nothing. `ledgermq
fsck` names it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ledger import keys
from ledger.object_store.contract import ObjectInfo, ObjectStore


async def list_numbered(store: ObjectStore, prefix: str, after: int = 0) -> AsyncIterator[tuple[int, ObjectInfo]]:
    """Number and object of those numbered above `after`, ascending. `prefix` ends with "/"."""
    async for info in store.list(prefix, start_after=f"{prefix}{after:020d}"):
        if keys.is_numbered(info.key, prefix):
            yield keys.number(info.key), info
