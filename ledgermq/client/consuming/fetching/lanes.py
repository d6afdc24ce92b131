"""Batches that were fetched ahead, in a lane for each level of priority (`ledgermq.protocol.levels`).

Each lane has its own streams and its own share of the memory, so that a full lane of low priority keeps no
other from being fetched. At the beginning, messages of lower levels wait a moment for the first answers about
higher ones, which other brokers may have. While there is more than one lane, the program gets pieces of at most
`PIECE_RECORDS` messages, so a message of a high level waits for one piece at most. Consumers of topics without
levels have one lane, and nothing changes for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pyarrow as pa

from ledgermq.client.consuming.fetching.prefetch import DecodeAhead, Prefetch
from ledgermq.client.consuming.reading import FetchedRun
from ledgermq.protocol.levels import Turns

PIECE_RECORDS = 64
FIRST_WAIT_S = 1.0
"""How long messages of lower levels wait at the beginning for the first answers about higher ones."""


class Lanes:
    """`bytes_max`: of all lanes together; one batch in each lane may be larger than its share."""

    def __init__(self, bytes_max: int, ahead: DecodeAhead) -> None:
        self.changed = asyncio.Event()
        """Set when batches were added, and when waiting calls must check their conditions again."""
        self._bytes_max = bytes_max
        self._ahead = ahead
        self._levels = 1
        self._lanes: dict[int, Prefetch] = {}
        self._turns = Turns()
        self._decoded: dict[FetchedRun, pa.RecordBatch] = {}
        """Of batches that the program gets in pieces."""
        self._expected: set[int] | None = None
        """Levels that were read at the beginning, while not all of them have answered; None: nothing is read yet."""
        self._waiting: asyncio.TimerHandle | None = None

    def lane(self, level: int, levels: int) -> Prefetch:
        """Return the lane of a level, of a topic with so many levels."""
        self._levels = max(self._levels, levels)
        if level not in self._lanes:
            self._lanes[level] = Prefetch(self._bytes_max, self._ahead, changed=self.changed)
        for lane in self._lanes.values():
            lane.bytes_max = max(1, self._bytes_max // self._levels)
        return self._lanes[level]

    def expect(self, levels: Collection[int]) -> None:
        """Note which levels are read, at the beginning: all of them should answer soon."""
        if self._expected is None:
            self._expected = set(levels)
            self._waiting = asyncio.get_running_loop().call_later(FIRST_WAIT_S, self.wait_no_longer)

    def wait_no_longer(self) -> bool:
        """Stop waiting for the first answers about higher levels. Return whether that was going on."""
        waited, self._expected = bool(self._expected), set()
        if self._waiting is not None:
            self._waiting.cancel()
        if waited:
            self.changed.set()
        return waited

    def _silent(self) -> set[int]:
        """Return levels whose first answers should come soon."""
        silent = {level for level in self._expected or () if level not in self._lanes or self._lanes[level].opening}
        if self._expected and not silent:
            self.wait_no_longer()
        return silent

    @property
    def runs(self) -> list[FetchedRun]:
        return [run for lane in self._lanes.values() for run in lane.runs]

    @property
    def held_bytes(self) -> int:
        return sum(lane.held_bytes for lane in self._lanes.values())

    @property
    def is_full(self) -> bool:
        """Return whether a lane is full."""
        return any(lane.is_full for lane in self._lanes.values())

    def head(self) -> FetchedRun | None:
        """Return the batch whose turn it is: in its lane the oldest one that is wanted, and not held back."""
        silent = max(self._silent(), default=-1) if self._expected else -1
        heads = {
            level: head for level, lane in self._lanes.items() if level >= silent and (head := lane.head()) is not None
        }
        if len(heads) <= 1:
            return next(iter(heads.values()), None)
        return heads[self._turns.first(heads)]

    def rows(self, run: FetchedRun) -> pa.RecordBatch:
        """Return the batch's rows. Raises CorruptFrame, MessageTooLarge."""
        if len(self._lanes) == 1:
            return self._ahead.rows(run)
        if run not in self._decoded:
            self._decoded[run] = self._ahead.rows(run)
        return self._decoded[run]

    def take(self, run: FetchedRun, left: int) -> int:
        """Return how many of the `left` messages of a batch the program gets now. With the last ones the batch is
        taken out.
        """
        level, lane = self._lane_of(run)
        records = left if len(self._lanes) == 1 else min(left, PIECE_RECORDS)
        self._turns.took(level, records)
        if records == left:
            self._decoded.pop(run, None)
            lane.take(run)
        return records

    def _lane_of(self, run: FetchedRun) -> tuple[int, Prefetch]:
        return next((level, lane) for level, lane in self._lanes.items() if run in lane.runs)

    def drop_unwanted(self) -> None:
        self._decoded = {run: rows for run, rows in self._decoded.items() if run.wanted}
        for lane in self._lanes.values():
            lane.drop_unwanted()

    def clear(self) -> None:
        self.wait_no_longer()
        self._decoded.clear()
        for lane in self._lanes.values():
            lane.clear()
