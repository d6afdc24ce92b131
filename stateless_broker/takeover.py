"""Takeover: when a broker may try to claim a bundle. Pure decisions about values; whether it may
*own* it, the ledger says.

    gone       connection refused and no heartbeat since, or no answer and no heartbeat for an interval and two seconds, or no heartbeat
               for ten intervals
    wait       0, 0.5, 1, 2 … 30 s with jitter, by the number of contested claims in the last minute: claims must not fight. None before
               the first try at what is free: its owner has ended or stands still, or handed it over
    claim back only after the minimum holding time of the winner, unless the winner is gone

All times are one process's monotonic seconds; no two machines' clocks are compared. Silence is what
looks have found: it lasts until the newest look, not until now, or a process that stood still would
take everybody else for silent when it goes on.
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
"""Of a broker that does not answer: its next heartbeat was due an interval after the last, and may
be late by so much.
"""
INTERVALS_BEFORE_SILENT_IS_GONE = 10
NOTES_MAX = 64


@dataclass(slots=True)
class Evidence:
    """What one broker has seen of another: when its heartbeat last advanced, when its address
    refused a connection, when its line broke or a ping was not answered (`lost_at`).

    `written_after`: the heartbeat that advanced was not there yet when the look before began. It
    may be older than `advanced_at` says.
    """

    advanced_at: float
    written_after: float
    refused_at: float | None = None
    lost_at: float | None = None


def has_ended(evidence: Evidence) -> bool:
    """Its process is no more: nobody listens at its address.

    Its last heartbeat may be seen only after that, and proves nothing.
    """
    return evidence.refused_at is not None and evidence.refused_at >= evidence.written_after


def stands_still_at(evidence: Evidence, interval_s: float) -> float | None:
    """When a look that finds no newer heartbeat shows that its process does nothing any more; None:
    it answered when it was last asked.

    It neither answers nor beats, which a bad minute of the store alone does not explain.
    """
    if evidence.lost_at is None or evidence.lost_at < evidence.advanced_at - interval_s:
        return None
    return evidence.advanced_at + interval_s + SILENT_S_AFTER_AN_INTERVAL


def stands_still(evidence: Evidence, looked_at: float, interval_s: float) -> bool:
    """`looked_at`: when the newest look began."""
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
    """Its last owner is known to have ended or to stand still, or hands it over: who claims it now
    fights nobody. One that is merely silent may live."""
    lost_at: float | None = None
    """When this broker last lost a term of the bundle to somebody."""
    _notes: list[tuple[float, int]] = field(default_factory=list)
    """(when, how many contested claims were new then)"""
    _changes: list[tuple[float, int]] = field(default_factory=list)
    """The same of all claims."""
    _tried_epoch: int = -1
    """The newest epoch heard of when a claim of this broker's own came to nothing: somebody else
    may be about to open the next.
    """
    _fought_until: float = -inf
    """After two losses within a minute nothing looks free: brokers that refuse each other's
    connections, and live, would claim in turns.
    """

    def note(self, epoch: int, now: float) -> None:
        """The first claim of what is free does not count. Nor does what was claimed before this
        broker first heard of the bundle: nobody saw it happen, and no clock is asked."""
        if epoch > self.epoch:
            count = epoch - self.epoch - (1 if self.is_free else 0)
            if self.epoch:
                self._changes = [*self._changes, (now, epoch - self.epoch)][-NOTES_MAX:]
            if self.epoch and count:
                self._count(count, now)
            self.epoch, self.is_free = epoch, False

    def note_attempt(self, now: float) -> None:
        """A claim of this broker's own that came to nothing."""
        self._tried_epoch = self.epoch
        self._count(1, now)

    def note_lost(self, now: float, *, stood_still: bool = False) -> None:
        """A term of this broker's was ended by another one's claim: a fight, but no try at what
        that one may leave behind.

        `stood_still`: this process had done nothing for a while, so the other took what was left
        alone, and fought nobody.
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
        """Claims within the last minute, whether they were fought over or not."""
        return sum(count for at, count in self._changes if now - at < CLAIMS_WINDOW_S)

    def wait_s(self, now: float, random: Random) -> float:
        """Before the next claim.

        Whatever others fought over before, the first to claim what is free fights nobody.
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
