"""Call the functions of a handler: the handler, `on_failure`, and the one after the last attempt."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

from ledgermq.client.consuming.message import Message, partition_of
from ledgermq.client.groups.handlers.handler import Handler
from ledgermq.client.groups.handlers.middleware import Middleware, around
from ledgermq.client.groups.handlers.retry import Then
from ledgermq.client.groups.message import GroupMessage
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.tasks import in_thread, own_cancellation_as_error

M = TypeVar("M", bound=Message)

_log = get_log("ledgermq.handlers")


def place_of(message: Message) -> str:
    """Return where the message is, for a log line."""
    return f"{partition_of(message)}, offset {message.offset}"


async def report_failure(
    of: str,
    on_failure: Callable[[M, Exception, int], Awaitable[object] | object] | None,
    message: M,
    error: Exception,
    attempt: int,
) -> None:
    """Call `on_failure`, or log the failure if there is none. `of`: whose handler it is, for a log line. What
    `on_failure` raises is logged.
    """
    place = place_of(message)
    if on_failure is None:
        _log.warning("handler of %s failed at %s (attempt %d): %r", of, place, attempt, error)
        return
    try:
        returned = on_failure(message, error, attempt)
        if inspect.isawaitable(returned):
            with own_cancellation_as_error("on_failure"):
                await returned
    except Exception as failure:
        _log.warning("on_failure of %s raised an error at %s: %r", of, place, failure)


def text_of(error: Exception) -> str:
    """Return an error as text, even if its own methods fail."""
    try:
        return repr(error)
    except Exception as failure:
        return f"{type(error).__name__}, whose text raises {type(failure).__name__}"


class HandlerCalls:
    """Counts outcomes in the handler. `around_all`: what goes around the handler's own middleware."""

    def __init__(self, handler: Handler, around_all: Sequence[Middleware] = ()) -> None:
        self.handler = handler
        self._settings = handler.settings
        self._through = around((*around_all, *handler.settings.middleware), self._function)

    async def call(self, message: GroupMessage, attempt: int) -> Exception | None:
        """Call the handler. Return the error that it raised, or None if it succeeded."""
        try:
            await self._call([message] if self._settings.batch else message, [message])
        except Exception as error:
            self.handler.failures += 1
            self.handler.last_error = error
            of, on_failure = f"group {self._settings.group}", self._settings.on_failure
            await report_failure(of, on_failure, message, error, attempt)
            return error
        self.handler.handled += 1
        return None

    async def call_batch(self, messages: list[GroupMessage]) -> bool:
        """Call the handler with several messages. Return whether it succeeded."""
        try:
            await self._call(messages, messages)
        except Exception as error:
            self.handler.failures += 1
            self.handler.last_error = error
            _log.warning(
                "handler of group %s failed at a batch of %d messages, from %s on; each is handled alone now: %r",
                self._settings.group,
                len(messages),
                place_of(messages[0]),
                error,
            )
            return False
        self.handler.handled += len(messages)
        return True

    async def _call(self, given: object, messages: Sequence[GroupMessage]) -> None:
        """Call the handler through its middleware. `messages`: those that the call is about."""
        if self._settings.timeout_s is None or not self.handler.is_async:
            with own_cancellation_as_error("the handler"):
                await self._through(given)
            return
        async with asyncio.timeout(self._settings.timeout_s) as bound:
            for message in messages:
                message.handout.bounds[message.offset] = bound
            try:
                with own_cancellation_as_error("the handler"):
                    await self._through(given)
            finally:
                for message in messages:
                    message.handout.bounds.pop(message.offset, None)

    async def _function(self, given: object) -> object:
        if self.handler.is_async:
            return await cast(Awaitable[object], self.handler(given))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._settings.executor, in_thread(self.handler, given))

    async def end(self, then: Then, message: GroupMessage, error: Exception) -> bool:
        """Do what follows the last attempt. Return whether the message is finished.

        Raises the handler's error if `then` is "stop".
        """
        group, place = self._settings.group, place_of(message)
        if then == "stop":
            error.add_note(f"after its last attempt at {place}, the handler of group {group} stops")
            raise error
        if callable(then):
            try:
                returned = then(message, error)
                if inspect.isawaitable(returned):
                    with own_cancellation_as_error("then"):
                        await returned
            except Exception as failure:
                self.handler.last_error = failure
                _log.warning("function `then` of group %s raised an error at %s: %r", group, place, failure)
                return False
        else:
            _log.error("handler of group %s drops the message at %s after its last attempt: %r", group, place, error)
        self.handler.exhausted += 1
        return True
