"""Define every bound and default of timed messages, in one frozen value that the broker fills from
flags and files.
"""

from __future__ import annotations

from dataclasses import dataclass

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
DAY_US = 24 * 60 * MINUTE_US
HORIZON_LEAD_US = 90 * SECOND_US
"""What is due within this time, at least, stays in memory when the intake is flushed."""
LOAD_LEAD_US = 20 * SECOND_US
"""How long before its begin a range of a minute is loaded."""
EXPIRED_AT_ONCE_MAX = 1_000
"""Tombstones of recalls that one decision removes at most; the next decision continues."""
RECALLS_FREE_TIMES = 4
"""A topic may have at most so many times as many recalls as there is room for: alone four fifths of all. So
who may produce to one topic leaves room for those of others.
"""
RECALL_TOPICS_MAX = 16
"""Topics by which one principal may recall one message. It has one; callers that name others guess. Where principals
are not known, all callers together.
"""
FULL_RETRY_MS = 1_000
"""Pause before a call is repeated that was refused because of a bound."""


@dataclass(frozen=True)
class TimerLimits:
    """A call beyond a bound of a bundle raises ResourceExhausted, and may be repeated later."""

    body_bytes: int = 16 * 1024 * 1024
    """Bytes of messages that one bundle keeps in memory. Messages beyond it are read again when they are due."""
    index_bytes: int = 256 * 1024 * 1024
    """Memory of one bundle's index above which nothing more is taken in."""
    flush_after_ms: int = 60_000
    """How long a message is in the intake before those that are due later are moved to ranges."""
    chunk_bytes: int = 1024 * 1024
    """Bytes that one segment delivers or moves, or one message if that is larger."""
    horizon_days: int = 366
    """How far ahead a message may be due."""
    recalls_max: int = 100_000
    """Tombstones of recalled messages in one bundle."""
    recall_kept_ms: int = 3_600_000
    """How long after its due time the outcome of a recall is remembered."""
    waiting_bytes_max: int = 64 * 1024 * 1024 * 1024
    """Bytes that wait in one bundle, in memory and in ranges."""
    due_soon_ms: int = 5_000
    """How long before something is due the owner makes sure that it has read the store's clock."""
    clock_reading_ms: int = 3_600_000
    """Age of the last reading of the store's clock above which the owner asks again, if something is due soon."""
    log_start_ms: int = 60_000
    """Pause between two moves of the log starts of hidden partitions."""
