"""Hand out messages to the program, and watch whether it still asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ledgermq.client.consuming.message import messages_as
from ledgermq.client.consuming.reading import Reading
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.holding import Holding
from ledgermq.client.groups.message import GroupMessage


class Drained(Exception):
    """Ends an iteration: the consumer is drained and hands out nothing more."""


class HandingOut:
    """Makes messages of batches, and notes in each holding what was handed out.

    `held`: the member's holdings. `finishing`: with automatic commits a call for messages finishes
    what earlier calls handed out.
    """

    def __init__(self, held: Mapping[TopicPartition, Holding], *, finishing: bool) -> None:
        self._held = held
        self._finishing = finishing
        self._last_reading: Reading | None = None
        self._last: Any = None
        self._touched: list[Holding] = []
        """Holdings of which the latest call handed out messages."""

    def messages_of(self, reading: Reading, rows: pa.RecordBatch, offset: int) -> list[GroupMessage]:
        return messages_as(self._holding_of(reading, offset).handout().kind, rows, *reading.partition, offset)

    def taken(self, reading: Reading, first: int, end: int) -> None:
        holding = self._holding_of(reading, first)
        holding.progress.hand_out(first, end)
        if self._finishing and (not self._touched or self._touched[-1] is not holding):
            self._touched.append(holding)

    def _holding_of(self, reading: Reading, offset: int) -> Holding:
        holding: Holding
        if reading is self._last_reading:
            holding = self._last
        else:
            holding = self._held[reading.partition]
            self._last_reading, self._last = reading, holding  # a reading belongs to one holding
        if offset < holding.progress.handed:
            holding.progress.move(offset)  # the offset was out of range, and the reset went back
        return holding

    def finish(self) -> bool:
        """Finish all that was handed out. Return whether there was anything."""
        if not self._touched:
            return False
        for holding in self._touched:
            holding.progress.finish_through(holding.progress.handed)
        self._touched.clear()
        return True


class Polling:
    """Notices when the program has stopped asking for messages.

    A program may be away for `interval_s` seconds; inside a call it is never away. `signs` counts
    events that are too frequent to read a clock for: each message of an iteration, each
    acknowledgement.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._inside = 0
        self._last_s = 0.0
        self._signs_seen = 0
        self.signs = 0
        self.asking: asyncio.Task[object] | None = None
        """The task that made the latest call."""

    def enter(self) -> None:
        self._inside += 1
        self.asking = asyncio.current_task()

    def leave(self, now_s: float) -> None:
        self._inside -= 1
        self._last_s = now_s

    def is_away(self, now_s: float) -> bool:
        if self._inside or self.signs != self._signs_seen:
            self._signs_seen = self.signs
            self._last_s = now_s
        return now_s - self._last_s > self._interval_s
