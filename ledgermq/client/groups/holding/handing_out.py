"""Return messages to the program, and watch whether it still calls for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ledgermq.client.consuming.message import messages_as
from ledgermq.client.consuming.reading import Reading, stretches
from ledgermq.client.groups.holding.holding import Holding, Phase
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.groups.retry_topics import due_ms_of
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.expiry import Expiry
from ledgermq.sources import Sources


class Drained(Exception):
    """Ends an iteration: the consumer is drained and returns no further messages."""


class HandingOut:
    """Makes messages from batches, and notes in each holding which were returned to the program.

    `held`: the member's holdings. `expiry`: None if messages that have expired are returned like others.
    `finishing`: with automatic commits, a call for messages finishes
    those that earlier calls returned.
    """

    def __init__(
        self, held: Mapping[TopicPartition, Holding], sources: Sources, expiry: Expiry | None, *, finishing: bool
    ) -> None:
        self._held = held
        self._sources = sources
        self._expiry = expiry
        self.expired = 0
        """Number of messages that were skipped because they had expired."""
        self.on_expired: Callable[[int], None] = lambda count: None
        """Called with the number of messages that were skipped."""
        self._finishing = finishing
        self._last_reading: Reading | None = None
        self._last: Any = None
        self._touched: list[Holding] = []
        """Holdings of which the latest call returned messages."""
        self._was_again = False
        """Whether the latest turn returned refused messages."""

    def messages_of(self, reading: Reading, rows: pa.RecordBatch, offsets: Sequence[int]) -> list[GroupMessage]:
        return messages_as(self._holding_of(reading, offsets[0]).handout().kind, rows, *reading.partition, offsets)

    def taken(self, reading: Reading, first: int, end: int) -> None:
        holding = self._holding_of(reading, first)
        holding.progress.hand_out(first, end)
        if self._finishing and (not self._touched or self._touched[-1] is not holding):
            self._touched.append(holding)

    def skipped(self, reading: Reading, first: int, end: int) -> None:
        """Finish what a filter has left out."""
        self._holding_of(reading, first).progress.skip(first, end)

    def skipped_expired(self, reading: Reading, rows: pa.RecordBatch, offsets: Sequence[int]) -> None:
        """Finish messages that have expired, and are not returned to the program."""
        holding = self._holding_of(reading, offsets[0])
        self._count_expired(rows.num_rows)
        if not holding.keeps_expired:
            holding.progress.skip(offsets[0], offsets[-1] + 1)
            return
        messages = self.messages_of(reading, rows, offsets)
        for first, end in stretches(offsets):
            holding.progress.hand_out(first, end)
        for message in messages:
            holding.expire(message, message.handout.generation)

    def expire(self, message: GroupMessage) -> bool:
        """Return whether a message has expired since it was read, and finish it then."""
        if not self.is_over(message):
            return False
        self._count_expired(1)
        message.handout.expire(message)
        return True

    def is_over(self, message: GroupMessage) -> bool:
        """Return whether a message has expired. Call it from any thread."""
        return self._expiry is not None and self._expiry.is_over(message.topic, message.headers, message.timestamp_us)

    def _count_expired(self, count: int) -> None:
        self.expired += count
        self.on_expired(count)

    def _holding_of(self, reading: Reading, offset: int) -> Holding:
        holding: Holding
        if reading is self._last_reading:
            holding = self._last
        else:
            holding = self._held[reading.partition]
            self._last_reading, self._last = reading, holding  # a reading belongs to one holding
        if offset < holding.progress.handed:
            holding.move(offset)  # the offset was out of range, and the reset went back
        return holding

    def is_due(self) -> bool:
        """Return whether a refused message is to be returned again now."""
        now_s = asyncio.get_running_loop().time()
        return any(holding.waiting.is_due(now_s) for holding in self._again())

    def take_again(self, max_records: int) -> list[GroupMessage]:
        """Return refused messages that are due."""
        now_s = asyncio.get_running_loop().time()
        messages: list[GroupMessage] = []
        for holding in self._again():
            while len(messages) < max_records and (message := holding.take_again(now_s)) is not None:
                if self.expire(message):
                    continue
                messages.append(message)
                if self._finishing and holding not in self._touched:
                    self._touched.append(holding)
        return messages

    async def take_turn(self, max_records: int) -> list[GroupMessage]:
        """Return refused messages that are due, in every second call at most: a program that refuses one
        again and again gets the others between.
        """
        self._was_again = not self._was_again
        if not self._was_again or not self.is_due():
            self._was_again = False
            return []
        await asyncio.sleep(0)  # a program that refuses it again at once would never let other tasks run
        again = self.take_again(max_records)
        self._was_again = bool(again)
        return again

    def without_early(self, messages: list[GroupMessage]) -> list[GroupMessage]:
        """Return the messages whose time has come; hold the others: their next attempt is due later."""
        now_ms = self._sources.now_ms()
        due: list[GroupMessage] = []
        for message in messages:
            due_ms = due_ms_of(message)
            holding = self._held.get(TopicPartition(message.topic, message.partition))
            if due_ms is None or due_ms <= now_ms or holding is None:
                due.append(message)
            else:
                holding.hold(message, (due_ms - now_ms) / 1000)
        return due

    def _again(self) -> list[Holding]:
        return [
            holding
            for holding in self._held.values()
            if holding.phase is Phase.READY and not holding.paused_by_program and holding.progress.refused
        ]

    def finish(self) -> bool:
        """Finish all messages that were returned. Return whether there were any."""
        if not self._touched:
            return False
        for holding in self._touched:
            holding.progress.finish_returned()
        self._touched.clear()
        return True


class Polling:
    """Detects when the program has stopped calling for messages.

    A program may be away for `interval_s` seconds; while it waits in a call it is not away. `signs`
    counts events that are too frequent to read a clock for: each message of an iteration, each
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
