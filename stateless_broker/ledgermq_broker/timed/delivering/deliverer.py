"""Deliver timed messages: append each to its partition when its time has come, in order, exactly once.

A round begins with a time that the store's clock has reached. It waits until nothing that is due by then
is still on its way into the intake (W2). Then it appends chunk by chunk: a chunk's messages and the
watermark that covers them are one segment (W1). Copies carry no producer session. Chunks follow one
another without waiting, within a bound of bytes, and yield to live producers.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from crc32c import crc32c

from ledgermq.errors import LedgerMQError
from ledgermq.protocol.batches.records import Compression, encode_batch, timestamps_of
from ledgermq.runtime.wait import wait_for
from ledgermq_broker.timed.counts import TimerCounts
from ledgermq_broker.timed.delivering.flow import Flow
from ledgermq_broker.timed.held import Held, exists_in
from ledgermq_broker.timed.state.blocks import end_of
from ledgermq_broker.timed.state.memory.cut import batches
from ledgermq_broker.timed.state.memory.merged import Chunk
from ledgermq_broker.timed.state.memory.rows import Rows
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.root.store_clock import StoreClock
from ledgermq_ledger.topics.catalog import Catalog

CHUNK_BYTES = 128 * 1024
"""Delivered in one turn of the pace, about, or `chunk_bytes` of the limits if that is less: some 1 ms of work."""
SHARED_WITHIN_S = 0.01
"""How long a chunk that is not the last one may wait for the next ones to share its segment. Each segment
costs a PUT, which delays those of live producers.
"""
RECALLS_LOOK_S = 60.0
"""Pause between two looks for recalls to forget."""
COMPRESSED_BYTES_MIN = 16 * 1024
MILLISECOND_US = 1000


class Deliverer:
    def __init__(
        self, held: Held, flow: Flow, clock: StoreClock, catalog: Callable[[], Catalog], counts: TimerCounts
    ) -> None:
        self._held = held
        self._flow = flow
        self._clock = clock
        self._catalog = catalog
        self._counts = counts

    async def until_due(self) -> None:
        """Wait until something is due that may be delivered. Raises the store's errors if its clock has
        to be read.
        """
        held = self._held
        await held.is_ready.wait()
        while True:
            held.due_changed.clear()
            await self._read_clock_if_old()
            now_us = self._clock.now_us()
            if now_us is not None:
                to_us = held.timers.deliverable_to(now_us, held.loaded)
                first_us = held.waiting.next_due_us
                if first_us is not None and first_us <= to_us:
                    return
                if end_of(to_us) > held.timers.watermark and held.timers.frees(to_us):
                    return
            await wait_for(held.due_changed, self._pause_s(now_us))

    async def deliver(self) -> None:
        """Deliver everything that is due now. Raises the error that stands in the way; what was appended
        before it stays.
        """
        held = self._held
        now_us = self._clock.now_us()
        assert now_us is not None
        to_us = held.timers.deliverable_to(now_us, held.loaded)
        assert to_us <= now_us, "nothing is delivered before its time (W13)"
        held.closed_us = max(held.closed_us, to_us)
        await self._until_settled(to_us)
        while held.timers.watermark < end_of(to_us):
            await self._flow.room()
            await held.with_chunk(
                lambda waiting: waiting.due(to_us, min(CHUNK_BYTES, held.limits.chunk_bytes)),
                lambda chunk: self._append(chunk, to_us),
            )
            held.note_added()
        held.freed.set()

    async def _until_settled(self, to_us: int) -> None:
        """Wait until no append to the intake is in flight that may hold rows due by `to_us`."""
        held = self._held
        while (lowest_us := held.lowest_in_flight_us()) is not None and lowest_us <= to_us:
            held.settled.clear()
            await held.settled.wait()
            held.state.check()

    def _append(self, chunk: Chunk | None, to_us: int) -> None:
        """Judge and append a chunk; None: nothing is left that is due by `to_us`. It awaits nothing."""
        held = self._held
        to = end_of(to_us) if chunk is None else chunk.to
        assert held.timers.watermark < to <= end_of(to_us)
        assert chunk is None or held.timers.watermark < chunk.rows.key(0), "delivered before"
        lowest_us = held.lowest_in_flight_us()
        assert lowest_us is None or lowest_us > to_us, "a block in flight is due (W9)"
        copies, live = [], 0
        if chunk is not None:
            rows = self._live(chunk.rows)
            live = len(rows)
            copies = [self._copy(target, records) for target, records in batches(rows).items()] if live else []
        size_bytes = sum(len(copy.data) for copy in copies)
        held.state.check_room(1 + size_bytes)
        decision = held.state.ask(lambda: held.timers.delivered(to, held.loaded))
        within_s = SHARED_WITHIN_S if to < end_of(to_us) else 0.0
        held.state.take(decision, copies, within_s=within_s)
        held.waiting.taken(to)
        if finished := held.loaded - held.timers.ranges.keys():
            held.loaded -= finished
            held.note_moved()

        def durable() -> None:
            held.durable = max(held.durable, to)
            if chunk is not None and live:
                now_us = self._clock.now_us() or to_us
                late_ms = max(0, now_us - chunk.rows.dues[0].as_py()) / MILLISECOND_US
                self._counts.delivered(held.bundle, live, size_bytes, late_ms)

        self._flow.appended(size_bytes, durable, within_s=within_s)

    def _live(self, rows: Rows) -> Rows:
        """Leave out what was recalled, and what waits for topics that were removed (W7)."""
        exists = self._exists()
        held = self._held
        wanted = held.timers.live(rows, lambda topic_id: True)
        live = held.timers.live(wanted, exists)
        if len(wanted) < len(rows):
            self._counts.dropped(held.bundle, len(rows) - len(wanted), "recalled")
        if len(live) < len(wanted):
            self._counts.dropped(held.bundle, len(wanted) - len(live), "removed")
        return live

    def _exists(self) -> Callable[[int], bool]:
        return exists_in(self._catalog())

    def _copy(self, target: PartitionId, records: pa.RecordBatch) -> Batch:
        """Return a batch as it is appended to its partition. It carries no producer session."""
        compression: Compression = "lz4" if records.nbytes >= COMPRESSED_BYTES_MIN else "none"
        data = encode_batch(records, compression)
        times_us = timestamps_of(records)
        assert times_us is not None
        return Batch(*target, records.num_rows, crc32c(data), *times_us, data)

    async def _read_clock_if_old(self) -> None:
        """Read the store's clock if something is due soon and there is no reading of the last hour. If that
        fails, an older reading is still a bound.
        """
        held = self._held
        now_us = self._clock.now_us()
        first_us = held.waiting.next_due_us
        is_soon = first_us is not None and (
            now_us is None or first_us <= now_us + held.limits.due_soon_ms * MILLISECOND_US
        )
        if is_soon or (now_us is None and (held.timers.ranges or held.timers.recalls)):
            try:
                await self._clock.read()
            except LedgerMQError:
                if now_us is None:
                    raise

    def _pause_s(self, now_us: int | None) -> float | None:
        """Return when to look again; None: when something changes."""
        held = self._held
        if now_us is None:
            return None
        times_us = [held.timers.ranges[loaded].to_us for loaded in held.loaded]
        if (last_us := held.timers.flushed.last_us) is not None:
            times_us.append(last_us)
        if held.waiting.next_due_us is not None:
            times_us.append(held.waiting.next_due_us)
        later_us = min((time_us for time_us in times_us if time_us > now_us), default=None)
        pause_s = None if later_us is None else self._clock.wait_s(later_us)
        if held.timers.recalls:
            pause_s = RECALLS_LOOK_S if pause_s is None else min(pause_s, RECALLS_LOOK_S)
        return pause_s
