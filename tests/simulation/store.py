"""What one process sees of the store: a faulty line to it. Requests that were sent go on when their
sender sleeps or dies.

On top of `FaultyStore` (fail before, after, late, throttled): now and then a request takes very
long, LISTs come in small pages between which time passes, and every answer is written into the
trace.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from ledgermq.errors import LedgerMQError, StoreFull
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import (
    AlreadyExists,
    Buffer,
    FenceClosed,
    FencedPuts,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    StoreThrottled,
    StoreUncertain,
)
from ledgermq_ledger.object_store.wrappers.wrapper import PUTS
from tests.simulation.ambush import NO_AMBUSH, Ambush, kind_of
from tests.simulation.loop import Process, SimulatedLoop, State, current_process
from tests.simulation.request import Request
from tests.simulation.trace import Coverage, Trace
from tests.simulation.watch import WatchedStore
from tests.stores.faulty import WRITES, Fault, Faults, FaultyStore

T = TypeVar("T")
NO_FAULTS = Faults(delay_s_max=0.002)
UNANSWERED: tuple[Fault, ...] = ("before", "after", "late")
TORN_LATE_S = 1.0, 3.0
UNREACHED_LOOK_S = 0.1
_SEGMENT = re.compile(r"/segments/(\d+)$")


@dataclass(slots=True)
class Weather:
    """Shared by all lines, changed by the run."""

    faults: Faults = NO_FAULTS
    slow: float = 0.0
    """Share of requests that take up to `slow_s` more, before their effect or after it."""
    slow_s: float = 30.0
    full: float = 0.0
    """Share of puts that the store certainly refuses, for want of room."""
    full_for_all: bool = False
    """Of all puts; else of segments and Parquet files alone, as where a reserve is kept."""
    torn: bool = False
    """Puts of segments in even slots take seconds, and those in odd slots are refused."""
    silent: str = ""
    """Puts of objects whose keys contain it get no answer, nor do looks whether they have landed; "": none."""
    list_page: int = 1000
    stalls: float = 0.0
    """Share of requests at which their line begins to stand still."""
    stall_s_max: float = 6.0
    naps: float = 0.0
    nap_s_max: float = 10.0
    ambush: Ambush = NO_AMBUSH
    unreached: set[str] = field(default_factory=set)
    """Processes that cannot send requests now."""
    requests: int = 0
    """Sent by all lines so far."""
    sleepers: int = 0
    """Processes that lie in ambush now."""


class StoreLine(FaultyStore):
    def __init__(
        self,
        inner: ObjectStore,
        watched: WatchedStore,
        loop: SimulatedLoop,
        who: str,
        sources: Sources,
        weather: Weather,
        trace: Trace,
        coverage: Coverage,
    ) -> None:
        super().__init__(inner, sources)
        self._watched = watched
        self._loop = loop
        self._who = who
        self._weather = weather
        self._trace = trace
        self._coverage = coverage
        self._stalled_until_s = 0.0
        self._came_late: set[str] = set()  # keys of fenced puts that the store has refused this process

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if self._weather.naps and self._random.random() < self._weather.naps:
            await self._nap()
        while self._who in self._weather.unreached:
            await asyncio.sleep(UNREACHED_LOOK_S)
        is_upload = operation == "fenced_put" and not self.fences_close_at_once
        fault = "full" if self._is_refused(operation, what) else self._draw(operation)
        if self._weather.silent and self._weather.silent in what and operation in ("put_if_absent", "get_suffix"):
            fault = self._random.choice(UNANSWERED) if operation in PUTS else "before"
        late_s = 0.0
        if self._weather.torn and operation in PUTS and (slot := _SEGMENT.search(what)) is not None:
            fault = "full" if int(slot[1]) % 2 else fault
            late_s = 0.0 if int(slot[1]) % 2 else self._random.uniform(*TORN_LATE_S)
        self._weather.requests += 1
        request = Request(self._loop, operation, what, step, fault, self._delay_s, self._note, takes_time=is_upload)
        request.send(self._stall_s() + late_s)
        return await request.answered  # type: ignore[no-any-return]

    def _is_refused(self, operation: str, what: str) -> bool:
        weather = self._weather
        if not weather.full or operation not in PUTS:
            return False
        is_data = operation == "fenced_put" or "/segments/" in what or what.startswith(".probe")
        return (is_data or weather.full_for_all) and self._random.random() < weather.full

    async def _nap(self) -> None:
        """Puts the process to sleep just before it sends its request."""
        await self._sleep(asyncio.sleep(self._random.uniform(0, self._weather.nap_s_max)), "pause before a request")

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self._lie_in_ambush("put", kind_of(key, buffers), lambda: self._watched.when_gone(key), [key])
        await super().put_if_absent(key, buffers)

    async def put_fenced(self, puts: FencedPuts, key: str, buffers: Sequence[Buffer]) -> None:
        await self._lie_in_ambush("put", kind_of(key), lambda: self._watched.when_gone(key), [key])
        try:
            await super().put_fenced(puts, key, buffers)
        except FenceClosed:
            self._came_late.add(key)
            raise

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        if keys:
            late = [key for key in keys if key in self._came_late]  # built: nothing but the permission keeps them out
            await self._lie_in_ambush(
                "permission",
                kind_of(keys[0]),
                lambda: self._watched.when_gone(*(late or keys[:1])),
                late or keys[:1],
                certainly=bool(late),
            )
        return await super().fenced_puts(fence, keys, url_life_ms)

    async def delete(self, keys: Sequence[str]) -> None:
        commits = self._weather.ambush.commits
        await self._lie_in_ambush(
            "delete", kind_of(keys[0]) if keys else "", lambda: self._watched.after_commits(commits), keys
        )
        await super().delete(keys)

    async def _lie_in_ambush(
        self,
        what: str,
        kind: str,
        passed: Callable[[], asyncio.Future[None]],
        keys: Sequence[str],
        certainly: bool = False,
    ) -> None:
        """Sleep until the world has gone past the request.

        `certainly`: whatever the dice say, where this kind lies in ambush at all.
        """
        ambush, share = self._weather.ambush, self._weather.ambush.shares.get(kind, 0.0)
        if what not in ambush.before or ambush.whose not in ("", self._who):
            return
        if not any(ambush.where in key for key in keys):
            return
        if ambush.late_s and not certainly:
            if what == "put" and self._came_late.isdisjoint(keys):
                await self._sleep(asyncio.sleep(ambush.late_s), f"sleep before a {what} ({kind})")
            return
        if share and self._weather.sleepers < ambush.sleepers_max and (certainly or self._random.random() < share):
            seconds_max = ambush.seconds_max * (1.0 if certainly else self._random.choice((0.1, 1.0)))
            await self._sleep(
                self._wait_in_ambush(f"{what} ({kind})", passed(), seconds_max), f"sleep before a {what} ({kind})"
            )

    async def _wait_in_ambush(self, what: str, passed: asyncio.Future[None], seconds_max: float) -> None:
        self._weather.sleepers += 1
        await asyncio.wait({passed}, timeout=seconds_max)
        self._weather.sleepers -= 1
        if passed.done():
            self._coverage.saw(f"the world had gone past a {what} when its process awoke")
        passed.cancel()
        await asyncio.sleep(self._random.uniform(0, 1.0))

    async def _sleep(self, until: Awaitable[None], why: str) -> None:
        process = current_process()
        if process is None or process.state is not State.RUNNING:
            if asyncio.iscoroutine(until):
                until.close()
            return
        self._coverage.saw(f"disturbance: {why}")
        process.pause()
        self._loop.in_world(self._wake(process, until, why))
        await asyncio.sleep(0)

    async def _wake(self, process: Process, until: Awaitable[None], why: str) -> None:
        self._trace.add(self._loop.time(), self._who, why)
        await until
        if process.state is State.PAUSED:
            self._trace.add(self._loop.time(), self._who, "wakes")
            process.resume()

    def _note(self, operation: str, what: str, error: BaseException | None) -> None:
        if error is None:
            answer = "done"
        elif isinstance(error, LedgerMQError):
            answer = answer_of(error)
            if isinstance(error, FenceClosed):
                self._coverage.saw("a sleeping task was refused by the store")
            if isinstance(error, StoreFull):
                self._coverage.saw(f"store fault: full ({operation})")
            if isinstance(error, StoreUncertain) and "too far for URLs" in error.message:
                self._coverage.saw("a task's clock was too far from the store's")
            elif isinstance(error, StoreUncertain):
                self._coverage.saw(f"store fault: {fault_of(error)} ({operation})")
        else:
            answer = repr(error)
        if operation in WRITES or not (error is None or isinstance(error, ObjectMissing)):
            self._trace.add(self._loop.time(), self._who, f"{operation} {short(what)} → {answer}")

    def _draw(self, operation: str) -> Fault:
        """As in the base class, by one draw: this is called for every request of a simulation."""
        faults, x = self._weather.faults, self._random.random()
        for kind, share in (
            ("before", faults.before),
            ("after", faults.after),
            ("late", faults.late),
            ("throttle", faults.throttle),
        ):
            if x < share:
                return kind  # type: ignore[return-value]
            x -= share
        return "none"

    def _stall_s(self) -> float:
        """Now and then a line stands still; what was sent over it meanwhile arrives together, in
        any order.
        """
        now = self._loop.time()
        if self._weather.stalls and self._random.random() < self._weather.stalls:
            self._coverage.saw("store fault: line stands still")
            self._stalled_until_s = max(self._stalled_until_s, now + self._random.uniform(0, self._weather.stall_s_max))
        return self._stalled_until_s - now + self._random.uniform(0, 0.3) if now < self._stalled_until_s else 0.0

    def _delay_s(self) -> float:
        delay = self._random.random() * self._weather.faults.delay_s_max
        if self._weather.slow and self._random.random() < self._weather.slow:
            delay += self._random.uniform(0, self._weather.slow_s)
            self._coverage.saw("store fault: very slow")
        return delay

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        after = start_after
        while True:
            page = await self.run("list", prefix, 0, partial(self._page, prefix, after))
            for info in page:
                yield info
            if len(page) < self._weather.list_page:
                return
            after = page[-1].key

    async def _page(self, prefix: str, start_after: str) -> list[ObjectInfo]:
        page = []
        async for info in self.inner.list(prefix, start_after):
            page.append(info)
            if len(page) == self._weather.list_page:
                break
        return page


def fault_of(error: StoreUncertain) -> str:
    if isinstance(error, StoreThrottled):
        return "throttled"
    return next((kind for kind in ("before", "after", "later") if kind in error.message), "uncertain")


def answer_of(error: LedgerMQError) -> str:
    if isinstance(error, AlreadyExists):
        return "exists"
    if isinstance(error, (ObjectMissing, FenceClosed)):
        return error.code.lower()
    return error.message[:60]


def short(keys: str) -> str:
    """Keys without their runs of zeros."""
    return ", ".join(
        "/".join(part.lstrip("0") or "0" if part.isdigit() else part for part in key.split("/"))
        for key in keys.split(", ")
    )
