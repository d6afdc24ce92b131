"""Define every bound and default of exclusive producers, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass

FULL_RETRY_MS = 1_000
"""Pause before a call is repeated that was refused because of a bound."""
NUMBER_MAX = 2**62
"""Highest number of a change of the holder."""


@dataclass(frozen=True)
class HolderLimits:
    lease_ms: int = 15_000
    """How long a producer that renews nothing keeps others from taking its place."""
    partitions_max: int = 10_000
    """Partitions of one bundle that had an exclusive producer. A call beyond it raises ResourceExhausted."""
