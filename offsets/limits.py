"""Every bound and default of groups, as one frozen value; where they come from (flags, files) is
the broker's business.
"""

from __future__ import annotations

from dataclasses import dataclass

METADATA_BYTES_MAX = 4096
"""Of one committed offset; what Kafka allows."""


@dataclass(frozen=True)
class GroupLimits:
    """Beyond a `…_max` of a count a call gets ResourceExhausted, beyond one of its own input
    InvalidRequest.
    """

    groups_max: int = 10_000
    """In one partition of `__consumer_offsets`."""
    members_max: int = 1_000
    """In one group."""
    partitions_max: int = 100_000
    """That one group subscribes to, or has committed offsets of."""
    request_bytes_max: int = 8 * 1024 * 1024
    """One commit, with all its metadata."""
    subscription_bytes_max: int = 64 * 1024
    """One subscription; with `partitions_max` it bounds the largest record of the log, a member
    with all that it holds, to some 2 MB.
    """
    subscriptions_bytes_max: int = 8 * 1024 * 1024
    """All of a group: what one rebalance writes stays far below the largest batch."""
    topics_max: int = 1_000
    """Names in one subscription."""
    pattern_chars_max: int = 1_000
    commits_max: int = 10_000
    """Partitions in one commit, reset or fetch of committed offsets."""
    session_timeout_ms: int = 45_000
    session_timeout_ms_min: int = 1_000
    session_timeout_ms_max: int = 1_800_000
    rebalance_timeout_ms: int = 300_000
    rebalance_timeout_ms_max: int = 86_400_000
    heartbeat_interval_ms: int = 3_000
    retention_ms: int = 7 * 24 * 3600 * 1000
    """Committed offsets stay so long after the group's last member left and the last commit."""
    expiry_check_s: float = 60.0
    records_max: int = 10_000
    """Of one `tick`; the next one goes on."""
