"""The power is cut after any step of a run, and every choice that a disk then has is tried: all old, all new, and some of each."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.powercut.disk_model import NEWEST, OLDEST, Choose, DiskModel, at_random

CUTS = int(os.environ.get("LEDGERMQ_POWER_CUTS", "60"))
"""In each test; more of them overnight."""
CHOICES_A_CUT = 4

Check = Callable[[Sequence[Any], Path], Awaitable[None]]
"""Given what was noted before the cut, and the folder that it left; raises AssertionError."""


def cuts(log: Sequence[Any], top: Path, rng: random.Random, count: int) -> Iterator[tuple[int, Choose, DiskModel]]:
    """About `count` cuts, spread over the run and over what is not durable yet."""
    steps = [at for at, event in enumerate(log) if callable(event)]
    points = set(rng.sample(steps, min(len(steps), max(1, count // CHOICES_A_CUT))))
    model = DiskModel(top)
    for at, event in enumerate(log):
        if callable(event):
            event(model)
        if at in points or at == len(log) - 1:
            for choose in (OLDEST, NEWEST, *(at_random(rng) for _ in range(CHOICES_A_CUT - 2))):
                yield at, choose, model


async def check_cuts(log: Sequence[Any], top: Path, into: Path, seed: int, count: int, check: Check) -> int:
    """How many cuts were checked. An AssertionError says after which step the power was cut."""
    done = 0
    for at, choose, model in cuts(log, top, random.Random(seed), count):
        model.cut_power(into, choose)
        try:
            await check(log[: at + 1], into)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, the power cut after step {at} of {len(log)}, cut {done}: {error}") from error
        done += 1
    return done
