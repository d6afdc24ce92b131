"""`OnePut`: a wrapper for tests that change what a put does, whether it is of data or not."""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper


class OnePut(StoreWrapper):
    """Puts of data go through `put_if_absent`, so that a subclass overrides one method."""

    async def put_data(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self.put_if_absent(key, buffers)
