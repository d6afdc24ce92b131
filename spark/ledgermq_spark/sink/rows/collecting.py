"""Collect rows by partition until a batch of them is worth sending. Bounded: above
`buffer_bytes_max`, the largest batches go first.

Invariant: held rows are counted with their actual memory. Rows keep at most twice their own bytes,
whatever they were cut from. Each part that they came in costs `PART_BYTES` more, which dominates
with rows for many partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from ledgermq.client.connection.routing import TopicRoute
from ledgermq_ledger.keys import PartitionId
from ledgermq_spark.sink.rows.rows import Routed, lean

PART_BYTES = 8 * 1024
"""Memory of a part besides its rows: Arrow's and Python's objects for its columns, and their
buffers' padding. Measured: 5.7 to 7.3 KB.
"""


@dataclass(slots=True)
class _Pile:
    topic: TopicRoute
    partition: int
    parts: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    """Bytes of the rows."""

    @property
    def held_bytes(self) -> int:
        return self.bytes + len(self.parts) * PART_BYTES

    def joined(self) -> pa.RecordBatch:
        return self.parts[0] if len(self.parts) == 1 else pa.concat_batches(self.parts)


class Collector:
    """Rows of a partition leave in the order in which they were added."""

    def __init__(self, batch_bytes_max: int, buffer_bytes_max: int) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._buffer_bytes_max = buffer_bytes_max
        self._piles: dict[tuple[int, int], _Pile] = {}
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Return the held bytes: at most `buffer_bytes_max` once everything that `add` yields was
        taken.
        """
        return self._held_bytes

    def add(self, routed: Routed) -> Iterator[Routed]:
        """Add rows and yield what is complete now. A row that is larger than a batch becomes a
        separate batch.
        """
        pile = self._piles.setdefault(
            PartitionId(routed.topic.topic_id, routed.partition), _Pile(routed.topic, routed.partition)
        )
        kept = len(pile.parts)
        for part in split(routed.rows, self._batch_bytes_max):
            size = part.nbytes
            if pile.parts and pile.bytes + size > self._batch_bytes_max:
                kept = 0
                yield self._take(pile)
            pile.parts.append(part)
            pile.bytes += size
            self._held_bytes += size + PART_BYTES
        pile.parts[kept:] = [lean(part) for part in pile.parts[kept:]]
        if self._held_bytes > self._buffer_bytes_max:
            yield from self._make_room()

    def _make_room(self) -> Iterator[Routed]:
        """Free a quarter of the bound at once, because looking through all piles for every row is
        expensive.

        Small parts are joined before any pile goes.
        """
        for pile in self._piles.values():
            if len(pile.parts) > 1 and pile.bytes < len(pile.parts) * PART_BYTES:
                self._held_bytes -= (len(pile.parts) - 1) * PART_BYTES
                pile.parts = [pile.joined()]
        for key, pile in sorted(self._piles.items(), key=lambda each: each[1].held_bytes, reverse=True):
            if 4 * self._held_bytes <= 3 * self._buffer_bytes_max:
                return
            del self._piles[key]
            yield self._take(pile)

    def rest(self) -> Iterator[Routed]:
        for pile in list(self._piles.values()):
            if pile.parts:
                yield self._take(pile)

    def _take(self, pile: _Pile) -> Routed:
        rows = pile.joined()
        self._held_bytes -= pile.held_bytes
        pile.parts, pile.bytes = [], 0
        return Routed(pile.topic, pile.partition, rows)


def split(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Split into pieces of at most `bytes_max`, or of one row."""
    if rows.nbytes <= bytes_max or rows.num_rows == 1:
        yield rows
        return
    half = rows.num_rows // 2
    yield from split(rows.slice(0, half), bytes_max)
    yield from split(rows.slice(half), bytes_max)
