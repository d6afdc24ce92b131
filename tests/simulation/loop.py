"""One event loop for a whole cluster: virtual time, and a gate before each process.

A *process* is a name in the context of tasks: whatever a task of it starts, timers and callbacks
included, belongs to it. A paused process runs nothing while the world goes on, and finds on
resuming that time has passed; a dead one runs nothing ever again, not even its `finally` blocks, as
after kill -9. Tasks and futures hash by a number, so that sets of them iterate the same in each
run.

The loop is written for speed, for most of a simulation's time is spent in it: nothing outside
exists, so there is no selector; a handle carries no more than its callback.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from tests.simulation.trace import Coverage
from tests.virtual_time import AllTasksWait

T = TypeVar("T")
CLOSING_ROUNDS = 50
TURNS_MAX = 3_000_000
LOOK_EVERY = 1000
"""Turns between two looks whether a run may end early."""
CANCELLED_TIMERS_MAX = 1000

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
        task.add_done_callback(self.loop.note_end, context=self.loop.world)
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


class _Handle(asyncio.Handle):
    """The base class's fields, without the rest of its constructor."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, context: contextvars.Context | None) -> None:
        self._callback = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class _Timer(asyncio.TimerHandle):
    __slots__ = ()

    def __init__(
        self, when_s: float, callback: Any, args: Any, loop: SimulatedLoop, context: contextvars.Context | None
    ) -> None:
        self._when = when_s
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._scheduled = True

    def cancel(self) -> None:
        if self._scheduled and not self._cancelled:
            self._loop.timer_was_cancelled()
        self._cancelled = True
        self._callback = self._args = None


class _Task(asyncio.Task[Any]):
    _number = 0

    def __hash__(self) -> int:
        number = self._number
        if not number:
            number = self._number = next(self.get_loop().numbers)  # type: ignore[attr-defined]
        return number


class _Future(asyncio.Future[Any]):
    _number = 0

    def __hash__(self) -> int:
        number = self._number
        if not number:
            number = self._number = next(self.get_loop().numbers)  # type: ignore[attr-defined]
        return number


class TooLong(Exception):
    """The loop went round too often: the cluster is busy forever without getting anywhere."""


class Enough(Exception):
    """The run may end: what it is for is known."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """A timer rings strictly after its moment, never a rounding error before it: code that asks "is
    it time yet?" and waits again would otherwise go round forever in a world where looking takes
    no time."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._turns = 0
        self._looks_at = min(LOOK_EVERY, TURNS_MAX)
        self.is_over: Callable[[], bool] = lambda: False
        """Whether what is known already is all that the run is for."""
        self._ready: deque[Any] = deque()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._timer_numbers = itertools.count()
        self.numbers = itertools.count(1)
        """Of tasks and futures that are put into sets.

        From 1 in each run: where a set has them depends on the numbers themselves.
        """
        self._timers_cancelled = 0
        self.set_exception_handler(lambda loop, what: self.unheard.append(what))
        self.world = contextvars.Context()
        """The context of all that belongs to no process: network, store, the hand that breaks
        things.
        """
        self.processes: list[Process] = []
        self.unheard: list[dict[str, Any]] = []
        """Exceptions of tasks that no other task waits for."""
        self.cut_short: set[str] = set()
        """Fences of plans that the product cut short, by name."""
        self.coverage = Coverage()
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        """Told of the exception with which a task ended that was started in a process or in the
        world, whatever it is.
        """
        self.closing = False
        self.get_debug = bool  # type: ignore[method-assign]  # False, without a call of Python code: every future asks

    def time(self) -> float:
        return self._now_s

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def create_task(self, coro: Any, **more: Any) -> asyncio.Task[Any]:
        return _Task(coro, loop=self, **more)

    def in_world(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` outside every process: it goes on whatever becomes of who asked for it."""
        task = self.create_task(work, context=self.world)
        task.add_done_callback(self.note_end, context=self.world)
        return task

    def note_end(self, task: asyncio.Task[Any]) -> None:
        """The judge learns of a broken assertion though no task waits for this one."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.closing:
            self.on_failure(error)

    def run_again(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """No threads: at once, here, or when the executor says (`LateThreads`)."""
        if hasattr(executor, "run"):
            return self.create_task(executor.run(func, *args))
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._timer_numbers), timer))
        return timer

    def timer_was_cancelled(self) -> None:
        self._timers_cancelled += 1
        if self._timers_cancelled > CANCELLED_TIMERS_MAX and 2 * self._timers_cancelled > len(self._timers):
            self._timers[:] = [entry for entry in self._timers if not entry[2]._cancelled]  # type: ignore[attr-defined]
            heapify(self._timers)
            self._timers_cancelled = 0

    def _run_once(self) -> None:
        """Called by the base class until a caller stops the loop: here all turns up to then."""
        ready, popleft, running, process_of = self._ready, self._ready.popleft, State.RUNNING, _current
        while not self._stopping:  # type: ignore[attr-defined]
            if not ready:
                self._ring()
            self._turns += 1
            if self._turns > self._looks_at:
                self._look()
            for _ in range(len(ready)):
                handle = popleft()
                if handle._cancelled:
                    continue
                context = handle._context
                process = context.get(process_of)
                if process is not None and process.state is not running and not self.closing:
                    process.park(handle)
                    continue
                try:
                    context.run(handle._callback, *handle._args)
                except Exception as error:
                    self.call_exception_handler({"message": f"{handle._callback} failed", "exception": error})

    def _look(self) -> None:
        """Look, once in many turns, whether the run has to end."""
        if self._turns > TURNS_MAX:
            self._turns = -TURNS_MAX
            raise TooLong(f"{TURNS_MAX} turns of the loop, {self._now_s:.0f} virtual seconds")
        self._looks_at = min(self._turns + LOOK_EVERY, TURNS_MAX)
        if self.is_over() and not self.closing:
            raise Enough

    def _ring(self) -> None:
        """Nothing can run: go to the moment of the next timer."""
        timers = self._timers
        while timers:
            when, _, timer = heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            if timer._cancelled:  # type: ignore[attr-defined]
                self._timers_cancelled -= 1
                continue
            self._now_s = math.nextafter(max(self._now_s, when), math.inf)
            self._ready.append(timer)
            return
        raise AllTasksWait("every task waits, and nothing will ever wake one")

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        """No caller asks the loop to end its generators: it need not know them."""

    def end_everything(self) -> None:
        """Let every task end by cancellation, dead ones too, so that Python has nothing to complain
        about.
        """
        self.closing = True
        for process in self.processes:
            process.release()
        for _ in range(CLOSING_ROUNDS):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            with suppress(RuntimeError):  # a run that was cut off as its main task ended stops the loop once more
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
