"""Decide when to send a put a second time: after the store's recent ninety-ninth percentile,
measured from the puts themselves.
"""

from __future__ import annotations

from collections import deque

SAMPLES = 128
SAMPLES_MIN = 32
HEDGE_MIN_S = 0.05


class PutLatency:
    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=SAMPLES)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def hedge_after_s(self) -> float | None:
        """Return the delay before a second put, or None until there are enough measurements.

        Never below HEDGE_MIN_S: on a fast store a second put would only add load.
        """
        if len(self._seconds) < SAMPLES_MIN:
            return None
        ranked = sorted(self._seconds)
        return max(HEDGE_MIN_S, ranked[int(len(ranked) * 0.99)])
