"""Bound the bytes that deliveries and moves of one bundle have in flight, so that they yield to live producers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq_broker.internal.issued_state import IssuedState


class Flow:
    """`bytes_max()`: bytes that may be in flight; one append may be larger."""

    def __init__(self, state: IssuedState, bytes_max: Callable[[], int]) -> None:
        self._state = state
        self._bytes_max = bytes_max
        self._bytes = 0
        self._room = asyncio.Event()

    async def room(self) -> None:
        """Wait until an append may be made. Raises NotOwner."""
        self._state.check()
        while self._bytes >= self._bytes_max():
            self._room.clear()
            await self._room.wait()
            self._state.check()

    def appended(
        self, size_bytes: int, on_durable: Callable[[], None] = lambda: None, *, within_s: float = 0.0
    ) -> None:
        """Count an append that was made in this turn, and may wait up to `within_s` for others. `on_durable` is
        called when it is durable.
        """
        self._bytes += size_bytes

        def over(waiting: asyncio.Task[None]) -> None:
            self._bytes -= size_bytes
            self._room.set()
            if not waiting.cancelled() and waiting.exception() is None:
                on_durable()

        self._state.durable_soon(within_s=within_s).add_done_callback(over)
