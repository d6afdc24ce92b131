"""Decide when a broker may try to claim a bundle. Pure decisions about values; only the ledger
decides whether it may *own* the bundle.

    gone       connection refused and no heartbeat since, or no answer and no heartbeat for an interval and two
               seconds, or no heartbeat for ten intervals
    wait       0, 0.5, 1, 2 … 30 s with jitter, by the number of contested claims in the last minute: claims must not
               fight. None before the first try at what is free: its owner has ended or stands still, or handed it
               over
    claim back only after the minimum holding time of the winner, unless the winner is gone

All times are one process's monotonic seconds; no two machines' clocks are compared. Silence is
measured up to the newest look, not up to now. Otherwise a process that stood still would take all
other brokers for silent when it resumes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random  # noqa: TID251  the type only; the generator is injected

from ledgermq.runtime.backoff import backoff_s

CLAIMS_WINDOW_S = 60.0
WAIT_FIRST_S = 0.5
WAIT_S_MAX = 30.0
SILENT_S_AFTER_AN_INTERVAL = 2.0
"""Allowance for a broker that does not answer: its next heartbeat was due an interval after the
last, and may be this late.
"""
INTERVALS_BEFORE_SILENT_IS_GONE = 10
NOTES_MAX = 64


@dataclass(slots=True)
class Evidence:
    """What one broker has observed of another: when its heartbeat last advanced, when its address
    refused a connection, when its connection broke or a ping got no answer (`lost_at`).

    `written_after`: the heartbeat that advanced did not exist yet when the look before began. It
    may be older than `advanced_at`.
    """

    advanced_at: float
    written_after: float
    refused_at: float | None = None
    lost_at: float | None = None


def has_ended(evidence: Evidence) -> bool:
    """Return whether its process has ended: its address refuses connections.

    Its last heartbeat may be read only after that, and proves nothing.
    """
    return evidence.refused_at is not None and evidence.refused_at >= evidence.written_after


def stands_still_at(evidence: Evidence, interval_s: float) -> float | None:
    """Return when a look that finds no newer heartbeat shows that its process stands still; None:
    it answered the last ping.

    It neither answers nor writes heartbeats, which a bad minute of the store alone does not
    explain.
    """
    if evidence.lost_at is None or evidence.lost_at < evidence.advanced_at - interval_s:
        return None
    return evidence.advanced_at + interval_s + SILENT_S_AFTER_AN_INTERVAL


def stands_still(evidence: Evidence, looked_at: float, interval_s: float) -> bool:
    """Return whether it stands still. `looked_at`: when the newest look began."""
    at = stands_still_at(evidence, interval_s)
    return at is not None and looked_at > at


def is_gone(evidence: Evidence, looked_at: float, interval_s: float) -> bool:
    if has_ended(evidence) or stands_still(evidence, looked_at, interval_s):
        return True
    return looked_at - evidence.advanced_at > INTERVALS_BEFORE_SILENT_IS_GONE * interval_s


@dataclass(slots=True)
class ClaimHistory:
    """The contested claims of one bundle that this broker has learned of.

    An epoch is a claim, so a jump of three is three claims.
    """

    epoch: int = 0
    is_free: bool = False
    """Its last owner is known to have ended or to stand still, or hands it over, so a claim is
    uncontested. An owner that is merely silent may live.
    """
    lost_at: float | None = None
    """When this broker last lost a term of the bundle to another broker."""
    _notes: list[tuple[float, int]] = field(default_factory=list)
    """(time, number of contested claims that were new then)"""
    _changes: list[tuple[float, int]] = field(default_factory=list)
    """The same for all claims."""
    _tried_epoch: int = -1
    """The newest epoch known when a claim of this broker failed: another broker may be about to
    open the next one.
    """
    _fought_until: float = -inf
    """After two losses within a minute nothing counts as free: live brokers that refuse each
    other's connections would claim in turns.
    """

    def note(self, epoch: int, now: float) -> None:
        """Note a claim. The first claim of a free bundle does not count. Claims from before this
        broker first saw the bundle do not count either, because no broker dated them.
        """
        if epoch > self.epoch:
            count = epoch - self.epoch - (1 if self.is_free else 0)
            if self.epoch:
                self._changes = [*self._changes, (now, epoch - self.epoch)][-NOTES_MAX:]
            if self.epoch and count:
                self._count(count, now)
            self.epoch, self.is_free = epoch, False

    def note_attempt(self, now: float) -> None:
        """Note that a claim of this broker failed."""
        self._tried_epoch = self.epoch
        self._count(1, now)

    def note_lost(self, now: float, *, stood_still: bool = False) -> None:
        """Note that another broker's claim ended a term of this broker: a contested claim, but not
        a failed attempt of this one.

        `stood_still`: this process had done nothing for a while, so the other broker took an
        unattended bundle, and the claim was uncontested.
        """
        if not stood_still:
            if self.lost_at is not None and now - self.lost_at < CLAIMS_WINDOW_S:
                self._fought_until = now + CLAIMS_WINDOW_S
            self._count(1, now)
        self.lost_at = now

    def _count(self, claims: int, now: float) -> None:
        self._notes = [*self._notes, (now, claims)][-NOTES_MAX:]

    def recent(self, now: float) -> int:
        return sum(count for at, count in self._notes if now - at < CLAIMS_WINDOW_S)

    def changes(self, now: float) -> int:
        """Return the claims within the last minute, contested or not."""
        return sum(count for at, count in self._changes if now - at < CLAIMS_WINDOW_S)

    def wait_s(self, now: float, random: Random) -> float:
        """Return the wait before the next claim.

        The first claim of a free bundle is uncontested, whatever was contested before.
        """
        if self.is_free and self._tried_epoch != self.epoch and now >= self._fought_until:
            return 0.0
        return wait_before_claim_s(self.recent(now), random)


def wait_before_claim_s(recent_claims: int, random: Random) -> float:
    if recent_claims <= 0:
        return 0.0
    return backoff_s(recent_claims - 1, WAIT_FIRST_S, WAIT_S_MAX, random)


def may_claim_back(history: ClaimHistory, *, winner_gone: bool, now: float, holding_s: float) -> bool:
    return history.lost_at is None or winner_gone or now - history.lost_at >= holding_s
