"""Derive from the watched store where each failed message is: in its topic, in the retry topic of its
group, or in the dead-letter topic.

A program's answer follows from the message's origin and the number of the attempt (`answer_of`). So it is
known which copies a message must have, whatever was delivered twice.

moved twice             the same attempt of a message has two copies, and neither is the other one, carried
in two places           a message has a dead letter and a copy for a later attempt, or two dead letters
attempts miscounted     the attempts of a message's copies are not 1, 2, 3, …
copy without its offset a copy is there, and the committed offset is not behind the message that was copied
offset without its copy the committed offset is behind a message that has failed, and there is no copy
skipped                 the committed offset is behind a message that no member has handled
moved though handled    a message has a copy, and its program had succeeded
wrong topic             a copy is in the retry topic after its last attempt, or among the dead letters before
changed copy            a copy has another value or key than its original
called early            a program was given a copy before its time
kept though not expired a dead letter says that its message has expired, and no member has found that

A message that has expired is skipped, or becomes a dead letter, as the plan says; it may have been
handled before, in a delivery that was not committed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ledgermq.client.consuming.message import Message, messages_of
from ledgermq.client.groups.retry_topics import (
    DEAD_EXPIRES_MS,
    EXPIRED,
    Failures,
    Origin,
    dead_letter_topic,
    failures_of,
    retry_topic,
)
from tests.judges.violation import Violation
from tests.simulation.expiry_watch import EXPIRES_MS, Place, expires_us_of
from tests.simulation.watch import WatchedStore

GROUP, TOPIC = "failing", "main"
RETRY, DEAD = retry_topic(GROUP), dead_letter_topic(GROUP)


@dataclass(frozen=True, slots=True)
class FailuresPlan:
    """`members`: of the group whose programs fail; 0: it does not exist. `delays_s`: of its policy.
    `far_s`: a wait that ends after the run, which some messages get; 0: none.
    """

    members: int
    attempts_max: int
    delays_s: tuple[float, ...]
    fails: float
    far_s: float
    keeps_expired: bool = False
    """Messages that have expired become dead letters; otherwise they are skipped."""


def failures_plan_of(seed: int) -> FailuresPlan:
    r = random.Random(f"failures plan {seed}")
    return FailuresPlan(
        members=r.choice((0, 2, 3)),
        attempts_max=r.choice((1, 2, 4)),
        delays_s=r.choice(((0.0,), (0.5, 3.0), (2.0, 0.0, 8.0))),
        fails=r.choice((0.3, 0.7)),
        far_s=r.choice((0.0, 0.0, 7 * 24 * 3600.0)),
        keeps_expired=random.Random(f"expired failures {seed}").random() < 0.6,
    )


class Answer(NamedTuple):
    """What a program does with a message. `delay_s`: its own; None: that of the policy."""

    what: str
    delay_s: float | None = None


SUCCESS, NACK, DEAD_LETTER = "success", "nack", "dead letter"


def answer_of(plan: FailuresPlan, seed: int, origin: Origin, attempt: int) -> Answer:
    """The same whenever and wherever this attempt is made."""
    if random.Random(f"poison {seed} {origin}").random() > plan.fails / 3:  # else all attempts fail
        r = random.Random(f"answer {seed} {origin} {attempt}")
        if r.random() > plan.fails:
            return Answer(SUCCESS)
    r = random.Random(f"failure {seed} {origin} {attempt}")
    if r.random() < 0.1:
        return Answer(DEAD_LETTER)
    if plan.far_s and r.random() < 0.05:
        return Answer(NACK, plan.far_s)
    return Answer(NACK, r.choice((None, None, 0.0, 5.0)))


@dataclass
class Calls:
    """What members did, by (origin, attempt)."""

    handled: set[tuple[Origin, int]] = field(default_factory=set)
    due_s: dict[tuple[Origin, int], float] = field(default_factory=dict)
    """Time before which the attempt may not be made, by the loop's clock."""
    expired: set[Place] = field(default_factory=set)
    """What members have skipped, each after its time by the member's clock."""
    clocks_jumped: bool = False
    """A member's clock was wrong, so its copies may be due at any time."""


class Copy(NamedTuple):
    message: Message
    failures: Failures

    @property
    def is_dead(self) -> bool:
        return self.message.topic == DEAD

    @property
    def has_expired(self) -> bool:
        return self.failures.error == EXPIRED

    @property
    def expires_us(self) -> int | None:
        return expires_us_of(self.message.headers, DEAD_EXPIRES_MS if self.is_dead else EXPIRES_MS)

    @property
    def content(self) -> tuple[object, ...]:
        """Everything but its place and time; a copy that is carried has the same."""
        return (*self.message[3:6], self.message.tag)


@dataclass
class FailuresTruth:
    """`originals` and `copies` are all records of their topics, in the order of their offsets."""

    originals: list[Message] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    def report(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))


def failures_truth(store: WatchedStore, bundles: Iterable[int], names: Mapping[int, str]) -> FailuresTruth:
    """`names`: of all topics that there ever were, by id."""
    truth = FailuresTruth()
    for topic, message in _messages(store, bundles, names):
        if topic == TOPIC:
            truth.originals.append(message)
        elif (failures := failures_of(message.headers)) is not None:
            truth.copies.append(Copy(message, failures))
        else:
            truth.report("changed copy", f"{message} has no headers of a copy")
    return truth


def _messages(store: WatchedStore, bundles: Iterable[int], names: Mapping[int, str]) -> Iterator[tuple[str, Message]]:
    for bundle in bundles:
        for segment in store.history(bundle):
            for batch in segment.batches if segment.valid else ():
                name = names.get(batch.topic_id, "")
                if name in (TOPIC, RETRY, DEAD):
                    for message in messages_of(batch.decoded, name, batch.partition, batch.base_offset):
                        yield name, message


