"""`NoDeletes`: a store that deletes nothing in one folder."""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.errors import Unavailable
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper


class NoDeletes(StoreWrapper):
    """Below `folder` no delete is answered while `broken`. `tries`: how often it was tried."""

    def __init__(self, inner: ObjectStore, folder: str) -> None:
        super().__init__(inner)
        self.folder = folder
        self.tries = 0
        self.broken = True

    async def delete(self, keys: Sequence[str]) -> None:
        if self.broken and any(key.startswith(self.folder) for key in keys):
            self.tries += 1
            raise Unavailable("the store does not answer")
        await super().delete(keys)
