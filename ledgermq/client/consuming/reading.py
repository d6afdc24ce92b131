"""Where a consumer is in one partition, and a batch as it was fetched.

`position` is the next offset that the program gets, `fetch_at` the next one to ask a broker for;
between them lies what is in the prefetch. A seek begins a new generation: whatever still comes for
an older one is dropped.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ledgermq.buffers import Buffer
from ledgermq.client.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError
from ledgermq.runtime.backoff import Backoff


@dataclass(slots=True, eq=False)
class Reading:
    partition: TopicPartition
    topic_id: int
    position: int
    backoff: Backoff
    fetch_at: int = 0
    end: int | None = None
    """Nothing from this offset on is handed out; None: everything is."""
    generation: int = 0
    high_watermark: int | None = None
    stream: asyncio.Task[None] | None = None
    not_before_s: float = 0.0
    paused: bool = False
    """Not to be fetched."""
    held_back: bool = False
    """Not to be handed out at present; what was fetched ahead is kept, as long as it takes no room
    from others.
    """
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

    @property
    def where(self) -> str:
        """For people."""
        topic, partition = self.reading.partition
        return f"{topic}/{partition}, offsets {self.base_offset} to {self.base_offset + self.record_count - 1}"
