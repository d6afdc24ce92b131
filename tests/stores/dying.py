"""`DyingStore`: the view of the store of a process that dies at one of its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from tests.stores.one_put import OnePut

CHANGES = frozenset({"put_if_absent", "fenced_put", "delete", "open_fence", "close_fence"})
NOT_COUNTED = frozenset({"put", "store_time_ms"})

T = TypeVar("T")


class Crash(BaseException):
    """The end of a process: nothing in the program may catch it."""


class DyingStore(OnePut):
    """Dies at operation `dies_at`, counted from 1, before its effect or right after it; everything
    later fails too.
    """

    def __init__(self, inner: ObjectStore, dies_at: int, after_effect: bool) -> None:
        super().__init__(inner)
        self.calls = 0
        self._dies_at = dies_at
        self._after_effect = after_effect

    def before(self) -> None:
        self.calls += 1
        if self.calls > self._dies_at or (self.calls == self._dies_at and not self._after_effect):
            raise Crash

    def after(self) -> None:
        if self.calls >= self._dies_at:
            raise Crash

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if operation in NOT_COUNTED:
            return await step()
        self.before()
        result = await step()
        if operation in CHANGES:
            self.after()
        return result

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        self.before()
        async for info in self.inner.list(prefix, start_after):
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        """One key at a time: a process may die between two of them."""
        for key in keys:
            await super().delete([key])
