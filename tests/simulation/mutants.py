"""Named bugs, each of which was real in some system: a monkeypatch applies one to the product, and
some seed must catch it.

A mutant that survives means that the simulation does not look there. "bug" and "crash" do not count
as caught: they would only mean that the mutant itself no longer fits the code. Nor does "stuck" alone: many
bugs end in a hang by the way, which names no rule that is broken. It counts for a mutant whose harm is just that,
and says so (`hangs`). Each such wait is bounded in virtual time, by the level: some ten minutes of health.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import pytest

from tests.simulation.result import Make, Result, simulate

NOT_A_CATCH = {"bug", "crash"}
HANG = {"stuck"}
Apply = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    level: str
    apply: Apply
    what: str
    likely: Callable[[int], bool] | None = None
    """Which seeds draw the circumstances that it needs: these are tried first."""
    hangs: bool = False
    """Its harm is that something never ends: no answer is wrong, and nothing is lost."""

    def catch(self, kinds: AbstractSet[str]) -> AbstractSet[str]:
        """Return those kinds of violations that show it."""
        found = kinds - NOT_A_CATCH
        return found if self.hangs or found - HANG else set()

    def in_order(self, seeds: Iterable[int]) -> list[int]:
        return sorted(seeds, key=lambda seed: self.likely is not None and not self.likely(seed))


@dataclass(frozen=True, slots=True)
class Caught:
    mutant: Mutant
    seed: int | None
    """None: it survived."""
    result: Result | None
    tried: int
    seed_s: float = 0.0
    """CPU seconds of the last seed that was tried."""
    misfit: str = ""
    """A bug or crash that the mutant itself ran into: it no longer fits the code."""


MUTANTS: dict[str, Mutant] = {}


def mutant(level: str, likely: Callable[[int], bool] | None = None, *, hangs: bool = False) -> Callable[[Apply], Apply]:
    """Registers a function that applies a bug; its docstring says what is wrong."""

    def register(apply: Apply) -> Apply:
        name = apply.__name__.replace("_", "-")
        assert name not in MUTANTS, name
        MUTANTS[name] = Mutant(name, level, apply, (apply.__doc__ or "").strip(), likely, hangs)
        return apply

    return register


def hunt(found: Mutant, make: Make, seeds: Iterable[int]) -> Caught:
    """The first of `seeds` that catches it."""
    tried = 0
    misfit = ""
    with pytest.MonkeyPatch.context() as patch:
        found.apply(patch)
        for seed in found.in_order(seeds):
            tried += 1
            begun_s = time.process_time()
            result = simulate(make, seed, is_enough=found.catch)
            if found.catch(result.kinds):
                return Caught(found, seed, result, tried, time.process_time() - begun_s)
            misfit = next((str(violation) for violation in result.violations), misfit)
    return Caught(found, None, None, tried, misfit=misfit)
