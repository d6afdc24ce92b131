"""Commit admitted batches in groups: put them into segments, adaptively (docs/design.md, Produce).

A segment is put at once when no put is in flight; otherwise when one ends, when `flush_bytes` wait,
or when `flush_spacing_s` has passed since the last one, and never more than `puts_in_flight_max` at
a time. So a single producer waits for only one put, and a busy store gets few, large segments.
Admission is synchronous and all or nothing: memory is taken before anything is queued, and returned
when the segment is durable. Principals take turns in the queue (`fair_queue`). A batch leaves it in
one of two ways: into the writer, which always answers it, or through `close`, which fails it. Batches
that were admitted together leave it for one segment: all of them become durable, or none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner, ResourceExhausted
from ledgermq.protocol.limits import WINDOW_BATCHES
from ledgermq.runtime.wait import wait_for
from ledgermq_broker.bundle.committing.append_times import AppendTimes
from ledgermq_broker.bundle.shared.context import BundleContext, BundleLimits
from ledgermq_broker.bundle.shared.fair_queue import Entry, FairQueue, SharedRoom
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.in_flight import Append, fail
from ledgermq_ledger.log.writing.writer import LedgerWriter

OFFSET_NOT_KNOWN = -1
"""Result of a batch that is answered on receipt: its offset is not known yet."""
RETRY_MS_MIN, RETRY_MS_MAX = 20, 5000
FLUSHES_REMEMBERED = 16
TIME_WEIGHT = 0.2
"""Of the last put in the mean time of puts."""
ProducerKey = tuple[bytes, int, int, int]
"""Producer id, hash of its principal, topic id, partition."""
"""(producer id, topic id, partition)"""
BUNDLE_SHARE = 2
"""No bundle takes more than this share of the broker's memory for producing: one half."""


@dataclass(frozen=True, slots=True)
class _Flush:
    """Entries handed to the writer together; they are done when slot `slot` is durable."""

    slot: int
    entries: Sequence[Entry]
    begun_s: float

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def batches(self) -> int:
        return sum(len(entry.appends) for entry in self.entries)


