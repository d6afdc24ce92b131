"""One request to the store on its way: it goes on when its sender sleeps or dies.

    sent ── delay ── arrives: fails before its effect, or has it ── delay ── is answered

Two timers and a future, and no task of its own, for a simulation makes more of these than of all
else. The store that it reaches answers at once: everything in it is one step of the loop. Only an
upload to S3 takes time there, and has a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ledgermq.errors import LedgerMQError, StoreFull
from ledgermq_ledger.object_store.contract import StoreThrottled, StoreUncertain
from tests.simulation.loop import SimulatedLoop
from tests.stores.faulty import WRITES, Fault

Noted = Callable[[str, str, BaseException | None], None]
"""(operation, what, error): told of every answer at the moment at which it arrives."""


class Request:
    """`delay_s` is asked before each way.

    `answered` may be cancelled by its caller; the request does not notice.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        operation: str,
        what: str,
        effect: Callable[[], Awaitable[Any]],
        fault: Fault,
        delay_s: Callable[[], float],
        noted: Noted,
        *,
        takes_time: bool = False,
    ) -> None:
        self.answered: asyncio.Future[Any] = loop.create_future()
        self._loop = loop
        self._operation = operation
        self._what = what
        self._effect = effect
        self._fault = fault
        self._delay_s = delay_s
        self._noted = noted
        self._takes_time = takes_time

    def send(self, later_s: float) -> None:
        self._after(later_s + self._delay_s(), self._arrive)

    def _arrive(self) -> None:
        fault, what = self._fault, self._what
        if fault == "before":
            self._fail(StoreUncertain(f"injected before the effect on {what}"))
        elif fault == "throttle":
            self._fail(StoreThrottled(f"injected: too many requests ({what})"))
        elif fault == "full":
            self._fail(StoreFull(f"injected: no space is left ({what})"))
        elif fault == "late" and self._operation in WRITES:
            self._after(self._delay_s(), self._happen_unheard)
            self._fail(StoreUncertain(f"injected; {what} may happen later"))
        else:
            self._happen()

    def _happen(self) -> None:
        if self._takes_time:
            self._loop.in_world(self._happen_slowly())
            return
        try:
            result = at_once(self._effect())
        except Exception as error:
            self._after(self._delay_s(), self._fail, error)
        else:
            self._answer(result)

    async def _happen_slowly(self) -> None:
        try:
            result = await self._effect()
        except Exception as error:
            self._after(self._delay_s(), self._fail, error)
        else:
            self._answer(result)

    def _answer(self, result: Any) -> None:
        if self._fault in ("after", "late"):
            self._after(self._delay_s(), self._fail, StoreUncertain(f"injected after the effect on {self._what}"))
        else:
            self._after(self._delay_s(), self._succeed, result)

    def _happen_unheard(self) -> None:
        if self._takes_time:
            self._loop.in_world(self._effect())  # type: ignore[arg-type]
            return
        try:
            at_once(self._effect())
        except LedgerMQError:
            pass  # no waiter is left to notify

    def _succeed(self, result: Any) -> None:
        self._noted(self._operation, self._what, None)
        if not self.answered.done():
            self.answered.set_result(result)

    def _fail(self, error: Exception) -> None:
        self._noted(self._operation, self._what, error)
        if not self.answered.done():
            self.answered.set_exception(error)
            self.answered.exception()  # who has died meanwhile cannot look: that is no news

    def _after(self, seconds: float, step: Callable[..., None], *args: Any) -> None:
        self._loop.call_later(seconds, step, *args, context=self._loop.world)


def at_once(work: Awaitable[Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        return done.value
    raise AssertionError("the store itself never waits")
