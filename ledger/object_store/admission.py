"""`Admission`: how many requests, and how many of their bytes, may be on their way at once.

Invariants: never more than `requests_max` nor, but for one request larger than all, than
`bytes_max`; first come, first served, so a large request is not passed by small ones for ever;
never more than `waiting_max` wait, the next one is refused at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AbstractAsyncContextManager, suppress

from ledgermq.errors import ResourceExhausted

RETRY_AFTER_MS = 200


class Admission:
    def __init__(self, requests_max: int, bytes_max: int, waiting_max: int) -> None:
        assert requests_max > 0
        assert bytes_max > 0
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._waiting_max = waiting_max
        self._requests = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def admit(self, size: int) -> AbstractAsyncContextManager[None]:
        """Entering waits for its turn.

        Raises ResourceExhausted when too many wait already; then nothing was taken.
        """
        return _Place(self, min(size, self._bytes_max))

    async def enter(self, size: int) -> None:
        if not self._waiting and self._has_room(size):
            self._take(size)
            return
        if len(self._waiting) >= self._waiting_max:
            raise ResourceExhausted(
                "too many requests wait for the object store; retry later", retry_after_ms=RETRY_AFTER_MS
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # admitted in the very step in which we were cancelled
                self._requests -= 1
                self._bytes -= size
            with suppress(ValueError):
                self._waiting.remove((size, turn))
            self._admit_waiting()
            raise

    def leave(self, size: int) -> None:
        self._requests -= 1
        self._bytes -= size
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._take(size)
                turn.set_result(None)

    def _has_room(self, size: int) -> bool:
        return self._requests < self._requests_max and self._bytes + size <= self._bytes_max

    def _take(self, size: int) -> None:
        self._requests += 1
        self._bytes += size


class _Place(AbstractAsyncContextManager[None]):
    """A class, not a generator: every request to the store takes one."""

    __slots__ = ("_admission", "_size")

    def __init__(self, admission: Admission, size: int) -> None:
        self._admission = admission
        self._size = size

    async def __aenter__(self) -> None:
        await self._admission.enter(self._size)

    async def __aexit__(self, *_: object) -> None:
        self._admission.leave(self._size)
