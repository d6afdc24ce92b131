"""Hold every bound and default of groups in one frozen value; the broker reads them from flags and
files.
"""

from __future__ import annotations

from dataclasses import dataclass

FULL_RETRY_MS = 1_000
"""Pause before a call is repeated that was refused because a partition of groups is full."""
GROUP_BYTES, MEMBER_BYTES, OFFSET_BYTES, HELD_BYTES = 1024, 512, 256, 128
"""Memory of a group, a member, a committed or staged offset, and a partition of a member, apart from texts; about."""
METADATA_BYTES_MAX = 4096
"""Metadata of one committed offset; Kafka's limit."""


@dataclass(frozen=True)
class GroupLimits:
    """Beyond a `…_max` that counts stored things, a call gets ResourceExhausted. Beyond one that
    limits its own input, it gets InvalidRequest.
    """

    groups_max: int = 10_000
    """Groups in one partition of `__consumer_offsets`."""
    bytes_max: int = 512 * 1024 * 1024
    """Bytes of all groups in one partition of `__consumer_offsets`, as `GroupBytes` counts them."""
    members_max: int = 1_000
    """Members of one group."""
    partitions_max: int = 100_000
    """Partitions that one group subscribes to, or has committed offsets of."""
    request_bytes_max: int = 8 * 1024 * 1024
    """Size of one commit request, with all its metadata."""
    subscription_bytes_max: int = 64 * 1024
    """Size of one subscription. With `partitions_max`, it bounds the largest record of the log (a
    member with all its partitions) to some 2 MB.
    """
    subscriptions_bytes_max: int = 8 * 1024 * 1024
    """Size of all subscriptions of a group; what one rebalance writes stays far below the largest
    batch.
    """
    topics_max: int = 1_000
    """Topic names in one subscription."""
    pattern_chars_max: int = 1_000
    commits_max: int = 10_000
    """Partitions in one commit, reset or fetch of committed offsets."""
    pending_max: int = 10_000
    """Open transactions with staged offsets in one group."""
    session_timeout_ms: int = 45_000
    session_timeout_ms_min: int = 1_000
    session_timeout_ms_max: int = 1_800_000
    rebalance_timeout_ms: int = 300_000
    rebalance_timeout_ms_max: int = 86_400_000
    heartbeat_interval_ms: int = 3_000
    retention_ms: int = 7 * 24 * 3600 * 1000
    """How long committed offsets stay after the group's last member left and the last commit."""
    expiry_check_s: float = 60.0
    records_max: int = 10_000
    """Records of one `tick`; the next one continues."""
