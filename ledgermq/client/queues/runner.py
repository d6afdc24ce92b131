"""Run a function for the messages of a queue group: so many calls at a time, each with a lease that is renewed
while it runs.

A call that succeeds is acknowledged. One that fails is given back after a wait, which doubles with each attempt.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, fields
from typing import Any, Generic, cast

from ledgermq.client.groups.assignment import check_group, topics_of
from ledgermq.client.groups.handlers.calls import place_of, report_failure, text_of
from ledgermq.client.groups.handlers.handler import called_of
from ledgermq.client.groups.handlers.middleware import Middleware, around
from ledgermq.client.groups.handlers.pace import Pace
from ledgermq.client.groups.handlers.retry import WAIT_MS_MAX
from ledgermq.client.queues.message import QueueMessage
from ledgermq.client.queues.queue import Queue
from ledgermq.client.settings.declared import above_zero, check_fields, function, functions, having, switch, whole
from ledgermq.client.settings.serializers import V
from ledgermq.client.settings.values import QueueSettings, settings_from
from ledgermq.errors import DeadlineExceeded, InvalidConfig, LedgerMQError, RetriableError
from ledgermq.hints import did_you_mean
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.tasks import end, in_thread, own_cancellation_as_error, retrieve_error
from ledgermq.sources import Sources

QueueFunction = Callable[[QueueMessage[V]], Awaitable[object] | object]
QueueBatchFunction = Callable[[list[QueueMessage[V]]], Awaitable[object] | object]
"""The function of a handler with `batch=True`."""
OnQueueFailure = Callable[[QueueMessage[V], Exception, int], Awaitable[object] | object]

CONCURRENCY_MAX = 2_000
FETCH_WAIT_S = 1.0
FETCH_RECORDS_MAX = 2_000
"""Messages that are leased by one call."""
RENEWALS = 3
"""Renewals in the time of a lease."""

_log = get_log("ledgermq.handlers")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHandlerSettings:
    """`queue`: settings of the member (see `QueueSettings`), and `start`."""

    topics: str | Iterable[str]
    group: str
    concurrency: int = whole(1, CONCURRENCY_MAX)
    """Messages that are handled at the same time. Raise it if the function waits for other systems."""
    executor: Executor | None = having("submit")
    """Executor of functions that are not asynchronous; not set: the event loop's own threads."""
    timeout_s: float | None = above_zero(None)
    """Longest time of an asynchronous call; then it counts as failed. Not set: no bound."""
    wait_ms_first: int = whole(1_000, WAIT_MS_MAX)
    """Wait before a failed message comes again; it doubles with each attempt, with jitter."""
    wait_ms_max: int = whole(60_000, WAIT_MS_MAX)
    """Longest such wait."""
    batch: bool = switch(False)
    """Call the function with a list of messages, of any partitions. If the call fails, each of them is
    handled alone, in a list of one.
    """
    batch_records_max: int = whole(100, 100_000)
    """Messages of a batch, at most. A batch takes those that are there."""
    rate_per_s: float | None = above_zero(None)
    """Calls that begin in a second in this process, at most, spread evenly. Not set: no limit."""
    middleware: Sequence[Middleware] = functions("a message and the next call")
    """Asynchronous functions around each call, the first outermost: called as (message, call_next), they
    `await call_next(message)`, and return its result. What they raise counts as a failure of the call.
    """
    on_failure: OnQueueFailure | None = function("message, error and attempt")
    """Called, and awaited if asynchronous, after each failed attempt. Not set: a warning is logged."""
    queue: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names, pattern = topics_of(self.topics)
        if pattern or not names:
            raise InvalidConfig("a queue group reads topics by their names, not by a pattern")
        check_group(self.group)
        check_fields(self)


