"""Read the slots that a group of planned files needs, each once, and feed the batches to the
builders of the files.

Slots come in ascending order, so each file gets its batches in order of offset; a segment sorts its
batches by topic id and partition, so the group's batches of one slot lie together and one range GET
reads them. Indexes and ranges are read ahead, many where slots are small. Decoding and writing run
where `run_blocking` runs them: a thread, or inline in a simulation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from crc32c import crc32c

from ledgermq.errors import CorruptFrame, DataDamaged, MessageTooLarge
from ledgermq.runtime.tasks import end
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.plans import refuse, require_open
from ledgermq_ledger.log.segments.segment import decode_tail
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.compacting.lost import decode_stored, is_lost, rows_in_place
from ledgermq_ledger.parquet.compacting.plan import end_of
from ledgermq_ledger.parquet.files.columns import ParquetBuilder
from ledgermq_ledger.typed.column import TypedColumns

AHEAD_BYTES = 32 * 1024 * 1024
"""Bytes that are read ahead while batches are decoded, judged by the largest read so far."""
SLOTS_AHEAD_MIN, SLOTS_AHEAD_MAX = 4, 6
"""Reads at a time: fewer than the readers of a folder store, which a broker's compaction shares
with fetches.
"""

TypedOf = Callable[[fmt.PlannedFile], TypedColumns | None]


@dataclass(slots=True)
class Built:
    """A file whose batches were all read; otherwise `failed` is the reason, and `builder` is None."""

    file: fmt.PlannedFile
    builder: ParquetBuilder | None
    failed: str = ""
    damaged_object: str = ""


@dataclass(slots=True)
class _Piece:
    """A batch and the file that it belongs to."""

    file: fmt.PlannedFile
    entry: fmt.BatchEntry
    data: memoryview
    read_bytes: int
    """Size of the read that brought it; all of that stays in memory with it."""
    crc_fits: bool = False


class _Group:
    def __init__(
        self,
        files: list[fmt.PlannedFile],
        indexes: Iterable[bytes],
        pending_bytes_max: int,
        typed: TypedOf = lambda file: None,
    ) -> None:
        self.typed = typed
        self.pending_bytes_max = pending_bytes_max
        self.known = {index.slot: index for index in map(fmt.SegmentIndex.FromString, indexes)}
        self.files = {PartitionId(file.topic_id, file.partition): file for file in files}
        self.slots: dict[int, dict[PartitionId, fmt.PlannedFile]] = {}
        for key, file in self.files.items():
            for slot in file.slots:
                self.slots.setdefault(slot, {})[key] = file
        self.builders: dict[PartitionId, ParquetBuilder] = {}
        self.failures: dict[PartitionId, Built] = {}

    def wanted(self, index: fmt.SegmentIndex) -> list[tuple[fmt.PlannedFile, fmt.BatchEntry]]:
        files = self.slots[index.slot]
        found = [(files.get(PartitionId(entry.topic_id, entry.partition)), entry) for entry in index.batches]
        return [
            (f, e) for f, e in found if f is not None and end_of(e) > f.first_offset and e.base_offset <= f.last_offset
        ]

    def take(self, pieces: Iterable[_Piece], object_key: str, stored_us: int) -> None:
        """Check, decode and add batches of one segment, which is stored since `stored_us`. Blocking.

        A file with a batch that cannot be read fails; the others continue.
        """
        for piece in pieces:
            key = PartitionId(piece.entry.topic_id, piece.entry.partition)
            if key in self.failures:
                continue
            try:
                batch = decode_stored(piece.data, piece.entry, crc_fits=piece.crc_fits)
            except (CorruptFrame, MessageTooLarge) as error:
                if is_lost(piece.entry, piece.file.lost):
                    self._add(piece, rows_in_place(piece.entry, object_key), stored_us)
                    continue
                self.builders.pop(key, None)
                self.failures[key] = Built(
                    piece.file, None, f"batch at byte {piece.entry.position}: {error.message}", object_key
                )
                continue
            self._add(piece, batch, stored_us)
        while sum(builder.pending_bytes for builder in self.builders.values()) > self.pending_bytes_max:
            max(self.builders.values(), key=lambda builder: builder.pending_bytes).flush()

    def _add(self, piece: _Piece, batch: pa.RecordBatch, stored_us: int) -> None:
        key = PartitionId(piece.entry.topic_id, piece.entry.partition)
        if key not in self.builders:
            self.builders[key] = ParquetBuilder(piece.file, self.typed(piece.file))
        self.builders[key].add(batch, piece.entry.base_offset, stored_us)

    def built(self) -> list[Built]:
        return [self.failures.get(key) or Built(file, self.builders[key]) for key, file in self.files.items()]


async def build_group(
    store: ObjectStore,
    plan: fmt.CompactionPlan,
    files: list[fmt.PlannedFile],
    indexes: Iterable[bytes],
    run_blocking: RunBlocking,
    pending_bytes_max: int,
    typed: TypedOf = lambda file: None,
) -> AsyncGenerator[Built, None]:
    """Yield every one of `files`, in order, once all slots are read. `indexes`: those of some
    slots, used where they apply. `typed`: what makes the columns of typed values of a file.

    `pending_bytes_max`: decoded rows of the group that wait for their row groups.

    Raises PlanOvertaken, DataDamaged, the store's errors.
    """
    group = _Group(files, indexes, pending_bytes_max, typed)
    async with aclosing(
        _read_ahead(store, plan, [slot for slot in plan.slots if slot.slot in group.slots], group)
    ) as reads:
        async for slot, pieces in reads:
            object_key = keys.segment(plan.bundle, slot.slot)
            await run_blocking(partial(group.take, pieces, object_key, 1000 * slot.stored_ms))
    for built in group.built():
        yield built
        built.builder = None  # it is finished: free what it held


async def _read_ahead(
    store: ObjectStore, plan: fmt.CompactionPlan, slots: list[fmt.PlannedSlot], group: _Group
) -> AsyncGenerator[tuple[fmt.PlannedSlot, list[_Piece]], None]:
    ahead = SLOTS_AHEAD_MIN
    largest_bytes = 1
    waiting = deque(slots)
    reads: deque[tuple[fmt.PlannedSlot, asyncio.Task[list[_Piece]]]] = deque()
    try:
        while waiting or reads:
            while waiting and len(reads) < ahead:
                slot = waiting.popleft()
                reads.append((slot, asyncio.create_task(_read_slot(store, plan, slot, group))))
            slot, read = reads[0]
            pieces = await read
            reads.popleft()
            largest_bytes = max([largest_bytes, *(piece.read_bytes for piece in pieces)])
            ahead = min(max(SLOTS_AHEAD_MIN, AHEAD_BYTES // largest_bytes), SLOTS_AHEAD_MAX)
            yield slot, pieces
    finally:
        await end(*(read for _, read in reads))


async def _read_slot(
    store: ObjectStore, plan: fmt.CompactionPlan, slot: fmt.PlannedSlot, group: _Group
) -> list[_Piece]:
    """Read the batches of one slot. A cached index is trusted if all its checksums match; otherwise
    the slot is damaged, or holds another segment.
    """
    key = keys.segment(plan.bundle, slot.slot)
    try:
        if slot.slot in group.known:
            pieces = await _read_pieces(store, key, group.wanted(group.known[slot.slot]))
            if pieces and all(piece.crc_fits for piece in pieces):
                return pieces
        wanted = group.wanted(await read_planned_index(store, plan, slot))
        if not wanted:
            raise await refuse(store, plan, key, "it holds none of the batches that the plan reads from it")
        pieces = await _read_pieces(store, key, wanted)
        for piece in pieces:
            if not piece.crc_fits:  # damage in transit must not park a partition
                piece.data = memoryview(await store.get_range(key, piece.entry.position, piece.entry.length))
        return pieces
    except ObjectMissing as error:
        raise await refuse(store, plan, key, "it is missing") from error


async def _read_pieces(
    store: ObjectStore, key: str, wanted: Sequence[tuple[fmt.PlannedFile, fmt.BatchEntry]]
) -> list[_Piece]:
    if not wanted:
        return []
    start = min(entry.position for _, entry in wanted)
    length = max(entry.position + entry.length for _, entry in wanted) - start
    data = memoryview(await store.get_range(key, start, length))
    pieces = [_Piece(file, entry, data[entry.position - start :][: entry.length], length) for file, entry in wanted]
    for piece in pieces:
        piece.crc_fits = crc32c(piece.data) == piece.entry.crc
    return pieces


async def read_planned_index(store: ObjectStore, plan: fmt.CompactionPlan, slot: fmt.PlannedSlot) -> fmt.SegmentIndex:
    """Read the index of a slot that the plan names.

    Raises ObjectMissing, PlanOvertaken, DataDamaged if another segment is there.
    """
    key = keys.segment(plan.bundle, slot.slot)
    try:
        index = decode_tail(await store.get_suffix(key, slot.tail_length), plan.bundle, slot.slot).index
    except DataDamaged:
        await require_open(store, plan)
        raise
    if index.put_id != slot.put_id:
        raise await refuse(store, plan, key, "its put id differs from the one in the plan")
    return index
