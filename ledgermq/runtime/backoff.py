"""Exponential back-off with jitter: the one rule for how long to wait between attempts.

The wait doubles with each attempt up to a limit, and each wait is shortened at random, so that
clients and brokers that failed together do not return together. The jitter is between a half and
the whole. A wait is never longer than the documented limit, so an operator can rely on it; and
never close to zero, so an overloaded broker or store gets time to recover.

This module replaces a library (tenacity, backoff) for three reasons: those wrap one call in a retry
loop and draw from the global `random`. LedgerMQ must draw from `Sources`, so that a simulation
repeats; must often only compute the wait (a queue notes "not before"); and keeps its count across
calls until one succeeds. A library would only replace the one line of `backoff_s`.
"""

from __future__ import annotations

import asyncio
from random import Random  # noqa: TID251  the type only; the generator is injected

from ledgermq.sources import Sources

JITTER = (0.5, 1.0)
"""Each wait is multiplied by a random number in this range."""
ASKED_MAX_S = 60.0
"""Longest wait that the other side of a call may request."""
_DOUBLINGS_MAX = 60


def jittered_s(wait_s: float, random: Random) -> float:
    """Shorten a wait at random, so that processes with the same wait do not act at the same time."""
    return wait_s * random.uniform(*JITTER)


def backoff_s(attempt: int, first_s: float, max_s: float, random: Random) -> float:
    """Return the wait in seconds after failed attempt number `attempt`, counted from 0."""
    return jittered_s(min(max_s, first_s * 2.0 ** min(attempt, _DOUBLINGS_MAX)), random)


class Backoff:
    """The waits of one operation that is retried until it succeeds.

    Starts at `first_s` seconds and doubles up to `max_s`.
    """

    def __init__(self, sources: Sources, first_s: float, max_s: float) -> None:
        self._random = sources.random
        self._first_s = first_s
        self._max_s = max_s
        self.attempts = 0
        """Number of waits since the last success."""

    def next_s(self, at_least_ms: int | None = None) -> float:
        """Count an attempt and return the wait before the next one, in seconds.

        `at_least_ms`: wait that the other side requested; honoured up to a minute.
        """
        wait_s = backoff_s(self.attempts, self._first_s, self._max_s, self._random)
        self.attempts += 1
        return max(wait_s, min((at_least_ms or 0) / 1000, ASKED_MAX_S))

    async def pause(self, at_least_ms: int | None = None, deadline: float | None = None) -> bool:
        """Sleep for the next wait, and return True.

        Return False at once if the wait would not end before `deadline`, a time of the loop's
        clock: the caller then raises its last error.
        """
        wait_s = self.next_s(at_least_ms)
        if deadline is not None and asyncio.get_running_loop().time() + wait_s >= deadline:
            return False
        await asyncio.sleep(wait_s)
        return True

    def reset(self) -> None:
        """Start again with the first wait, because an attempt has succeeded."""
        self.attempts = 0