class GroupCommit:
    def __init__(self, writer: LedgerWriter, context: BundleContext) -> None:
        self._writer = writer
        self._context = context
        self._memory, self._senders = context.produce_memory, context.produce_senders
        self._metrics = context.metrics
        self._append_times = AppendTimes(context, writer.durable.append_us)
        self._queue = FairQueue()
        self._waiting_bytes, self._waiting_batches = SharedRoom(), SharedRoom()
        """What is queued or in flight."""
        self._flushes: deque[_Flush] = deque()
        self._windows: dict[ProducerKey, dict[tuple[int, int], int]] = {}
        self.put_s = 0.0
        """A moving mean of the time from handing a segment over until it is durable; 0: there was none."""
        self._last_flush_s = float("-inf")
        self._in_flight_before = 0  # after the last flush: a smaller number now means that one has ended since
        self._recent: deque[tuple[float, int]] = deque(maxlen=FLUSHES_REMEMBERED)
        self._wake = asyncio.Event()
        self._closed: LedgerMQError | None = None
        self._draining: LedgerMQError | None = None

    @property
    def _limits(self) -> BundleLimits:
        return self._context.limits

    @property
    def is_draining(self) -> bool:
        return self._draining is not None

    def admit(
        self, batches: Sequence[Batch], *, durable: bool, together: bool = False, sender: str = ""
    ) -> list[asyncio.Future[int]]:
        """Queue all of `batches` or none. With `together`, one segment stores all of them; if they
        exceed the limits of a segment, no other batch is in it. `sender`: the principal that takes turns
        with others; "": these keep their place in the order of all calls.

        Raises ResourceExhausted, InvalidRequest (a sequence or ids of messages with acks=RECEIVED, a
        sequence with `together`), the term's end.
        """
        self._check_open()
        if not durable and any(batch.producer for batch in batches):
            raise InvalidRequest("a batch that is answered on receipt carries no sequence")
        if not durable and any(batch.ids for batch in batches):
            raise InvalidRequest("a batch that is answered on receipt carries no ids of messages")
        if together and any(batch.producer for batch in batches):
            raise InvalidRequest("a batch that is stored together with others carries no sequence")
        self._check_windows(batches)
        stamped, principal = self._append_times.stamped(batches), sender
        if stamped is not batches:
            sender = ""  # times of appends rise in the order of these calls
        batches = stamped
        if not self._has_room(batches, sender):
            raise self._no_room()
        loop = asyncio.get_running_loop()
        was_empty = not self._queue
        appends = [Append(batch, loop.create_future(), is_own=together, principal=principal) for batch in batches]
        self._enter_windows(appends)
        for group in [appends] if together and appends else [[append] for append in appends]:
            size_bytes = sum(len(append.batch.data) for append in group)
            self._take(entry := Entry(group, size_bytes, sender, loop.time()))
            self._queue.push(entry)
        if was_empty or self._queue.size_bytes >= self._limits.flush_bytes:
            self._wake.set()
        if durable:
            return [append.done for append in appends]
        return [_received() for _ in appends]

    def has_own(self, key: PartitionId) -> bool:
        """Return whether a batch of this partition is queued that is stored together with others."""
        return any(
            append.is_own and (append.batch.topic_id, append.batch.partition) == key
            for entry in self._queue
            for append in entry.appends
        )

    def check_room(self, batches: int, size_bytes: int) -> None:
        """Raise what `admit` would raise now for so many batches of so many bytes in total. It
        reserves nothing.
        """
        self._check_open()
        if not (self._bundle_has_room(batches, size_bytes, "") and self._broker_has_room(size_bytes, "")):
            raise self._no_room()

    def check_wait(self) -> None:
        """Raise ResourceExhausted if the batch that waits longest for its put has waited for more than
        `produce_wait_ms_max`. It is for what producers send.
        """
        wait_ms_max = self._limits.produce_wait_ms_max
        if wait_ms_max is None or self._queue.oldest_s is None:
            return
        waited_ms = 1000 * (asyncio.get_running_loop().time() - self._queue.oldest_s)
        if waited_ms > wait_ms_max:
            self._metrics.refused_by_wait(self._writer.bundle)
            raise ResourceExhausted(
                f"bundle {self._writer.bundle}: the oldest of {self._queue.batches} batches has waited {waited_ms:.0f}"
                f" ms for the store, more than produce_wait_ms_max={wait_ms_max}",
                retry_after_ms=self._retry_after_ms(),
            )

    def on_durable(self, index: fmt.SegmentIndex) -> None:
        """Note that the writer has acknowledged this segment and is about to answer its waiters."""
        for opened in index.opens:
            self._append_times.not_before(opened.append_us)
        now = asyncio.get_running_loop().time()
        while self._flushes and self._flushes[0].slot <= index.slot:
            flush = self._flushes.popleft()
            self._give_back(flush)
            self._recent.append((now, flush.size_bytes))
            self.put_s += (now - flush.begun_s - self.put_s) * (TIME_WEIGHT if self.put_s else 1.0)
            self._metrics.flushed(self._writer.bundle, flush.batches, flush.size_bytes, now - flush.begun_s)
        self._wake.set()

    def on_refused(self, slot: int, error: LedgerMQError) -> None:
        """Fail what is queued, because the store takes no segments now: nothing from this slot on
        is stored.
        """
        while self._flushes and self._flushes[-1].slot >= slot:
            self._give_back(self._flushes.pop())
        self._fail_queue(error)
        self._wake.set()

    async def run(self) -> None:
        """Flush until cancelled or until the term has ended."""
        while self._closed is None:
            self._wake.clear()
            pause_s = self._pause_s()
            if pause_s == 0:
                self._flush()
                await asyncio.sleep(0)
                continue
            await wait_for(self._wake, pause_s)

    def close(self, error: LedgerMQError) -> None:
        """Stop admitting and fail what is queued; the writer itself answers what it has."""
        self._closed = self._closed or error
        self._fail_queue(error)
        while self._flushes and self._writer.lost is not None:
            self._give_back(self._flushes.popleft())
        self._wake.set()

    def _fail_queue(self, error: LedgerMQError) -> None:
        while self._queue:
            entry = self._queue.pop()
            self._give(entry)
            for append in entry.appends:
                fail(append, error)

    async def drain(self, error: LedgerMQError) -> None:
        """Admit nothing until `resume` (`error` is the reason), and wait until all admitted batches
        are durable. Raises the error that ended the term.
        """
        self._draining = error
        while self._queue and self._writer.lost is None:
            if self._writer.puts_in_flight < self._limits.puts_in_flight_max:
                self._flush()
            else:
                self._writer.put_ended.clear()
                await self._writer.put_ended.wait()
        await self._writer.drain()

    def resume(self) -> None:
        """Admit again after `drain`: the term continues."""
        self._draining = None

    def _pause_s(self) -> float | None:
        """Return how long the next flush has to wait; 0: it is due; None: until something happens."""
        in_flight = self._writer.puts_in_flight
        if not self._queue:
            return None
        if self._writer.refusal is not None:
            return 0.0  # they fail at once, and no end of a void put would wake this task
        if in_flight >= self._limits.puts_in_flight_max:
            return None
        if in_flight == 0 or in_flight < self._in_flight_before or self._queue.size_bytes >= self._limits.flush_bytes:
            return 0.0
        due_s = self._last_flush_s + self._limits.flush_spacing_s
        return max(0.0, due_s - asyncio.get_running_loop().time())

    def _flush(self) -> None:
        now = asyncio.get_running_loop().time()
        assert self._queue.oldest_s is not None
        self._metrics.waited(self._writer.bundle, now - self._queue.oldest_s)
        entries = self._take_segment()
        taken = [append for entry in entries for append in entry.appends]
        refuses = self._writer.refusal is not None  # then they fail at once, whatever is in flight
        try:
            wrote = self._writer.write(taken)
        except Exception as bug:  # it ends the term; the batches taken from the queue are answered all the same
            for entry in entries:
                self._give(entry)
            for append in taken:
                fail(append, NotOwner(f"bundle {self._writer.bundle}: {bug!r}"))
            raise
        flush = _Flush(self._writer.issued_slot, entries, now)
        if self._writer.puts_in_flight and not refuses:
            self._flushes.append(flush)
        else:
            self._give_back(flush)
        if wrote:
            self._last_flush_s = now
            if self._context.putting is not None:
                self._context.putting(self._writer.bundle, taken)
        self._in_flight_before = self._writer.puts_in_flight

    def _take_segment(self) -> list[Entry]:
        """Take the entries of the next segment from the queue: in their order, at least one."""
        taken: list[Entry] = []
        batches = size_bytes = 0
        while self._queue:
            entry = self._queue.first()
            batches += len(entry.appends)
            size_bytes += entry.size_bytes
            if taken and (batches > self._limits.flush_batches or size_bytes > self._limits.flush_bytes):
                break
            taken.append(self._queue.pop())
        return taken

    def _check_windows(self, batches: Sequence[Batch]) -> None:
        """Check that no producer has more batches under way in a partition than a later owner would
        remember.
        """
        new: dict[ProducerKey, set[tuple[int, int]]] = {}
        for batch in batches:
            if batch.producer is None:
                continue
            key = (batch.producer.id, batch.producer.principal, batch.topic_id, batch.partition)
            under_way = self._windows.get(key, {})
            token = (batch.producer.epoch, batch.producer.sequence)
            if token not in under_way:
                entering = new.setdefault(key, set())
                entering.add(token)
                if len(under_way) + len(entering) > WINDOW_BATCHES:
                    raise ResourceExhausted(
                        f"a producer may have {WINDOW_BATCHES} batches under way in a partition: "
                        "wait for an acknowledgement before sending the next",
                        retry_after_ms=RETRY_MS_MIN,
                    )

    def _enter_windows(self, appends: Sequence[Append]) -> None:
        for append in appends:
            producer = append.batch.producer
            if producer is None:
                continue
            key = (producer.id, producer.principal, append.batch.topic_id, append.batch.partition)
            token = (producer.epoch, producer.sequence)
            under_way = self._windows.setdefault(key, {})
            under_way[token] = under_way.get(token, 0) + 1
            append.done.add_done_callback(lambda _, key=key, token=token: self._leave_window(key, token))  # type: ignore[misc]

    def _leave_window(self, key: ProducerKey, token: tuple[int, int]) -> None:
        under_way = self._windows[key]
        under_way[token] -= 1
        if not under_way[token]:
            del under_way[token]
        if not under_way:
            del self._windows[key]

    def _check_open(self) -> None:
        over = self._closed or self._draining
        if over is not None:
            raise over

    def _has_room(self, batches: Sequence[Batch], sender: str) -> bool:
        size_bytes = sum(len(batch.data) for batch in batches)
        return self._bundle_has_room(len(batches), size_bytes, sender) and self._broker_has_room(size_bytes, sender)

    def _broker_has_room(self, size_bytes: int, sender: str) -> bool:
        memory = self._memory
        if not memory.taken:
            return True
        return memory.has_room(size_bytes) and self._senders.has_room(size_bytes, memory.bytes_max, sender)

    def _bundle_has_room(self, batches: int, size_bytes: int, sender: str) -> bool:
        if not self._waiting_batches.taken:
            return True
        share = self._memory.bytes_max // BUNDLE_SHARE  # a bundle whose puts hang leaves room for the others
        return self._waiting_batches.has_room(
            batches, self._limits.queue_batches_max, sender
        ) and self._waiting_bytes.has_room(size_bytes, share, sender)

    def _take(self, entry: Entry) -> None:
        self._memory.take(entry.size_bytes)
        self._senders.take(entry.size_bytes, entry.sender)
        self._waiting_bytes.take(entry.size_bytes, entry.sender)
        self._waiting_batches.take(len(entry.appends), entry.sender)

    def _give(self, entry: Entry) -> None:
        self._memory.give(entry.size_bytes)
        self._senders.give(entry.size_bytes, entry.sender)
        self._waiting_bytes.give(entry.size_bytes, entry.sender)
        self._waiting_batches.give(len(entry.appends), entry.sender)

    def _no_room(self) -> ResourceExhausted:
        self._metrics.refused(self._writer.bundle)
        return ResourceExhausted(
            f"bundle {self._writer.bundle}: {self._waiting_batches.taken} batches of {self._waiting_bytes.taken} bytes"
            f" wait for the store, {self._memory.taken} bytes in this broker",
            retry_after_ms=self._retry_after_ms(),
        )

    def _retry_after_ms(self) -> int:
        """Return when about a quarter of the waiting batches should be durable, at the pace of the
        last flushes.
        """
        if len(self._recent) < 2:
            return 100
        seconds = asyncio.get_running_loop().time() - self._recent[0][0]
        flushed_bytes = sum(size for _, size in list(self._recent)[1:])
        expected_ms = 1000 * seconds * self._waiting_bytes.taken / 4 / max(1, flushed_bytes)
        return round(min(RETRY_MS_MAX, max(RETRY_MS_MIN, expected_ms)))

    def _give_back(self, flush: _Flush) -> None:
        for entry in flush.entries:
            self._give(entry)


def _received() -> asyncio.Future[int]:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    done.set_result(OFFSET_NOT_KNOWN)
    return done
