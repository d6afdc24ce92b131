"""What a process knows of one ledger: the newest checkpoint, how far records may be read, and where
each batch is.

`LedgerView` holds the fetch index, looks up older batches for which the index has no room, and
knows where Parquet begins and ends. It decides nothing about reading bytes (`ledgermq_ledger.view.reader`
does) and nothing about news: a `LedgerSource` feeds it, in the broker the owner of the bundle,
elsewhere `ledgermq_ledger.view.following.followed_ledger`.

Only durable segments come into the index, so nothing above the durable end is found here. What is
below `trim_slot` of the newest known checkpoint may vanish at any moment. ObjectMissing therefore
means "look at the newest checkpoint and continue by offset"; it means damage only where there is no
newer checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeVar

from ledgermq.errors import DataDamaged
from ledgermq.runtime.reread import Rereads
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partitions_by_key
from ledgermq_ledger.log.history import History
from ledgermq_ledger.log.segments.segment import SlotIndex, first_batch_position
from ledgermq_ledger.object_store.contract import Buffer, ObjectMissing
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.fetch_index import FetchIndex, Span, Wanted, far_indexes
from ledgermq_ledger.view.partition_index import IndexedBatch, PartitionIndex

ATTEMPTS_MAX = 10
FAR_SHARES = 8
"""One look for a partition that is far behind takes at most this share of the room, so that eight
readers at different places of the history do not push one another out.
"""

Found = tuple[PartitionIndex, int]
"""The index that has a batch, and the batch's place in it."""
HeldSegment = bytes | Mapping[int, Buffer]
"""The batches of a segment: joined, from the first one on, or each by its position there."""
HeldBytes = Mapping[int, HeldSegment]
"""Batches that are read without a request: by slot, ascending."""
T = TypeVar("T")


class LedgerSource(Protocol):
    """Feeds a view with durable segments and with checkpoints (`LedgerView.see`, `begin`)."""

    def durable_end(self, key: PartitionId) -> int:
        """Return the offset after the last record that is known to be durable."""
        ...

    async def check_end(self) -> None:
        """Raise if another process may know a later end than `durable_end` of this moment."""
        ...

    async def look(self, known: int) -> None:
        """Bring the newest checkpoint into the view, unless the view has a newer one than `known`."""
        ...

    async def history(self) -> History:
        """Read all segments that are durable and not trimmed. Its checkpoint is in the view then."""
        ...


