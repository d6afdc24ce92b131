"""Bugs in timed messages: in the state of a bundle, and in the broker around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import pytest

import ledgermq_broker.paths.fetching.fetch_path
import ledgermq_broker.service
import ledgermq_broker.timed.delivering.deliverer
import ledgermq_broker.timed.taking_in.intake
from ledgermq.sources import Sources
from ledgermq_broker.internal.core import Opening
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.timed.delivering.deliverer import Deliverer
from ledgermq_broker.timed.delivering.mover import LogStarts, Mover
from ledgermq_broker.timed.held import Held
from ledgermq_broker.timed.hidden_logs import HiddenLogs
from ledgermq_broker.timed.partition import TimerPartition, TimerParts
from ledgermq_broker.timed.state import limits
from ledgermq_broker.timed.state.blocks import Block, Id, Key, encode_block
from ledgermq_broker.timed.state.bundle_timers import BundleTimers
from ledgermq_broker.timed.state.memory.cut import batches
from ledgermq_broker.timed.state.memory.rows import Rows
from ledgermq_broker.timed.state.memory.waiting import Waiting
from ledgermq_broker.timed.state.places import RangeId
from ledgermq_broker.timed.state.recalls import RecallAnswer, Recalls
from ledgermq_broker.timed.state.records import FlushedEntry, RangeEntry
from ledgermq_broker.timed.taking_in.intake import Intake
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.log.segments.segment import Batch
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch
LATER_S = 0.2


def append_apart(patch: Patch, is_meant: Callable[[bytes], bool]) -> None:
    """Append the data of decisions that have such a record in one segment, and their records in a later one."""
    real = IssuedState.take

    def take(
        self: IssuedState,
        decision: Decision[Any],
        data: Sequence[Batch] = (),
        more: Callable[[], Mapping[PartitionId, Sequence[LogRecord]]] = dict,
        **how: Any,
    ) -> Any:
        if data and any(is_meant(record.key) for record in decision.records):
            self._log.append({}, data)
            asyncio.get_running_loop().call_later(LATER_S, lambda: real(self, decision, (), more))
            return decision.answer
        return real(self, decision, data, more, **how)

    patch.setattr(IssuedState, "take", take)


@mutant("timers")
def deliveries_apart_from_the_watermark(patch: Patch) -> None:
    """Messages become visible in one segment, and what says so comes in a later one."""
    append_apart(patch, lambda key: key == b"watermark")


@mutant("timers")
def moves_apart_from_their_progress(patch: Patch) -> None:
    """Messages are stored in a range in one segment, and what says so comes in a later one."""
    append_apart(patch, lambda key: key.startswith((b"range/", b"flushed")))


@mutant("timers")
def flush_without_its_progress(patch: Patch) -> None:
    """What was moved from the intake to ranges stays in the intake, too, for the next owner."""
    real = BundleTimers._decided

    def decided(self: BundleTimers, entries: Sequence[Any], answer: Any) -> Decision[Any]:
        moves = any(isinstance(entry, RangeEntry) for entry in entries)
        decision = real(self, entries, answer)
        if moves and any(isinstance(entry, FlushedEntry) for entry in entries):
            return Decision([record for record in decision.records if record.key != b"flushed"], answer)
        return decision

    patch.setattr(BundleTimers, "_decided", decided)


@mutant("timers")
def watermark_passes_ranges_that_are_not_loaded(patch: Patch) -> None:
    """What waits in a range is late, so the watermark passes it."""
    real = BundleTimers.delivered

    def delivered(self: BundleTimers, to: Key, loaded: Any) -> Decision[None]:
        return real(self, to, set(self.ranges))

    patch.setattr(BundleTimers, "delivered", delivered)
    patch.setattr(BundleTimers, "deliverable_to", lambda self, now_us, loaded: now_us)


@mutant("timers")
def watermark_passes_blocks_in_flight(patch: Patch) -> None:
    """A message that is on its way into the intake when its time comes is passed."""
    patch.setattr(Held, "lowest_in_flight_us", lambda self: None)


@mutant("timers")
def floors_ignored(patch: Patch) -> None:
    """A message that comes after its time is placed below the watermark."""

    def without_floor(topic_id: int, partition: int, floor_us: int, *more: Any, **named: Any) -> Block:
        return Block(topic_id, partition, 0, *more, **named)

    def encode(target: PartitionId, floor_us: int, *more: Any, **named: Any) -> LogRecord:
        return encode_block(target, 0, *more, **named)

    patch.setattr(ledgermq_broker.timed.taking_in.intake, "Block", without_floor)
    patch.setattr(ledgermq_broker.timed.taking_in.intake, "encode_block", encode)


@mutant("timers")
def floors_of_the_last_watermark(patch: Patch) -> None:
    """A message may be taken in at a time that a delivery under way has begun with."""
    real = Intake.send

    def send(self: Intake, *given: Any) -> Any:
        closed_us, self._held.closed_us = self._held.closed_us, self._held.durable.due_us
        try:
            return real(self, *given)
        finally:
            self._held.closed_us = closed_us

    patch.setattr(Intake, "send", send)


@mutant("timers")
def turn_ends_with_its_first_chunk(patch: Patch) -> None:
    """A range goes when the first of its blocks are moved."""
    real = BundleTimers.turned

    def turned(self: BundleTimers, *args: Any, is_last: bool) -> Decision[bool]:
        return real(self, *args, is_last=True)

    patch.setattr(BundleTimers, "turned", turned)


def _hasty(patch: Patch, answer: RecallAnswer) -> None:
    """Send this answer to a recall before anything is durable."""
    real = TimerPartition.recall

    async def recall(self: TimerPartition, message: Id, due_us: int, topic_id: int, **caller: Any) -> RecallAnswer:
        await self._check_recall(message, due_us, await self._parts.clock.read())
        held = self.held
        if held.is_ready.is_set():
            known_us = held.waiting.due_of(message) or due_us
            issued = held.timers.watermark
            held.state.check_room()
            decision = held.state.ask(lambda: held.timers.recall(message, known_us, issued, issued, topic_id))
            held.state.take(decision)
            if decision.answer is answer:
                return answer
        return await real(self, message, due_us, topic_id, **caller)

    patch.setattr(TimerPartition, "recall", recall)


@mutant("timers")
def recalled_before_it_is_durable(patch: Patch) -> None:
    """A recall is answered when the owner has decided it."""
    _hasty(patch, RecallAnswer.RECALLED)


@mutant("timers")
def too_late_by_a_watermark_that_is_not_durable(patch: Patch) -> None:
    """A recall is answered by a delivery that is on its way."""
    _hasty(patch, RecallAnswer.TOO_LATE)


@mutant("timers")
def recalls_forgotten_when_they_are_due(patch: Patch) -> None:
    """The tombstone of a recall goes at the message's time."""
    real = Recalls.expired

    def expired(self: Recalls, finished_us: int, at_most: int) -> list[Id]:
        return real(self, finished_us + self._kept_us, at_most)

    patch.setattr(Recalls, "expired", expired)


