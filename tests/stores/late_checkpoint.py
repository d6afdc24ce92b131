"""A checkpoint that is won and is not the newest: its number was taken by another, and is free
again (design C2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import decode_checkpoint
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import Buffer
from tests.stores.one_put import OnePut
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root


class LateCheckpoint(OnePut):
    """The first checkpoint that `is_it` arrives when two others have been put and the older of them
    deleted.
    """

    def __init__(self, root: Root, is_it: Callable[[fmt.Checkpoint], bool]) -> None:
        super().__init__(root.store)
        self._root = root
        self._is_it = is_it
        self.came_late = False

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if "/checkpoints/" in key and not self.came_late:
            checkpoint = decode_checkpoint(b"".join(bytes(buffer) for buffer in buffers), key)
            if self._is_it(checkpoint):
                self.came_late = True
                for _ in range(2):
                    await advance_checkpoint(
                        ledger_of(self.inner, checkpoint.bundle, cluster=self._root.cluster, sources=self._root.sources)
                    )
                await self.inner.delete([key])
        await super().put_if_absent(key, buffers)
