"""Bytes of batches that are at hand without a request: what an owner has written lately
(`TailCache`), and what came along with an index (`RecentBytes`). No I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.segments.segment import SegmentEnd
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.view.partition_index import Place
from ledgermq_ledger.view.view import HeldBytes, HeldSegment

JOINED_BYTES_MAX = 2048
"""Batches of a segment that are smaller than this, in the mean, are joined: what is kept for each one alone takes 300
bytes, and it would keep the frame that it came in.
"""


class TailCache:
    """The newest batches of all bundles of a broker, for consumers near the end of their partitions.

    Bounded by bytes over all bundles; whole segments go, oldest first. Only acknowledged batches
    come in, and only from the write path: reads of older data never push out what the tail needs.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self._bundles: dict[int, dict[int, HeldSegment]] = {}
        self._order: OrderedDict[tuple[int, int], None] = OrderedDict()
        """(bundle, slot) of each segment, oldest first."""

    def of(self, bundle: int) -> HeldBytes:
        """Return what is held of a bundle, now and later."""
        return self._bundles.setdefault(bundle, {})

    def add(self, index: fmt.SegmentIndex, data: Sequence[Buffer]) -> None:
        """`data[i]` belongs to `index.batches[i]`."""
        if not data:
            return
        size_bytes = sum(map(len, data))
        segment: HeldSegment
        if size_bytes < JOINED_BYTES_MAX * len(data):
            segment = b"".join(data)
        else:
            segment = {entry.position: batch for entry, batch in zip(index.batches, data, strict=True)}
        self._bundles.setdefault(index.bundle, {})[index.slot] = segment
        self._order[index.bundle, index.slot] = None
        self.size_bytes += size_bytes
        self._drop_above_bound()

    def take_bound(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._drop_above_bound()

    def _drop_above_bound(self) -> None:
        while self.size_bytes > self.bytes_max:
            (bundle, slot), _ = self._order.popitem(last=False)
            self.size_bytes -= _size(self._bundles[bundle].pop(slot))

    def drop_bundle(self, bundle: int) -> None:
        """Drop a bundle's batches: the term is over, and nothing of it is served again."""
        held = self._bundles.get(bundle, {})
        for slot, segment in held.items():
            del self._order[bundle, slot]
            self.size_bytes -= _size(segment)
        held.clear()


def _size(segment: HeldSegment) -> int:
    return len(segment) if isinstance(segment, bytes) else sum(map(len, segment.values()))


class RecentBytes:
    """The newest batches of one ledger that came along with its indexes: the one GET that reads the
    end of a small segment brings all of it, and a reader that follows single records would
    otherwise ask twice for each of them.

    Not checked: a reader compares the CRC, as with bytes from the store.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.batches: OrderedDict[Place, bytes] = OrderedDict()

    def keep(self, end: SegmentEnd, wanted: Iterable[fmt.BatchEntry]) -> None:
        """Keep what came of these batches of the segment."""
        if not self.bytes_max:
            return
        for entry in wanted:
            if (data := end.bytes_of(entry)) is not None:
                self.batches[end.slot.index.slot, entry.position] = data
                self.bytes_held += len(data)
        while self.bytes_held > self.bytes_max:
            self.bytes_held -= len(self.batches.popitem(last=False)[1])

    def clear(self) -> None:
        self.batches.clear()
        self.bytes_held = 0
