"""Calls that are held until something happens at one of the places that they name, such as records of a partition.

One append may wake thousands of them, and their time may be up in the same moment. Each goes on in the turn of its
caller (`runtime.ports.turns`), so that those of one principal hold up no call of another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Iterable
from itertools import islice
from typing import Any, Generic, TypeVar

from ledgermq.runtime.ports.turns import go_on_in_turn
from ledgermq.runtime.tasks import end

K = TypeVar("K", bound=Hashable)


class Waiters(Generic[K]):
    """One future for each call, however many places it names. Use it within one event loop."""

    def __init__(self) -> None:
        self._held: dict[K, dict[asyncio.Future[None], None]] = {}
        self.closed = False

    @property
    def places(self) -> list[K]:
        """Return the places for which a call is held."""
        return list(self._held)

    async def wait(self, places: Collection[K]) -> None:
        """Wait until one of the places is woken, or for `close`, and then for a turn. At once after `close`."""
        if self.closed:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for place in places:
            self._held.setdefault(place, {})[woken] = None
        try:
            await woken
        finally:
            for place in places:
                self._forget(place, woken)
        await go_on_in_turn()

    def wake(self, places: Iterable[K], at_most: int | None = None) -> None:
        """Wake the calls of these places, in the order of their arrival; `at_most`: so many of each place."""
        for place in places:
            for woken in islice(self._held.get(place, ()), at_most):
                if not woken.done():
                    woken.set_result(None)

    def close(self) -> None:
        """Wake all calls, and hold no further ones."""
        self.closed = True
        self.wake(self.places)

    def _forget(self, place: K, woken: asyncio.Future[None]) -> None:
        held = self._held.get(place)
        if held is not None:
            held.pop(woken, None)
            if not held:
                del self._held[place]


async def one_ends(tasks: Collection[asyncio.Task[Any]], deadline: float) -> bool:
    """Wait until one of the tasks ends, at most until `deadline` by the loop's clock; then end them all. Return
    whether one had ended by itself. If none had, the caller goes on in its turn, as those that were woken do.
    """
    timeout_s = max(0.0, deadline - asyncio.get_running_loop().time())
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(*tasks)
    if not done:
        await go_on_in_turn()
    return bool(done)
