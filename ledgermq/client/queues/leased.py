"""Messages that are leased: out of an answer, and until the program takes them. Those wait in one lane for each level
of priority, and the lanes share the program's time by the weights of `Turns`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ledgermq.client.consuming.message import decode_run
from ledgermq.client.queues.message import QueueMessage
from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ShareFetchFrame
from ledgermq.protocol.levels import Turns

if TYPE_CHECKING:
    from ledgermq.telemetry.client_metrics import ClientMetrics


class LeasedAhead:
    """`metrics`: count what comes to the members of this group."""

    def __init__(self, group: str, metrics: ClientMetrics | None) -> None:
        self._group = group
        self._metrics = metrics
        self._lanes: dict[int, deque[QueueMessage]] = {}
        self._turns = Turns()

    def __bool__(self) -> bool:
        return any(self._lanes.values())

    def __iter__(self) -> Iterator[QueueMessage]:
        for lane in self._lanes.values():
            yield from lane

    @property
    def has_levels(self) -> bool:
        """Return whether messages of several levels have come."""
        return len(self._lanes) > 1

    def add(self, level: int, messages: Sequence[QueueMessage]) -> None:
        """Add messages of one topic."""
        if self._metrics is not None and messages:
            self._metrics.consumed(messages[0].topic, self._group, len(messages))
        self._lanes.setdefault(level, deque()).extend(messages)

    def full(self) -> set[int]:
        """Return the levels that have messages."""
        return {level for level, lane in self._lanes.items() if lane}

    def take(self, coming: Collection[int]) -> QueueMessage | None:
        """Take the next message; None: there is none, or it is the turn of a level whose messages are `coming`."""
        if not self:
            return None
        if not self.has_levels:
            return next(iter(self._lanes.values())).popleft()
        full = self.full()
        level = self._turns.first(full.union(coming))
        if level not in full:
            return None
        self._turns.took(level, 1)
        return self._lanes[level].popleft()

    def clear(self) -> None:
        for lane in self._lanes.values():
            lane.clear()


class LeasedRows(NamedTuple):
    """Leased messages that follow one another. `first`: the offset of the first one."""

    rows: pa.RecordBatch
    first: int


def leased_of(
    frame: ShareFetchFrame, decoded_bytes_max: int
) -> Iterator[tuple[pb.LeasedPartition, list[LeasedRows | LedgerMQError]]]:
    """Decode an answer: by partition the leased rows of its batches, and the error of a batch that is damaged."""
    payload, at = memoryview(b"".join(frame.payload)), 0
    for part in frame.header.partitions:
        if part.HasField("error"):
            continue
        found: list[LeasedRows | LedgerMQError] = []
        for batch in part.batches:
            data = payload[at : at + batch.length]
            at += batch.length
            where = f"{part.topic}/{part.partition}, offset {batch.base_offset}"
            try:
                rows = decode_run(data, batch.crc, batch.record_count, decoded_bytes_max, where)
            except LedgerMQError as error:
                found.append(error)
                continue
            end_offset = batch.base_offset + batch.record_count
            for span in part.ranges:
                first, last = max(span.first, batch.base_offset), min(span.last, end_offset - 1)
                if first <= last:
                    found.append(LeasedRows(rows.slice(first - batch.base_offset, last - first + 1), first))
        yield part, found
