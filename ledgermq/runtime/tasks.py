"""Run tasks side by side, cancel the rest when one fails, and leave none running after its owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, NoReturn, TypeVar

from ledgermq.errors import Closed, LedgerMQError

T = TypeVar("T")


async def all_of(works: Iterable[Coroutine[Any, Any, T]], at_once: int | None = None) -> list[T]:
    """Run coroutines side by side and return their results, in their order.

    The first error cancels the others and is raised unchanged. `at_once`: how many run at a time.

    If the caller is cancelled during the wait, it is cancelled, whatever a task raises at that
    time. An `asyncio.TaskGroup` would raise the task's error instead, and a loop that continues
    after errors would never end.
    """
    assert at_once is None or at_once > 0
    given = list(works)
    if not given:
        return []
    room = asyncio.Semaphore(at_once or len(given))

    has_failed = False

    async def one(work: Coroutine[Any, Any, T]) -> T:
        nonlocal has_failed
        async with room:
            if has_failed:
                raise asyncio.CancelledError  # starting it would be useless
            try:
                return await work
            except Exception:
                has_failed = True
                raise

    tasks = [asyncio.create_task(one(work)) for work in given]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        try:
            await end(*tasks)
        finally:
            for work in given:
                work.close()  # it may not have started
    failed = next((task for task in tasks if not task.cancelled() and task.exception() is not None), None)
    return [task.result() for task in ([failed] if failed is not None else tasks)]


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel the tasks and wait until all have ended; their errors are dropped.

    A caller that is cancelled during the wait, even twice, still waits: no task is left running.
    """
    given = [task for task in tasks if task is not None]
    living = [task for task in given if not task.done()]
    for task in living:
        task.cancel()
    interrupted: asyncio.CancelledError | None = None
    while living := [task for task in living if not task.done()]:
        try:
            await asyncio.wait(living)
        except asyncio.CancelledError as error:
            interrupted = error
    for task in given:
        retrieve_error(task)
    if interrupted is not None:
        raise interrupted


def retrieve_error(done: asyncio.Future[Any]) -> None:
    """Retrieve the error of a done future, or task, that may have no caller left. Otherwise asyncio
    would log the error as a bug.
    """
    if not done.cancelled():
        done.exception()


def ended_by(task: asyncio.Task[Any], of: str) -> BaseException | None:
    """Return what ended a done task that should go on: its error, or Closed if another part of the program has
    cancelled it. `of`: what the task works for, for the text.
    """
    return cancelled_outside(of) if task.cancelled() else task.exception()


def raise_end(task: asyncio.Task[Any], of: str) -> NoReturn:
    """Raise what ended a done task that should go on, as an error of `ledgermq.errors`."""
    error = ended_by(task, of)
    raise error if isinstance(error, Closed) else LedgerMQError(f"the background task of {of} failed") from error


def cancelled_outside(of: str) -> Closed:
    return Closed(f"the task of {of} was cancelled from outside, as by code that cancels all tasks: make another one")


@contextmanager
def own_cancellation_as_error(of: str) -> Iterator[None]:
    """Raise RuntimeError if a function of the program, `of`, raises CancelledError although this task was not
    cancelled: what the function awaited was. Passed on, it would end the caller's task, which nothing notices.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError(f"{of} raised CancelledError: what it awaited was cancelled, and not its call") from error


def called_in_thread(function: Callable[..., T], *given: Any) -> T:
    """Call a function of the program in a thread, for `run_in_executor`. StopIteration becomes RuntimeError, as in a
    coroutine: asyncio's futures do not take it, so the caller would wait without end.
    """
    try:
        return function(*given)
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error


def in_thread(function: Callable[..., T], *given: Any) -> Callable[[], T]:
    """Return a function that calls one of the program, for `run_in_executor`, with the context variables that are set
    now.
    """
    return partial(copy_context().run, called_in_thread, function, *given)


async def shared(task: asyncio.Future[T], of: str) -> T:
    """Wait for a task that others wait for, too: it goes on if this caller is cancelled. Raises what the task
    raises, and Closed if another part of the program has cancelled the task, and not the caller.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if task.cancelled() and caller is not None and not caller.cancelling():
            raise cancelled_outside(of) from None
        raise


def first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group that is not a group itself."""
    first = failures.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first
