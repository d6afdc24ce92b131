"""The power is cut after any step of a run, and every choice that a disk then has is tried: all
old, all new, and some of each.

A bounded run cuts at least once after each kind of step: each operation on each kind of object.
`make powercut` cuts after every step.
"""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.powercut.disk_model import NEWEST, OLDEST, Choose, DiskModel, at_random
from tests.powercut.recording import Step

CUTS = int(os.environ.get("LEDGERMQ_POWER_CUTS", "60"))
"""In each test, and no fewer than there are kinds of steps."""
CHOICES_A_CUT = 3

Check = Callable[[Sequence[Any], Path], Awaitable[None]]
"""Given what was noted before the cut, and the folder that it left; raises AssertionError."""


def cuts(log: Sequence[Any], top: Path, rng: random.Random, count: int) -> Iterator[tuple[int, Choose, DiskModel]]:
    """About `count` cuts, spread over the run, over all kinds of steps, and over what is not
    durable yet.
    """
    steps = {at: event for at, event in enumerate(log) if isinstance(event, Step)}
    by_kind: dict[tuple[str, str], list[int]] = {}
    for at, event in steps.items():
        by_kind.setdefault(event.kind, []).append(at)
    points = {rng.choice(places) for places in by_kind.values()}
    wanted = min(len(steps), count // CHOICES_A_CUT) - len(points)
    points |= set(rng.sample(sorted(steps.keys() - points), max(0, wanted)))
    choices = max(CHOICES_A_CUT, count // max(1, len(steps)))
    model = DiskModel(top)
    for at, event in enumerate(log):
        if at in steps:
            event(model)
        if at in points or at == len(log) - 1:
            for choose in (OLDEST, NEWEST, *(at_random(rng) for _ in range(choices - 2))):
                yield at, choose, model


async def check_cuts(log: Sequence[Any], top: Path, into: Path, seed: int, count: int, check: Check) -> int:
    """How many cuts were checked. An AssertionError says after which step the power was cut."""
    done = 0
    for at, choose, model in cuts(log, top, random.Random(seed), count):
        model.cut_power(into, choose)
        try:
            await check(log[: at + 1], into)
        except AssertionError as error:
            raise AssertionError(
                f"seed {seed}, the power cut after step {at} of {len(log)}, cut {done}: {error}"
            ) from error
        done += 1
    return done
