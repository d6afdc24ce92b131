"""A surface: something that takes bytes from others, with valid inputs, a way to spoil them, and
the code that must withstand them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ledgermq.errors import LedgerMQError
from tests.worlds.batches import mutate

Spoil = Callable[[random.Random, bytes], bytes]


class Untyped(Exception):
    """An input had an effect that no caller is prepared for."""


@dataclass(frozen=True)
class Surface:
    """`check` takes an input, and may raise `LedgerMQError` with a code of its own; all else is a
    failure. `weight`: share of inputs.
    """

    name: str
    seeds: Sequence[bytes]
    check: Callable[[bytes], None]
    spoil: Spoil | None = None
    weight: float = 1
    close: Callable[[], None] = lambda: None
    """Ends what `check` has started."""

    def input(self, seed: int, number: int) -> bytes:
        """The same for the same seed and number, on every machine.

        The first ones are the valid inputs as they are.
        """
        if number < len(self.seeds):
            return self.seeds[number]
        rng = random.Random(f"{self.name}/{seed}/{number}")
        chosen = rng.choice(self.seeds)
        if self.spoil is not None:
            return self.spoil(rng, chosen)
        return mutate(rng, chosen, rng.choice(self.seeds))

    def run(self, data: bytes) -> None:
        """Raises whatever is a failure."""
        try:
            self.check(data)
        except LedgerMQError as error:
            if error.code == LedgerMQError.code:
                raise Untyped(f"{type(error).__name__} has no specific code: {error}") from error
