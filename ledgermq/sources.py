"""The sources of non-determinism, in one injectable place: wall clock, randomness, ids.

Everything else in the project asks a `Sources` for the time of day, a random number or an id, and
asyncio's running loop for monotonic time and sleep; so a simulation replaces this object and the
loop, and nothing else. Wall-clock time never decides about safety (design O1): it dates records and
heartbeats.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sources:
    """`now_us`: microseconds since the epoch, UTC.

    `random`: seeded in simulation, from the system otherwise.
    """

    now_us: Callable[[], int] = field(default=lambda: time.time_ns() // 1000)
    random: random.Random = field(default_factory=random.SystemRandom)

    def now_ms(self) -> int:
        return self.now_us() // 1000

    def new_id(self) -> bytes:
        """A random 128-bit id: put ids, writer ids, producer ids."""
        return self.random.getrandbits(128).to_bytes(16, "big")
