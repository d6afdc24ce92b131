"""A batch in which messages expire: those whose time is over when they would be returned are skipped.

Each message is judged when the program takes it, not when its batch came. Skipped ones are reported
(`Expired`), and the reading's position moves past them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.client.consuming.message import M, table_of
from ledgermq.client.consuming.reading import DecodedRun, MessagesOf, Reading, Reports

SKIPPED_MAX = 500
"""So many messages are skipped at once; then it is checked whether they may be skipped further, because a
consumer may have to move them elsewhere.
"""

Expired = Callable[[Reading, pa.RecordBatch, Sequence[int]], None]
"""Called as (reading, rows, their offsets) with messages that were skipped. It may seek."""


class ExpiringRun(DecodedRun[M]):
    """`expires_us`: for each row when it expires, in microseconds since the epoch (int64, without nulls).
    `now_us`: the consumer's clock.
    """

    def __init__(
        self,
        reading: Reading,
        rows: pa.RecordBatch,
        offsets: Sequence[int],
        end: int,
        messages_of: MessagesOf[M],
        reports: Reports,
        expires_us: pa.Array,
        now_us: Callable[[], int],
        expired: Expired,
    ) -> None:
        super().__init__(reading, rows, offsets, end, messages_of, reports)
        self._times = expires_us
        self._first_us: int = pc.min(expires_us).as_py()
        self._listed: list[int] | None = None
        self._now_us = now_us
        self._on_expired = expired

    @property
    def _expires_us(self) -> list[int]:
        """Return the times as a list, which is made when the first message of the batch has expired."""
        if self._listed is None:
            self._listed = self._times.to_pylist()
        return self._listed

    def _forget_taken(self) -> None:
        self._times = self._times.slice(self._taken)
        self._listed = None
        super()._forget_taken()

    def take_one(self) -> M | None:
        now_us = self._now_us()
        if now_us < self._first_us:
            return super().take_one()
        while not self.spent:
            if self._expires_us[self._taken] > now_us:
                return super().take_one()
            if not self._skip(now_us):
                break
        return None

    def take(self, count: int) -> list[M]:
        """Return up to `count` messages that have not expired; none if no further one is left."""
        now_us = self._now_us()
        if now_us < self._first_us:
            return super().take(count)
        messages: list[M] = []
        while len(messages) < count and not self.spent:
            if alive := self._alive(now_us, count - len(messages)):
                messages += super().take(alive)
            elif not self._skip(now_us):
                break
        return messages

    def take_arrow(self, count: int) -> pa.RecordBatch:
        """Return up to `count` rows that have not expired."""
        now_us = self._now_us()
        if now_us < self._first_us:
            return super().take_arrow(count)
        rows, first, offsets = self._rows, self._taken, self._offsets
        kept: list[bool] = []
        left = count
        while left and not self.spent:
            alive = self._alive(now_us, left)
            before = self._taken
            may_go_on = True
            if alive:
                self._advance(alive)
                left -= alive
            else:
                may_go_on = self._skip(now_us)
            kept += [bool(alive)] * (self._taken - before)
            if not may_go_on:
                break
        end = first + len(kept)
        table = table_of(rows.slice(first, len(kept)), *self.reading.partition, offsets[first:end])
        return table if all(kept) else table.filter(pa.array(kept, pa.bool_()))

    def _alive(self, now_us: int, most: int) -> int:
        """Return how many of the next messages, up to `most`, have not expired."""
        expires_us = self._expires_us
        at, end = self._taken, min(self._count, self._taken + most)
        while at < end and expires_us[at] > now_us:
            at += 1
        return at - self._taken

    def _skip(self, now_us: int) -> bool:
        """Skip the next messages, which have expired. Return False if the reading was moved since: nothing
        of this batch is to be returned any longer.
        """
        expires_us = self._expires_us
        first, end = self._taken, min(self._count, self._taken + SKIPPED_MAX)
        at = first
        while at < end and expires_us[at] <= now_us:
            at += 1
        self._taken = at
        reading = self.reading
        skipped = self._offsets[first:at]
        reading.position = skipped[-1] + 1
        generation = reading.generation
        self._on_expired(reading, self._rows.slice(first, at - first), skipped)
        if reading.generation != generation:
            return False
        self._go_past_end()
        return True
