"""Buffer the batches that were fetched ahead of the program, of all partitions, in the order of
their arrival. Threads decode the next ones where that is worth it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from ledgermq.client.consuming.message import decode_run
from ledgermq.client.consuming.reading import FetchedRun
from ledgermq.errors import LedgerMQError

RUNS_MAX = 4
BEGUN_MAX = 8
"""Batches that are decoded ahead at once, of all queues together."""
DECODED_BYTES_MAX = 16 * 1024 * 1024
"""Largest batch that is decoded ahead. With BEGUN_MAX this bounds the memory that decoding ahead takes.

A larger batch is decoded when it is asked for.
"""
DATA_BYTES_MIN = 64 * 1024
"""Smallest batch that is decoded ahead: measured, a thread gains nothing below 50 KB."""


class DecodeAhead:
    """Decodes the next batches in threads (None: decodes nothing ahead).

    Threads do not change what a program receives: it takes the rows of the next batch from the
    thread that decodes it, or decodes the batch itself if no thread has begun. If a thread refuses
    a batch, the caller decodes it again, so the error is raised when the batch would be returned.
    `forget` must be called for every batch that was taken or is no longer wanted.
    """

    def __init__(self, threads: Executor | None, decoded_bytes_max: int) -> None:
        self._threads = threads
        self._decoded_bytes_max = decoded_bytes_max
        self._begun: dict[FetchedRun, Future[pa.RecordBatch]] = {}

    def begin(self, runs: Iterable[FetchedRun]) -> None:
        """Decode the first of `runs`, which are in the order in which they will be requested."""
        if self._threads is None:
            return
        bytes_max = min(DECODED_BYTES_MAX, self._decoded_bytes_max)
        for run in islice(runs, RUNS_MAX):
            if len(self._begun) >= BEGUN_MAX:
                return
            if len(run.data) >= DATA_BYTES_MIN and run not in self._begun and run.wanted and not run.reading.held_back:
                self._begun[run] = self._threads.submit(_decode, run, bytes_max)

    def rows(self, run: FetchedRun) -> pa.RecordBatch:
        """Return the batch's rows. Raises CorruptFrame, MessageTooLarge."""
        begun = self._begun.get(run)
        if begun is not None and not begun.cancel():
            try:
                return begun.result()
            except LedgerMQError:
                pass
        return _decode(run, self._decoded_bytes_max)

    def forget(self, run: FetchedRun) -> None:
        begun = self._begun.pop(run, None)
        if begun is not None:
            begun.cancel()


def _decode(run: FetchedRun, decoded_bytes_max: int) -> pa.RecordBatch:
    return decode_run(run.data, run.crc, run.record_count, decoded_bytes_max, run.where)


@dataclass(slots=True)
class Prefetch:
    """A queue of batches, bounded by bytes. A batch larger than the bound is accepted when the
    queue is empty.
    """

    bytes_max: int
    ahead: DecodeAhead
    held_bytes: int = 0
    runs: deque[FetchedRun] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when batches were added, and when waiting calls must check their conditions again."""
    opening: int = 0
    """Streams that have not answered yet."""
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    def opens(self) -> Callable[[], None]:
        """Note that a stream is opened for this queue. Return a function to call at its first answer and at its end."""
        self.opening += 1
        waits = True

        def answered() -> None:
            nonlocal waits
            if waits:
                waits = False
                self.opening -= 1
                self.changed.set()

        return answered

    def add(self, run: FetchedRun) -> None:
        self.runs.append(run)
        self.held_bytes += len(run.data)
        self.changed.set()
        self.ahead.begin(self.runs)

    def head(self) -> FetchedRun | None:
        """Return the oldest run that is still wanted, and not held back."""
        while self.runs and not self.runs[0].wanted:
            self.take(self.runs[0])
        return next((run for run in self.runs if run.wanted and not run.reading.held_back), None)

    def rows(self, run: FetchedRun) -> pa.RecordBatch:
        """Return the batch's rows, decoded ahead or now. Raises CorruptFrame, MessageTooLarge."""
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
        """Wait until the queue holds less than `bytes_max`. Return False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.is_full:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            return False
        return True
