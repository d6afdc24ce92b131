"""Run one handler on one member of its group: call it with messages in the requested order,
acknowledge those that succeed, and call it again with those that fail.

Invariants: the next message of a lane begins only after the one before it has succeeded. At most
`concurrency` calls run at a time. At most `waiting_max` messages of a partition wait; other
partitions are still read. Once a partition is let go, none of its messages is begun, unless they
are committed already (commit="before"): then no other member will receive them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from ledgermq.client.consuming.message import partition_of
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.handlers.handler import Handler
from ledgermq.client.groups.handlers.lanes import Lane, Lanes
from ledgermq.client.groups.holdings import LettingGo
from ledgermq.client.groups.message import GroupMessage
from ledgermq.errors import DeadlineExceeded, GroupError, LedgerMQError, RetriableError
from ledgermq.runtime.backoff import backoff_s
from ledgermq.runtime.tasks import end, first_of
from ledgermq.sources import Sources

FETCH_WAIT_S = 1.0
FETCH_RECORDS_MAX = 500

_log = logging.getLogger("ledgermq.handlers")


class HandlerRunner:
    """`make_consumer` makes the handler's consumer; its argument is called with partitions that
    the consumer is about to let go.
    """

    def __init__(self, handler: Handler, make_consumer: Callable[[LettingGo], GroupConsumer], sources: Sources) -> None:
        self._handler = handler
        self._settings = handler.settings
        consumer = make_consumer(self._drop)
        self._consumer = consumer
        self._member = consumer.member
        self._sources = sources
        self._goes_on = consumer.settings.commit == "before" or consumer.settings.broadcast
        """Whether a failed message is only reported, and not handled again."""
        self._lanes: Lanes[GroupMessage] = Lanes(handler.settings.ordered_by)
        self._retrying: dict[Lane[GroupMessage], asyncio.Task[None]] = {}
        self._held_back: set[TopicPartition] = set()
        self._running = 0
        self._done = asyncio.Event()
        """Set when a message was handled."""
        self._tasks = asyncio.TaskGroup()

    async def run(self, stop: asyncio.Event, drain_timeout_s: float) -> None:
        """Handle messages until `stop` is set, then finish the running calls.

        Cancelling it does not wait for running calls. Raises errors that do not pass with time.
        """
        try:
            async with self._consumer, self._tasks:
                stopped = asyncio.create_task(stop.wait())
                reading = self._tasks.create_task(self._read())
                try:
                    await asyncio.wait([stopped, reading], return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        await self._finish(reading, drain_timeout_s)
                finally:
                    await end(stopped, reading)
        except BaseExceptionGroup as failures:
            raise first_of(failures) from failures

    async def _finish(self, reading: asyncio.Task[None], drain_timeout_s: float) -> None:
        await end(reading)
        await self._handle_committed(drain_timeout_s)
        self._drop([TopicPartition(*partition) for partition in list(self._lanes.by_partition)])
        await end(*self._retrying.values())
        try:
            await self._consumer.drain(drain_timeout_s)
        except (GroupError, RetriableError) as error:
            if isinstance(error, DeadlineExceeded):
                raise
            self._handler.last_error = error  # not committed: other members repeat the work since the last commit

    async def _handle_committed(self, timeout_s: float) -> None:
        """Handle messages that are committed already: no other member will receive them. Raises
        DeadlineExceeded.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._consumer.settings.commit == "before" and self._lanes.count:
                    self._done.clear()
                    await self._done.wait()
        except TimeoutError:
            count = self._lanes.count
            self._lanes.drop_waiting(list(self._lanes.by_partition), busy_too=lambda lane: False)
            raise DeadlineExceeded(
                f"{count} messages that are committed were not handled within {timeout_s} s"
            ) from None

    # -- reading

    async def _read(self) -> None:
        records = min(FETCH_RECORDS_MAX, max(1, self._settings.waiting_max // 2))
        while True:
            try:
                messages = await self._consumer.fetch(records, timeout=FETCH_WAIT_S)
            except LedgerMQError as error:
                if not error.retriable:
                    raise
                self._handler.last_error = error
                _log.warning("handler of group %s got no messages: %s", self._consumer.group, error.message)
                continue
            self._lanes.add(messages)
            for partition in {partition_of(message) for message in messages}:
                if self._lanes.by_partition.get(partition, 0) >= self._settings.waiting_max:
                    self._held_back.add(partition)
                    self._member.hold_back(partition, True)
            self._begin()

    def _make_room(self, partition: TopicPartition) -> None:
        if (
            partition in self._held_back
            and self._lanes.by_partition.get(partition, 0) <= self._settings.waiting_max // 2
        ):
            self._held_back.discard(partition)
            self._member.hold_back(partition, False)

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        """Give back messages that were not begun, because their partitions are let go. Committed
        ones stay.
        """
        self._held_back.difference_update(partitions)
        if self._consumer.settings.commit == "before":
            return
        for message in self._lanes.drop_waiting(partitions, busy_too=lambda lane: lane in self._retrying):
            message.handout.give_back(message.offset)

    # -- handling

    def _begin(self) -> None:
        while self._running < self._settings.concurrency and (taken := self._lanes.take()) is not None:
            self._running += 1
            self._tasks.create_task(self._handle(*taken))

    async def _handle(self, lane: Lane[GroupMessage], message: GroupMessage) -> None:
        try:
            error = await self._call(message, lane.attempts + 1)
        finally:
            self._running -= 1
            self._done.set()
        self._member.polling.signs += 1  # the program is at work, even if it does not call for messages
        if error is None or self._goes_on or message.handout.is_finished(message.offset):
            message.ack()
            self._lanes.succeeded(lane)
            self._make_room(partition_of(message))
            self._begin()
        else:
            self._lanes.failed(lane)
            self._retrying[lane] = self._tasks.create_task(self._again_later(lane))
            self._begin()

    async def _again_later(self, lane: Lane[GroupMessage]) -> None:
        first_s, max_s = self._settings.retry_ms_first / 1000, self._settings.retry_ms_max / 1000
        try:
            await asyncio.sleep(backoff_s(lane.attempts - 1, first_s, max_s, self._sources.random))
        finally:
            del self._retrying[lane]
        self._lanes.freed(lane)
        self._begin()

    async def _call(self, message: GroupMessage, attempt: int) -> Exception | None:
        """Call the handler. Return the error that it raised, or None if it succeeded."""
        function = self._handler.function
        try:
            if self._handler.is_async:
                async with asyncio.timeout(self._settings.timeout_s):
                    await cast(Awaitable[object], function(message))
            else:
                await asyncio.get_running_loop().run_in_executor(self._settings.executor, function, message)
        except Exception as error:
            self._handler.failures += 1
            self._handler.last_error = error
            await self._report(message, error, attempt)
            return error
        self._handler.handled += 1
        return None

    async def _report(self, message: GroupMessage, error: Exception, attempt: int) -> None:
        name = f"{partition_of(message)}, offset {message.offset}"
        if self._settings.on_failure is None:
            _log.warning(
                "handler of group %s failed at %s (attempt %d): %r", self._consumer.group, name, attempt, error
            )
            return
        try:
            returned = self._settings.on_failure(message, error, attempt)
            if inspect.isawaitable(returned):
                await returned
        except Exception as failure:
            _log.warning("on_failure of group %s raised an error at %s: %r", self._consumer.group, name, failure)
