"""`SharedSlots`: a store for a query's task whose ranges lie in the same segments: each segment is
fetched once, for all of its partitions.

A segment holds batches of many partitions, side by side; a task reads one partition after the
other. Asking for each alone would cost a request for every segment and partition. Here the first
that wants something of a segment fetches what all ranges want of it, and the bytes stay until they
were asked for. Only where that is dense enough, and as long as all of it fits in `BYTES_MAX`; all
else passes through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.view.ranges.range_read import OffsetRange

BYTES_MAX = 64 * 1024 * 1024
WASTE_MAX = 2
"""Bytes that are fetched for each one that is wanted."""
T = TypeVar("T")


@dataclass(slots=True)
class _Extent:
    """What is wanted of one segment: bytes `start` to `end`, `left` of them not asked for yet."""

    start: int
    end: int
    left: int
    ranges: int = 1
    data: Buffer | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def add(self, start: int, length: int) -> None:
        self.start, self.end = min(self.start, start), max(self.end, start + length)
        self.left += length

    @property
    def size(self) -> int:
        return self.end - self.start


class SharedSlots(StoreWrapper):
    """Within one event loop. Closing it is closing `inner`."""

    def __init__(self, inner: ObjectStore, ranges: Iterable[OffsetRange], bytes_max: int = BYTES_MAX) -> None:
        super().__init__(inner)
        self._extents: dict[str, _Extent] = {}
        for name, extent in _wanted(ranges).items():
            if extent.ranges > 1 and extent.size <= min(bytes_max, WASTE_MAX * extent.left):
                self._extents[name] = extent
                bytes_max -= extent.size

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        extent = self._extents.get(key)
        if extent is None or not extent.start <= start <= start + length <= extent.end:
            return await self.inner.get_range(key, start, length)
        async with extent.turn:
            if extent.data is None:
                extent.data = await self.inner.get_range(key, extent.start, extent.size)
        found = memoryview(extent.data)[start - extent.start : start - extent.start + length]
        extent.left -= length
        if extent.left <= 0:
            self._extents.pop(key, None)
        return found


def _wanted(ranges: Iterable[OffsetRange]) -> dict[str, _Extent]:
    found: dict[str, _Extent] = {}
    for each in ranges:
        for slot, start, length in each.batches.extents():
            name = keys.segment(each.bundle, slot)
            if (slot, start) in each.at_hand:
                continue  # and so is what follows in the slot: the end of a segment came along
            if name in found:
                found[name].add(start, length)
                found[name].ranges += 1
            else:
                found[name] = _Extent(start, start + length, length)
    return found
