"""The state of one partition that a consumer reads, and its batches: as fetched, and as decoded.

A seek begins a new generation: batches that still arrive for an older one are dropped.

Whether a reading's messages are returned to the program is its *flow* (`Reading.flow`):

  flow        meaning                                              hold back  park    go on
  OPEN        handed out                                           HELD_BACK  -       OPEN
  HELD_BACK   not handed out; what was fetched ahead is kept       HELD_BACK  PARKED  OPEN
  PARKED      held back, and took the room of others: not fetched  PARKED     -       OPEN

A dash is a pair that raises IllegalTransition: only a held-back reading is parked, and only once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic

import pyarrow as pa

from ledgermq.buffers import Buffer
from ledgermq.client.consuming.message import M, table_of
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError
from ledgermq.runtime.backoff import Backoff
from ledgermq.runtime.transitions import next_state


class Flow(Enum):
    """See the table at the top of this module."""

    OPEN = auto()
    HELD_BACK = auto()
    PARKED = auto()


class FlowStep(Enum):
    """Events that change a flow."""

    HOLD_BACK = auto()
    PARK = auto()
    GO_ON = auto()


FLOWS: dict[tuple[Flow, FlowStep], Flow] = {
    (Flow.OPEN, FlowStep.HOLD_BACK): Flow.HELD_BACK,
    (Flow.HELD_BACK, FlowStep.HOLD_BACK): Flow.HELD_BACK,
    (Flow.PARKED, FlowStep.HOLD_BACK): Flow.PARKED,
    (Flow.HELD_BACK, FlowStep.PARK): Flow.PARKED,
    (Flow.OPEN, FlowStep.GO_ON): Flow.OPEN,
    (Flow.HELD_BACK, FlowStep.GO_ON): Flow.OPEN,
    (Flow.PARKED, FlowStep.GO_ON): Flow.OPEN,
}


@dataclass(slots=True, eq=False)
class Reading:
    """The state of one partition. `position`: the next offset that the program receives.
    `fetch_at`: the next one to request from a broker; the records between them are in the prefetch
    queue.
    """

    partition: TopicPartition
    topic_id: int
    position: int
    backoff: Backoff
    fetch_at: int = 0
    end: int | None = None
    """Messages from this offset on are not returned; None: no end."""
    generation: int = 0
    high_watermark: int | None = None
    stream: asyncio.Task[None] | None = None
    not_before_s: float = 0.0
    paused: bool = False
    """Not to be fetched, because its consumer has paused it."""
    flow: Flow = Flow.OPEN
    failing_since_s: float | None = None
    last_error: LedgerMQError | None = None
    resetting: bool = False
    """The offset is out of range, and the place to continue must be looked up."""
    failed_in_filter: int = 0
    """Records that were left out because a filter function failed on them."""
    refusal: LedgerMQError | None = None
    """An error that does not pass with time; the next call raises it, once."""

    def __post_init__(self) -> None:
        self.fetch_at = self.position

    @property
    def held_back(self) -> bool:
        return self.flow is not Flow.OPEN

    @property
    def idle(self) -> bool:
        """Return whether it should be fetched, but no stream feeds it."""
        return self.stream is None and not self.paused and self.flow is not Flow.PARKED

    def turn(self, step: FlowStep) -> None:
        """Move to the next flow. Raises IllegalTransition."""
        self.flow = next_state(FLOWS, self.flow, step, self.partition)

    def seek(self, position: int) -> None:
        self.position = self.fetch_at = position
        self.generation += 1
        self.refusal = None
        self.resetting = False
        self.not_before_s = 0.0

    def answered(self) -> None:
        """Note that a broker serves the partition."""
        self.failing_since_s = self.last_error = None
        self.backoff.reset()

    def failed(self, error: LedgerMQError, now_s: float) -> None:
        """Note an error, and when to retry."""
        self.last_error = error
        if self.failing_since_s is None:
            self.failing_since_s = now_s
        self.not_before_s = now_s + self.backoff.next_s(error.retry_after_ms)


@dataclass(frozen=True, slots=True, eq=False)
class FetchedRun:
    """One batch as fetched: `base_offset` may be below the reading's position. `passes`: a bit for each record that a
    filter function keeps, the lowest of a byte first; None: no function has judged it.
    """

    reading: Reading
    generation: int
    base_offset: int
    record_count: int
    crc: int
    data: Buffer
    passes: bytes | None = None

    @property
    def wanted(self) -> bool:
        """Return whether the batch is of the current generation, without a seek since its request."""
        return self.generation == self.reading.generation

    @property
    def where(self) -> str:
        """Return its offsets as text for error messages."""
        return f"{self.reading.partition}, offsets {self.base_offset} to {self.base_offset + self.record_count - 1}"


MessagesOf = Callable[[Reading, pa.RecordBatch, Sequence[int]], list[M]]
"""(reading, rows, their offsets) -> the messages that the program gets."""

Passed = Callable[[Reading, int, int], None]
"""Called as (reading, first offset, offset after the last)."""


@dataclass(frozen=True, slots=True)
class Reports:
    """Called when the program receives these messages (`taken`), and when the reading goes past offsets of which
    it receives none (`skipped`): a filter has left them out.
    """

    taken: Passed | None = None
    skipped: Passed | None = None


MESSAGE_BYTES = 200
"""What a message takes besides its data, about."""


class DecodedRun(Generic[M]):
    """A batch that the program is reading; the reading's position says how much of it was taken.

    `offsets`: those of the rows, ascending; a filter leaves gaps. `end`: where the batch ends. Once its last row
    was taken, the reading goes on there.
    """

    def __init__(
        self,
        reading: Reading,
        rows: pa.RecordBatch,
        offsets: Sequence[int],
        end: int,
        messages_of: MessagesOf[M],
        reports: Reports,
    ) -> None:
        self.reading = reading
        self._rows = rows
        self._offsets = offsets
        self._end = end
        self._count: int = rows.num_rows
        self._taken = 0
        self._messages: list[M] | None = None
        self._messages_of = messages_of
        self._reports = reports
        self._on_taken = reports.taken

    @property
    def spent(self) -> bool:
        return self._taken >= self._count

    @property
    def held_bytes(self) -> int:
        """Return what it has in memory: the whole batch, also what was taken, and the messages that were made of it."""
        made = 0 if self._messages is None else self._rows.nbytes + MESSAGE_BYTES * len(self._messages)
        batch: int = self._rows.get_total_buffer_size()
        return batch + made

    def _decoded(self) -> list[M]:
        """Return the messages. Rows that were taken before, as a table, are left out."""
        if self._messages is None:
            if self._taken:
                self._forget_taken()
            self._messages = self._messages_of(self.reading, self._rows, self._offsets)
        return self._messages

    def _forget_taken(self) -> None:
        self._rows = self._rows.slice(self._taken)
        self._offsets = self._offsets[self._taken :]
        self._count -= self._taken
        self._taken = 0

    def _advance(self, count: int) -> None:
        """Note that the program receives the next messages, of which there are at least `count`."""
        offsets = self._offsets[self._taken : self._taken + count]
        self._taken += count
        if count:
            self.reading.position = offsets[-1] + 1
            if self._on_taken is not None:
                for first, end in stretches(offsets):
                    self._on_taken(self.reading, first, end)
        self._go_past_end()

    def _go_past_end(self) -> None:
        """If all rows were taken, continue behind the batch: what a filter has left out at its end is read, too."""
        if self._taken >= self._count:
            go_past(self.reading, self._end, self._reports)

    def take_one(self) -> M | None:
        """Return the next message; None: all were taken.

        It is called for each message, so it inlines what it can.
        """
        taken = self._taken
        if taken >= self._count:
            return None
        messages = self._messages
        if messages is None:
            messages, taken = self._decoded(), self._taken
        message = messages[taken]
        self._taken = taken + 1
        self.reading.position = end = message.offset + 1
        if self._on_taken is not None:
            self._on_taken(self.reading, end - 1, end)
        if end != self._end and taken + 1 == self._count:
            self._go_past_end()
        return message

    def take(self, count: int) -> list[M]:
        decoded = self._decoded()
        messages = decoded[self._taken : self._taken + count]
        self._advance(len(messages))
        return messages

    def take_arrow(self, count: int) -> pa.RecordBatch:
        rows = self._rows.slice(self._taken, count)
        batch = table_of(rows, *self.reading.partition, self._offsets[self._taken : self._taken + count])
        self._advance(rows.num_rows)
        return batch


def go_past(reading: Reading, end: int, reports: Reports) -> None:
    """Continue at `end`: the program receives nothing of what lies between."""
    first, reading.position = reading.position, max(reading.position, end)
    if first < end and reports.skipped is not None:
        reports.skipped(reading, first, end)


def stretches(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return the stretches of consecutive offsets: the first of each, and the offset after its last."""
    if not offsets:
        return
    if offsets[-1] - offsets[0] == len(offsets) - 1:
        yield offsets[0], offsets[-1] + 1
        return
    first = end = offsets[0]
    for offset in offsets:
        if offset != end:
            yield first, end
            first = offset
        end = offset + 1
    yield first, end
