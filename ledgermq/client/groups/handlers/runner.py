"""Run one handler on one member of its group: call it with messages in the requested order,
acknowledge those that succeed, and do with those that fail what its retry policy says. A message that
has expired before a call is skipped. If a batch fails, each of its messages is handled alone.

Invariants: the next message of a lane begins only after the one before it is finished. At most
`concurrency` calls run at a time. At most `waiting_max` messages of a partition wait; other
partitions are still read. Once a partition is let go, none of its messages is begun, unless they
are committed already (commit="before"): then no other member will receive them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress

from ledgermq.client.consuming.message import partition_of
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.handlers.calls import HandlerCalls, text_of
from ledgermq.client.groups.handlers.lanes import Lane, Lanes
from ledgermq.client.groups.handlers.pace import Pace
from ledgermq.client.groups.handlers.recovering.recovery import Recovery
from ledgermq.client.groups.handlers.retry import InOrder, Levels
from ledgermq.client.groups.membership.holdings import LettingGo
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import DeadlineExceeded, GroupError, LedgerMQError, RetriableError
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.tasks import end, first_of
from ledgermq.sources import Sources

FETCH_WAIT_S = 1.0
FETCH_RECORDS_MAX = 500

_log = get_log("ledgermq.handlers")


class HandlerRunner:
    """`make_consumer` makes the handler's consumer; its argument is called with partitions that
    the consumer is about to let go. `recovery`: of a handler with `Retry.metaq`.
    """

    def __init__(
        self,
        calls: HandlerCalls,
        make_consumer: Callable[[LettingGo], GroupConsumer],
        sources: Sources,
        recovery: Recovery | None = None,
    ) -> None:
        self._calls = calls
        self._handler = calls.handler
        self._settings = self._handler.settings
        self._policy = self._settings.policy
        self._recovery = recovery
        self._recovering: asyncio.Task[None] | None = None
        consumer = make_consumer(self._drop)
        self._consumer = consumer
        self._member = consumer.member
        self._sources = sources
        self._goes_on = consumer.settings.commit == "before" or (
            consumer.settings.broadcast and self._settings.retry is None
        )
        """Whether a failed message is only reported, and not handled again."""
        self._lanes: Lanes[GroupMessage] = Lanes("partition" if self._settings.batch else self._settings.ordered_by)
        self._filling: dict[Lane[GroupMessage], asyncio.Event] = {}
        """Lanes whose next batch waits for more messages; the event is set when it is full."""
        self._pace = Pace(self._settings.rate_per_s)
        self._paced: asyncio.TimerHandle | None = None
        """Begins calls when the rate allows it."""
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
            async with AsyncExitStack() as last:
                if self._recovery is not None:
                    last.push_async_callback(self._recovery.close)
                await last.enter_async_context(self._consumer)
                await last.enter_async_context(self._tasks)
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
        finally:
            if self._paced is not None:
                self._paced.cancel()

    async def _finish(self, reading: asyncio.Task[None], drain_timeout_s: float) -> None:
        until_s = asyncio.get_running_loop().time() + drain_timeout_s
        await end(reading, self._recovering)
        await self._handle_committed(drain_timeout_s)
        self._drop([TopicPartition(*partition) for partition in list(self._lanes.by_partition)])
        await end(*self._retrying.values())
        try:
            await self._consumer.drain(drain_timeout_s)
        except (GroupError, RetriableError) as error:
            if isinstance(error, DeadlineExceeded):
                raise
            self._handler.last_error = error  # not committed: other members repeat the work since the last commit
        if self._recovery is not None:
            await self._recovery.drain(until_s - asyncio.get_running_loop().time())

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
        if self._recovery is not None:  # before the first message, because it may be stored already
            await self._recovery.open()
            self._recovering = self._tasks.create_task(self._recovery.run(self._hand_over))
        records = max(1, self._settings.held_max // 2)
        records = min(max(FETCH_RECORDS_MAX, self._settings.batch_records_max * self._settings.batch), records)
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
            for partition in dict.fromkeys(partition_of(message) for message in messages):
                if self._lanes.by_partition.get(partition, 0) >= self._settings.held_max:
                    self._held_back.add(partition)
                    self._member.hold_back(partition, True)
            for lane, full in self._filling.items():
                if len(lane.queue) >= self._settings.batch_records_max:
                    full.set()
            self._begin()

    def _make_room(self, partition: TopicPartition) -> None:
        if partition in self._held_back and self._lanes.by_partition.get(partition, 0) <= self._settings.held_max // 2:
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

    def _hand_over(self, message: GroupMessage) -> None:
        self._lanes.add([message])
        self._begin()

    def _begin(self) -> None:
        while self._running < self._settings.concurrency and self._may_begin() and (taken := self._lanes.take()):
            lane, message = taken
            if self._settings.batch and not lane.alone and not self._fill(lane):
                continue
            self._pace.begun(asyncio.get_running_loop().time())
            self._running += 1
            self._tasks.create_task(self._handle(lane, message) if lane.running == 1 else self._handle_batch(lane))

    def _may_begin(self) -> bool:
        """Return whether the rate allows a call now; if not, `_begin` is called when it does."""
        if self._paced is not None:
            return False
        loop = asyncio.get_running_loop()
        wait_s = self._pace.wait_s(loop.time())
        if not wait_s:
            return True
        self._paced = loop.call_later(wait_s, self._begin_paced)
        return False

    def _begin_paced(self) -> None:
        self._paced = None
        self._begin()

    # -- batches

    def _fill(self, lane: Lane[GroupMessage]) -> bool:
        """Make the lane's first messages a batch; if they are few, wait for more, and return False."""
        most = self._settings.batch_records_max
        if len(lane.queue) < most and self._settings.batch_wait_ms and not lane.is_ripe:
            self._filling[lane] = asyncio.Event()
            self._retrying[lane] = self._tasks.create_task(self._ripen(lane))
            return False
        lane.is_ripe = False
        lane.running = min(most, len(lane.queue))
        return True

    async def _ripen(self, lane: Lane[GroupMessage]) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.batch_wait_ms / 1000):
                    await self._filling[lane].wait()
        finally:
            del self._filling[lane], self._retrying[lane]
        lane.is_ripe = True
        self._lanes.freed(lane)
        self._begin()

    async def _handle_batch(self, lane: Lane[GroupMessage]) -> None:
        given = list(lane.queue)[: lane.running]
        messages = [message for message in given if not self._consumer.expire(message)]
        try:
            succeeded = not messages or await self._calls.call_batch(messages)
        finally:
            self._running -= 1
            self._done.set()
        self._member.polling.signs += 1
        if succeeded or self._goes_on:
            for message in given:
                message.ack()
            self._lanes.succeeded(lane)
            self._make_room(lane.partition)
        else:
            lane.alone, lane.running = lane.running, 1
            self._lanes.freed(lane)
        self._begin()

    async def _handle(self, lane: Lane[GroupMessage], message: GroupMessage) -> None:
        try:
            wait_s = await self._attempt(message, lane.attempts + 1)
        finally:
            self._running -= 1
            self._done.set()
        self._member.polling.signs += 1  # the program is at work, even if it does not call for messages
        if wait_s is None:
            message.ack()
            self._lanes.succeeded(lane)
            self._make_room(lane.partition)
        else:
            self._lanes.failed(lane)
            if self._recovery is not None and self._policy.is_last(lane.attempts):
                # It found no room in the store, and those behind it that come from there may make some.
                self._lanes.promote(lane, self._recovery.is_recovered)
            self._retrying[lane] = self._tasks.create_task(self._again_later(lane, wait_s))
        self._begin()

    async def _again_later(self, lane: Lane[GroupMessage], wait_s: float) -> None:
        try:
            await asyncio.sleep(wait_s)
        finally:
            del self._retrying[lane]
        self._lanes.freed(lane)
        self._begin()

    async def _attempt(self, message: GroupMessage, attempt: int) -> float | None:
        """Call the handler, and do what follows. Return the wait before the next attempt in place;
        None: the message leaves its lane.
        """
        recovery = self._recovery
        recovered = None if recovery is None else recovery.recovered(message)
        if recovery is not None and recovered is not None:
            if self._consumer.expire(message):
                await recovery.settle(recovered, None)
                return None
            error = await self._calls.call(message, recovery.attempt(recovered))
            await recovery.settle(recovered, None if message.handout.is_finished(message.offset) else error)
            return None
        if recovery is not None and recovery.keeps(message):
            return None
        if self._consumer.expire(message):
            return None
        if self._settings.batch and message.handout.is_finished(message.offset):  # the program did that in a batch
            return None
        if isinstance(self._policy, Levels):
            attempt = message.attempt
        error = await self._calls.call(message, attempt)
        if error is None or self._goes_on or message.handout.is_finished(message.offset):
            return None
        if isinstance(self._policy, Levels):
            # False: the message is no longer this member's, and is delivered again
            message.handout.fail(message, text_of(error))
            self._handler.exhausted += self._policy.is_last(attempt)
            return None
        if self._policy.is_last(attempt) and await self._put_away(message, error):
            return None
        return self._policy.wait_s(attempt, self._sources.random)

    async def _put_away(self, message: GroupMessage, error: Exception) -> bool:
        """Do what follows the last attempt. Return whether the message may be acknowledged."""
        if self._recovery is not None:
            return await self._recovery.put_away(message, error)
        then = self._policy.then if isinstance(self._policy, InOrder) else None
        assert then is not None, "checked by the policy"
        return await self._calls.end(then, message, error)
