"""`LedgerReader`: reads one ledger from the store alone, with no broker. Parquet where it is compacted, segments behind that.

It knows which offsets are durable by following the slots (`ledger.follow`), and finds each batch by offset: so compaction, trimming,
deletion and takeovers may go on under it, and a caller sees nothing but records in order. A poll is one GET; LISTs come only at the begin
and at a surprise.

Invariants: what was shown is durable; an end never goes back. Of user topics: internal ones are snapshots (`ledger.internal_topic`).
Must not know topics' names, brokers, groups, or what a record means.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from ledger.blocking import RunBlocking
from ledger.checkpoint import newest_checkpoint, partitions_by_key
from ledger.cold_reader import ColdReader, choose_batches
from ledger.fetch_index import FetchIndex, PartitionIndex, Place, far_index
from ledger.fold import PartitionKey
from ledger.follow import Follower
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.history import History, read_history
from ledger.keyed.reader import KeyedReader
from ledger.keys import KeyedPlace
from ledger.object_store.contract import ObjectMissing, ObjectStore
from ledger.parquet.reader import ParquetCache, read_parquet
from ledger.recent_bytes import RecentBytes
from ledger.segment import SegmentEnd, read_end
from ledger.stored_batch import StoredBatch
from ledger.time_search import offset_at
from ledgermq.errors import DataDamaged, OffsetOutOfRange, Unavailable

ATTEMPTS_MAX = 10
SLOTS_AHEAD_MAX = 16
COLD_READS = 8
INDEX_BATCHES_MAX = 500_000
"""Some 30 MB; what does not fit is looked up again when it is wanted."""
FAR_BATCHES_MAX = 100_000
READ_BYTES = 4 * 1024 * 1024
POLL_S = 0.2

Wanted = Callable[[PartitionKey], bool]


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class LedgerReader:
    """`open` first. Within one event loop; calls may run side by side. Partitions are (topic id, partition).

    `wanted`: only these partitions can be read, and only their batches take memory. `recent_bytes_max`: so much of the newest batches is
    kept, as far as it comes with the indexes; then reading it asks nobody.
    """

    def __init__(
        self,
        store: ObjectStore,
        bundle: int,
        producer_states_max: int,
        *,
        wanted: Wanted = lambda key: True,
        run_blocking: RunBlocking = asyncio.to_thread,
        index_batches_max: int = INDEX_BATCHES_MAX,
        recent_bytes_max: int = 0,
    ) -> None:
        self.bundle = bundle
        self._store = store
        self._states_max = producer_states_max
        self._wanted = wanted
        self._batches_max = index_batches_max
        self._run_blocking = run_blocking
        self._parquet = ParquetCache(store, run_blocking)
        self._keyed = KeyedReader(store, run_blocking)
        self._turn = asyncio.Lock()
        self._checkpoint = fmt.Checkpoint()
        self._counters: dict[PartitionKey, fmt.PartitionCheckpoint] = {}
        self._index = FetchIndex(index_batches_max, 1)
        self._recent = RecentBytes(recent_bytes_max)
        self._cold = ColdReader(store, bundle, asyncio.Semaphore(COLD_READS), self._recent.batches)
        self._far: tuple[PartitionKey, PartitionIndex] | None = None
        self._follower: Follower | None = None
        self._ahead = 1

    async def open(self) -> None:
        """Take in everything that is durable now. Raises DataDamaged, FormatNotSupported, Unavailable, the store's errors."""
        async with self._turn:
            self._begin(await self._history())

    def partitions(self) -> list[PartitionKey]:
        """Those that have records, or had, as far as is known."""
        return sorted(key for key in self._known.state.ends if self._wanted(key))

    def end(self, key: PartitionKey) -> int:
        """The next offset that is not known to be durable."""
        counters = self._counters.get(key)
        seen = (counters.parquet_end, counters.log_start) if counters else ()  # by others, further than this reader has followed
        return max(self._known.state.end(*key), *seen, 0)

    def log_start(self, key: PartitionKey) -> int:
        counters = self._counters.get(key)
        return counters.log_start if counters else 0

    def parquet_end(self, key: PartitionKey) -> int:
        """Everything from `parquet_start` up to here is in Parquet, as far as is known; the rest is in segments."""
        counters = self._counters.get(key)
        return counters.parquet_end if counters else 0

    def parquet_start(self, key: PartitionKey) -> int:
        """What is below, down to the log start, was cleaned: of a keyed topic only the latest record of each key can be read."""
        counters = self._counters.get(key)
        return counters.parquet_start if counters else 0

    async def refresh(self) -> bool:
        """Take in what has become durable; True: there was something. Raises as `open` does."""
        async with self._turn:
            before = self._known.next_slot
            while await self._read_on():
                pass
            found = self._known.next_slot - before
            self._ahead = min(max(found, 0) + 1, SLOTS_AHEAD_MAX)  # as many as came this time, and one to see that there are no more
            return found > 0

    async def read(self, key: PartitionKey, offset: int, bytes_max: int = READ_BYTES) -> list[StoredBatch]:
        """Batches from the one that holds `offset` on, at least one, about `bytes_max` bytes; none where `offset` is the end.

        Below `parquet_start` offsets are left out, so the first batch may begin above `offset`.

        Raises OffsetOutOfRange (below the log start, or above the end), DataDamaged, Unavailable, the store's errors.
        """
        for _ in range(ATTEMPTS_MAX):
            known = self._checkpoint.number
            start, end = self.log_start(key), self.end(key)
            if not start <= offset <= end:
                raise OffsetOutOfRange(
                    f"topic id {key[0]} partition {key[1]}: offset {offset} is not within log start {start} and end {end}"
                )
            if offset == end:
                return []
            try:
                found = await self._read(key, offset, bytes_max)
            except ObjectMissing as missing:
                await self._look_for(missing, known)
                continue
            if found:
                assert offset < found[0].end, (key, offset)
                assert found[0].base_offset <= max(offset, self.parquet_start(key)), (key, offset)
                return found
        raise Unavailable(f"bundle {self.bundle}: its records move faster than they can be read", retry_after_ms=100)

    async def batches(self, key: PartitionKey, first: int, end: int) -> PartitionIndex:
        """Where the batches of these offsets are, a copy; fewer where they have moved to Parquet (look at `parquet_end` again).

        Raises DataDamaged, Unavailable, the store's errors.
        """
        found = PartitionIndex()
        offset = first
        while offset < end and (place := await self._place(key, offset)) is not None:
            found.extend(place[0].between(offset, end))
            offset = found.end
        return found

    def recent(self, batches: PartitionIndex) -> dict[Place, bytes]:
        """What is at hand of these; not checked."""
        return self._recent.find(batches)

    async def parquet_files(self, key: PartitionKey, offset: int) -> list[fmt.ParquetFile]:
        """Those that hold records at or above `offset`, ascending. Raises DataDamaged, Unavailable, the store's errors."""
        for _ in range(ATTEMPTS_MAX):
            known = self._checkpoint.number
            try:
                counters = self._counters.get(key)
                return await self._parquet.pages(self.bundle).files_from(counters, offset) if counters else []
            except ObjectMissing as missing:
                await self._look_for(missing, known)
        raise Unavailable(f"bundle {self.bundle}: its file lists change faster than they can be read", retry_after_ms=100)

    async def offset_at(self, key: PartitionKey, timestamp_us: int) -> int | None:
        """The first record of this time or a later one, among those that are known to be durable. Raises as `read` does."""
        return await offset_at(_Searched(self, key), timestamp_us, self._run_blocking)

    async def candidate(self, key: PartitionKey, offset: int, timestamp_us: int) -> tuple[int, int] | None:
        """As `ledger.time_search` asks."""
        if offset < (border := self.parquet_start(key)):
            cleaned = await self._keyed.candidate(KeyedPlace(*key), offset, border, timestamp_us)
            if cleaned is not None:
                return cleaned
            offset = border
        if offset < self.parquet_end(key):
            for file in await self.parquet_files(key, offset):
                if file.timestamp_max_us >= timestamp_us:
                    return max(offset, file.first_offset), file.last_offset + 1
            offset = max(offset, self.parquet_end(key))
        if offset >= self.end(key):
            return None
        place = await self._place(key, offset)
        if place is None:
            return offset, offset  # it has moved to Parquet: look there
        index, at = place
        later = index.first_at_or_after(timestamp_us, at)
        return (index.end, index.end) if later is None else (max(offset, index[later].base_offset), index[later].end)

    async def follow(
        self, positions: Mapping[PartitionKey, int], *, bytes_max: int = READ_BYTES, poll_s: float = POLL_S
    ) -> AsyncIterator[tuple[PartitionKey, list[StoredBatch]]]:
        """Everything from these offsets on, for ever: a partition, and batches of it, in turn. Raises as `read` does."""
        positions = dict(positions)
        while True:
            behind = [key for key, offset in positions.items() if offset < self.end(key)]
            for key in behind:
                batches = await self.read(key, positions[key], bytes_max)
                yield key, batches
                positions[key] = batches[-1].end
            if not behind and not await self.refresh():
                await asyncio.sleep(poll_s)

    @property
    def _known(self) -> Follower:
        assert self._follower is not None, "open the reader first"
        return self._follower

    # The fold. Whoever changes it has the turn.

    async def _history(self) -> History:
        return await read_history(self._store, self.bundle, self._states_max)

    def _begin(self, history: History) -> None:
        """At its checkpoint, from the trim slot on."""
        index = FetchIndex(self._batches_max, history.first)
        for slot in history.segments:
            index.add(self._part_of(slot.index))
        if self._follower is not None:
            self._assert_forward(self._follower.state.ends, history.state.ends)
        self._index, self._far = index, None
        self._recent.clear()
        self._follower = Follower(history.state)
        self._see(history.checkpoint)

    @staticmethod
    def _assert_forward(before: Mapping[PartitionKey, int], now: Mapping[PartitionKey, int]) -> None:
        """A partition whose topic was removed is known no more."""
        back = {key: (end, now[key]) for key, end in before.items() if key in now and now[key] < end}
        assert not back, f"ends went back: {back}"

    def _part_of(self, index: fmt.SegmentIndex) -> fmt.SegmentIndex:
        batches = [entry for entry in index.batches if self._wanted((entry.topic_id, entry.partition))]
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
            self._recent.keep(end, part.batches)
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
        """Take in the newest checkpoint; True: what was known could not be believed any more, the reader has begun again."""
        checkpoint = await newest_checkpoint(self._store, self.bundle, self._checkpoint)
        if not self._known.look(checkpoint.trim_slot, _now_s()):
            self._begin(await self._history())
            return True
        self._see(checkpoint)
        return False

    def _see(self, checkpoint: fmt.Checkpoint) -> None:
        assert checkpoint.number >= self._checkpoint.number
        self._checkpoint = checkpoint
        self._counters = partitions_by_key(checkpoint)
        self._index.drop_below(checkpoint.trim_slot)
        self._far = None

    # The records.

    async def _read(self, key: PartitionKey, offset: int, bytes_max: int) -> list[StoredBatch]:
        """Nothing: it moved to Parquet while it was looked for."""
        if offset < (border := self.parquet_start(key)):
            cleaned = await self._keyed.read(KeyedPlace(*key), offset, border, bytes_max)
            if cleaned:
                return cleaned
            offset = border
        if offset < self.parquet_end(key):
            return await read_parquet(self._store, self.bundle, self._checkpoint, *key, offset, bytes_max, cache=self._parquet)
        found = await self._place(key, offset)
        return [] if found is None else await self._cold.read(choose_batches(*found, bytes_max))

    async def _place(self, key: PartitionKey, offset: int) -> tuple[PartitionIndex, int] | None:
        """Of a batch that is in a segment; None: it has moved to Parquet meanwhile. Raises DataDamaged where it is nowhere."""
        found = self._find(key, offset)
        if found is None:
            async with self._turn:
                await self._load_far(key, offset)
            found = self._find(key, offset)
        if found is None and offset >= self.parquet_end(key):
            raise DataDamaged(f"bundle {self.bundle}: offset {offset} of topic id {key[0]} partition {key[1]} is in no segment")
        return found

    def _find(self, key: PartitionKey, offset: int) -> tuple[PartitionIndex, int] | None:
        if found := self._index.find(key, offset):
            return found
        if self._far is not None and self._far[0] == key and (place := self._far[1].at(offset)) is not None:
            return self._far[1], place
        return None

    async def _load_far(self, key: PartitionKey, offset: int) -> None:
        """What the index has no room for, of one partition."""
        history = await self._history()
        if history.checkpoint.number > self._checkpoint.number and not self._known.look(history.checkpoint.trim_slot, _now_s()):
            self._begin(history)
        else:
            self._see(history.checkpoint)
        followed = (slot.index for slot in history.segments if slot.index.slot < self._known.next_slot)
        self._far = key, far_index(followed, key, offset, FAR_BATCHES_MAX)

    async def _look_for(self, missing: ObjectMissing, known: int) -> None:
        """An object was gone that checkpoint `known` needs: there must be a newer one that does not. Raises DataDamaged else."""
        async with self._turn:
            if self._checkpoint.number == known:
                await self._look()
        if self._checkpoint.number == known:
            raise DataDamaged(f"{missing.message}, and no checkpoint says so", object_key=missing.object_key) from missing


@dataclass(frozen=True, slots=True)
class _Searched:
    """One partition of a reader, for a search by time."""

    reader: LedgerReader
    key: PartitionKey

    def log_start(self) -> int:
        return self.reader.log_start(self.key)

    async def candidate(self, offset: int, timestamp_us: int) -> tuple[int, int] | None:
        return await self.reader.candidate(self.key, offset, timestamp_us)

    async def read(self, offset: int, bytes_max: int) -> list[StoredBatch]:
        return await self.reader.read(self.key, offset, bytes_max)
