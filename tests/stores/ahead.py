"""`AheadStore`: a store whose clock is ahead of everybody's."""

from __future__ import annotations

from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper


class AheadStore(StoreWrapper):
    def __init__(self, inner: ObjectStore, ahead_ms: int) -> None:
        super().__init__(inner)
        self._ahead_ms = ahead_ms

    async def store_time_ms(self) -> int:
        return await super().store_time_ms() + self._ahead_ms
