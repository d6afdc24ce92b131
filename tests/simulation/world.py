"""One simulated world: a loop, a store, lines to it, clocks, a network, and the hand that breaks
them. Everything comes from one seed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore, StoreMeter
from ledgermq_ledger.object_store.wrappers.resilient import ResilientStore
from ledgermq_ledger.root.copies import CopyingStore
from tests.judges.violation import Violation
from tests.simulation.history import History
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.s3 import SimulatedS3
from tests.simulation.store import StoreLine, Weather
from tests.simulation.trace import Coverage, Trace
from tests.simulation.watch import WatchedStore
from tests.virtual_time import EPOCH_US

T = TypeVar("T")
BUG_NAMES = (
    "AssertionError(",
    "TypeError(",
    "AttributeError(",
    "KeyError(",
    "IndexError(",
    "NameError(",
    "ValueError(",
)
BUGS = (TypeError, AttributeError, KeyError, IndexError, NameError, ValueError, asyncio.InvalidStateError)


class Unreachable(Exception):
    """The call was not made: nothing listened there."""


class NoAnswer(Exception):
    """The call may or may not have been carried out."""


class World:
    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None = 400) -> None:
        self.loop = loop
        self.seed = seed
        self.random = random.Random(f"world {seed}")
        self.trace = Trace(lines_kept)
        self.coverage = loop.coverage
        self.history = History()
        self.weather = Weather()
        self.violations: list[Violation] = []
        self.skew_us: defaultdict[str, int] = defaultdict(int)
        self.store = WatchedStore(self.sources("store"))
        self.lost_calls = 0.0
        self.net_delay_s_max = 0.005
        self.healed = False
        self.is_s3 = False
        """The store refuses late puts by their age; else their fences close, as with files."""
        self.topic_ids: dict[str, int] = {}
        self.judged_elsewhere: set[str] = set()
        """Topics of which plain readers of `parquet/` need not find all records."""
        self.damaged = ""
        """The key of the one object that was damaged on purpose."""
        self.mends_metadata = False
        """Objects of bundle 0 are damaged, one at a time, and have to be mended."""
        self.freed: set[int] = set()
        """Ids of topics that were removed and whose names have been free since."""
        self.retention: Any = None
        """Holds and archives that were answered: a `RetentionWatch`, where the level has them."""
        self.stamps: Any = None
        """Times that clients were told: a `StampWatch`, in runs that have one."""
        self._incarnations: Coverage = Coverage()

    def sources(self, name: str, clock: str = "") -> Sources:
        """Own randomness and an own clock, which `skew_us` sets wrong; `clock` names the machine,
        if not `name`.
        """
        machine = clock or name
        return Sources(
            lambda: EPOCH_US + self.skew_us[machine] + round(self.loop.time() * 1e6),
            random.Random(f"{name} {self.seed}"),
        )

    def start(self, name: str) -> Process:
        return Process(self.loop, name)

    def line(self, name: str, meters: Sequence[StoreMeter] = ()) -> ObjectStore:
        """A new line to the store; each incarnation of a process takes one, with other faults than
        the one before.

        Around it what every real store of the product has around it: bounds, and tries again where
        that is safe. `meters`: each sees every try.
        """
        self._incarnations[name] += 1
        sources = self.sources(f"line {name} {self._incarnations[name]}")
        inner: ObjectStore = self.store
        if self.is_s3:
            inner = SimulatedS3(
                self.store, self.sources(f"S3 of {name} {self._incarnations[name]}", clock=name), self.coverage
            )
        line: ObjectStore = StoreLine(
            inner, self.store, self.loop, name, sources, self.weather, self.trace, self.coverage
        )
        for meter in meters:
            line = MeteredStore(line, meter)
        return CopyingStore(ResilientStore(line, sources), mends=True)

    async def go_on(self, seconds: float, requests_max: int) -> None:
        """Let everybody go on for so long, or until so much has happened: what a seed costs is its
        requests to the store.
        """
        end_s, requests_end = self.loop.time() + seconds, self.weather.requests + requests_max
        while self.loop.time() < end_s and self.weather.requests < requests_end:
            await asyncio.sleep(min(0.2, end_s - self.loop.time()))

    @property
    def has_failed(self) -> bool:
        """Something is wrong already: what comes after it proves nothing."""
        return bool(self.violations or self.store.violations)

    def note(self, who: str, what: str) -> None:
        self.trace.add(self.loop.time(), who, what)

    def judge_error(self, error: BaseException) -> None:
        """Nothing is damaged here but what was damaged on purpose: an error that says anything else
        is wrong.
        """
        if self.is_told_of(error):
            self.coverage.saw("a process refused, naming the damaged object")
        elif isinstance(error, DataDamaged):
            self.violations.append(Violation("damage reported", error.message))

    def is_told_of(self, error: BaseException) -> bool:
        """Does it name the object that was damaged on purpose?"""
        return (
            isinstance(error, (DataDamaged, FormatNotSupported))
            and bool(self.damaged)
            and self.damaged in error.message
        )

    async def call(self, target: Process, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """Have `target` do `work`, over a network that delays and loses.

        Raises Unreachable, NoAnswer, whatever `work` raises.
        """
        await self.delay()
        if not target.alive:
            raise Unreachable(target.name)
        if self.random.random() < self.lost_calls:
            self.coverage.saw("network: request lost")
            await asyncio.sleep(timeout_s)
            raise NoAnswer(f"request to {target.name} lost")
        task = target.spawn(work())
        await asyncio.wait({task, target.died}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise NoAnswer(f"{target.name} did not answer")
        if self.random.random() < self.lost_calls:
            self.coverage.saw("network: answer lost")
            await asyncio.sleep(timeout_s)
            raise NoAnswer(f"answer of {target.name} lost")
        await self.delay()
        return task.result()

    async def delay(self) -> None:
        await asyncio.sleep(self.random.uniform(0, self.net_delay_s_max))


class AssertionCatcher(logging.Handler):
    """A safety assertion that fires inside the product is a violation, wherever it is caught and
    logged.
    """

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = getattr(record, "error", "")
        self._world.note("log", f"{record.getMessage()} {error}"[:200])
        if str(error).startswith(BUG_NAMES):
            self._world.violations.append(
                Violation("assertion" if "AssertionError" in str(error) else "bug", str(error))
            )
        if record.exc_info and record.exc_info[1] is not None:
            self._world.violations += failed_assertions(record.exc_info[1])


def failed_assertions(error: BaseException | None) -> list[Violation]:
    """Bugs by their own word: assertions, and errors that no product code should ever raise."""
    if error is None:
        return []
    if isinstance(error, BaseExceptionGroup):
        return [found for inner in error.exceptions for found in failed_assertions(inner)]
    if isinstance(error, AssertionError):
        return [Violation("assertion", f"{error} ({_place(error)})")]
    if isinstance(error, BUGS):
        return [Violation("bug", f"{type(error).__name__}: {error} ({_place(error)})")]
    return failed_assertions(error.__cause__)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return " → ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