def judge_failures(
    truth: FailuresTruth, plan: FailuresPlan, seed: int, calls: Calls, committed: Mapping[tuple[str, int], int]
) -> list[Violation]:
    """`committed`: of the group, by topic and partition."""
    by_origin: defaultdict[Origin, list[Copy]] = defaultdict(list)
    for copy in truth.copies:
        by_origin[copy.failures.origin].append(copy)
    for original in truth.originals:
        origin = Origin(original.topic, original.partition, original.offset)
        _Chain(truth, plan, seed, calls, committed, original, by_origin.pop(origin, [])).judge()
    for origin, copies in by_origin.items():
        truth.report("changed copy", f"{copies[0].message} is a copy of {origin}, which does not exist")
    return truth.violations


class _Chain(NamedTuple):
    """One message and its copies."""

    truth: FailuresTruth
    plan: FailuresPlan
    seed: int
    calls: Calls
    committed: Mapping[tuple[str, int], int]
    original: Message
    copies: list[Copy]

    def judge(self) -> None:
        origin = Origin(self.original.topic, self.original.partition, self.original.offset)
        copies = sorted(self.copies, key=lambda copy: (copy.failures.attempts, copy.is_dead, self._is_open(copy)))
        if self._is_moved_twice(copies):
            self.truth.report("moved twice", f"{origin}: {_shown(copies)}")
            return
        # Of copies that are the same the last one: the others are committed.
        copies = list(
            {copy.failures.attempts if not copy.is_dead else -1 - i: copy for i, copy in enumerate(copies)}.values()
        )
        attempts = [copy.failures.attempts for copy in copies if not copy.has_expired]
        expired = [copy.failures.attempts for copy in copies if copy.has_expired]
        if sum(copy.is_dead for copy in copies) > 1 or any(copy.is_dead for copy in copies[:-1]):
            self.truth.report("in two places", f"{origin}: {_shown(copies)}")
        elif attempts != list(range(1, len(attempts) + 1)) or any(number != len(attempts) for number in expired):
            self.truth.report("attempts miscounted", f"{origin}: {_shown(copies)}")
        else:
            self._judge_steps(origin, copies)
        for copy in copies:
            if (copy.message.key, copy.message.value) != (self.original.key, self.original.value):
                self.truth.report("changed copy", f"{self.original} and {copy.message}")
            if copy.expires_us != expires_us_of(self.original.headers):
                self.truth.report("changed copy", f"{self.original} and {copy.message} expire at other times")

    def _is_open(self, copy: Copy) -> bool:
        return copy.message.offset >= self.committed.get((copy.message.topic, copy.message.partition), 0)

    def _is_moved_twice(self, copies: list[Copy]) -> bool:
        """Whether an attempt has two copies, although none can have been carried, or both are open."""
        may_be_carried = bool(self.plan.far_s) or self.calls.clocks_jumped
        pairs = [(a, b) for a, b in pairwise(copies) if a.failures.attempts == b.failures.attempts]
        return any(
            not (a.is_dead or b.is_dead) and (not may_be_carried or a.content != b.content or self._is_open(a))
            for a, b in pairs
        )

    def _judge_steps(self, origin: Origin, copies: list[Copy]) -> None:
        at = self.original
        for attempt, copy in enumerate([*copies, None], 1):
            if at.topic == DEAD:
                return
            end = self.committed.get((at.topic, at.partition), 0)
            answer = answer_of(self.plan, self.seed, origin, attempt)
            text = f"{origin}, attempt {attempt}, at {at.topic}-{at.partition} {at.offset}, committed {end}: {answer}"
            has_expired = (at.topic, at.partition, at.offset) in self.calls.expired
            if copy is not None and copy.has_expired:
                if at.offset >= end:
                    self.truth.report("copy without its offset", text)
                if not (has_expired and self.plan.keeps_expired):
                    self.truth.report("kept though not expired", text)
                at = copy.message
            elif copy is not None:
                if answer.what == SUCCESS:
                    self.truth.report("moved though handled", text)
                elif copy.is_dead != (answer.what == DEAD_LETTER or attempt >= self.plan.attempts_max):
                    self.truth.report("wrong topic", f"{text}, copied to {copy.message.topic}")
                if at.offset >= end:
                    self.truth.report("copy without its offset", text)
                at = copy.message
            elif has_expired and not self.plan.keeps_expired:
                pass  # it was skipped, or will be
            elif at.offset < end and answer.what != SUCCESS:
                self.truth.report("offset without its copy", text)
            elif at.offset < end and (origin, attempt) not in self.calls.handled:
                self.truth.report("skipped", text)


def _shown(copies: list[Copy]) -> str:
    return ", ".join(
        f"{c.failures.attempts} in {c.message.topic}-{c.message.partition} {c.message.offset}" for c in copies
    )


def places_of(truth: FailuresTruth, committed: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Return how many messages are where."""
    dead = sum(copy.is_dead for copy in truth.copies)
    moves = {(copy.failures.origin, copy.failures.attempts) for copy in truth.copies if not copy.is_dead}
    waiting = sum(
        not copy.is_dead and copy.message.offset >= committed.get((RETRY, copy.message.partition), 0)
        for copy in truth.copies
    )
    return {
        "a failed message was moved": len(moves),
        "a copy that waits was carried": len(truth.copies) - dead - len(moves),
        "a message ended as a dead letter": dead,
        "an expired message ended as a dead letter": sum(copy.has_expired for copy in truth.copies),
        "a message waits in the retry topic at the end": waiting,
        "a message was tried three times": sum(copy.failures.attempts == 3 for copy in truth.copies),
    }
