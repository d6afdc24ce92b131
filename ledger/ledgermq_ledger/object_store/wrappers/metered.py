"""`MeteredStore`: report every request to a `StoreMeter`: operation, outcome, duration, bytes.
Knows no metrics library.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

from ledgermq.errors import LedgerMQError
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import PUTS, StoreWrapper

T = TypeVar("T")
OK = "OK"
CANCELLED = "CANCELLED"
FAILED = "FAILED"


class StoreMeter(Protocol):
    def request_ended(self, operation: str, outcome: str, seconds: float, bytes_sent: int, bytes_received: int) -> None:
        """`operation`: a method of ObjectStore, or ``fenced_put``.

        `outcome`: OK, CANCELLED, FAILED or an error's wire code.
        """

    def object_damaged(self, key: str, outcome: str) -> None:
        """Called when an object with a second copy is found damaged.

        `outcome`: one of `ledgermq_ledger.root.copies.OUTCOMES`.
        """


class MeteredStore(StoreWrapper):
    """Put it inside a `ResilientStore` to see each try, outside to see what the caller sees."""

    def __init__(self, inner: ObjectStore, meter: StoreMeter) -> None:
        super().__init__(inner)
        self._meter = meter

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        begun = asyncio.get_running_loop().time()
        outcome, received = FAILED, 0
        try:
            result = await step()
            outcome, received = OK, len(result) if isinstance(result, bytes | bytearray | memoryview) else 0
            return result
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            seconds = asyncio.get_running_loop().time() - begun
            self._meter.request_ended(operation, outcome, seconds, bytes_known if operation in PUTS else 0, received)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """Count one request for each list, however many pages it takes; its time includes that of
        the caller in between.
        """
        begun = asyncio.get_running_loop().time()
        outcome = OK
        try:
            async for info in self.inner.list(prefix, start_after):
                yield info
        except Exception as error:
            outcome = outcome_of(error)
            raise
        finally:
            self._meter.request_ended("list", outcome, asyncio.get_running_loop().time() - begun, 0, 0)


def outcome_of(error: BaseException) -> str:
    if isinstance(error, LedgerMQError):
        return error.code
    return CANCELLED if isinstance(error, asyncio.CancelledError) else FAILED
