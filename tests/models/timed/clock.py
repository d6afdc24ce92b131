"""The store's clock, and what an owner of a bundle makes of it.

An owner reads the store's time when its term opens and again later, and carries it by its monotonic
clock, which runs a little too fast or too slow. Its estimate is never later than the store's time.
The wall clock of its machine says anything.
"""

from __future__ import annotations

from random import Random

TICK = 40
"""So many steps of a walk are a second."""
DRIFT_MAX = 0.2
"""The bound of a monotonic clock's error, per second: far more than a real one's, to be seen."""
NEVER = -1.0


class OwnersClock:
    """`broken`: the clock rules that are not kept. The process may have read the store's time before."""

    def __init__(self, random: Random, broken: frozenset[str], store_time: float) -> None:
        self._rate = 1 + random.choice((-DRIFT_MAX, 0, DRIFT_MAX))
        self._ahead = random.choice((-20, 0, 0, 3, 20))
        self._broken = broken
        self._read = NEVER
        self._read_at = 0.0
        self.now = NEVER
        """the latest estimate: it never goes back"""
        if (age := random.choice((0, 30, 60, 60))) and store_time > age:
            self.take(store_time - age, *(2 * (self.monotonic(store_time - age),)))
            self.estimate(store_time)

    def monotonic(self, store_time: float) -> float:
        return store_time * self._rate

    def jump(self, seconds: int) -> None:
        """The wall clock is set."""
        self._ahead += seconds

    def take(self, read: float, asked_at: float, answered_at: float) -> None:
        """The store's time was `read` at some moment between question and answer."""
        self._read = read
        self._read_at = asked_at if "clock-from-the-request" in self._broken else answered_at

    def estimate(self, store_time: float) -> int:
        """Return the last whole second that has certainly begun at the store; below 0: not known.

        `store_time` only moves the clocks of the machine; the owner does not see it.
        """
        if "wall-clock" in self._broken:
            return int(store_time + self._ahead)
        if self._read >= 0:
            slack = 1.0 if "drift-ignored" in self._broken else 1 + DRIFT_MAX
            carried = (self.monotonic(store_time) - self._read_at) / slack
            self.now = max(self.now, self._read + carried)
        return int(self.now) if self.now >= 0 else -1
