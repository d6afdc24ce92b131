"""Bytes of batches that came along with an index: the one GET that reads the end of a small segment
brings all of it.

Who follows a ledger of single records would otherwise ask twice for each of them. The newest stay,
up to `bytes_max`; what is not here is read from the store as ever. No I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from ledger.format import ledgermq_format_pb2 as fmt
from ledger.log.segment import SegmentEnd
from ledger.view.fetch_index import PartitionIndex, Place


class RecentBytes:
    """Of one bundle. Not checked: whoever uses them compares the CRC, as with bytes from the store."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.batches: OrderedDict[Place, bytes] = OrderedDict()

    def keep(self, end: SegmentEnd, wanted: Iterable[fmt.BatchEntry]) -> None:
        """What came of these batches of the segment."""
        if not self.bytes_max:
            return
        for entry in wanted:
            if (data := end.bytes_of(entry)) is not None:
                self.batches[end.slot.index.slot, entry.position] = data
                self.bytes_held += len(data)
        while self.bytes_held > self.bytes_max:
            self.bytes_held -= len(self.batches.popitem(last=False)[1])

    def find(self, batches: PartitionIndex) -> dict[Place, bytes]:
        """What is here of these."""
        return batches.among(self.batches)

    def clear(self) -> None:
        self.batches.clear()
        self.bytes_held = 0
