"""The batches that were fetched ahead of the program, of all partitions, in the order in which they
came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa

from ledgermq.client.consuming.decode_ahead import DecodeAhead
from ledgermq.client.consuming.reading import FetchedRun


@dataclass(slots=True)
class Prefetch:
    """Bounded by bytes; a run that is larger than the bound is taken when nothing else is there."""

    bytes_max: int
    ahead: DecodeAhead
    held_bytes: int = 0
    runs: deque[FetchedRun] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when runs were added, or when the program has to be told something."""
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, run: FetchedRun) -> None:
        self.runs.append(run)
        self.held_bytes += len(run.data)
        self.changed.set()
        self.ahead.begin(self.runs)

    def head(self) -> FetchedRun | None:
        """The oldest run that is still wanted, and not held back."""
        while self.runs and not self.runs[0].wanted:
            self.take(self.runs[0])
        return next((run for run in self.runs if run.wanted and not run.reading.held_back), None)

    def rows(self, run: FetchedRun) -> pa.RecordBatch:
        """Decoded ahead, or now. Raises CorruptFrame, MessageTooLarge."""
        return self.ahead.rows(run)

    def take(self, run: FetchedRun) -> None:
        if self.runs[0] is run:
            self.runs.popleft()
        else:
            self.runs.remove(run)
        self.held_bytes -= len(run.data)
        self._room.set()
        self.ahead.forget(run)
        self.ahead.begin(self.runs)

    @property
    def is_full(self) -> bool:
        return self.held_bytes >= self.bytes_max

    def drop_unwanted(self) -> None:
        for run in self.runs:
            if not run.wanted:
                self.ahead.forget(run)
        self.runs = deque(run for run in self.runs if run.wanted)
        self.held_bytes = sum(len(run.data) for run in self.runs)
        self._room.set()

    def clear(self) -> None:
        for run in self.runs:
            self.ahead.forget(run)
        self.runs.clear()

    async def wait_for_room(self, timeout_s: float | None = None) -> bool:
        """Until less than `bytes_max` is held; False: that took longer."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.is_full:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            return False
        return True
