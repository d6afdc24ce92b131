"""Take timed messages in: append each batch that a producer sends to the bundle's intake, as one block.

A block is appended with the producer's session, so the ledger's own rules for sessions hold (W8), and it
is acknowledged when it is durable. Blocks of committed transactions come through the bundle's log instead,
in the segment that completes the transaction (W17).

The rows of a durable block enter memory, in the order of offsets. A producer's block is at hand when it is
the next one. In any other case the intake is behind, and reads what is durable from the ledger. Until the
rows are in memory, nothing that they may hold is passed by the watermark (W2), and a block's floor is above
everything that a delivery has begun with (W9).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from ledgermq.errors import InvalidRecord, LedgerMQError, ResourceExhausted, Unavailable
from ledgermq_broker.timed.counts import TimerCounts
from ledgermq_broker.timed.held import READ_BYTES, Held, InFlight
from ledgermq_broker.timed.state.blocks import Block, Source, encode_block
from ledgermq_broker.timed.state.limits import DAY_US, FULL_RETRY_MS
from ledgermq_broker.timed.state.sizes import Size, size_in_intake
from ledgermq_broker.timed.taking_in.room import Room, Sizes
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.topics.catalog import Catalog

FULL_RETRY_MS_MAX = 30_000
LOADING_RETRY_MS = 200
BEHIND_MAX = 10_000
"""Durable blocks that wait to be read into memory, at most."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch of timed messages, with its records decoded."""

    batch: Batch
    records: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of a committed transaction, to append through the bundle's log. `due_us`: when the first of
    their rows is due. `sizes`: what each takes, by the principal that staged it.
    """

    appends: list[Batch]
    due_us: int
    sizes: Sizes


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
    """`in_term`: appends of this and of earlier states of this term that have no outcome yet. `now_us()`: the
    store's time, None if it is not known.
    """

    def __init__(
        self,
        held: Held,
        in_term: InFlight,
        counts: TimerCounts,
        catalog: Callable[[], Catalog],
        now_us: Callable[[], int | None],
        room: Room,
    ) -> None:
        self._held = held
        self._room = room
        self._counts = counts
        self._catalog = catalog
        self._now_us = now_us
        self._coming: Counter[int] = Counter()
        """Messages by topic id that are on their way into memory: their appends have no outcome yet."""
        self._unread: Counter[int] = Counter()
        """The same of producers' blocks that are durable and have to be read."""
        self._to_read: Sizes = []
        """What all blocks take that are durable and have to be read."""
        self._in_term = in_term
        self._before = list(in_term)
        self.next_offset = 0
        """Offset of the next block whose rows enter memory."""
        self.unflushed_bytes = 0
        """Bytes of blocks that came since the last flush."""
        self.unflushed_since_s: float | None = None
        """When the oldest of them came into memory; None: there are none."""
        self._behind = asyncio.Event()
        """Set when durable blocks have to be read into memory."""

    def send(self, batches: Sequence[Sent], principal: int) -> list[asyncio.Future[int]]:
        """Append all batches or none; each future gets the offset of its block when that is durable, or an
        error. A caller that no longer waits may cancel it: the append goes on, and counts as in flight. `principal`:
        a hash of the name of the principal that sends them; 0: not known.

        Raises NotOwner, ResourceExhausted, QuotaExceeded, and the error of a store that takes no records.
        """
        held = self._held
        held.state.check()
        owner, floor_us = held.logs.owner, held.closed_us + 1
        self.check_room([sent.batch for sent in batches], principal)
        owner.check_admission()
        appends, blocks = [], []
        for sent in batches:
            target = PartitionId(sent.batch.topic_id, sent.batch.partition)
            record = encode_block(target, floor_us, sent.batch.data, principal=principal)
            appends.append(
                held.logs.batch_of(held.logs.intake, [record], owner.session_here(target, sent.batch.producer))
            )
            size_bytes = len(record.key) + len(sent.batch.data)
            blocks.append(Block(*target, floor_us, sent.records, size_bytes, principal=principal))
        done = owner.produce(appends, durable=True)
        for sent, block, future in zip(batches, blocks, done, strict=True):
            self._in_term[future] = held.in_flight[future] = max(floor_us, sent.batch.timestamp_min_us)
            self._coming[block.topic_id] += block.records.num_rows
            self._room.come(_sizes_of(block))
            future.add_done_callback(partial(self._settled, block))
        return [_for_caller(future) for future in done]

    def blocks(self, batches: Sequence[Batch], principals: Sequence[int]) -> Blocks:
        """Return the blocks of a committed transaction's batches, which these principals have staged. Append them
        through the bundle's log in this turn of the event loop, and call `issued` in it, too.

        Raises NotOwner, ResourceExhausted.
        """
        held = self._held
        held.state.check()
        self._check_behind()
        self._room.check_completion(sum(len(batch.data) for batch in batches))
        floor_us = held.closed_us + 1
        appends, sizes = [], []
        for batch, principal in zip(batches, principals, strict=True):
            target = PartitionId(batch.topic_id, batch.partition)
            record = encode_block(target, floor_us, batch.data, principal=principal)
            appends.append(held.logs.batch_of(held.logs.intake, [record]))
            sizes.append((principal, size_in_intake(1, batch.record_count, len(record.key) + len(batch.data))))
        return Blocks(appends, max(floor_us, min(batch.timestamp_min_us for batch in batches)), sizes)

    def issued(self, blocks: Blocks, *, within_s: float) -> None:
        """Note that blocks were appended in this turn; they may wait up to `within_s` for other appends."""
        held = self._held
        durable = held.state.durable_soon(within_s=within_s)
        held.in_flight[durable] = blocks.due_us
        self._room.come(blocks.sizes)
        durable.add_done_callback(partial(self._log_settled, blocks))

    async def load(self) -> None:
        """Bring the rows of the intake into memory that are neither delivered nor moved to ranges.

        It waits first until every append of an earlier state of this term has an outcome (W14). Raises
        the errors of `HiddenLogs.read`; then it may be repeated.
        """
        held = self._held
        if self._before:
            await asyncio.wait(self._before)
            self._before = []
        self.next_offset = max(self.next_offset, held.timers.intake_start())
        await self._read_to_end()
        held.is_ready.set()  # in the turn in which it has reached the end: appends that end later are noticed
        held.freed.set()  # what the former owner has delivered or moved, and has not freed

    async def until_behind(self) -> None:
        """Wait until durable blocks have to be read."""
        await self._held.is_ready.wait()
        await self._behind.wait()

    async def catch_up(self) -> None:
        """Bring all durable blocks into memory. Raises the errors of `HiddenLogs.read`; then it may be repeated."""
        held = self._held
        await self._read_to_end()
        # still in the turn in which it has reached the end
        self._behind.clear()
        self._unread.clear()
        self._room.came(self._to_read)
        self._to_read = []
        held.behind_us = None
        held.settled.set()
        held.moves_changed.set()

    async def _read_to_end(self) -> None:
        held = self._held
        while self.next_offset < (end := held.logs.durable_end(None)):
            for source, block in await held.logs.read(None, self.next_offset, end, READ_BYTES):
                if source.offset == self.next_offset:  # otherwise it came into memory during the read
                    self._add(source, block)
            held.state.check()
            await asyncio.sleep(0)

    def flushed(self) -> None:
        """Note that a flush covers all blocks that were in memory when it began."""
        held = self._held
        self.unflushed_bytes = 0
        is_all = held.timers.flushed.end_offset >= self.next_offset
        self.unflushed_since_s = None if is_all else asyncio.get_running_loop().time()

    def _settled(self, block: Block, done: asyncio.Future[int]) -> None:
        """Take the rows of a producer's block that is durable and new."""
        held = self._held
        self._in_term.pop(done, None)
        due_us = held.in_flight.pop(done)
        held.settled.set()
        self._coming[block.topic_id] -= block.records.num_rows
        sizes = _sizes_of(block)
        self._room.came(sizes)
        if held.state.is_lost() or not held.is_ready.is_set():
            return  # otherwise `load` reads it
        if done.exception() is not None:
            return
        offset = done.result()
        if offset < self.next_offset:
            return  # a repeated send, or it was read
        if offset > self.next_offset:
            self._unread[block.topic_id] += block.records.num_rows
            self._fall_behind(due_us, sizes)  # blocks of a transaction are before it
            return
        try:
            self._add(Source(None, offset), block)
        except Exception as bug:
            held.state.broken(bug)
            return
        held.moves_changed.set()

    def _log_settled(self, blocks: Blocks, durable: asyncio.Task[None]) -> None:
        """Have the blocks of a transaction read that are durable. Only the ledger knows their offsets."""
        held = self._held
        due_us = held.in_flight.pop(durable)
        held.settled.set()
        self._room.came(blocks.sizes)
        if held.state.is_lost() or not held.is_ready.is_set():
            return  # otherwise `load` reads them
        if durable.cancelled() or durable.exception() is not None:
            return
        if self.next_offset < held.logs.durable_end(None):
            self._fall_behind(due_us, blocks.sizes)

    def _fall_behind(self, due_us: int, sizes: Sizes) -> None:
        """Note that durable blocks have to be read, one of which has rows from `due_us` on. `sizes`: of those that
        were noted as coming.
        """
        held = self._held
        self._room.come(sizes)
        self._to_read += sizes
        held.behind_us = due_us if held.behind_us is None else min(held.behind_us, due_us)
        self._behind.set()

    def _add(self, source: Source, block: Block) -> None:
        held = self._held
        horizon_us = held.timers.horizon_of(source.offset)
        held.waiting.add(source, block, above=held.timers.watermark, horizon_us=horizon_us)
        self.next_offset = source.offset + 1
        if held.is_ready.is_set():
            self._counts.taken_in(held.bundle, block.records.num_rows, block.size_bytes)
        if horizon_us is None:
            self.unflushed_bytes += block.size_bytes
            if self.unflushed_since_s is None:
                self.unflushed_since_s = asyncio.get_running_loop().time()
        held.note_added()

    def full(self, topic_ids: Iterable[int]) -> dict[int, LedgerMQError]:
        """Return the topics, by id, whose limit in this bundle is reached, with the error.

        The limit is `delayed.pending.max` times the fraction of the topic's partitions that are in this
        bundle, so each owner decides by what it knows itself. A batch that begins below the limit passes as
        a whole, as with quotas: otherwise a batch larger than the limit would never pass.
        """
        held, found = self._held, dict[int, LedgerMQError]()
        for topic_id in topic_ids:
            topic = self._catalog().topics_by_id.get(topic_id)
            if topic is None or topic.settings.delayed_pending_max < 0:
                continue
            if not held.is_ready.is_set():
                found[topic_id] = self._is_counting()
                continue
            limit = topic.settings.delayed_pending_max
            share = -(-limit * topic.bundles.count(held.bundle) // topic.partitions)  # rounded up
            wait = self._waiting_of(topic_id)
            if wait >= share:
                found[topic_id] = ResourceExhausted(
                    f"topic {topic.name!r}: {wait} timed messages wait in bundle {held.bundle}, whose share of"
                    f" delayed.pending.max = {limit} is {share}; retry when some are delivered, or raise the setting",
                    retry_after_ms=self._room_ms(),
                )
        return found

    def waiting_of(self, topic_id: int) -> int:
        """Return how many messages of a topic may wait in the bundle: none is left out. Raises Unavailable while
        some are on their way whose topics are not known.
        """
        held = self._held
        from_log = any(append not in self._in_term for append in held.in_flight)
        if not held.is_ready.is_set() or held.behind_us is not None or from_log:
            raise self._is_counting()
        return self._waiting_of(topic_id) + held.timers.waiting_of_unknown(held.loaded)

    def _waiting_of(self, topic_id: int) -> int:
        return self._held.messages_of(topic_id) + self._coming[topic_id] + self._unread[topic_id]

    def _is_counting(self) -> Unavailable:
        return Unavailable(
            f"bundle {self._held.bundle} is counting the timed messages that wait; retry",
            retry_after_ms=LOADING_RETRY_MS,
        )

    def _room_ms(self) -> int:
        """Return when the next message is due, which makes room; within bounds."""
        next_us, now_us = self._held.waiting.next_due_us, self._now_us()
        if next_us is None or now_us is None:
            return FULL_RETRY_MS_MAX
        return min(max(FULL_RETRY_MS, (next_us - now_us) // 1000), FULL_RETRY_MS_MAX)

    def check_room(self, batches: Sequence[Batch], principal: int) -> None:
        """Raise ResourceExhausted if the rows of these batches may not wait in the bundle, QuotaExceeded if this
        principal may not have them wait.
        """
        self._check_behind()
        rows = sum(batch.record_count for batch in batches)
        size = size_in_intake(len(batches), rows, sum(len(batch.data) for batch in batches))
        self._room.check(size, principal)

    def used_by(self, principal: int) -> Size:
        """Return what a principal has here, without what it has staged."""
        return self._room.used_by(principal)

    def _check_behind(self) -> None:
        held = self._held
        behind = held.logs.durable_end(None) - self.next_offset if held.is_ready.is_set() else 0
        if behind > BEHIND_MAX:
            raise ResourceExhausted(
                f"bundle {held.bundle}: {behind} batches of timed messages are not read into memory yet, at most"
                f" {BEHIND_MAX} may be; retry when the store answers again",
                retry_after_ms=FULL_RETRY_MS,
            )


def _sizes_of(block: Block) -> Sizes:
    return [(block.principal, size_in_intake(1, block.records.num_rows, block.size_bytes))]


def _for_caller(append: asyncio.Future[int]) -> asyncio.Future[int]:
    """Return a future with the outcome of an append. Its caller may cancel it, or never look at it."""
    given = asyncio.shield(append)
    given.add_done_callback(lambda done: done.cancelled() or done.exception())
    return given
