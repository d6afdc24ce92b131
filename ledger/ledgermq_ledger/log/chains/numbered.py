"""List the numbered objects of a folder: segments, checkpoints, plans, pages, snapshots.

Other objects there (a folder marker of a console, a file that a tool left) are not from LedgerMQ
and have no number. They are skipped, so they can neither block nor replace an object. `ledgermq
fsck` reports them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore


async def list_numbered(store: ObjectStore, prefix: str, after: int = 0) -> AsyncIterator[tuple[int, ObjectInfo]]:
    """Yield number and object of those numbered above `after`, ascending. `prefix` ends with "/"."""
    async for info in store.list(prefix, start_after=f"{prefix}{after:020d}"):
        if keys.is_numbered(info.key, prefix):
            yield keys.number(info.key), info
