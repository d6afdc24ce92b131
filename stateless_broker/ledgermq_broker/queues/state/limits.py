"""Define every bound and default of queues, in one frozen value that the broker fills from flags and files."""

from __future__ import annotations

from dataclasses import dataclass

CHUNK = 256
"""Offsets of one record of `__shares`."""
DELIVERIES_COUNTED_MAX = 63
"""A higher number of deliveries is stored as this one."""
FULL_RETRY_MS = 1_000
"""Pause before a call is repeated that was refused because of a bound."""


@dataclass(frozen=True)
class ShareLimits:
    """A call beyond a bound of a bundle raises ResourceExhausted, and may be repeated later."""

    lease_ms: int = 30_000
    """How long a message is leased to a member that names no time."""
    lease_ms_min: int = 1_000
    lease_ms_max: int = 12 * 3_600_000
    window_max: int = 2_000
    """Offsets between the first message of a partition that is not finished and the last one that was leased."""
    records_max: int = 2_000
    """Messages of one answer."""
    delay_ms_max: int = 12 * 3_600_000
    """Longest wait of a released message."""
    partitions_max: int = 10_000
    """Pairs of group and partition in one bundle."""
    ended_within_ms: int = 1_000
    """How long the note that leases ended by their time may wait for other records."""


ENDED_RUNS_KEPT_MAX = 512
"""Of the last messages that were finished or given back, the lease under which they were is kept in memory, in runs of
consecutive offsets. A repeated word is recognized by it.
"""
