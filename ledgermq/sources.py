"""The sources of non-determinism, in one injectable place: wall clock, randomness, ids.

All other code gets the time of day, random numbers and ids from a `Sources`, and monotonic time and
sleep from asyncio's running loop. So a simulation replaces only this object and the loop.
Wall-clock time never decides about safety (design O1): it dates records and heartbeats.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sources:
    """`now_us`: microseconds since the epoch, UTC.

    `random`: seeded in simulation, otherwise from the system.
    """

    now_us: Callable[[], int] = field(default=lambda: time.time_ns() // 1000)
    random: random.Random = field(default_factory=random.SystemRandom)

    def now_ms(self) -> int:
        return self.now_us() // 1000

    def new_id(self) -> bytes:
        """Return a random 128-bit id, for put ids, writer ids and producer ids."""
        return self.random.getrandbits(128).to_bytes(16, "big")
