"""Serve one partition of `__timers` for one term of its bundle: the timed messages of this bundle.

It runs one task for each kind of work until the term ends, or the state is dropped after a refused append.
Must not know: how a caller finds the bundle, what a message contains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

from ledgermq.errors import (
    DataDamaged,
    FormatNotSupported,
    InvalidRequest,
    LedgerMQError,
    ResourceExhausted,
    Unavailable,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.internal.core import Opening
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.logs import get_logger
from ledgermq_broker.timed.counts import TimerCounts, TimerSizes
from ledgermq_broker.timed.delivering.deliverer import Deliverer
from ledgermq_broker.timed.delivering.flow import Flow
from ledgermq_broker.timed.delivering.mover import LogStarts, Mover
from ledgermq_broker.timed.held import Held, InFlight
from ledgermq_broker.timed.hidden_logs import HiddenLogs
from ledgermq_broker.timed.listing import listed
from ledgermq_broker.timed.pace import Pace
from ledgermq_broker.timed.state.blocks import Id
from ledgermq_broker.timed.state.bundle_timers import BundleTimers
from ledgermq_broker.timed.state.limits import DAY_US, TimerLimits
from ledgermq_broker.timed.state.recalls import RecallAnswer
from ledgermq_broker.timed.state.sizes import used
from ledgermq_broker.timed.taking_in.intake import Blocks, Intake, Sent
from ledgermq_broker.timed.taking_in.room import Room, staged_in
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.root.store_clock import StoreClock
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic

RETRY_FIRST_S, RETRY_S_MAX = 0.1, 5.0
NOT_READ_RETRY_MS = 100
DAMAGE = DataDamaged, FormatNotSupported

Work = Callable[[], Awaitable[None]]

log = get_logger(__name__)


@dataclass(frozen=True)
class TimerParts:
    """What all terms of a broker share. `near()`, `far()`: the topics `__delayed` and `__delayed_far`.
    `delivery_bytes_max()`: bytes of one bundle's deliveries that may be in flight. `damaged_retry_s()`:
    pause before damaged blocks are read again. `in_flight`: appends to the intakes without an outcome, by
    term of a bundle.
    """

    limits: TimerLimits
    sources: Sources
    clock: StoreClock
    catalog: Callable[[], Catalog]
    near: Callable[[], Topic]
    far: Callable[[], Topic]
    counts: TimerCounts
    delivery_bytes_max: Callable[[], int]
    damaged_retry_s: Callable[[], float]
    in_flight: WeakKeyDictionary[BundleOwner, InFlight] = field(default_factory=WeakKeyDictionary)
    pace: Pace = field(default_factory=Pace)


class TimerPartition:
    """Make it when the state is loaded, and no append of the bundle's former log is under way."""

    def __init__(self, timers: BundleTimers, opening: Opening, parts: TimerParts) -> None:
        self.owner = opening.owner
        self.bundle = opening.owner.bundle
        self.timers = timers
        self._parts = parts
        self._on_failed = opening.on_failed
        self._state = IssuedState("timed messages", opening.owner, opening.log, opening.place, self._fail)
        logs = HiddenLogs(opening.owner, parts.near(), parts.far(), parts.sources)
        self.held = Held(self._state, timers, logs, parts.limits, parts.pace, timers.watermark.due_us, timers.watermark)
        in_term = parts.in_flight.setdefault(opening.owner, {})
        room = Room(self.held, partial(staged_in, opening, parts.catalog))
        self._intake = Intake(self.held, in_term, parts.counts, parts.catalog, parts.clock.now_us, room)
        flow = Flow(self._state, parts.delivery_bytes_max)
        deliverer = Deliverer(self.held, flow, parts.clock, parts.catalog, parts.counts)
        mover = Mover(self.held, self._intake, flow, parts.clock, parts.catalog, parts.counts)
        starts = LogStarts(self.held)
        self._loading = asyncio.create_task(self._load(), name=f"load timed messages of bundle {self.bundle}")
        self._tasks = [
            self._loading,
            *(
                asyncio.create_task(self._forever(name, pause, work), name=f"{name} of bundle {self.bundle}")
                for name, pause, work in (
                    ("reading of the intake", self._intake.until_behind, self._intake.catch_up),
                    ("delivery of timed messages", deliverer.until_due, deliverer.deliver),
                    ("ranges of timed messages", mover.until_range_due, mover.bring_near),
                    ("flush of timed messages", mover.until_flush_due, mover.flush),
                    ("log starts of timed messages", starts.until_due, starts.move),
                )
            ),
        ]

    @property
    def lost(self) -> LedgerMQError | None:
        return self._state.lost

    def tick(self) -> None:
        """Do nothing: the catalog is read when messages are delivered or moved."""

    def keeps(self, place: PartitionId) -> str:
        """Count by topic: which partition a message waits for is in its block only."""
        count = self._intake.waiting_of(place.topic_id)
        return f"{count} timed messages of its topic wait in this bundle, and go first" if count else ""

    def close(self, error: LedgerMQError) -> None:
        """End the term: every later call raises NotOwner. Idempotent."""
        self._state.close(error)
        for task in self._tasks:
            task.cancel()

    def send(self, batches: Sequence[Sent], principal: int) -> list[asyncio.Future[int]]:
        """Take all batches in or none; see `Intake.send`."""
        return self._intake.send(batches, principal)

    def check_room(self, batches: Sequence[Batch], principal: int) -> None:
        """Raise ResourceExhausted or QuotaExceeded if these may not wait in this bundle; see `Intake.check_room`."""
        self._intake.check_room(batches, principal)

    def full(self, topic_ids: Iterable[int]) -> dict[int, LedgerMQError]:
        """Return those of the topics that may have no more messages wait here, and why; see `Intake.full`."""
        return self._intake.full(topic_ids)

    def blocks(self, batches: Sequence[Batch], principals: Sequence[int]) -> Blocks:
        """Return the blocks of a committed transaction's batches; see `Intake.blocks`."""
        return self._intake.blocks(batches, principals)

    def issued(self, blocks: Blocks, *, within_s: float) -> None:
        """Note that blocks of a transaction were appended in this turn; see `Intake.issued`."""
        self._intake.issued(blocks, within_s=within_s)

    def used_by(self, principal: int) -> dict[str, int]:
        """Return what a principal (a hash of its name) has of this bundle's tables, by their names."""
        shares = self.timers.recall_shares
        return {shares.limit: shares.of(principal), **used(self._intake.used_by(principal))}

    async def recall(
        self, message: Id, due_us: int, topic_id: int, *, has_moved: bool, principal: int = 0
    ) -> RecallAnswer:
        """Recall a message of a topic, and return the answer when it may be sent. `principal`: a hash of the name of
        the principal that calls; 0: not known. `has_moved`: its partition was in another bundle before. From there
        only messages can be meant that were delivered, and here other ones may have their ids.

        Raises InvalidRequest: there was no such message; ResourceExhausted, NotOwner; Unavailable: the message is not
        in memory yet.
        """
        now_us = await self._parts.clock.read()
        if has_moved and due_us <= now_us:
            return RecallAnswer.FORGOTTEN
        await self._check_recall(message, due_us, now_us)
        held = self.held
        if not held.is_ready.is_set():
            await asyncio.wait([self._loading])
        while True:
            held.state.check_room()
            self._check_is_read(message)
            issued = held.timers.watermark
            effective_us = held.waiting.due_of(message)  # later than `due_us` if the message came late
            known_us = due_us if effective_us is None else effective_us
            decision = held.state.ask(
                partial(held.timers.recall, message, known_us, issued, held.durable, topic_id, principal)
            )
            held.state.take(decision)
            await held.state.durable()
            if decision.answer is not RecallAnswer.WAIT:
                self._parts.counts.recalled(self.bundle, decision.answer.name.lower())
                return decision.answer
            held.durable = max(held.durable, issued)

    async def _check_recall(self, message: Id, due_us: int, now_us: int) -> None:
        if due_us > now_us + (self._parts.limits.horizon_days + 1) * DAY_US:
            raise InvalidRequest(f"no message is due as late as {due_us} µs since the epoch; check the handle")
        end = self.held.logs.durable_end(None)
        if message.offset >= end:
            await self._state.confirmed()  # another owner may know a later end
            raise InvalidRequest(
                f"bundle {self.bundle} has had {end} batches of timed messages, so none has number {message.offset};"
                " check the handle, and whether its topic is the same"
            )

    def _check_is_read(self, message: Id) -> None:
        """Raise Unavailable if the message is durable and not in memory yet: it may be due later than its sender
        said, and then its tombstone would go before it is delivered.
        """
        if message.offset >= self._intake.next_offset:
            raise Unavailable(
                f"message {message.offset}, row {message.row} is on its way into the memory of bundle {self.bundle};"
                " retry",
                retry_after_ms=NOT_READ_RETRY_MS,
            )

    async def list(self, topic_id: int | None, partition: int | None, messages_max: int) -> pb.ListDelayedResponse:
        """List what waits; see `ledgermq_broker.timed.listing`. Whatever the answer leaves out as delivered is then
        durable in its partition.
        """
        answer = await listed(
            self.held,
            self._parts.clock.now_us(),
            self._parts.catalog(),
            topic_id,
            partition,
            messages_max,
            self.trouble,
        )
        await self._state.confirmed()
        return answer

    @property
    def trouble(self) -> str:
        """Return why delivery waits; empty: it does not."""
        return "; ".join(error.message for _, error in sorted(self.held.troubles.items()))

    @property
    def damage(self) -> str:
        """Return what damage delays the timed messages of this bundle; empty: none."""
        return "; ".join(error.message for _, error in sorted(self.held.troubles.items()) if isinstance(error, DAMAGE))

    def sizes(self) -> TimerSizes:
        """Return the sizes for metrics, as they are in memory; they may not be durable yet."""
        held, now_us = self.held, self._parts.clock.now_us()
        waiting, ranges = held.waiting, held.timers.ranges
        aside = [found for range_id, found in ranges.items() if range_id not in held.loaded]
        firsts = [found.from_us for found in aside]
        if waiting.next_due_us is not None:
            firsts.append(waiting.next_due_us)
        overdue_us = 0 if now_us is None else max(0, now_us - min(firsts, default=now_us))
        return TimerSizes(
            messages=waiting.rows + sum(found.records for found in aside),
            size_bytes=held.size_bytes,
            in_memory=waiting.rows,
            body_bytes=waiting.body_bytes,
            ranges=len(ranges),
            recalls=len(held.timers.recalls),
            overdue_s=overdue_us / 1_000_000,
            troubles=len(held.troubles),
        )

    # Work

    async def _load(self) -> None:
        await self._until_done("load of timed messages", self._intake.load)

    async def _forever(
        self, name: str, pause: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[None]]
    ) -> None:
        async def one() -> None:
            await pause()
            await work()

        while not self._state.is_lost():
            await self._until_done(name, one)

    async def _until_done(self, name: str, work: Work) -> None:
        """Run work until it succeeds, or the state is lost."""
        backoff = Backoff(self._parts.sources, RETRY_FIRST_S, RETRY_S_MAX)
        while not self._state.is_lost():
            try:
                await work()
                self.held.troubles.pop(name, None)
                return
            except LedgerMQError as error:
                if self._state.is_lost():
                    return
                self._report(name, error)
                is_damaged = isinstance(error, DAMAGE)
                pause_s = self._parts.damaged_retry_s() if is_damaged else backoff.next_s(error.retry_after_ms)
            except Exception as bug:
                self._state.broken(bug)
                return
            await asyncio.sleep(pause_s)

    def _report(self, name: str, error: LedgerMQError) -> None:
        before = self.held.troubles.get(name)
        self.held.troubles[name] = error
        if isinstance(error, ResourceExhausted) or (before is not None and before.message == error.message):
            return
        is_damaged = isinstance(error, DAMAGE)
        (log.error if is_damaged else log.warning)(
            "work on timed messages delayed",
            bundle=self.bundle,
            work=name,
            error=str(error),
            damaged=error.object_key,
        )

    def _fail(self, error: LedgerMQError) -> None:
        self.close(error)
        self._on_failed()
