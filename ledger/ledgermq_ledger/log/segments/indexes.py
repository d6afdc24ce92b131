"""Cache the indexes of segments, so that compaction reads each slot once, however many rounds
follow.

A cached index is used only if a LIST, made for this look, shows the same etag in the slot. A slot
that was deleted and filled again, or a root that was replaced under its URL, is read again.

`bytes_max` bounds the stored index bytes (in memory some four times as much). A small index is held as bytes and
decoded at each use, within some microseconds: decoded, one of 120 bytes takes 1300. A full cache accepts
nothing until slots are trimmed: the oldest slots are removed first, and a look reads all of them.
Otherwise only bundles that were left make room, in the order in which they were left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.segments.segment import SlotIndex

BYTES_MAX = 32 * 1024 * 1024
SMALL_BYTES = 1024


class _Held(NamedTuple):
    etag: str
    tail_length: int
    content: fmt.SegmentIndex | bytes

    def slot_index(self) -> SlotIndex:
        index = fmt.SegmentIndex.FromString(self.content) if isinstance(self.content, bytes) else self.content
        return SlotIndex(index, self.tail_length)


class SegmentIndexes:
    """The cached indexes of one store, by bundle, slot and etag."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._bundles: dict[int, dict[int, _Held]] = {}
        self._left: dict[int, None] = {}

    def find(self, bundle: int, slot: int, etag: str) -> SlotIndex | None:
        """Return the index of the slot, if it was read when the slot had this etag.

        It is shared: only read it.
        """
        known = self._bundles.get(bundle, {}).get(slot)
        return known.slot_index() if known is not None and known.etag == etag else None

    def find_put(self, bundle: int, slot: int, put_id: bytes) -> SlotIndex | None:
        """Return the index of the segment with this put id: its content never changes, whether or
        not the segment still exists.
        """
        known = self._bundles.get(bundle, {}).get(slot)
        found = None if known is None else known.slot_index()
        return found if found is not None and found.index.put_id == put_id else None

    def keep(self, bundle: int, index: SlotIndex, etag: str) -> None:
        """Cache an index. `etag`: as listed *before* the index was read; if another segment
        replaced it in between, no later LIST shows this etag again.
        """
        self._left.pop(bundle, None)
        slots = self._bundles.setdefault(bundle, {})
        self._forget(slots, index.index.slot)
        while self._left and self.bytes_held + index.tail_length > self.bytes_max:
            left = next(iter(self._left))
            del self._left[left]
            self._drop(left)
        if self.bytes_held + index.tail_length <= self.bytes_max:
            held = index.index.SerializeToString() if index.tail_length <= SMALL_BYTES else index.index
            slots[index.index.slot] = _Held(etag, index.tail_length, held)
            self.bytes_held += index.tail_length

    def held(self, bundle: int) -> Iterator[SlotIndex]:
        """Yield all cached indexes of the bundle, including slots trimmed since the last look.

        They are shared: only read them.
        """
        return (known.slot_index() for known in self._bundles.get(bundle, {}).values())

    def leave(self, bundle: int) -> None:
        """Mark a bundle as not in use. Its indexes stay while there is room, because the bundle may
        come back.
        """
        self._left.pop(bundle, None)
        self._left[bundle] = None

    def _drop(self, bundle: int) -> None:
        slots = self._bundles.pop(bundle, {})
        for slot in list(slots):
            self._forget(slots, slot)

    def drop_below(self, bundle: int, slot: int) -> None:
        """Drop the indexes of trimmed slots."""
        slots = self._bundles.get(bundle, {})
        for trimmed in [known for known in slots if known < slot]:
            self._forget(slots, trimmed)

    def _forget(self, slots: dict[int, _Held], slot: int) -> None:
        known = slots.pop(slot, None)
        if known is not None:
            self.bytes_held -= known.tail_length
