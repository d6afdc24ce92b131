"""Functions of the program around each call of a handler.

async def timed(message, call_next):
    try:
        return await call_next(message)
    finally:
        ...
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

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
