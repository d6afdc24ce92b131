"""Calls that queue many records. Each begins when it is made, and goes on in the background while the
buffer is full, whether or not the program awaits it.

A call that the program awaits is a call as any other: when its caller is cancelled, the rest is not
queued. A call that it does not await keeps its place: what is sent later comes behind it, and `flush`
and `close` wait for it and raise its error.

Invariant: records of a call are added in their order, each once, by one of two: the call's own task,
below `buffer_bytes_max`, or a later `send`, which cannot wait and so may go above it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterable, Callable, Coroutine, Generator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

from ledgermq.client.producing.buffering.send_buffer import SendBuffer
from ledgermq.client.producing.buffering.works import RECORDS_PER_STEP, Work
from ledgermq.errors import DeadlineExceeded, ResourceExhausted
from ledgermq.runtime.tasks import own_cancellation_as_error, retrieve_error

UNAWAITED_MAX = 10_000
"""Calls that wait for room without being awaited."""

T = TypeVar("T")


class Queuing(Coroutine[Any, Any, T], Generic[T]):
    """A call of `send_many` or `send_batch`: it has begun already. Await it until all records are queued,
    for what the call returns, or never. It is used like a coroutine, also in `asyncio.create_task`.
    """

    def __init__(self, work: Work[T] | None, check: Callable[[bool], None], on_awaited: OnAwaited) -> None:
        self.work = work
        self.check = check
        """Raises if the call must not add any further record; gets whether it is awaited."""
        self.is_awaited = False
        self.task: asyncio.Task[T] | None = None
        """Adds what did not fit at once; None: nothing is left."""
        self.result: T | None = None
        self.error: Exception | None = None
        self._on_awaited = on_awaited
        self._steps: Generator[Any, Any, T] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        self._note_awaited()
        if self.task is not None:
            return (yield from self.task.__await__())
        yield  # let other tasks run, as any call that waits does
        if self.error is not None:
            raise self.error
        return cast(T, self.result)

    @property
    def is_ended(self) -> bool:
        return self.task is None or self.task.done()

    def failure(self) -> BaseException | None:
        """Return the error of a call that has ended, other than its cancellation."""
        if self.task is None or not self.task.done() or self.task.cancelled():
            return self.error
        return self.task.exception()

    def _note_awaited(self) -> None:
        self.is_awaited = True
        self._on_awaited(self)

    def send(self, value: Any) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Any:
        if self._steps is None:  # a task that was cancelled before its first step
            self._note_awaited()
            if self.task is not None:
                self.task.cancel()
            self._steps = self.__await__()
        return self._steps.throw(kind if value is None else value)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()


OnAwaited = Callable[[Queuing[Any]], None]


class Calls:
    """The calls of one producer that are under way without being awaited, in their order."""

    def __init__(self, buffer: SendBuffer) -> None:
        self._buffer = buffer
        self.unawaited: list[Queuing[Any]] = []
        self._is_adding = False

    def begin(self, make: Callable[[], Work[T]], check: Callable[[bool], None]) -> Queuing[T]:
        """Begin a call: add what fits at once. Errors of records are raised where it is awaited.

        Raises ResourceExhausted if too many calls wait.
        """
        if len(self.unawaited) >= UNAWAITED_MAX:
            raise ResourceExhausted(
                f"{len(self.unawaited)} calls of send_many or send_batch wait for room: await some of them",
                retry_after_ms=100,
            )
        earlier = [call.task for call in self.unawaited if call.task is not None and call.work is not None]
        call: Queuing[T] = Queuing(None, check, self._forget_call)
        try:
            call.work = work = make()
            needed = 0 if earlier else self._add(work, self._buffer.full_bytes, RECORDS_PER_STEP)
        except Exception as error:
            call.error = error
            self.unawaited.append(call)
            return call
        if needed is None:
            call.result = work.result
        else:
            work.keep()
            self._go_on(call, self._rest(call, work, needed, earlier))
        return call

    def begin_reading(
        self, records: AsyncIterable[Any], make: Callable[[Any], Work[T]], check: Callable[[bool], None], result: T
    ) -> Queuing[T]:
        """Begin a call whose records come from the program one after the other. Records that are sent later
        do not wait for it.
        """
        call: Queuing[T] = Queuing(None, check, self._forget_call)

        async def read() -> T:
            count = 0
            with own_cancellation_as_error("the iterator of the records"):
                async for record in records:
                    count += 1
                    call.check(call.is_awaited)  # the program may have gone on meanwhile
                    work = make(record)
                    needed = self._add(work, self._buffer.full_bytes, RECORDS_PER_STEP)
                    if needed is not None or count % RECORDS_PER_STEP == 0:
                        await self._rest(call, work, needed, [])
            return result

        self._go_on(call, read())
        return call

    def _go_on(self, call: Queuing[T], rest: Coroutine[Any, Any, T]) -> None:
        call.task = asyncio.get_running_loop().create_task(rest, name="ledgermq records that wait for room")
        call.task.add_done_callback(partial(self._ended, call))
        self.unawaited.append(call)

    async def _rest(
        self, call: Queuing[Any], work: Work[T], needed: int | None, earlier: Sequence[asyncio.Task[Any]]
    ) -> T:
        if earlier:
            left_s = None if work.deadline_s is None else work.deadline_s - asyncio.get_running_loop().time()
            _, late = await asyncio.wait(earlier, timeout=None if left_s is None else max(0.0, left_s))
            if late:
                raise DeadlineExceeded("earlier calls of send_many or send_batch still wait for room: none is queued")
        while True:
            if needed:
                try:
                    await self._buffer.wait_for_room(needed, work.deadline_s)
                except Exception as error:
                    call.check(call.is_awaited)
                    work.refuse(error)
            else:
                await asyncio.sleep(0)
            if needed is None:
                return work.result
            call.check(call.is_awaited)
            if call.error is not None:
                raise call.error
            needed = self._add(work, self._buffer.full_bytes, RECORDS_PER_STEP)
            if needed is None:
                return work.result

    def _add(self, work: Work[Any], limit_bytes: int, records_max: int) -> int | None:
        is_outer, self._is_adding = not self._is_adding, True
        try:
            with own_cancellation_as_error("the iterator of the records"):
                return work.add(self._buffer, limit_bytes, records_max)
        finally:
            self._is_adding = not is_outer

    def hurry(self) -> None:
        """Add all that waits without being awaited, before a record that must come behind it.

        Raises ResourceExhausted if it does not fit.
        """
        if self._is_adding:  # the records of a call come from a generator that sends records itself
            return
        for call in list(self.unawaited):
            if call.work is None or call.task is None or call.task.done() or call.error is not None:
                continue
            try:
                needed = self._add(call.work, self._buffer.limit_bytes, sys.maxsize)
            except Exception as error:
                call.error = error  # its task raises it
                continue
            if needed is not None:
                raise ResourceExhausted(
                    f"{call.work.left} records of an earlier send_many or send_batch wait for room: await that call"
                    " first",
                    retry_after_ms=100,
                )

    async def queued(self) -> None:
        """Wait until the calls that are not awaited have added their records, or have failed."""
        if tasks := [call.task for call in self.unawaited if call.task is not None]:
            await asyncio.wait(tasks)

    @property
    def waiting_records(self) -> int:
        """Records that wait for room, where their number is known."""
        return sum(call.work.left for call in self.unawaited if call.work is not None and not call.is_ended)

    def raise_unseen(self) -> None:
        """Raise the first error of a call that the program has not awaited."""
        errors = [error for call in self.unawaited if (error := call.failure()) is not None]
        self.unawaited = [call for call in self.unawaited if not call.is_ended]
        if errors:
            raise errors[0]

    def forget(self) -> list[asyncio.Task[Any]]:
        """End the calls that are not awaited; return their tasks."""
        tasks = [call.task for call in self.unawaited if call.task is not None]
        self.unawaited = []
        for task in tasks:
            task.cancel()
        return tasks

    def _forget_call(self, call: Queuing[Any]) -> None:
        if call in self.unawaited:
            self.unawaited.remove(call)

    def _ended(self, call: Queuing[Any], task: asyncio.Task[Any]) -> None:
        retrieve_error(task)
        if call.failure() is None:
            self._forget_call(call)
