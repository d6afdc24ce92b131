"""Remember which messages of a bundle are recalled, and decide about further recalls.

A recall is a tombstone: it is kept until the watermark is `recall_kept_ms` past the time at which the message is
due. Its entries come from the log, as all of `BundleTimers`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from enum import Enum
from itertools import zip_longest
from typing import NamedTuple

from ledgermq.errors import ResourceExhausted
from ledgermq_broker.timed.state.blocks import Id, Key
from ledgermq_broker.timed.state.limits import (
    EXPIRED_AT_ONCE_MAX,
    FULL_RETRY_MS,
    RECALL_TOPICS_MAX,
    RECALLS_FREE_TIMES,
    TimerLimits,
)
from ledgermq_broker.timed.state.records import RecallEntry
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL, Shares


class RecallAnswer(Enum):
    RECALLED = "recalled"
    """Final when the decision's records are durable; without records, when all earlier ones are."""
    TOO_LATE = "too late"
    """The message was delivered, or will be."""
    FORGOTTEN = "forgotten"
    """It was due long ago: whether it was delivered or recalled is no longer known."""
    WAIT = "wait"
    """A delivery that covers it is in flight: ask again when that has an outcome."""


class Recalled(NamedTuple):
    """`topic_ids`: none means any topic, as an earlier release wrote it. `principals`: see `RecallEntry`."""

    due_us: int
    topic_ids: tuple[int, ...]
    principals: tuple[int, ...] = ()

    def by_topic(self) -> dict[int, int]:
        """Return which principal named each topic first; 0: not known."""
        return dict(zip_longest(self.topic_ids, self.principals, fillvalue=NO_PRINCIPAL))


class Recalls:
    """`known`: of recalled messages, the due time and the topics by which they were named. A recall counts
    only for a message of such a topic, because access rules judge by the topic that a caller names.
    """

    def __init__(self, limits: TimerLimits) -> None:
        self.known: dict[Id, Recalled] = {}
        self.rows: dict[int, set[int]] = {}
        """Rows of `known` by offset."""
        self.shares = Shares("recalls", "topics named for recalled messages")
        self._expiring: list[tuple[int, Id]] = []
        """Heap of `known` by due time; it may have those that are gone."""
        self._of_topic: Counter[int] = Counter()
        """By topic: the recalls that were named by it."""
        self._limits = limits

    def holds(self, message: Id, topic_id: int) -> bool:
        """Return whether a message of this topic is recalled."""
        recalled = self.known.get(message)
        return recalled is not None and (not recalled.topic_ids or topic_id in recalled.topic_ids)

    def recall(
        self,
        message: Id,
        due_us: int,
        topic_id: int,
        principal: int,
        *,
        watermark: Key,
        delivering_to: Key,
        durable: Key,
    ) -> tuple[list[RecallEntry], RecallAnswer]:
        """Return the answer to a recall, and what it changes; see `BundleTimers.recall`. `watermark`: that of the
        state, which may not be durable.
        """
        if self.holds(message, topic_id):
            return [], RecallAnswer.RECALLED
        key = Key(due_us, *message)
        if watermark.due_us - due_us >= self._kept_us:
            return [], RecallAnswer.FORGOTTEN
        if key <= durable:
            return [], RecallAnswer.TOO_LATE
        if key <= max(delivering_to, watermark):
            return [], RecallAnswer.WAIT
        expired = self.expired(watermark.due_us, EXPIRED_AT_ONCE_MAX)
        self._check_room(topic_id, principal, len(expired))
        before = self.known.get(message, Recalled(due_us, ()))
        named = before.by_topic()
        if sum(other == principal for other in named.values()) >= RECALL_TOPICS_MAX:
            raise ResourceExhausted(
                f"message {message.offset}, row {message.row} was recalled as one of {RECALL_TOPICS_MAX} other topics,"
                " which is the maximum; check the handles"
            )
        named[topic_id] = principal
        topic_ids = tuple(sorted(named))
        principals = tuple(named[each] for each in topic_ids) if any(named.values()) else ()
        recalled = RecallEntry(message, max(due_us, before.due_us), topic_ids, principals)
        return [*(RecallEntry(old, None) for old in expired if old != message), recalled], RecallAnswer.RECALLED

    def _check_room(self, topic_id: int, principal: int, expired: int) -> None:
        """Raise ResourceExhausted or QuotaExceeded. `expired`: as many recalls go with this one."""
        if len(self.known) - expired >= self._limits.recalls_max:
            raise ResourceExhausted(
                f"{len(self.known)} recalled messages of this bundle wait for their due time, which is the maximum; "
                "repeat the call later",
                retry_after_ms=FULL_RETRY_MS,
            )
        free = self._limits.recalls_max - len(self.known)
        if self._of_topic[topic_id] >= RECALLS_FREE_TIMES * max(1, free):
            raise ResourceExhausted(
                f"{self._of_topic[topic_id]} recalled messages of this topic wait for their due time in this bundle,"
                f" which has room for {free} more of all topics; repeat the call later",
                retry_after_ms=FULL_RETRY_MS,
            )
        self.shares.check(principal, 1, free, where="this bundle", retry_after_ms=FULL_RETRY_MS)

    def expired(self, finished_us: int, at_most: int) -> list[Id]:
        """Return recalls whose tombstones are not needed any longer when the watermark is here."""
        found: dict[Id, int] = {}
        while self._expiring and len(found) < at_most and finished_us - self._expiring[0][0] >= self._kept_us:
            due_us, message = heapq.heappop(self._expiring)
            if message in self.known and self.known[message].due_us == due_us:
                found[message] = due_us
        for message, due_us in found.items():  # they go when the decision is applied
            heapq.heappush(self._expiring, (due_us, message))
        return list(found)

    def take(self, message: Id, recalled: Recalled | None) -> None:
        """Take what the log says about a message; None: its tombstone is gone."""
        before = self.known.get(message)
        if before is not None:
            self._of_topic.subtract(before.topic_ids)
            self.shares.add_all(before.principals, -1)
        if recalled is not None:
            due_us = recalled.due_us
            self.known[message] = recalled
            self._of_topic.update(recalled.topic_ids)
            self.shares.add_all(recalled.principals)
            self.rows.setdefault(message.offset, set()).add(message.row)
            heapq.heappush(self._expiring, (due_us, message))
        elif self.known.pop(message, None) is not None:
            rows = self.rows[message.offset]
            rows.discard(message.row)
            if not rows:
                del self.rows[message.offset]

    @property
    def _kept_us(self) -> int:
        return self._limits.recall_kept_ms * 1000
