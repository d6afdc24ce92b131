"""`FaultyStore`: a store that fails as real ones do, by a seed or by a script. Virtual time only:
it waits with asyncio.sleep.

before     StoreUncertain, and nothing has happened
after      it has happened, and yet StoreUncertain
late       StoreUncertain now; it happens up to `delay_s_max` later, perhaps after the caller has
           looked (puts and deletes)
throttle   StoreThrottled, and nothing has happened
full       StoreFull, and nothing has happened (puts)
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from ledgermq.errors import LedgerMQError, StoreFull
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore, StoreThrottled, StoreUncertain
from tests.stores.one_put import OnePut

Fault = Literal["none", "before", "after", "late", "throttle", "full"]
T = TypeVar("T")
WRITES = frozenset({"put_if_absent", "put", "delete", "open_fence", "close_fence", "fenced_put"})
READS = frozenset({"get", "get_range", "get_suffix", "list", "head", "store_time_ms", "fenced_puts", "list_fences"})


@dataclass(frozen=True)
class Faults:
    """Probabilities by call; each call takes up to `delay_s_max` before its effect, and again after
    it.
    """

    before: float = 0.0
    after: float = 0.0
    late: float = 0.0
    throttle: float = 0.0
    delay_s_max: float = 0.0


class FaultyStore(OnePut):
    """`faults` may be replaced at any time.

    `calls` counts by operation; `script` forces what the next calls of one do.
    """

    def __init__(
        self,
        inner: ObjectStore,
        sources: Sources,
        faults: Faults = Faults(),
        operations: frozenset[str] = WRITES | READS,
    ) -> None:
        super().__init__(inner)
        self.faults = faults
        self.operations = operations
        self.calls: Counter[str] = Counter()
        self._random = sources.random
        self._scripts: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._late: set[asyncio.Task[None]] = set()

    def script(self, operation: str, *faults: Fault) -> None:
        """The next calls of `operation` meet these, one each, whatever the probabilities say."""
        assert operation in WRITES | READS, operation
        self._scripts[operation].extend(faults)

    async def settled(self) -> None:
        """Wait for all late effects."""
        while self._late:
            await asyncio.wait(self._late)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        fault = self._draw("list")
        await self._delay()
        self._fail_before(fault, prefix)
        left = self._random.randrange(4)
        async for info in self.inner.list(prefix, start_after):
            if fault in ("after", "late") and left == 0:
                break
            left -= 1
            yield info
        if fault in ("after", "late"):
            raise StoreUncertain(f"injected in the middle of the list of {prefix!r}")

    async def close(self) -> None:
        await self.settled()
        await self.inner.close()

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        fault = self._draw(operation)
        await self._delay()
        self._fail_before(fault, what)
        if fault == "late" and operation in WRITES:
            task = asyncio.create_task(self._happen_late(step))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            raise StoreUncertain(f"injected; {what} may happen later")
        result = await step()
        await self._delay()
        if fault in ("after", "late"):
            raise StoreUncertain(f"injected after the effect on {what}")
        return result

    def _draw(self, operation: str) -> Fault:
        self.calls[operation] += 1
        if self._scripts[operation]:
            return self._scripts[operation].popleft()
        if operation not in self.operations:
            return "none"
        names: tuple[Fault, ...] = ("before", "after", "late", "throttle")
        weights = [self.faults.before, self.faults.after, self.faults.late, self.faults.throttle]
        return self._random.choices(("none", *names), [max(0.0, 1 - sum(weights)), *weights])[0]

    def _fail_before(self, fault: Fault, what: str) -> None:
        if fault == "before":
            raise StoreUncertain(f"injected before the effect on {what}")
        if fault == "throttle":
            raise StoreThrottled(
                f"injected: too many requests ({what})", retry_after_ms=self._random.choice((None, 100))
            )

        if fault == "full":
            raise StoreFull(f"injected: no space is left ({what})")

    async def _delay(self) -> None:
        if self.faults.delay_s_max:
            await asyncio.sleep(self._random.uniform(0, self.faults.delay_s_max))

    async def _happen_late(self, effect: Callable[[], Awaitable[object]]) -> None:
        await self._delay()
        try:
            await effect()
        except LedgerMQError:
            pass  # no waiter is left to notify
