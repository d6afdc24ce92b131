"""Call a transactional handler with messages, in the order of its settings, and collect the records that
it returns.

Invariants: the next message of a lane begins only after the one before it has succeeded. After a
failure no further message is begun. `call` returns only when no call of the handler runs any longer,
so a message is never processed twice at a time.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Awaitable, Iterable, Sequence
from typing import cast

from ledgermq.client.consuming.message import made_as, partition_of
from ledgermq.client.groups.handlers.handler import Handler
from ledgermq.client.groups.handlers.lanes import Lane, Lanes
from ledgermq.client.groups.handlers.middleware import Middleware, around
from ledgermq.client.groups.message import GroupMessage, Handout, no_dead_letters
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.record import Outgoing, readable_again
from ledgermq.errors import InvalidRecord
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.tasks import in_thread, own_cancellation_as_error

_log = get_log("ledgermq.handlers")


Place = tuple[TopicPartition, int]


class MessageFailed(Exception):
    """The handler has failed at this message; the failure is reported already."""

    def __init__(self, message: GroupMessage) -> None:
        super().__init__(f"the handler failed at {partition_of(message)}, offset {message.offset}")
        self.message = message


class Calls:
    """The calls of one handler. `attempts`: number of failed attempts of each message that has not
    succeeded. `around_all`: what goes around the handler's own middleware.
    """

    def __init__(self, handler: Handler, around_all: Sequence[Middleware] = ()) -> None:
        self._handler = handler
        self._settings = handler.settings
        self._through = around((*around_all, *handler.settings.middleware), self._called)
        self.attempts: dict[Place, int] = {}
        self._instead: dict[Place, Sequence[Outgoing]] = {}
        """Records to send for messages whose results the cluster has refused."""

    async def call(self, messages: Sequence[GroupMessage]) -> list[Outgoing]:
        """Call the handler with all messages; return the records to send. Raises MessageFailed."""
        if len(messages) == 1 or self._settings.concurrency == 1:
            return [record for message in messages for record in await self._outcome(message)]
        return await _Round(self, messages).run()

    async def _outcome(self, message: GroupMessage) -> Sequence[Outgoing]:
        """Return the records to send for this message. Raises MessageFailed."""
        instead = self._instead.get((partition_of(message), message.offset))
        if instead is not None:
            return instead
        try:
            return await self._returned(message)
        except Exception as error:
            instead = await self._failed(message, error)
            if instead is None:
                raise MessageFailed(message) from error
            return instead

    async def refused(self, message: GroupMessage, error: Exception) -> None:
        """Note that the cluster refuses what was to be sent for this message.

        Its transaction is aborted, so the message is delivered again, and an acknowledgement of this
        delivery no longer counts. `on_failure` gets a copy that notes one for the next delivery.
        """
        place = partition_of(message), message.offset
        self._instead.pop(place, None)
        handout = message.handout
        copy = made_as(Handout(_Noted(handout.topic_id), handout.generation, handout.base).kind, message)
        instead = await self._failed(copy, error)
        if instead is not None:
            self._instead[place] = [r._replace(headers=readable_again(r.headers)) for r in instead]

    def succeeded(self, message: GroupMessage) -> None:
        """Forget the message's failures."""
        place = partition_of(message), message.offset
        self.attempts.pop(place, None)
        self._instead.pop(place, None)

    async def _failed(self, message: GroupMessage, error: Exception) -> Sequence[Outgoing] | None:
        """Count a failure. Return the records to send instead; None if the message is not finished."""
        self._handler.failures += 1
        self._handler.last_error = error
        place = partition_of(message), message.offset
        self.attempts[place] = attempt = self.attempts.get(place, 0) + 1
        return await self._report(message, error, attempt)

    async def _returned(self, message: GroupMessage) -> Sequence[Outgoing]:
        bound_s = self._settings.timeout_s if self._handler.is_async or self._handler.yields_async else None
        async with asyncio.timeout(bound_s):
            with own_cancellation_as_error("the handler"):
                return records_of(await self._through(message))

    async def _called(self, message: GroupMessage) -> object:
        """Call the function; return all records of a generator as a list."""
        if self._handler.is_async or self._handler.yields_async:
            returned = self._handler(message)
            if not self._handler.yields_async:
                returned = await cast(Awaitable[object], returned)
            return [record async for record in returned] if isinstance(returned, AsyncIterable) else returned
        loop = asyncio.get_running_loop()
        made = in_thread(lambda: records_of(self._handler(message)))
        return await loop.run_in_executor(self._settings.executor, made)

    async def _report(self, message: GroupMessage, error: Exception, attempt: int) -> Sequence[Outgoing] | None:
        name = f"{partition_of(message)}, offset {message.offset}"
        if self._settings.on_failure is None:
            _log.warning(
                "handler of group %s failed at %s (attempt %d): %r", self._settings.group, name, attempt, error
            )
            return None
        try:
            returned = self._settings.on_failure(message, error, attempt)
            if inspect.isawaitable(returned):
                with own_cancellation_as_error("on_failure"):
                    returned = await returned
            if returned is None:
                return [] if message.handout.is_finished(message.offset) else None
            return records_of(returned)
        except Exception as failure:
            _log.warning("on_failure of group %s raised an error at %s: %r", self._settings.group, name, failure)
            return None


