"""One event loop for a whole cluster: virtual time, and a gate before each process.

A *process* is a name in the context of tasks: whatever a task of it starts, timers and callbacks included, belongs to it. A paused
process runs nothing while the world goes on, and finds on resuming that time has passed; a dead one runs nothing ever again, not even
its `finally` blocks, as after kill -9. Tasks and futures hash by their number, so that sets of them iterate the same in each run.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import math
import selectors
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, Self, TypeVar

from tests.virtual_time import AllTasksWait, VirtualLoop

T = TypeVar("T")
CLOSING_ROUNDS = 50
TURNS_MAX = 1_000_000

_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class State(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


class Process:
    """One incarnation; a restart is a new object. `died` is for others to wait on."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.died = loop.create_future()
        self.loop = loop
        self._parked: list[asyncio.Handle] = []
        self.context = contextvars.Context()
        self.context.run(_current.set, self)
        loop.processes.append(self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self.loop.create_task(work, context=self.context.copy())
        task.add_done_callback(lambda done: done.cancelled() or done.exception(), context=self.loop.world)
        return task

    @property
    def alive(self) -> bool:
        return self.state is not State.DEAD

    def pause(self) -> None:
        assert self.state is State.RUNNING
        self.state = State.PAUSED

    def resume(self) -> None:
        assert self.state is State.PAUSED
        self.state = State.RUNNING
        self.release()

    def kill(self) -> None:
        self.state = State.DEAD
        if not self.died.done():
            self.died.set_result(None)

    def park(self, handle: asyncio.Handle) -> None:
        self._parked.append(handle)

    def release(self) -> None:
        for handle in self._parked:
            self.loop.run_again(handle)
        self._parked.clear()


def _run_gated(handle: Any) -> None:
    process = handle._context.get(_current)
    if process is None or process.state is State.RUNNING or process.loop.closing:
        asyncio.Handle._run(handle)  # type: ignore[attr-defined]
    else:
        process.park(handle)


class _Gated(asyncio.Handle):
    __slots__ = ()
    _run = _run_gated


class _GatedTimer(asyncio.TimerHandle):
    __slots__ = ()
    _run = _run_gated


def _next_number() -> int:
    loop = asyncio.get_event_loop()
    assert isinstance(loop, SimulatedLoop)
    return next(loop.numbers)


class _Task(asyncio.Task[Any]):
    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        self.number = _next_number()
        return self

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Future(asyncio.Future[Any]):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.number = _next_number()

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class TooLong(Exception):
    """The loop went round too often: the cluster is busy for ever without getting anywhere."""


class _NoSelector(selectors.SelectSelector):
    """Never looks at a file: nothing outside exists. A timer rings strictly after its moment, never a rounding error before it: code that
    asks "is it time yet?" and waits again would otherwise go round for ever in a world where looking takes no time."""

    def __init__(self, ready: Callable[[], object]) -> None:
        super().__init__()
        self._ready = ready
        self.now_s = 0.0
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AllTasksWait("every task waits, and nothing will ever wake one")
        if not self._ready():
            self.now_s = math.nextafter(self.now_s + timeout, math.inf)
        self.turns += 1
        if self.turns > TURNS_MAX:
            self.turns = -TURNS_MAX
            raise TooLong(f"{TURNS_MAX} turns of the loop, {self.now_s:.0f} virtual seconds")
        return []


class SimulatedLoop(VirtualLoop):
    def __init__(self) -> None:
        self.numbers = itertools.count()
        self._jumping = _NoSelector(lambda: self._ready)  # type: ignore[assignment,attr-defined]
        asyncio.SelectorEventLoop.__init__(self, self._jumping)
        self._clock_resolution = 0.0
        self.set_task_factory(lambda loop, work, **more: _Task(work, loop=loop, **more))
        self.set_exception_handler(lambda loop, what: self.unheard.append(what))
        self.world = contextvars.Context()
        """The context of all that belongs to no process: network, store, the hand that breaks things."""
        self.processes: list[Process] = []
        self.unheard: list[dict[str, Any]] = []
        """What nobody was there to be told: exceptions of tasks that nobody waits for."""
        self.closing = False

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(self)

    def create_task(self, coro: Any, **more: Any) -> asyncio.Task[Any]:
        return super().create_task(coro, **more)

    def in_world(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` outside every process: it goes on whatever becomes of who asked for it."""
        task = self.create_task(work, context=self.world)
        task.add_done_callback(lambda done: done.cancelled() or done.exception(), context=self.world)
        return task

    def run_again(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)  # type: ignore[attr-defined]

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """No threads: at once, here."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _call_soon(self, callback: Any, args: Any, context: Any) -> asyncio.Handle:
        handle = _Gated(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        timer = _GatedTimer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def end_everything(self) -> None:
        """Let every task end by cancellation, dead ones too, so that Python has nothing to complain about."""
        self.closing = True
        for process in self.processes:
            process.release()
        for _ in range(CLOSING_ROUNDS):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            self.run_until_complete(asyncio.wait(tasks, timeout=60))
        raise AssertionError(f"these tasks do not end when they are cancelled: {asyncio.all_tasks(self)}")


def current_process() -> Process | None:
    return _current.get()


def run_simulated(main: Callable[[SimulatedLoop], Coroutine[Any, Any, T]]) -> T:
    """The result of `main(loop)`; whatever still runs then is ended."""
    loop = SimulatedLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(loop.in_world(main(loop)))
    finally:
        try:
            loop.end_everything()
        finally:
            asyncio.set_event_loop(None)
            loop.close()
