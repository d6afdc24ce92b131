"""The bytes of the newest batches, for consumers that are near the end of their partitions.

Bounded by bytes over all bundles of a broker; whole segments go, oldest first. Only what was
acknowledged comes in, and only from the write path: reads of older data never push out what the
tail needs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ledger.format import ledgermq_format_pb2 as fmt
from ledger.object_store.contract import Buffer


class TailCache:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self._segments: OrderedDict[tuple[int, int], dict[int, Buffer]] = OrderedDict()

    def add(self, index: fmt.SegmentIndex, data: Sequence[Buffer]) -> None:
        """`data[i]` belongs to `index.batches[i]`."""
        if not data:
            return
        batches = {entry.position: batch for entry, batch in zip(index.batches, data, strict=True)}
        self._segments[index.bundle, index.slot] = batches
        self.size_bytes += sum(map(len, data))
        self._drop_above_bound()

    def take_bound(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._drop_above_bound()

    def _drop_above_bound(self) -> None:
        while self.size_bytes > self.bytes_max:
            _, oldest = self._segments.popitem(last=False)
            self.size_bytes -= sum(map(len, oldest.values()))

    def get(self, bundle: int, slot: int, position: int) -> Buffer | None:
        segment = self._segments.get((bundle, slot))
        return None if segment is None else segment.get(position)

    def first_slot(self, bundle: int) -> int | None:
        """The oldest slot of the bundle that is here."""
        return next((slot for owner, slot in self._segments if owner == bundle), None)

    def drop_bundle(self, bundle: int) -> None:
        """The term is over: nothing of it is served again."""
        for key in [key for key in self._segments if key[0] == bundle]:
            self.size_bytes -= sum(map(len, self._segments.pop(key).values()))
