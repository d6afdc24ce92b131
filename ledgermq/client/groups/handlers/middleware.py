"""Functions of the program around each call of a handler.

async def timed(message, call_next):
    try:
        return await call_next(message)
    finally:
        ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ledgermq.client.messages.record import Outgoing
from ledgermq.telemetry.trace_context import Pairs, with_context

if TYPE_CHECKING:
    from ledgermq.telemetry.client_metrics import ClientMetrics
    from ledgermq.telemetry.tracing import Tracing

CallNext = Callable[[Any], Awaitable[Any]]
"""Calls what comes next: another middleware, or the handler. Gets what the handler gets, a message or a
list of them; returns what it returns, and raises what it raises.
"""

Middleware = Callable[[Any, CallNext], Awaitable[Any]]
"""Called as (message, call_next). What it returns, or raises, is the outcome of the call."""


def around(middleware: Sequence[Middleware], call: CallNext) -> CallNext:
    """Return a function that calls `call` through all of them, the first outermost."""
    for each in reversed(middleware):
        call = partial(_through, each, call)
    return call


async def _through(middleware: Middleware, call_next: CallNext, given: Any) -> Any:
    return await middleware(given, call_next)


def tracing_around(tracing: Tracing | None, group: str) -> Sequence[Middleware]:
    """Return what goes around all calls of a handler of this group."""
    if tracing is None:
        return ()

    async def traced(given: Any, call_next: CallNext) -> Any:
        messages = given if isinstance(given, list) else [given]
        with tracing.processing(group, messages):
            returned = await call_next(given)
            carried = tracing.carried()
            return returned if carried is None else _carrying(returned, carried)

    return (traced,)


def metering_around(metrics: ClientMetrics | None, group: str) -> Sequence[Middleware]:
    """Return what measures all calls of a handler of this group."""
    if metrics is None:
        return ()

    async def measured(given: Any, call_next: CallNext) -> Any:
        topic = (given[0] if isinstance(given, list) else given).topic
        with metrics.processing(topic, group, asyncio.get_running_loop().time):
            return await call_next(given)

    return (measured,)


def _carrying(returned: Any, carried: Pairs) -> Any:
    """Return what a transactional handler returned, so that its records carry the trace of its call."""
    if isinstance(returned, Outgoing):
        return returned._replace(headers=with_context(returned.headers, carried))
    if isinstance(returned, list | tuple) and all(isinstance(each, Outgoing) for each in returned):
        return [_carrying(each, carried) for each in returned]
    return returned
