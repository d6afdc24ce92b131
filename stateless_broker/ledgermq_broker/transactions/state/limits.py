"""Define every bound and default of transactions, in one frozen value that the broker fills from
flags and files.
"""

from __future__ import annotations

from dataclasses import dataclass

EPOCH_MAX = (1 << 32) - 1
NUMBER_MAX = 1 << 48
RETRY_MS = 100
"""Pause before a call is repeated that was refused because a completion is not over."""
RETRY_FULL_MS = 1_000
"""Pause before a call is repeated that was refused because of a bound."""
EXPIRED_AT_ONCE_MAX = 1_000
"""Ids that one call of `expire` removes at most; the next call continues."""


@dataclass(frozen=True)
class TransactionLimits:
    """A call beyond a bound of one transaction raises TransactionTooLarge. A call beyond a bound of a
    bundle or a coordinator raises ResourceExhausted, and may be repeated later.
    """

    timeout_ms: int = 60_000
    """Time-out of a transaction for which the producer sets none; it begins when a bundle first asks
    the coordinator about the transaction.
    """
    timeout_ms_max: int = 900_000
    batches_max: int = 70_000
    """Batches that one transaction stages in one bundle. `bytes_max` in batches of 16 KiB are 65,536, so a program
    that sends such batches, as Java clients of the Kafka protocol do, reaches that bound first.
    """
    bytes_max: int = 1024 * 1024 * 1024
    """Bytes that one transaction stages in one bundle."""
    open_max: int = 10_000
    """Transactions that have something staged in one bundle."""
    staged_bytes_max: int = 8 * 1024 * 1024 * 1024
    """Bytes that are staged in one bundle."""
    staged_batches_max: int = 140_000
    """Batches that are staged in one bundle. Their references are in the memory of its owner, some
    0.75 kB each, and a takeover reads all of them, some 35,000 in a second.
    """
    ids_max: int = 100_000
    """Transactional ids of one coordinator."""
    expiry_ms: int = 7 * 24 * 3600 * 1000
    """How long an id stays after its last use."""
    half_expiry_ms: int = 120_000
    """How long the id of a half message stays after its end; only repeated calls need it then."""
    chunk_bytes: int = 4 * 1024 * 1024
    """Bytes that one segment makes visible, or one batch if that is larger."""
    ask_after_ms: int = 10_000
    """How long something is staged before its bundle asks the coordinator about it. The bundle uses
    the lower one of this and `check_after_ms`.
    """
    check_after_ms: int = 6_000
    """How long a half message is undecided before a producer of its check group is asked."""
    check_every_ms: int = 30_000
    """Pause between two checks of a half message."""
    checks_max: int = 15
    """Checks of a half message; `check_every_ms` after the last one it is UNRESOLVED."""
    unchecked_ms_max: int = 24 * 3600 * 1000
    """How long a half message waits for any producer of its check group; then it is UNRESOLVED."""
    carry_after_ms: int = 300_000
    """How long something is staged before its bytes may be carried forward."""
    expiry_look_ms: int = 600_000
    """Pause between two searches for ids that have expired; a takeover begins it again."""
    note_asked_ms: int = 24 * 3_600_000
    """Pause between two questions of a bundle whether it may forget a note about a producer."""
    notes_many: int = 10_000
    """Number of notes above which a bundle asks about the oldest ones without waiting so long."""
    log_start_ms: int = 60_000
    """Pause between two moves of the log start of `__staged`."""