def queue_handler_settings(topics: str | Iterable[str], group: str, given: Mapping[str, Any]) -> QueueHandlerSettings:
    """Divide the given settings into those of the handler and those of the queue. Raises InvalidConfig."""
    own = {each.name for each in fields(QueueHandlerSettings)} - {"topics", "group", "queue"}
    of_queue = {each.name for each in fields(QueueSettings)} | {"start"}
    for name in given:
        if name not in own | of_queue:
            known = sorted(own | of_queue)
            raise InvalidConfig(f"unknown setting {name!r} of QueueHandlerSettings; {did_you_mean(name, known)}")
    rest = {name: value for name, value in given.items() if name in of_queue}
    settings_from(QueueSettings, {name: value for name, value in rest.items() if name != "start"})
    return QueueHandlerSettings(
        topics=topics, group=group, queue=rest, **{name: value for name, value in given.items() if name in own}
    )


@dataclass(eq=False)
class QueueHandler(Generic[V]):
    """A function that handles the messages of a queue group, and its counts. Made by `client.queue_handler(…)`."""

    function: QueueFunction[V] | QueueBatchFunction[V]
    settings: QueueHandlerSettings
    handled: int = 0
    """Number of calls that succeeded."""
    failures: int = 0
    """Number of attempts that failed."""
    dead_lettered: int = 0
    """Number of messages that were moved to the dead-letter topic."""
    expired: int = 0
    """Number of messages that were skipped because they had expired."""
    last_error: Exception | None = None
    """The error of the last failed attempt, or why no messages come at present."""
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_async = any(map(inspect.iscoroutinefunction, called_of(self.function)))

    def __call__(self, given: Any) -> Awaitable[object] | object:
        """Call the function with a message, or with a list of messages if it takes batches."""
        return cast(Callable[[Any], Awaitable[object] | object], self.function)(given)


