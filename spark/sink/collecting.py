"""Collects rows by partition until a batch of them is worth sending. Bounded: beyond `buffer_bytes_max` the largest go first.

Invariant: what stays here keeps at most twice its own bytes in memory, whatever it was cut from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from ledgermq.client.routing import TopicRoute
from spark.sink.rows import Routed, lean


@dataclass(slots=True)
class _Pile:
    topic: TopicRoute
    partition: int
    parts: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0


class Collector:
    """Rows of a partition come out in the order in which they went in."""

    def __init__(self, batch_bytes_max: int, buffer_bytes_max: int) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._buffer_bytes_max = buffer_bytes_max
        self._piles: dict[tuple[int, int], _Pile] = {}
        self._bytes = 0

    def add(self, routed: Routed) -> Iterator[Routed]:
        """What is complete now. A row that is larger than a batch is a batch of its own."""
        pile = self._piles.setdefault((routed.topic.topic_id, routed.partition), _Pile(routed.topic, routed.partition))
        kept = len(pile.parts)
        for part in split(routed.rows, self._batch_bytes_max):
            size = part.nbytes
            if pile.parts and pile.bytes + size > self._batch_bytes_max:
                kept = 0
                yield self._take(pile)
            pile.parts.append(part)
            pile.bytes += size
            self._bytes += size
        pile.parts[kept:] = [lean(part) for part in pile.parts[kept:]]
        while self._bytes > self._buffer_bytes_max:
            yield self._take(max(self._piles.values(), key=lambda each: each.bytes))

    def rest(self) -> Iterator[Routed]:
        for pile in list(self._piles.values()):
            if pile.parts:
                yield self._take(pile)

    def _take(self, pile: _Pile) -> Routed:
        rows = pile.parts[0] if len(pile.parts) == 1 else pa.concat_batches(pile.parts)
        self._bytes -= pile.bytes
        pile.parts, pile.bytes = [], 0
        return Routed(pile.topic, pile.partition, rows)


def split(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """In pieces of at most `bytes_max`, or of one row."""
    if rows.nbytes <= bytes_max or rows.num_rows == 1:
        yield rows
        return
    half = rows.num_rows // 2
    yield from split(rows.slice(0, half), bytes_max)
    yield from split(rows.slice(half), bytes_max)