@mutant("timers")
def recalls_of_late_messages_by_the_time_of_the_sender(patch: Patch) -> None:
    """A message that came late is recalled for a time that is over long before it is delivered."""
    patch.setattr(Waiting, "due_of", lambda self, message: None)


@mutant("timers")
def recalls_of_any_topic(patch: Patch) -> None:
    """Who may produce to one topic recalls the messages of others in its bundle."""
    patch.setattr(Recalls, "holds", lambda self, message, topic_id: message in self.known)


@mutant("timers")
def recalls_ignored_when_messages_move(patch: Patch) -> None:
    """A recalled message is delivered."""
    real = Deliverer._live

    def live(self: Deliverer, rows: Rows) -> Rows:
        recalled, self._held.timers._recalls.rows = self._held.timers._recalls.rows, {}
        try:
            return real(self, rows)
        finally:
            self._held.timers._recalls.rows = recalled

    patch.setattr(Deliverer, "_live", live)


def _moved_whatever_their_topic(patch: Patch) -> None:
    patch.setattr(Mover, "_live", lambda self, rows: self._held.timers.live(rows, lambda topic_id: True))


@mutant("timers")
def messages_of_removed_topics_delivered(patch: Patch) -> None:
    """Messages come to a topic that was removed."""
    _moved_whatever_their_topic(patch)
    patch.setattr(Deliverer, "_exists", lambda self: lambda topic_id: True)


@mutant("timers")
def delivered_by_the_name_of_the_topic(patch: Patch) -> None:
    """Messages of a removed topic come to the next one of its name."""
    names: dict[int, str] = {}
    real = Deliverer._copy

    def note(self: Deliverer) -> None:
        names.update({topic.id: topic.name for topic in self._catalog().topics_by_id.values()})

    def exists(self: Deliverer) -> Callable[[int], bool]:
        note(self)
        return lambda topic_id: names.get(topic_id) in self._catalog().topics_by_name

    def copy(self: Deliverer, target: PartitionId, records: Any) -> Batch:
        topic = self._catalog().topics_by_name.get(names.get(target.topic_id, ""))
        return real(self, target if topic is None else PartitionId(topic.id, target.partition), records)

    _moved_whatever_their_topic(patch)
    patch.setattr(Deliverer, "_exists", exists)
    patch.setattr(Deliverer, "_copy", copy)


