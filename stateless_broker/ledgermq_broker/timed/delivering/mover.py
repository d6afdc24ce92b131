"""Move timed messages to where they should wait: from the intake into ranges of time (flush), from wide
ranges into narrower ones (turn), and from ranges of a minute into memory (load).

What is moved, and the progress of what it came from, are one segment (W3). Only durable blocks are read.
After a read everything is judged again, in the turn that appends. What was moved is freed later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from ledgermq.errors import Unavailable
from ledgermq.runtime.wait import wait_for
from ledgermq_broker.timed.counts import TimerCounts
from ledgermq_broker.timed.delivering.flow import Flow
from ledgermq_broker.timed.held import READ_BYTES, Held, exists_in
from ledgermq_broker.timed.state.blocks import Block, Source
from ledgermq_broker.timed.state.memory.cut import Moved, range_blocks
from ledgermq_broker.timed.state.memory.rows import Rows, rows_of
from ledgermq_broker.timed.state.memory.waiting import FlushPiece
from ledgermq_broker.timed.state.places import PLACES, Range, RangeId, flush_horizon, place
from ledgermq_broker.timed.taking_in.intake import Intake
from ledgermq_ledger.root.store_clock import StoreClock
from ledgermq_ledger.topics.catalog import Catalog

LACKING_RETRY_MS = 1000
FLUSH_LOOK_S = 1.0
"""Shortest pause between two flushes."""


class Mover:
    def __init__(
        self,
        held: Held,
        intake: Intake,
        flow: Flow,
        clock: StoreClock,
        catalog: Callable[[], Catalog],
        counts: TimerCounts,
    ) -> None:
        self._held = held
        self._intake = intake
        self._flow = flow
        self._clock = clock
        self._catalog = catalog
        self._counts = counts
        self._loading: dict[RangeId, int] = {}
        """Offset up to which a range that is being loaded is in memory."""

    # Ranges whose time comes

    async def until_range_due(self) -> None:
        """Wait until a range should be loaded or turned."""
        held = self._held
        await held.is_ready.wait()
        while True:
            held.moves_changed.clear()
            next_us = held.timers.next_move_us(held.loaded)
            if next_us is None:
                await held.moves_changed.wait()
                continue
            now_us = await self._clock.read() if self._clock.now_us() is None else self._clock.now_us()
            assert now_us is not None
            if next_us <= now_us:
                return
            await wait_for(held.moves_changed, self._clock.wait_s(next_us))

    async def bring_near(self) -> None:
        """Load or turn the ranges whose time has come, the earliest first. Raises the error that stands in
        the way.
        """
        held = self._held
        while True:
            now_us = self._clock.now_us()
            assert now_us is not None
            turn, loads = held.timers.to_turn(now_us), held.timers.to_load(now_us, held.loaded)
            if loads and (turn is None or self._from_us(loads[0]) < self._from_us(turn)):
                await self._load(loads[0])
            elif turn is not None:
                await self._turn(turn, now_us)
            else:
                return

    def _from_us(self, range_id: RangeId) -> int:
        return self._held.timers.ranges[range_id].from_us

    async def _load(self, range_id: RangeId) -> None:
        """Bring all rows of a near range into memory. If it is called again after an error, it continues."""
        held = self._held
        await held.state.durable()
        begin, end = held.timers.ranges[range_id].begin_offset, held.logs.next_offset(range_id)
        assert held.logs.durable_end(range_id) == end, f"{range_id} has blocks that nobody has counted"
        offset = self._loading.setdefault(range_id, begin)
        while offset < end:
            for source, block in await held.logs.read(range_id, offset, end, READ_BYTES):
                held.waiting.add(source, block, above=held.timers.watermark)
                offset = self._loading[range_id] = source.offset + 1
            held.state.check()
            held.note_added()
            await asyncio.sleep(0)
        assert held.logs.next_offset(range_id) == end, f"something was placed in {range_id} while it was loaded (W10)"
        del self._loading[range_id]
        held.loaded.add(range_id)
        held.due_changed.set()

    async def _turn(self, range_id: RangeId, now_us: int) -> None:
        """Move one chunk of a far range to narrower ranges; with the last chunk the range goes."""
        held = self._held
        await self._flow.room()
        if not held.timers.ranges[range_id].turning:
            held.state.issued(lambda: held.timers.turning(range_id))
        await held.state.durable()
        before = held.timers.ranges[range_id]
        begin, end = before.begin_offset, held.logs.next_offset(range_id)
        found: list[tuple[Source, Block]] = []
        if begin < end:
            found = await held.logs.read(range_id, begin, end, held.limits.chunk_bytes)
        async with held.pace.turn():
            self._append_turned(range_id, now_us, before, found, end)

    def _append_turned(
        self, range_id: RangeId, now_us: int, before: Range, found: Sequence[tuple[Source, Block]], end: int
    ) -> None:
        """Judge and append what was read of a range that ends at `end`. It awaits nothing."""
        held = self._held
        held.state.check()
        begin = before.begin_offset
        stop = found[-1][0].offset + 1 if found else begin
        rows = self._live(rows_of(found, held.timers.watermark))
        moved = self._placed(rows, now_us, before)
        size_bytes = _size_of(moved)
        held.state.check_room(1 + size_bytes)
        decision = held.state.ask(
            lambda: held.timers.turned(
                range_id, begin, stop, [block for _, block in found], moved, held.closed_us, is_last=stop == end
            )
        )
        if not decision.answer:
            return
        held.state.take(decision, held.logs.issue(moved))
        self._flow.appended(size_bytes)
        self._counts.moved(held.bundle, len(rows), size_bytes)
        held.note_moved()

    # The intake

    async def until_flush_due(self) -> None:
        """Wait until what has come in since the last flush is large, or old."""
        held, limits, intake = self._held, self._held.limits, self._intake
        await held.is_ready.wait()
        await asyncio.sleep(FLUSH_LOOK_S)
        while True:
            held.moves_changed.clear()
            since_s = intake.unflushed_since_s
            pause_s = None
            if since_s is not None:
                pause_s = since_s + limits.flush_after_ms / 1000 - asyncio.get_running_loop().time()
                if pause_s <= 0 or 2 * intake.unflushed_bytes >= limits.body_bytes:
                    return
            await wait_for(held.moves_changed, pause_s)

    async def flush(self) -> None:
        """Move what is due later than the horizon from the intake into ranges. Raises the error that stands
        in the way; pieces before it stay moved.
        """
        held = self._held
        end = self._intake.next_offset
        while held.timers.flushed.end_offset < end:
            await self._flow.room()
            await self._flush_piece(end)
        self._intake.flushed()

    async def _flush_piece(self, end: int) -> None:
        held = self._held
        held.restoring += 1
        try:
            while True:
                if self._clock.now_us() is None:
                    await self._clock.read()
                async with held.pace.turn():
                    held.state.check()
                    now_us = self._clock.now_us()
                    assert now_us is not None
                    horizon_us = flush_horizon(now_us, held.timers.ranges, held.closed_us)
                    piece = held.waiting.flush(end, horizon_us, held.limits.chunk_bytes)
                    if not piece.missing:
                        self._append_flushed(piece, now_us, horizon_us)
                        return
                await held.restore(piece.missing)
        finally:
            held.restoring -= 1

    def _append_flushed(self, piece: FlushPiece, now_us: int, horizon_us: int) -> None:
        """Judge and append a piece of a flush. It awaits nothing."""
        held = self._held
        rows = self._live(piece.rows)
        moved = self._placed(rows, now_us, None)
        size_bytes = _size_of(moved)
        held.state.check_room(1 + size_bytes)
        decision = held.state.ask(lambda: held.timers.flushed_to(piece.end_offset, horizon_us, moved, held.closed_us))
        held.state.take(decision, held.logs.issue(moved))
        held.waiting.flushed(piece.end_offset, horizon_us)
        self._flow.appended(size_bytes)
        if len(rows):
            self._counts.moved(held.bundle, len(rows), size_bytes)
        held.note_moved()

    def _placed(self, rows: Rows, now_us: int, turned: Range | None) -> Mapping[RangeId, Moved]:
        """Return the blocks of each range that takes rows. Raises Unavailable if there is no place for one."""
        held = self._held
        placement = place(
            rows.dues,
            now_us,
            held.timers.ranges,
            held.closed_us,
            held.logs.next_offset,
            loaded=held.loaded | self._loading.keys(),
            turned=turned,
        )
        if placement.lacking_us is not None:
            due = datetime.fromtimestamp(placement.lacking_us / 1e6, UTC)
            raise Unavailable(
                f"bundle {held.bundle} holds timed messages in {len(held.timers.ranges)} time ranges, the maximum:"
                f" those that are due at {due} wait until a range is delivered",
                retry_after_ms=LACKING_RETRY_MS,
            )
        return range_blocks(rows, placement.groups)

    def _live(self, rows: Rows) -> Rows:
        return self._held.timers.live(rows, exists_in(self._catalog()))


class LogStarts:
    """Frees what is delivered or moved: raises the log starts of hidden partitions, once in a while."""

    def __init__(self, held: Held) -> None:
        self._held = held

    async def until_due(self) -> None:
        await asyncio.sleep(self._held.limits.log_start_ms / 1000)
        await self._held.is_ready.wait()
        await self._held.freed.wait()

    async def move(self) -> None:
        """Raise the log starts as far as the state of this moment allows, once it is durable (W15). Raises
        the store's errors; then it is repeated after the pause.
        """
        held = self._held
        held.freed.clear()
        try:
            begins = dict(held.timers.range_starts())
            for far, places in enumerate(PLACES):
                for number in places:
                    range_id = RangeId(bool(far), number)
                    if range_id not in begins:
                        begins[range_id] = held.logs.next_offset(range_id)
            starts = {held.logs.place_of(range_id): begin for range_id, begin in begins.items()}
            starts[held.logs.intake] = held.timers.intake_start()
            await held.state.durable()
            await held.logs.owner.move_internal_log_starts(starts)
        except BaseException:
            held.freed.set()
            raise


def _size_of(moved: Mapping[RangeId, Moved]) -> int:
    return sum(len(block.key) + len(block.value or b"") for what in moved.values() for block in what.blocks)
