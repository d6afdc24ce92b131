"""Take timed messages in: append each batch that a producer sends to the bundle's intake, as one block.

A block is appended with the producer's session, so the ledger's own rules for sessions hold (R8), and it
is acknowledged when it is durable. Then its rows enter memory. Until an append has an outcome, nothing
that it may hold is passed by the watermark (R2), and its floor is above everything that a delivery has
begun with (R9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from ledger.keys import PartitionId
from ledger.log.segment import Batch
from ledgermq.errors import InvalidRecord, ResourceExhausted
from stateless_broker.timers.counts import TimerCounts
from stateless_broker.timers.held import READ_BYTES, Held, InFlight
from timers.blocks import Block, Source, encode_block
from timers.limits import DAY_US, FULL_RETRY_MS


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch of timed messages, with its records decoded."""

    batch: Batch
    records: pa.RecordBatch


def check_due(sent: Sent, now_us: int, horizon_days: int) -> None:
    """Check the due times of a batch. Raises InvalidRecord."""
    without = sent.records.column("timestamp").null_count
    if without:
        raise InvalidRecord(f"{without} timed records without a timestamp; the timestamp is the due time")
    ahead_us = sent.batch.timestamp_max_us - now_us
    if ahead_us > horizon_days * DAY_US:
        raise InvalidRecord(
            f"a record is due in {ahead_us / DAY_US:.1f} days; messages may wait {horizon_days} days at most"
        )


class Intake:
    """`in_term`: appends of this and of earlier states of this term that have no outcome yet."""

    def __init__(self, held: Held, in_term: InFlight, counts: TimerCounts) -> None:
        self._held = held
        self._counts = counts
        self._in_term = in_term
        self._before = list(in_term)
        self.next_offset = 0
        """Offset of the next block whose rows enter memory."""
        self.unflushed_bytes = 0
        """Bytes of blocks that came since the last flush."""
        self.unflushed_since_s: float | None = None
        """When the oldest of them came into memory; None: there are none."""

    def send(self, batches: Sequence[Sent]) -> list[asyncio.Future[int]]:
        """Append all batches or none; each future gets the offset of its block when that is durable, or an
        error. A caller that no longer waits may cancel it: the append goes on, and counts as in flight.

        Raises NotOwner, ResourceExhausted, and the error of a store that takes no records.
        """
        held = self._held
        held.state.check()
        owner, floor_us = held.logs.owner, held.closed_us + 1
        self._check_room(sum(len(sent.batch.data) for sent in batches))
        owner.check_staged()
        appends = []
        for sent in batches:
            target = PartitionId(sent.batch.topic_id, sent.batch.partition)
            record = encode_block(target, floor_us, bytes(sent.batch.data))
            appends.append(held.logs.batch_of(held.logs.intake, [record], sent.batch.producer))
        done = owner.produce(appends, durable=True)
        for sent, future in zip(batches, done, strict=True):
            block = Block(sent.batch.topic_id, sent.batch.partition, floor_us, sent.records, len(sent.batch.data))
            self._in_term[future] = held.in_flight[future] = max(floor_us, sent.batch.timestamp_min_us)
            future.add_done_callback(partial(self._settled, block))
        return [_for_caller(future) for future in done]

    async def load(self) -> None:
        """Bring the rows of the intake into memory that are neither delivered nor moved to ranges.

        It waits first until every append of an earlier state of this term has an outcome (R14). Raises
        the errors of `HiddenLogs.read`; then it may be repeated.
        """
        held = self._held
        if self._before:
            await asyncio.wait(self._before)
            self._before = []
        self.next_offset = max(self.next_offset, held.timers.intake_start())
        while self.next_offset < (end := held.logs.durable_end(None)):
            for source, block in await held.logs.read(None, self.next_offset, end, READ_BYTES):
                self._add(source, block)
            held.state.check()
            await asyncio.sleep(0)
        held.is_ready.set()  # in the turn in which it has reached the end: later blocks are added by `_settled`
        held.freed.set()  # what the former owner has delivered or moved, and has not freed

    def flushed(self) -> None:
        """Note that a flush covers all blocks that were in memory when it began."""
        held = self._held
        self.unflushed_bytes = 0
        is_all = held.timers.flushed.end_offset >= self.next_offset
        self.unflushed_since_s = None if is_all else asyncio.get_running_loop().time()

    def _settled(self, block: Block, done: asyncio.Future[int]) -> None:
        """Take the rows of a block that is durable and new. Called for each append, in order of offsets."""
        held = self._held
        self._in_term.pop(done, None)
        held.in_flight.pop(done, None)
        held.settled.set()
        if held.state.is_lost() or not held.is_ready.is_set():
            return  # otherwise `load` reads it
        if done.exception() is not None:
            return
        offset = done.result()
        if offset < self.next_offset:
            return  # a repeated send, or `load` has read it
        try:
            assert offset == self.next_offset, f"the intake has block {offset}, expected {self.next_offset}"
            self._add(Source(None, offset), block)
        except Exception as bug:
            held.state.broken(bug)
            return
        self._counts.taken_in(held.bundle, block.records.num_rows, block.size_bytes)
        held.moves_changed.set()

    def _add(self, source: Source, block: Block) -> None:
        held = self._held
        horizon_us = held.timers.horizon_of(source.offset)
        held.waiting.add(source, block, above=held.timers.watermark, horizon_us=horizon_us)
        self.next_offset = source.offset + 1
        if horizon_us is None:
            self.unflushed_bytes += block.size_bytes
            if self.unflushed_since_s is None:
                self.unflushed_since_s = asyncio.get_running_loop().time()
        held.note_added()

    def _check_room(self, size_bytes: int) -> None:
        held = self._held
        if held.size_bytes + size_bytes > held.limits.waiting_bytes_max:
            raise ResourceExhausted(
                f"bundle {held.bundle}: timed messages of {held.size_bytes} bytes wait in it, at most"
                f" {held.limits.waiting_bytes_max} may; retry when some are delivered",
                retry_after_ms=FULL_RETRY_MS,
            )
        if held.waiting.index_bytes > held.limits.index_bytes:
            raise ResourceExhausted(
                f"bundle {held.bundle}: {held.waiting.rows} timed messages that are due soon, or cannot be moved,"
                " are in memory; retry when some are delivered",
                retry_after_ms=FULL_RETRY_MS,
            )


def _for_caller(append: asyncio.Future[int]) -> asyncio.Future[int]:
    """Return a future with the outcome of an append. Its caller may cancel it, or never look at it."""
    given = asyncio.shield(append)
    given.add_done_callback(lambda done: done.cancelled() or done.exception())
    return given
