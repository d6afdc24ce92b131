"""What a run leaves: violations, coverage, trace; and running one seed of a level from the outside."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tests.judges.violation import Violation
from tests.simulation.loop import Enough, SimulatedLoop, TooLong, run_simulated
from tests.simulation.probes import probes
from tests.simulation.trace import Coverage, Trace
from tests.simulation.world import AssertionCatcher, World, failed_assertions
from tests.virtual_time import AllTasksWait


@dataclass(slots=True)
class Result:
    seed: int
    violations: list[Violation]
    coverage: Coverage
    trace: Trace
    virtual_s: float
    events: int = 0
    kinds: set[str] = field(default_factory=set)


class Run(Protocol):
    """One level of simulation, one seed."""

    world: World

    async def run(self) -> Result: ...


GARBAGE_MAX = 500_000
"""Objects made and not yet ended by their count, from which on the collector looks at them between
two runs.
"""

Make = Callable[[SimulatedLoop, int, int | None], Run]


def _found(world: World) -> list[Violation]:
    return [*world.store.violations, *world.violations]


def finish(world: World) -> Result:
    violations = _found(world)
    return Result(
        world.seed,
        violations,
        world.coverage,
        world.trace,
        world.loop.time(),
        len(world.history.events),
        {violation.kind for violation in violations},
    )


@contextmanager
def _no_collector() -> Iterator[None]:
    """What the collector of cycles ends, generators and futures, it ends at a moment that depends
    on all that ran before in this process: while a seed runs it ends nothing. It would cost a tenth
    of the time, too."""
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()  # what was imported stays
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        if gc.get_count()[0] > GARBAGE_MAX:
            gc.collect()


def simulate(
    make: Make,
    seed: int,
    lines_kept: int | None = 400,
    is_enough: Callable[[AbstractSet[str]], object] = lambda kinds: False,
) -> Result:
    """One seed of one level. `is_enough(kinds)`: whether it may end where violations of these kinds are known.

    An error that escapes is a violation too: a simulated cluster never crashes its world.
    """
    runs: list[Run] = []
    logger = logging.getLogger()
    catchers: list[AssertionCatcher] = []

    async def main(loop: SimulatedLoop) -> Result:
        run = make(loop, seed, lines_kept)
        runs.append(run)
        loop.is_over = lambda: bool(is_enough({found.kind for found in _found(run.world)}))
        catchers.append(AssertionCatcher(run.world))
        logger.addHandler(catchers[0])
        loop.set_exception_handler(
            lambda _, what: run.world.violations.extend(failed_assertions(what.get("exception")))
        )
        loop.on_failure = lambda error: run.world.violations.extend(failed_assertions(error))
        try:
            return await run.run()
        except TimeoutError:
            run.world.violations.append(Violation("stuck", "the healed cluster did not come to rest in time"))
            return finish(run.world)
        except Exception as error:
            run.world.violations.append(Violation("crash", f"{type(error).__name__}: {error}"))
            return finish(run.world)

    try:
        with _no_collector(), probes():
            return run_simulated(main)
    except Enough:
        return finish(runs[0].world)
    except (AllTasksWait, TooLong) as error:
        runs[0].world.violations.append(Violation("stuck", str(error)))
        return finish(runs[0].world)
    finally:
        for catcher in catchers:
            logger.removeHandler(catcher)
