"""Indexes of segments that this process has read before, so that a look for compaction reads each
slot once, however many rounds follow.

An index is given back only where a LIST, made for this look, shows the same etag in the slot: a
slot that was deleted and filled again, or a root that was replaced under its URL, is read anew.
Bounded by `bytes_max` of stored index bytes (in memory some four times as much). When it is full
nothing more is taken in until slots are trimmed: the oldest slots are the first that go, and a look
reads all of them. Only bundles that were left make room, the one that was left first before the
others.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledger.log.segment import SlotIndex

BYTES_MAX = 32 * 1024 * 1024


class SegmentIndexes:
    """For one store. Keeps what belongs to `bundle` and `slot` by etag."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._bundles: dict[int, dict[int, tuple[str, SlotIndex]]] = {}
        self._left: dict[int, None] = {}

    def find(self, bundle: int, slot: int, etag: str) -> SlotIndex | None:
        """The index of the slot, if it was read when the slot had this etag.

        Only to be read: it is shared.
        """
        known = self._bundles.get(bundle, {}).get(slot)
        return known[1] if known is not None and known[0] == etag else None

    def find_put(self, bundle: int, slot: int, put_id: bytes) -> SlotIndex | None:
        """That of the segment with this put id: what it says is for ever, whether or not the
        segment is still there.
        """
        known = self._bundles.get(bundle, {}).get(slot)
        return known[1] if known is not None and known[1].index.put_id == put_id else None

    def keep(self, bundle: int, index: SlotIndex, etag: str) -> None:
        """`etag`: as listed *before* the index was read; if another segment came in between, no
        later LIST shows it again.
        """
        self._left.pop(bundle, None)
        slots = self._bundles.setdefault(bundle, {})
        self._forget(slots, index.index.slot)
        while self._left and self.bytes_held + index.tail_length > self.bytes_max:
            left = next(iter(self._left))
            del self._left[left]
            self._drop(left)
        if self.bytes_held + index.tail_length <= self.bytes_max:
            slots[index.index.slot] = (etag, index)
            self.bytes_held += index.tail_length

    def held(self, bundle: int) -> Iterator[SlotIndex]:
        """All that is known of the bundle, slots that were trimmed since the last look included.

        Only to be read.
        """
        return (index for _, index in self._bundles.get(bundle, {}).values())

    def leave(self, bundle: int) -> None:
        """It is not looked at for now; what is known of it stays while there is room, for it may
        come back.
        """
        self._left.pop(bundle, None)
        self._left[bundle] = None

    def _drop(self, bundle: int) -> None:
        slots = self._bundles.pop(bundle, {})
        for slot in list(slots):
            self._forget(slots, slot)

    def drop_below(self, bundle: int, slot: int) -> None:
        """Forget what is trimmed."""
        slots = self._bundles.get(bundle, {})
        for trimmed in [known for known in slots if known < slot]:
            self._forget(slots, trimmed)

    def _forget(self, slots: dict[int, tuple[str, SlotIndex]], slot: int) -> None:
        known = slots.pop(slot, None)
        if known is not None:
            self.bytes_held -= known[1].tail_length