class LedgerView:
    """`index`, `checkpoint`, `counters` and `parked` (partitions that are) are for reading.

    `far_batches_max`: room for batches that were looked up because the index has none for them.
    `held`: bytes that need no request; the index keeps their places, trimmed or not.
    """

    def __init__(
        self,
        bundle: int,
        source: LedgerSource,
        *,
        index_batches_max: int,
        far_batches_max: int,
        held: HeldBytes = MappingProxyType({}),
        wanted: Wanted | None = None,
    ) -> None:
        self.bundle = bundle
        self.source = source
        self.held = held
        self.checkpoint = fmt.Checkpoint()
        self.counters: dict[PartitionId, fmt.PartitionCheckpoint] = {}
        self.parked: list[fmt.PartitionCheckpoint] = []
        self.index = FetchIndex(index_batches_max, 1, wanted)
        self.is_partial = False
        """The segments that are not trimmed have more batches than the index holds."""
        self._far_batches_max = far_batches_max
        self._far: dict[PartitionId, PartitionIndex] = {}
        """What the index has no room for. The partition that was looked up last comes last."""
        self._missed: dict[PartitionId, Span] = {}
        """What callers that wait for their turn have not found."""
        self._loading = asyncio.Lock()

    # What the source brings.

    def begin(self, checkpoint: fmt.Checkpoint, first: int, segments: Iterable[SlotIndex]) -> None:
        """Forget all, and begin with these segments: every valid one from slot `first` on."""
        self.index = FetchIndex(self.index.batches_max, first, self.index.wanted)
        for slot in segments:
            self.index.add(slot.index)
        self._far.clear()
        self._take(checkpoint)

    def see(self, checkpoint: fmt.Checkpoint) -> bool:
        """Take in a checkpoint. Return False if the view has this one or a newer one."""
        if checkpoint.number <= self.checkpoint.number:
            return False
        self._take(checkpoint)
        return True

    def _take(self, checkpoint: fmt.Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.counters = partitions_by_key(checkpoint)
        self.parked = [part for part in checkpoint.partitions if part.HasField("parked")]
        self.is_partial = False
        trim_slot = checkpoint.trim_slot
        self.index.drop_below(min(trim_slot, next(iter(self.held), trim_slot)))
        for far in self._far.values():
            far.drop_first(far.place_of_slot(trim_slot))

    def drop(self) -> None:
        """Forget where batches are."""
        self.index = FetchIndex(self.index.batches_max, self.index.covered_from, self.index.wanted)
        self._far.clear()

    # Where a partition begins and ends.

    def durable_end(self, key: PartitionId) -> int:
        """Return the offset after the last record that is known to be durable."""
        return self.source.durable_end(key)

    def readable_end(self, key: PartitionId) -> int:
        """Return the offset up to which a reader may read: the durable end.

        What must not be shown although it is durable would be held back here, and nowhere else.
        """
        return self.source.durable_end(key)

    def log_start(self, key: PartitionId, topic: Topic | None = None) -> int:
        """Return the first offset that can be read.

        Of a compacted internal topic that is what comes after its snapshot: a reader that needs more begins
        with the snapshot.
        """
        counters = self.counters.get(key)
        if counters is None:
            return 0
        if topic is not None and topic.compacted:
            return max(counters.log_start, counters.parquet_end)
        return counters.log_start

    def parquet_end(self, key: PartitionId) -> int:
        """Return the offset where Parquet ends, as far as is known; the rest is in segments."""
        counters = self.counters.get(key)
        return counters.parquet_end if counters else 0

    def parquet_start(self, key: PartitionId) -> int:
        """Return the offset where Parquet begins.

        What is below, down to the log start, was cleaned: of a keyed topic only the latest record
        of each key can be read, from a version of the partition.
        """
        counters = self.counters.get(key)
        return counters.parquet_start if counters else 0

    # Objects that vanish.

    async def look(self) -> bool:
        """Take in the newest checkpoint. Return whether it is newer than the one known."""
        known = self.checkpoint.number
        await self.source.look(known)
        return self.checkpoint.number > known

    async def reread(self, attempt: Callable[[], Awaitable[T]], what: str = "read") -> T:
        """Try until no object vanishes meanwhile.

        Raises Unavailable after some attempts, DataDamaged as `look_for` does, and what the attempt
        raises.
        """
        rereads = Rereads(
            ATTEMPTS_MAX,
            f"bundle {self.bundle}: its records could not be {what}, because they moved during each attempt; "
            "retry later",
            retry_after_ms=100,
        )
        while True:
            rereads.begin()
            known = self.checkpoint.number
            try:
                return await attempt()
            except ObjectMissing as missing:
                await self.look_for(missing, known)

    async def look_for(self, missing: ObjectMissing, known: int) -> None:
        """Find the checkpoint that explains why an object is gone that checkpoint `known` needs.

        Raises DataDamaged if there is no newer one.
        """
        if self.checkpoint.number == known and not await self.look():
            raise DataDamaged(
                f"{missing.message}, but no checkpoint trims it", object_key=missing.object_key
            ) from missing

    # Where batches are.

    def find(self, key: PartitionId, offset: int) -> Found | None:
        """Return where a batch is, as far as indexes are loaded; None if it is in no loaded segment."""
        found = self.index.find(key, offset)
        if found is None and (far := self._far.get(key)) is not None and (place := far.at(offset)) is not None:
            return far, place
        return found

    def held_bytes(self, batch: IndexedBatch) -> Buffer | None:
        """Return the bytes of a batch that is read without a request; None: it is not held."""
        segment = self.held.get(batch.slot)
        if isinstance(segment, bytes):
            begin = batch.position - first_batch_position()
            return segment[begin : begin + batch.length]
        return None if segment is None else segment.get(batch.position)

    def is_kept(self, batch: IndexedBatch, key: PartitionId, offset: int) -> bool:
        """Return whether the batch's segment has to be there.

        One that is trimmed may be gone at any moment, and Parquet has its records.
        """
        return batch.slot >= self.checkpoint.trim_slot or offset >= self.parquet_end(key)

    async def place(self, key: PartitionId, offset: int) -> Found | None:
        """Return where a batch is, also in segments whose index is not loaded yet; None if it is in
        Parquet by now.

        What callers side by side have not found is looked up together. Raises DataDamaged if the
        offset is nowhere, Unavailable, the store's errors.
        """
        found = self.find(key, offset)
        if found is not None or offset < self.parquet_end(key):
            return found
        self._missed[key] = (offset, offset)
        async with self._loading:
            if self.find(key, offset) is None:
                missed, self._missed = self._missed | {key: (offset, offset)}, {}
                await self._load(missed, self._far_batches_max * min(len(missed), FAR_SHARES) // FAR_SHARES)
        found = self.find(key, offset)
        if found is None and offset >= self.parquet_end(key):
            raise DataDamaged(
                f"bundle {self.bundle}: no segment holds offset {offset} of topic id {key.topic_id} partition"
                f" {key.partition}"
            )
        return found

    async def batches(self, spans: Mapping[PartitionId, Span]) -> dict[PartitionId, PartitionIndex]:
        """Return where the batches of these offsets are, as copies; fewer where they have moved to
        Parquet (look at `parquet_end` again).

        What the index has no room for is looked up once for all, and kept for the next call from
        the ends of the spans on. Raises as `place` does.
        """
        await self._bring(spans)
        found: dict[PartitionId, PartitionIndex] = {}
        for key, (offset, end) in spans.items():
            found[key] = PartitionIndex()
            while offset < end and (place := await self.place(key, offset)) is not None:
                found[key].extend(place[0].between(offset, end))
                offset = found[key].end
            if (far := self._far.get(key)) is not None and len(far) and far.begin < end:
                self._far[key] = far.between(end, far.end)
        return found

    async def _bring(self, spans: Mapping[PartitionId, Span]) -> None:
        """Look up all partitions again if one is missing, so that what is kept of them reaches
        equally far.
        """
        if self._are_at_hand(spans):
            return
        async with self._loading:
            if not self._are_at_hand(spans):
                wanted = {k: span for k, span in spans.items() if span[0] < span[1] and not self.index.find(k, span[0])}
                await self._load(wanted, self._far_batches_max)

    def _are_at_hand(self, spans: Mapping[PartitionId, Span]) -> bool:
        for key, (offset, end) in spans.items():
            while offset < end:
                if (found := self.find(key, offset)) is None:
                    return False
                offset = found[0].end
        return True

    # Segments that are not in the index.

    @property
    def has_older_segments(self) -> bool:
        """Segments that are not trimmed and not in the index, for which it may have room."""
        return self.checkpoint.trim_slot < self.index.covered_from and not self.is_partial

    async def load_all(self) -> None:
        """Bring all segments that are not trimmed into the index, if it has room for them."""
        async with self._loading:
            if self.has_older_segments:
                await self._load({}, 0)

    async def _load(self, spans: Mapping[PartitionId, Span], beyond_max: int) -> None:
        """Load the indexes of older segments: all of them if there is room, else of these partitions
        from the begins of their spans on, and in all `beyond_max` batches past the spans.
        """
        history = await self.source.history()
        index, first = self.index, max(history.first, self.checkpoint.trim_slot)
        older = [slot.index for slot in history.segments if first <= slot.index.slot < index.covered_from]
        if history.state.slot + 1 >= index.covered_from and index.has_room_for(older):
            index.prepend(older, first)
            return
        self.is_partial = True
        found = far_indexes(older, spans, beyond_max)
        others = [key for key in self._far if key not in found]
        self._far = {key: self._far[key] for key in others} | found
        while others and sum(map(len, self._far.values())) > self._far_batches_max:
            del self._far[others.pop(0)]