class QueueRunner:
    """Invariant: at most `concurrency` calls run at a time, and no more messages are leased than can be begun."""

    def __init__(
        self, handler: QueueHandler, queue: Queue, sources: Sources, around_all: Sequence[Middleware] = ()
    ) -> None:
        """`around_all`: what goes around the handler's own middleware."""
        self._handler = handler
        self._settings = handler.settings
        self._queue = queue
        self._sources = sources
        self._running: set[asyncio.Task[None]] = set()
        self._pace = Pace(handler.settings.rate_per_s)
        self._through = around((*around_all, *handler.settings.middleware), self._function)
        self._warned_s: float | None = None
        """When a warning was last logged that no messages come; None: they come, or may."""

    async def run(self, stop: asyncio.Event, drain_timeout_s: float) -> None:
        """Handle messages until `stop` is set, then finish the running calls (DeadlineExceeded if they take
        longer). Raises errors that do not pass with time.
        """
        stopped = asyncio.create_task(stop.wait(), name="stop of a queue's handler")
        try:
            async with self._queue:
                await self._handle_until(stopped)
                if self._running:
                    _, left = await asyncio.wait(self._running, timeout=drain_timeout_s)
                    if left:
                        raise DeadlineExceeded(f"{len(left)} calls are still running after {drain_timeout_s} s")
                try:
                    await self._queue.flush()
                except RetriableError as error:
                    self._handler.last_error = error
                    _log.warning("handler of queue %s: %s; they come again", self._settings.group, error.message)
        finally:
            await end(stopped, *self._running)

    async def _handle_until(self, stopped: asyncio.Task[bool]) -> None:
        while not stopped.done():
            free = self._settings.concurrency - len(self._running)
            if not free:
                await asyncio.wait([stopped, *self._running], return_when=asyncio.FIRST_COMPLETED)
                continue
            now_s = asyncio.get_running_loop().time()
            free = self._pace.room(now_s, free)
            if not free:
                await asyncio.wait([stopped], timeout=self._pace.wait_s(now_s))
                continue
            size = self._settings.batch_records_max if self._settings.batch else 1
            most = min(free * size, FETCH_RECORDS_MAX)
            fetching = asyncio.create_task(self._queue.fetch(most, FETCH_WAIT_S), name="fetch of a queue's handler")
            try:
                await asyncio.wait([stopped, fetching], return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not fetching.done():
                    await end(fetching)
            if fetching.cancelled():
                return
            self._handler.expired, self._handler.dead_lettered = self._queue.expired, self._queue.dead_lettered
            try:
                found = fetching.result()
            except LedgerMQError as error:
                self._handler.last_error = error
                if not error.retriable:
                    raise
                self._warn(error)
                continue
            if self._warned_s is not None:
                self._warned_s = None
                _log.info("handler of queue %s is served again", self._settings.group)
            for first in range(0, len(found), size):
                given = found[first : first + size]
                work = self._handle_batch(given) if self._settings.batch else self._handle(given[0])
                task = asyncio.create_task(work, name=f"call for {place_of(given[0])}")
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                self._pace.begun(asyncio.get_running_loop().time())

    def _warn(self, error: LedgerMQError) -> None:
        """Log that no messages come: at once, and then each `request_timeout_s`."""
        now_s = asyncio.get_running_loop().time()
        if self._warned_s is None or now_s - self._warned_s >= self._queue.settings.request_timeout_s:
            self._warned_s = now_s
            _log.warning("handler of queue %s got no messages: %s", self._settings.group, error.message)

    async def _handle_batch(self, messages: list[QueueMessage]) -> None:
        """Call the function with all messages; if that fails, with each of them alone."""
        renewing = [self._renewing(message) for message in messages]
        try:
            if len(messages) > 1:
                try:
                    await self._call(messages)
                except Exception as error:
                    self._handler.failures += 1
                    self._handler.last_error = error
                    of, place = self._settings.group, place_of(messages[0])
                    text = (
                        "handler of queue %s failed at a batch of %d messages, the first one %s; each is handled alone"
                    )
                    _log.warning(text + " now: %r", of, len(messages), place, error)
                else:
                    self._handler.handled += len(messages)
                    for message in messages:
                        message.ack()
                    return
            for message in messages:
                await self._handle(message)
        finally:
            for each in renewing:
                each.cancel()

    def _renewing(self, message: QueueMessage) -> _Renewal:
        return _Renewal(message, self._queue.settings.lease_s / RENEWALS)

    async def _handle(self, message: QueueMessage) -> None:
        renewing = self._renewing(message)
        try:
            await self._call([message] if self._settings.batch else message)
        except Exception as error:
            self._handler.failures += 1
            self._handler.last_error = error
            of, on_failure = f"queue {self._settings.group}", self._settings.on_failure
            await report_failure(of, on_failure, message, error, message.attempt)
            message.nack(self._wait_s(message.attempt), text_of(error))
        else:
            self._handler.handled += 1
            message.ack()
        finally:
            renewing.cancel()
            self._handler.dead_lettered = self._queue.dead_lettered

    async def _call(self, given: object) -> None:
        """Call the function with a message, or with a list of messages, through the middleware."""
        async with asyncio.timeout(self._settings.timeout_s if self._handler.is_async else None):
            with own_cancellation_as_error("the handler"):
                await self._through(given)

    async def _function(self, given: object) -> object:
        if self._handler.is_async:
            return await cast(Awaitable[object], self._handler(given))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._settings.executor, in_thread(self._handler, given))

    def _wait_s(self, attempt: int) -> float:
        most_ms = min(self._settings.wait_ms_max, self._settings.wait_ms_first * 2 ** min(attempt - 1, 30))
        return self._sources.random.uniform(most_ms / 2, most_ms) / 1000


class _Renewal:
    """Renews a lease each `interval_s`, until it is lost or this is cancelled. Most calls end before the first time,
    so a task is made then only.
    """

    def __init__(self, message: QueueMessage, interval_s: float) -> None:
        self._message = message
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.get_running_loop().call_later(interval_s, self._begin)

    def cancel(self) -> None:
        self._first.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._renew(), name=f"lease of {place_of(self._message)}")
        self._task.add_done_callback(retrieve_error)

    async def _renew(self) -> None:
        while True:
            try:
                if not await self._message.extend():
                    return
            except LedgerMQError:
                pass
            await asyncio.sleep(self._interval_s)