class _WallClock:
    """The clock of the machine, in the place of `StoreClock`."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def now_us(self) -> int:
        return self._sources.now_us()

    def wait_s(self, until_us: int) -> float:
        return max(0.001, (until_us - self.now_us() + 1) / 1_000_000)

    async def read(self) -> int:
        return self.now_us()


@mutant("timers")
def due_by_the_clock_of_the_machine(patch: Patch) -> None:
    """Messages are delivered when the owner's own clock says so."""
    real = TimerPartition.__init__

    def init(self: TimerPartition, timers: BundleTimers, opening: Opening, parts: TimerParts) -> None:
        real(self, timers, opening, replace(parts, clock=_WallClock(parts.sources)))  # type: ignore[arg-type]

    patch.setattr(TimerPartition, "__init__", init)


@mutant("timers")
def log_start_passes_what_waits_in_memory(patch: Patch) -> None:
    """The log start of the intake moves to what was flushed."""
    patch.setattr(BundleTimers, "intake_start", lambda self: self.flushed.end_offset)


@mutant("timers")
def log_starts_before_their_reason_is_durable(patch: Patch) -> None:
    """What was moved is freed while the move is on its way."""
    real = LogStarts.move

    async def move(self: LogStarts) -> None:
        async def at_once(**how: Any) -> None:
            return None

        state = self._held.state
        state.durable = at_once  # type: ignore[method-assign]
        try:
            await real(self)
        finally:
            del state.durable

    patch.setattr(LogStarts, "move", move)


@mutant("timers")
def repeated_sends_enter_memory_again(patch: Patch) -> None:
    """A batch that was sent again is taken for a new one."""
    real = Intake._settled

    def settled(self: Intake, block: Block, done: asyncio.Future[int]) -> None:
        if not done.cancelled() and done.exception() is None and self._held.is_ready.is_set():
            self.next_offset = min(self.next_offset, done.result())
        real(self, block, done)

    patch.setattr(Intake, "_settled", settled)


@mutant("timers")
def blocks_without_a_session(patch: Patch) -> None:
    """A batch that is sent again is stored again."""
    real = HiddenLogs.batch_of

    def batch_of(
        self: HiddenLogs, place: PartitionId, blocks: Sequence[LogRecord], producer: ProducerSession | None = None
    ) -> Batch:
        return real(self, place, blocks)

    patch.setattr(HiddenLogs, "batch_of", batch_of)


@mutant("timers")
def moved_and_still_in_memory(patch: Patch) -> None:
    """Rows that a flush has moved to a range stay in memory."""

    def flushed(self: Waiting, end_offset: int, horizon_us: int) -> None:
        self._unflushed = [offset for offset in self._unflushed if offset >= end_offset]

    patch.setattr(Waiting, "flushed", flushed)


@mutant("timers")
def rows_of_callers_that_go_away_forgotten(patch: Patch) -> None:
    """A cancelled call takes its rows out of memory, though they become durable."""

    class Unshielded:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        def shield(self, future: asyncio.Future[int]) -> asyncio.Future[int]:
            return future

    real = Intake._settled

    def settled(self: Intake, block: Block, done: asyncio.Future[int]) -> None:
        if done.cancelled():
            self._in_term.pop(done, None)
            self._held.in_flight.pop(done, None)
            self._held.settled.set()
        else:
            real(self, block, done)

    patch.setattr(ledgermq_broker.timed.taking_in.intake, "asyncio", Unshielded())
    patch.setattr(Intake, "_settled", settled)


@mutant("timers")
def ranges_never_turned(patch: Patch) -> None:
    """Messages that are due in a wide range stay there."""

    def next_move_us(self: BundleTimers, loaded: Collection[RangeId]) -> int | None:
        return min((near.from_us - limits.LOAD_LEAD_US for _, near in self._near(loaded)), default=None)

    patch.setattr(BundleTimers, "to_turn", lambda self, now_us: None)
    patch.setattr(BundleTimers, "next_move_us", next_move_us)  # otherwise the mover looks again without a pause


@mutant("timers")
def delivered_in_order_of_offsets(patch: Patch) -> None:
    """Messages of one chunk stand in the order in which they were sent."""

    def by_offset(rows: Rows) -> Any:
        found = {}
        for target, records in batches(rows).items():
            found[target] = records.take(pc.sort_indices(records.column("key")))
        return found

    patch.setattr(ledgermq_broker.timed.delivering.deliverer, "batches", by_offset)


@mutant("timers")
def hidden_topics_can_be_read(patch: Patch) -> None:
    """A consumer of `__delayed` gets messages before their time."""
    for module in (ledgermq_broker.paths.fetching.fetch_path, ledgermq_broker.service):
        patch.setattr(module, "refuse_unreadable", lambda topic: None)
