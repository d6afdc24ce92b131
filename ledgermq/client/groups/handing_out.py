"""From batches to messages that know their handing out, and what the program has finished by asking
for more.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ledgermq.client.consuming.message import messages_as
from ledgermq.client.consuming.reading import Reading
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.holding import Holding
from ledgermq.client.groups.message import GroupMessage


class Drained(Exception):
    """Ends an iteration: nothing more is handed out."""


class HandingOut:
    """`finishing`: with automatic commits a call for messages finishes what the calls before it
    handed out.
    """

    def __init__(self, *, finishing: bool) -> None:
        self._finishing = finishing
        self.held: dict[TopicPartition, Holding] = {}
        """The member's holdings; given when they are there."""
        self._last_reading: Reading | None = None
        self._last: Any = None
        self._touched: list[Holding] = []
        """What the latest call for messages handed out of."""

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
            holding = self.held[reading.partition]
            self._last_reading, self._last = reading, holding  # for its whole life a reading belongs to one holding
        if offset < holding.progress.handed:
            holding.progress.move(offset)  # the offset was out of range, and the settings say to go back
        return holding

    def finish(self) -> bool:
        """The program is done with all that it was handed. False: there was nothing."""
        if not self._touched:
            return False
        for holding in self._touched:
            holding.progress.finish_through(holding.progress.handed)
        self._touched.clear()
        return True
