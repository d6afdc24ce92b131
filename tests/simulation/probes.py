"""Counts how often the product itself reached a place that is hard to reach: wrappers around its
own functions that only look.

They say whether a simulation looks where it should, never whether what happened there was right.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import ledgermq_broker.bundle.owner
import ledgermq_ledger.log.chains.plans
import ledgermq_ledger.log.recovery
import ledgermq_ledger.object_store.settle
import ledgermq_ledger.parquet.compacting.round
import ledgermq_ledger.parquet.compacting.task
import ledgermq_spark.source.ranges.planning
import ledgermq_spark.source.streaming.followed
import tests.simulation.ledger_broker
from ledgermq.errors import NotOwner, ProducerError
from ledgermq_broker.timed.delivering import mover
from ledgermq_broker.timed.delivering.deliverer import Deliverer
from ledgermq_broker.timed.held import Held
from ledgermq_broker.timed.partition import TimerPartition
from ledgermq_broker.timed.state.bundle_timers import BundleTimers
from ledgermq_broker.timed.state.recalls import RecallAnswer
from ledgermq_broker.timed.taking_in.intake import Intake
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.plans import PlanOvertaken, fence_of
from ledgermq_ledger.log.writing.in_flight import Append
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store.settle import PutOutcome
from ledgermq_ledger.tables.formats.delta import DeltaLog
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from ledgermq_ledger.view.view import LedgerView
from tests.simulation.loop import SimulatedLoop, current_process


def saw(what: str) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    loop.coverage.saw(what)


@contextmanager
def probes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        _probe_puts(patch)
        _probe_terms(patch)
        _probe_rounds(patch)
        _probe_timers(patch)
        _probe_queries(patch)
        _after(patch, DeltaLog, "commit", lambda outcome, *_: saw(f"a version was {outcome.name.lower()}"))
        yield


def _probe_puts(patch: pytest.MonkeyPatch) -> None:
    def looked(outcome: PutOutcome, *_: Any) -> None:
        saw(f"a put of unknown outcome was read back: {outcome.name.lower()}")

    def put(outcome: PutOutcome, *_: Any) -> None:
        if outcome is PutOutcome.LOST:
            saw("a checkpoint lost its number and was computed again")

    def second_look(newest: fmt.Checkpoint, store: object, bundle: int, known: fmt.Checkpoint | None = None) -> None:
        if known is not None and newest.trim_slot > known.state.slot + 1:
            saw("a fold was not believed: what it had read was trimmed meanwhile")

    _after(patch, ledgermq_ledger.object_store.settle, "_look", looked)
    _after(patch, ledgermq_ledger.log.recovery, "settle_put", put)
    _after(patch, ledgermq_ledger.log.recovery, "newest_checkpoint", second_look)


def _probe_terms(patch: pytest.MonkeyPatch) -> None:
    def failed(error: Exception) -> None:
        if isinstance(error, NotOwner) and "did not open the current term" in error.message:
            saw("a claim was won and opened no term")

    for module in (ledgermq_broker.bundle.owner, tests.simulation.ledger_broker):
        _on_error(patch, module, "claim", failed)

    real_end, real_is_new = LedgerWriter.end, LedgerWriter._is_new

    def end(self: LedgerWriter, error: Any) -> None:
        if self.lost is None and self.puts_in_flight >= 3:
            saw("a term ended while 3 puts or more were in flight")
        real_end(self, error)

    def is_new(self: LedgerWriter, append: Append, building: Any) -> bool:
        _judge_retry(self, append)
        return real_is_new(self, append, building)

    refused: set[LedgerWriter] = set()
    real_refusal, real_acknowledge = LedgerWriter._take_refusal, LedgerWriter._acknowledge

    def take_refusal(self: LedgerWriter, flight: Any, error: Any) -> None:
        refused.add(self)
        real_refusal(self, flight, error)

    def acknowledge(self: LedgerWriter, flight: Any) -> None:
        if self in refused and self.refusal is None:
            saw("a term went on after a refused put")
        if flight.index.slot - 1 in self._own_voids:
            saw("a refused put was followed by a put that landed: void")
        real_acknowledge(self, flight)

    patch.setattr(LedgerWriter, "_take_refusal", take_refusal)
    patch.setattr(LedgerWriter, "_acknowledge", acknowledge)
    patch.setattr(LedgerWriter, "end", end)
    patch.setattr(LedgerWriter, "_is_new", is_new)
    _before(patch, LedgerView, "look_for", lambda *_: saw("a reader met an object that was deleted"))


def _judge_retry(writer: LedgerWriter, append: Append) -> None:
    batch = append.batch
    if batch.producer is None:
        return
    try:
        stored = writer._issued.producers.judge(batch.producer, batch.topic_id, batch.partition, batch.record_count)
    except ProducerError:
        return
    if stored is not None and stored.slot < writer.durable.claims[-1].slot:
        saw("a producer's retry crossed a takeover: it was stored in an earlier term")
    elif stored is not None and stored.slot > writer.durable.slot:
        saw("a producer's retry joined a put in flight")


def _probe_rounds(patch: pytest.MonkeyPatch) -> None:
    makers: dict[bytes, str] = {}

    def planned(won: bool, store: object, plan: fmt.CompactionPlan, *_: Any) -> None:
        process = current_process()
        if won and process is not None:
            makers[plan.put_id] = process.name
        if won and any(not file.key for file in plan.files):
            saw("a plan leaves out records, for no file of their partition is left")

    def committed(done: bool, store: object, plan: fmt.CompactionPlan, *_: Any, **more: Any) -> None:
        process = current_process()
        if done and process is not None and makers.get(plan.put_id) != process.name:
            saw("a plan was finished by another than its maker")
        if not done:
            saw("a commit came too late: another had finished the plan")

    def overtaken(error: Exception) -> None:
        if isinstance(error, PlanOvertaken):
            saw("a plan was overtaken while it was run")

    def cut(store: object, plan: fmt.CompactionPlan) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.cut_short.add(fence_of(plan))
        saw("a plan was cut short")

    _before(patch, ledgermq_ledger.parquet.compacting.round, "cut_short", cut)
    _after(patch, ledgermq_ledger.parquet.compacting.round, "put_plan", planned)
    _after(patch, ledgermq_ledger.parquet.compacting.round, "_commit", committed)
    for module in (ledgermq_ledger.parquet.compacting.round, ledgermq_ledger.parquet.compacting.task):
        _on_error(patch, module, "require_open", overtaken)


def _probe_timers(patch: pytest.MonkeyPatch) -> None:
    def loading(intake: Intake) -> None:
        if intake._before:
            saw("timed messages were loaded again while appends to the intake were under way")

    def restoring(held: Held, missing: Iterable[object]) -> None:
        saw("bodies of timed messages were read again")

    def settling(deliverer: Deliverer, to_us: int) -> None:
        lowest_us = deliverer._held.lowest_in_flight_us()
        if lowest_us is not None and lowest_us <= to_us:
            saw("a delivery waited for a message on its way into the intake")

    real_recall, real_horizon, real_init = BundleTimers.recall, mover.flush_horizon, TimerPartition.__init__

    def recall(self: BundleTimers, *args: Any) -> Any:
        found = real_recall(self, *args)
        if found.answer is RecallAnswer.WAIT:
            saw("a recall waited for a delivery in flight")
        return found

    def flush_horizon(now_us: int, ranges: Any, closed_us: int) -> int:
        horizon_us = real_horizon(now_us, ranges, closed_us)
        if horizon_us > real_horizon(now_us, {}, closed_us):
            saw("a flush left more in memory, for want of places")
        return horizon_us

    def init(self: TimerPartition, timers: BundleTimers, opening: Any, parts: Any) -> None:
        if opening.owner in parts.in_flight:
            saw("timed messages were loaded again in one term")
        real_init(self, timers, opening, parts)

    _before(patch, Intake, "load", loading)
    _before(patch, Held, "restore", restoring)
    _before(patch, Deliverer, "_until_settled", settling)
    patch.setattr(BundleTimers, "recall", recall)
    patch.setattr(mover, "flush_horizon", flush_horizon)
    patch.setattr(TimerPartition, "__init__", init)


def _probe_queries(patch: pytest.MonkeyPatch) -> None:
    def planned(found: object, *_: Any) -> None:
        if found is None:
            saw("a plan counted for nothing: a partition had left")

    def looked(has_begun_again: bool, *_: Any) -> None:
        if has_begun_again:
            saw("a followed ledger was begun again, for it was trimmed meanwhile")

    for module in (ledgermq_spark.source.streaming.followed, ledgermq_spark.source.ranges.planning):
        _after(patch, module, "planned_whole", planned)
    _after(patch, FollowedLedger, "_look", looked)


def _before(patch: pytest.MonkeyPatch, owner: Any, name: str, look: Callable[..., None]) -> None:
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)

    @functools.wraps(real)
    async def probed(*args: Any, **more: Any) -> Any:
        look(*args)
        return await real(*args, **more)

    patch.setattr(owner, name, probed)


def _after(patch: pytest.MonkeyPatch, owner: Any, name: str, look: Callable[..., None]) -> None:
    """`look(result, *arguments)`."""
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)

    @functools.wraps(real)
    async def probed(*args: Any, **more: Any) -> Any:
        result = await real(*args, **more)
        look(result, *args)
        return result

    patch.setattr(owner, name, probed)


def _on_error(patch: pytest.MonkeyPatch, owner: Any, name: str, look: Callable[[Exception], None]) -> None:
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)

    @functools.wraps(real)
    async def probed(*args: Any, **more: Any) -> Any:
        try:
            return await real(*args, **more)
        except Exception as error:
            look(error)
            raise

    patch.setattr(owner, name, probed)
