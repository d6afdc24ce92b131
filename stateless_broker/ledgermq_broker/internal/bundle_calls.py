"""Call the broker that owns a bundle: this one, or another by its address.

A broker that does not own the bundle names the owner, and the call goes there next. It is not
repeated for other errors: the callers do that, after pauses.
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
    """`broker(bundle, address)` returns the address to call about a bundle, and the broker there. If
    `address` is not empty, it is the address.
    """

    def __init__(self, broker: Callable[[int, str], tuple[str, BrokerApi]]) -> None:
        self._broker = broker

    async def at(self, bundle: int, call: Callable[[BrokerApi], Awaitable[A]]) -> A:
        """Return the answer of the bundle's owner.

        Raises the owner's error; Unavailable if no owner of the bundle answers within `CALL_S_MAX`.
        """
        named = ""
        try:
            async with asyncio.timeout(CALL_S_MAX):
                for _ in range(HOPS_MAX):
                    try:
                        return await call(self._broker(bundle, named)[1])
                    except NotOwner as error:
                        lost = error  # not raised: the caller would take its owner for that of another bundle
                        if not error.owner or error.owner == named:
                            break
                        named = error.owner
                raise Unavailable(
                    f"the owner of bundle {bundle} was not found: {lost.message}; repeat the call",
                    retry_after_ms=lost.retry_after_ms or RETRY_AFTER_MS,
                ) from lost
        except TimeoutError:
            raise Unavailable(
                f"the owner of bundle {bundle} has not answered within {CALL_S_MAX:g} s; repeat the call",
                retry_after_ms=RETRY_AFTER_MS,
            ) from None