class _Noted:
    """Note whether a message was acknowledged; see `Answers`."""

    def __init__(self, topic_id: int) -> None:
        self.topic_id = topic_id
        self._finished = False

    def ack(self, offset: int, generation: int) -> bool:
        self._finished = True
        return True

    def nack(self, message: GroupMessage, generation: int, delay_s: float | None) -> bool:
        return False

    def check_dead_letters(self) -> None:
        raise no_dead_letters()

    def fail(self, message: GroupMessage, generation: int, error: str, *, dead: bool) -> bool:
        raise no_dead_letters()

    def expire(self, message: GroupMessage, generation: int) -> bool:
        return self.ack(message.offset, generation)

    def roll_back(self, offset: int, generation: int, delay_s: float) -> bool:
        return False

    def give_back(self, offset: int, generation: int) -> None:
        """Nothing to do: the message itself is delivered again."""

    def is_finished(self, offset: int) -> bool:
        return self._finished


class _Round:
    """Messages that are handled concurrently where the handler's order allows it."""

    def __init__(self, calls: Calls, messages: Sequence[GroupMessage]) -> None:
        self._calls = calls
        self._lanes: Lanes[GroupMessage] = Lanes(calls._settings.ordered_by)
        self._lanes.add(messages)
        self._running: set[asyncio.Task[None]] = set()
        self._failures: list[MessageFailed] = []
        self._records: list[Outgoing] = []

    async def run(self) -> list[Outgoing]:
        self._begin()
        try:
            while self._running:
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                self._running -= done
                for task in done:
                    task.result()
                self._begin()
        finally:
            for task in self._running:
                task.cancel()
        if self._failures:
            raise self._failures[0]
        return self._records

    def _begin(self) -> None:
        while (
            not self._failures
            and len(self._running) < self._calls._settings.concurrency
            and (taken := self._lanes.take()) is not None
        ):
            self._running.add(asyncio.get_running_loop().create_task(self._one(*taken)))

    async def _one(self, lane: Lane[GroupMessage], message: GroupMessage) -> None:
        try:
            self._records += await self._calls._outcome(message)
        except MessageFailed as failed:
            self._failures.append(failed)
        else:
            self._lanes.succeeded(lane)


def records_of(returned: object) -> list[Outgoing]:
    """Return the records that a handler has returned. Raises InvalidRecord."""
    if returned is None:
        return []
    if isinstance(returned, Outgoing):
        return [returned]
    if not isinstance(returned, str | bytes | tuple) and isinstance(returned, Iterable):
        records = list(returned)
        if all(isinstance(record, Outgoing) for record in records):
            return records
    raise InvalidRecord(
        f"a transactional handler returns None, an Outgoing, or a list or generator of them, not {returned!r:.100}"
    )
