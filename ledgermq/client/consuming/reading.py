"""Where a consumer is in one partition, and the batches that were fetched ahead.

`position` is the next offset that the program gets, `fetch_at` the next one to ask a broker for; between them lies what is in the prefetch.
A seek begins a new generation: whatever still comes for an older one is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from ledgermq.client.backoff import Backoff
from ledgermq.client.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError
from ledgermq.protocol.batch_header import Buffer


@dataclass(slots=True, eq=False)
class Reading:
    partition: TopicPartition
    topic_id: int
    position: int
    backoff: Backoff
    fetch_at: int = 0
    generation: int = 0
    high_watermark: int | None = None
    stream: asyncio.Task[None] | None = None
    not_before_s: float = 0.0
    paused: bool = False
    """Not to be fetched."""
    held_back: bool = False
    """Not to be handed out at present; what was fetched ahead is kept, as long as it takes no room from others."""
    parked: bool = False
    """Held back, and it did: not to be fetched until it is handed out again."""
    failing_since_s: float | None = None
    last_error: LedgerMQError | None = None
    resetting: bool = False
    """The offset is out of range, and the settings say where to go on."""
    refusal: LedgerMQError | None = None
    """What the program has to be told: time alone does not cure it."""

    def __post_init__(self) -> None:
        self.fetch_at = self.position

    def seek(self, position: int) -> None:
        self.position = self.fetch_at = position
        self.generation += 1
        self.refusal = None
        self.resetting = False
        self.not_before_s = 0.0

    def answered(self) -> None:
        """A broker serves the partition."""
        self.failing_since_s = self.last_error = None
        self.backoff.reset()

    def failed(self, error: LedgerMQError, now_s: float) -> None:
        self.last_error = error
        if self.failing_since_s is None:
            self.failing_since_s = now_s
        self.not_before_s = now_s + self.backoff.next_s(error.retry_after_ms)


@dataclass(frozen=True, slots=True, eq=False)
class FetchedRun:
    """One batch as it came: `base_offset` may lie below the reading's position."""

    reading: Reading
    generation: int
    base_offset: int
    record_count: int
    crc: int
    data: Buffer

    @property
    def wanted(self) -> bool:
        return self.generation == self.reading.generation


@dataclass(slots=True)
class Prefetch:
    """Bounded by bytes; a run that is larger than the bound is taken when nothing else is there."""

    bytes_max: int
    held_bytes: int = 0
    runs: deque[FetchedRun] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when runs were added, or when the program has to be told something."""
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, run: FetchedRun) -> None:
        self.runs.append(run)
        self.held_bytes += len(run.data)
        self.changed.set()

    def head(self) -> FetchedRun | None:
        """The oldest run that is still wanted, and not held back."""
        while self.runs and not self.runs[0].wanted:
            self.take(self.runs[0])
        return next((run for run in self.runs if run.wanted and not run.reading.held_back), None)

    def take(self, run: FetchedRun) -> None:
        if self.runs[0] is run:
            self.runs.popleft()
        else:
            self.runs.remove(run)
        self.held_bytes -= len(run.data)
        self._room.set()

    @property
    def is_full(self) -> bool:
        return self.held_bytes >= self.bytes_max

    def drop_unwanted(self) -> None:
        self.runs = deque(run for run in self.runs if run.wanted)
        self.held_bytes = sum(len(run.data) for run in self.runs)
        self._room.set()

    async def wait_for_room(self) -> None:
        """Until less than `bytes_max` is held."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()
