"""How a consumer stands with whoever gives it partitions: a group's coordinator, or, in a
broadcast, itself.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from ledgermq.errors import LedgerMQError


class Standing(ABC):
    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        """The program asks for messages."""
        self.joined = False
        self.tried = False
        """A coordinator may have heard of this member, and has to be told of its end."""
        self.last_error: LedgerMQError | None = None
        self.failing_since_s: float | None = None
        self._refusal: LedgerMQError | None = None
        """Why no partitions are given: the program has to be told, its next call tries again."""

    @abstractmethod
    async def run(self) -> None:
        """Until cancelled."""

    def take_failure(self) -> LedgerMQError | None:
        refusal, self._refusal = self._refusal, None
        return refusal

    def _failed(self, error: LedgerMQError) -> None:
        self.last_error = error
        if self.failing_since_s is None:
            self.failing_since_s = asyncio.get_running_loop().time()
