"""`FollowedLedger`: what is durable of one ledger and where it is, kept up to date from the store
alone, with no broker.

It follows the slots (`ledger.view.follow`), so compaction, trimming, deletion and takeovers may go
on under it. A poll is one GET; LISTs come only at the begin and at a surprise.

Invariants: what it calls durable is; an end never goes back.
Must not know topics' names, brokers, groups, or how records are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ledger.format import ledgermq_format_pb2 as fmt
from ledger.keys import PartitionId
from ledger.log.checkpoint import newest_checkpoint, partitions_by_key
from ledger.log.history import History, read_history
from ledger.log.ledger_ref import LedgerRef
from ledger.log.segment import SegmentEnd, read_end
from ledger.object_store.contract import ObjectMissing
from ledger.view.fetch_index import FetchIndex, PartitionIndex, Span, far_indexes
from ledger.view.follow import Follower
from ledger.view.recent_bytes import RecentBytes
from ledgermq.errors import DataDamaged

SLOTS_AHEAD_MAX = 16
INDEX_BATCHES_MAX = 500_000
"""Some 30 MB; what does not fit is looked up again when it is wanted."""
FAR_BATCHES_MAX = 500_000
"""So much of what does not fit is kept when it was looked up, of all partitions together: what
follows on what was wanted.
"""

Wanted = Callable[[PartitionId], bool]


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class FollowedLedger:
    """`open` first. Within one event loop; calls may run side by side. Partitions are (topic id,
    partition).

    `wanted`: only these partitions are known, and only their batches take memory.
    `recent_bytes_max`: so much of the newest batches is kept, as far as it comes with the indexes.
    """

    def __init__(
        self,
        ledger: LedgerRef,
        *,
        wanted: Wanted = lambda key: True,
        index_batches_max: int = INDEX_BATCHES_MAX,
        recent_bytes_max: int = 0,
    ) -> None:
        self.ledger = ledger
        self.bundle = ledger.bundle
        self.checkpoint = fmt.Checkpoint()
        """The newest that was seen."""
        self.recent_bytes = RecentBytes(recent_bytes_max)
        self._store = ledger.store
        self._wanted = wanted
        self._batches_max = index_batches_max
        self._turn = asyncio.Lock()
        self._counters: dict[PartitionId, fmt.PartitionCheckpoint] = {}
        self._index = FetchIndex(index_batches_max, 1)
        self._far: dict[PartitionId, PartitionIndex] = {}
        """Of what the index has no room for. Who was looked up last comes last."""
        self._missed: dict[PartitionId, Span] = {}
        """What callers that wait for their turn have not found."""
        self._follower: Follower | None = None
        self._ahead = 1

    async def open(self) -> None:
        """Take in everything that is durable now.

        Raises DataDamaged, FormatNotSupported, Unavailable, the store's errors.
        """
        async with self._turn:
            self._begin(await self._history())

    def partitions(self) -> list[PartitionId]:
        """Those that have records, or had, as far as is known."""
        return sorted(key for key in self._known.state.ends if self._wanted(key))

    def counters(self, key: PartitionId) -> fmt.PartitionCheckpoint | None:
        """Of the newest checkpoint that was seen."""
        return self._counters.get(key)

    def end(self, key: PartitionId) -> int:
        """The next offset that is not known to be durable."""
        counters = self.counters(key)
        seen = (
            (counters.parquet_end, counters.log_start) if counters else ()
        )  # by others, further than was followed here
        return max(self._known.state.end(*key), *seen, 0)

    def log_start(self, key: PartitionId) -> int:
        counters = self.counters(key)
        return counters.log_start if counters else 0

    def parquet_end(self, key: PartitionId) -> int:
        """Everything from `parquet_start` up to here is in Parquet, as far as is known; the rest is
        in segments.
        """
        counters = self.counters(key)
        return counters.parquet_end if counters else 0

    def parquet_start(self, key: PartitionId) -> int:
        """What is below, down to the log start, was cleaned: of a keyed topic only the latest
        record of each key can be read.
        """
        counters = self.counters(key)
        return counters.parquet_start if counters else 0

    async def refresh(self) -> bool:
        """Take in what has become durable; True: there was something. Raises as `open` does."""
        async with self._turn:
            before = self._known.next_slot
            while await self._read_on():
                pass
            found = self._known.next_slot - before
            self._ahead = min(
                max(found, 0) + 1, SLOTS_AHEAD_MAX
            )  # as many as came this time, and one to see that there are no more
            return found > 0

    async def place(self, key: PartitionId, offset: int) -> tuple[PartitionIndex, int] | None:
        """Where a batch is that is in a segment; None: it has moved to Parquet meanwhile. Raises
        DataDamaged where it is nowhere.
        """
        found = self._find(key, offset)
        if found is None and offset >= self.parquet_end(key):
            self._missed[key] = (offset, offset)
            async with self._turn:
                if self._find(key, offset) is None:  # look for all that were missed meanwhile
                    missed, self._missed = self._missed | {key: (offset, offset)}, {}
                    await self._load_far(missed)
            found = self._find(key, offset)
        if found is None and offset >= self.parquet_end(key):
            raise DataDamaged(
                f"bundle {self.bundle}: offset {offset} of topic id {key.topic_id} partition {key.partition} is in no segment"
            )
        return found

    async def bring(self, spans: Mapping[PartitionId, Span]) -> None:
        """What the index has no room for of these, by one look at the ledger for all, so that
        `place` finds it. `let_go` of it then.

        Where one partition is not at hand all are looked up anew, so that what is kept of them
        reaches equally far. Raises as `open` does.
        """
        if self._are_at_hand(spans):
            return
        async with self._turn:
            if not self._are_at_hand(spans):
                await self._load_far(
                    {
                        key: span
                        for key, span in spans.items()
                        if span[0] < span[1] and not self._index.find(key, span[0])
                    }
                )

    def let_go(self, key: PartitionId, end: int) -> None:
        """Keep only what follows."""
        if (far := self._far.get(key)) is not None and len(far) and far.begin < end:
            self._far[key] = far.between(end, far.end)

    def _are_at_hand(self, spans: Mapping[PartitionId, Span]) -> bool:
        return all(self._is_at_hand(key, *span) for key, span in spans.items())

    def _is_at_hand(self, key: PartitionId, first: int, end: int) -> bool:
        while first < end:
            found = self._find(key, first)
            if found is None:
                return False
            first = found[0].end
        return True

    def _find(self, key: PartitionId, offset: int) -> tuple[PartitionIndex, int] | None:
        if found := self._index.find(key, offset):
            return found
        far = self._far.get(key)
        place = None if far is None else far.at(offset)
        return None if far is None or place is None else (far, place)

    async def _load_far(self, spans: Mapping[PartitionId, Span]) -> None:
        """Of these partitions, from the begins of their spans on."""
        history = await self._history()
        if history.checkpoint.number > self.checkpoint.number and not self._known.look(
            history.checkpoint.trim_slot, _now_s()
        ):
            self._begin(history)
        else:
            self._see(history.checkpoint)
        below = min(self._known.next_slot, self._index.covered_from)
        found = far_indexes(
            (slot.index for slot in history.segments if slot.index.slot < below), spans, FAR_BATCHES_MAX
        )
        others = [key for key in self._far if key not in found]
        self._far = {key: self._far[key] for key in others} | found
        while others and sum(map(len, self._far.values())) > FAR_BATCHES_MAX:
            del self._far[others.pop(0)]

    async def look_for(self, missing: ObjectMissing, known: int) -> None:
        """An object was gone that checkpoint `known` needs: there must be a newer one that does
        not. Raises DataDamaged else.
        """
        async with self._turn:
            if self.checkpoint.number == known:
                await self._look()
        if self.checkpoint.number == known:
            raise DataDamaged(
                f"{missing.message}, and no checkpoint says so", object_key=missing.object_key
            ) from missing

    @property
    def _known(self) -> Follower:
        assert self._follower is not None, "open the reader first"
        return self._follower

    # The fold. Whoever changes it has the turn.

    async def _history(self) -> History:
        return await read_history(self.ledger)

    def _begin(self, history: History) -> None:
        """At its checkpoint, from the trim slot on."""
        index = FetchIndex(self._batches_max, history.first)
        for slot in history.segments:
            index.add(self._part_of(slot.index))
        if self._follower is not None:
            self._assert_forward(self._follower.state.ends, history.state.ends)
        self._index, self._far = index, {}
        self.recent_bytes.clear()
        self._follower = Follower(history.state)
        self._see(history.checkpoint)

    @staticmethod
    def _assert_forward(before: Mapping[PartitionId, int], now: Mapping[PartitionId, int]) -> None:
        """A partition whose topic was removed is known no more."""
        back = {key: (end, now[key]) for key, end in before.items() if key in now and now[key] < end}
        assert not back, f"ends went back: {back}"

    def _part_of(self, index: fmt.SegmentIndex) -> fmt.SegmentIndex:
        batches = [entry for entry in index.batches if self._wanted(PartitionId(entry.topic_id, entry.partition))]
        if len(batches) == len(index.batches):
            return index
        return fmt.SegmentIndex(slot=index.slot, created_ms=index.created_ms, batches=batches)

    async def _read_on(self) -> bool:
        """Some slots further. False: nothing more is there now."""
        if self._known.is_look_due(_now_s()) and await self._look():
            return True
        ends = await self._next_slots()
        has_more = len(ends) == self._ahead
        self._ahead = min(2 * self._ahead, SLOTS_AHEAD_MAX) if has_more else 1
        for end in ends:
            if not self._known.take(end.slot.index):
                return True  # look, before anything behind it is believed
            part = self._part_of(end.slot.index)
            self._index.add(part)
            self.recent_bytes.keep(end, part.batches)
        if not has_more:
            self._known.miss(_now_s())
        return has_more

    async def _next_slots(self) -> list[SegmentEnd]:
        """As many as are there without a gap, of those that are asked for at once."""
        first = self._known.next_slot
        found = await asyncio.gather(*(self._end_or_error(first + i) for i in range(self._ahead)))
        ends: list[SegmentEnd] = []
        for end in found:
            if isinstance(end, ObjectMissing):
                break
            if isinstance(end, Exception):
                if ends:
                    break
                raise end
            ends.append(end)
        return ends

    async def _end_or_error(self, slot: int) -> SegmentEnd | Exception:
        try:
            return await read_end(self._store, self.bundle, slot)
        except Exception as error:
            return error

    async def _look(self) -> bool:
        """Take in the newest checkpoint; True: what was known could not be believed any more, it
        has begun again.
        """
        checkpoint = await newest_checkpoint(self._store, self.bundle, self.checkpoint)
        if not self._known.look(checkpoint.trim_slot, _now_s()):
            self._begin(await self._history())
            return True
        self._see(checkpoint)
        return False

    def _see(self, checkpoint: fmt.Checkpoint) -> None:
        assert checkpoint.number >= self.checkpoint.number
        self.checkpoint = checkpoint
        self._counters = partitions_by_key(checkpoint)
        self._index.drop_below(checkpoint.trim_slot)
        for far in self._far.values():
            far.drop_first(far.place_of_slot(checkpoint.trim_slot))
