"""Judge a call that waits again before it is answered: its rights may have gone while it waited.

A long poll may stay at a broker for half a minute. When the rules change, or the caller's credential
ends, the call is taken back from the broker, as if the caller had gone, and judged again. What still is
allowed waits on, for the time that is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ledgermq.runtime.tasks import end
from ledgermq_broker.access.permissions import Permissions

Call = Callable[[Any], Awaitable[Any]]
Guard = Callable[[Permissions, Any, Call], Coroutine[Any, Any, Any]]
"""Judge a request: raise Unauthorized, or call the broker with what is allowed and return its answer."""


def waits(may: Permissions, request: Any) -> bool:
    """Return whether a request is a long poll of a caller that rules bind."""
    return getattr(request, "max_wait_ms", 0) > 0 and not may.principal.is_broker


async def judged_until_answered(may: Permissions, request: Any, guard: Guard, call: Call) -> Any:
    """Return the answer to a long poll, by the rules of the moment of the answer. Raises what `guard` raises,
    and Unauthenticated or Unavailable of `Permissions.check_credential`.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + request.max_wait_ms / 1000
    asked = type(request)()
    asked.CopyFrom(request)
    while True:
        answer = await _answer_of_this_generation(may, asked, guard, call)
        may.check_credential()
        if answer is not None:
            return answer
        asked.max_wait_ms = max(0, round((ends_s - loop.time()) * 1000))


async def _answer_of_this_generation(may: Permissions, request: Any, guard: Guard, call: Call) -> Any:
    """Return the answer of the guard, None if the call has to be judged again first.

    An answer that came together with a change of the rules is dropped: it counts as one that was lost on its way.
    """
    generation = may.generation
    answering = asyncio.create_task(guard(may, request, call), name="call that waits")
    changing = asyncio.create_task(may.until_judged_again(), name="waiting call watches the rules")
    try:
        await asyncio.wait((answering, changing), return_when=asyncio.FIRST_COMPLETED)
        if answering.done() and may.generation == generation:
            return answering.result()
        return None
    finally:
        await end(changing, answering)
