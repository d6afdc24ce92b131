"""The bytes that a producer holds: admitted before they are queued, released when their batch is
settled.
"""

from __future__ import annotations

import asyncio

from ledgermq.client.settings import ProducerSettings
from ledgermq.errors import DeadlineExceeded, ResourceExhausted


class SendBuffer:
    """Invariant: `held_bytes` is the sum of what was admitted and not released; never above the
    limit of `admit`, except that a single record or batch larger than the whole buffer is taken
    when the buffer is empty."""

    def __init__(self, settings: ProducerSettings) -> None:
        self.held_bytes = 0
        self.full_bytes = settings.buffer_bytes_max
        self.limit_bytes = settings.buffer_bytes_max * (2 if settings.when_full == "wait" else 1)
        self._fails = settings.when_full == "fail"
        self._timeout_s = settings.delivery_timeout_s
        self._released: asyncio.Future[None] | None = None

    def admit(self, size: int) -> None:
        """Raises ResourceExhausted; nothing was taken then."""
        if self.held_bytes + size > self.limit_bytes and self.held_bytes:
            advice = "try again later" if self._fails else "await some of what `send` returned, or use `send_many`"
            raise ResourceExhausted(
                f"the producer holds {self.held_bytes} bytes that are not stored yet: {advice}", retry_after_ms=100
            )
        self.held_bytes += size

    def release(self, size: int) -> None:
        self.held_bytes -= size
        assert self.held_bytes >= 0, "only what was admitted is released"
        if self._released is not None:
            self._released.set_result(None)
            self._released = None

    def has_room(self, size: int) -> bool:
        """Whether `wait_for_room` would return at once."""
        return self._fails or not self.held_bytes or self.held_bytes + size <= self.full_bytes

    async def wait_for_room(self, size: int = 1) -> None:
        """Until `size` more bytes fit below `buffer_bytes_max`, or fails at once, as set.

        Raises ResourceExhausted, DeadlineExceeded.
        """
        if self.has_room(size):
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self.has_room(size):
                    if self._released is None:
                        self._released = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._released)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"no room for {size} bytes within {self._timeout_s} s: brokers take nothing"
            ) from error
