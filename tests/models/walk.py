"""What the random-walk models of the protocols share: a model, its mutants, and the search for a
violation.

A model is a small program that knows a protocol's rules and nothing of the product. Its processes
are generators: each `yield` is a moment at which any other process may run, or this one sleep for
as long as the seed pleases. A *mutant* is the name of one rule that the model then breaks; some
seed has to catch it, or the rule is not proved to be needed. Change the model before you change a
protocol's rule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

Process = Generator[Any, None, Any]


class Violation(Exception):
    """An invariant of the model does not hold."""


def need(holds: bool, text: str) -> None:
    """Raise Violation with this text, unless it holds."""
    if not holds:
        raise Violation(text)


@dataclass(slots=True)
class Walk:
    """One run: its seed's randomness, the rules that it breaks, and what it reached."""

    random: random.Random
    broken: frozenset[str]
    coverage: Counter[str]

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def saw(self, what: str, times: int = 1) -> None:
        self.coverage[what] += times


@dataclass(frozen=True, slots=True)
class Model:
    """A protocol's model.

    `run` walks one seed and raises Violation. `mutants`: name -> the rule that the mutant breaks.
    `must_reach`: what some of 60 seeds have to reach.
    """

    name: str
    run: Callable[[Walk], None]
    mutants: dict[str, str]
    must_reach: tuple[str, ...]

    def walk(self, seed: int, broken: Iterable[str] = ()) -> Counter[str]:
        """Return what the run reached. Raises Violation."""
        rules = frozenset(broken)
        assert rules <= self.mutants.keys(), rules - self.mutants.keys()
        walk = Walk(random.Random(seed), rules, Counter())
        self.run(walk)
        return walk.coverage

    def catch(self, mutant: str, seeds: Iterable[int]) -> tuple[int, str] | None:
        """The first of `seeds` that violates an invariant under the mutant, with the violation;
        None where it survives.
        """
        for seed in seeds:
            try:
                self.walk(seed, [mutant])
            except Violation as violation:
                return seed, str(violation)
        return None
