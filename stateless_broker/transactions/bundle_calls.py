"""Call the broker that owns a bundle: this one, or another by its address.

A broker that no longer owns the bundle names the owner, and the call follows that. It is not
repeated otherwise: the callers have their own pauses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ledgermq.errors import NotOwner, Unavailable
from ledgermq.protocol.api import BrokerApi

CALL_S_MAX = 10.0
HOPS_MAX = 3
RETRY_AFTER_MS = 500

A = TypeVar("A")


class BundleCalls:
    """`broker(bundle, address)` returns the broker to call about a bundle, by its address if that is
    given, and the address used.
    """

    def __init__(self, broker: Callable[[int, str], tuple[str, BrokerApi]]) -> None:
        self._broker = broker

    async def at(self, bundle: int, call: Callable[[BrokerApi], Awaitable[A]]) -> A:
        """Return the answer of the bundle's owner. Raises what it raises, and Unavailable if no
        broker that owns the bundle answers in time.
        """
        named = ""
        try:
            async with asyncio.timeout(CALL_S_MAX):
                for _ in range(HOPS_MAX):
                    try:
                        return await call(self._broker(bundle, named)[1])
                    except NotOwner as error:
                        lost = error  # not raised: its owner is that of another bundle than the caller's
                        if not error.owner or error.owner == named:
                            break
                        named = error.owner
                raise Unavailable(
                    f"no broker that was called owns bundle {bundle}: {lost.message}",
                    retry_after_ms=lost.retry_after_ms or RETRY_AFTER_MS,
                ) from lost
        except TimeoutError:
            raise Unavailable(
                f"the owner of bundle {bundle} has not answered within {CALL_S_MAX:g} s", retry_after_ms=RETRY_AFTER_MS
            ) from None
