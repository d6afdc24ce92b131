"""The judge of failed messages, on handmade logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.client.consuming.message import Message
from ledgermq.client.groups.retry_topics import Failures, Origin
from tests.chaos.failures import succeeded
from tests.simulation.failures_truth import (
    DEAD,
    DEAD_LETTER,
    GROUP,
    NACK,
    RETRY,
    SUCCESS,
    TOPIC,
    Calls,
    Copy,
    FailuresPlan,
    FailuresTruth,
    answer_of,
    judge_failures,
)

PLAN = FailuresPlan(members=2, attempts_max=3, delays_s=(1.0,), fails=0.6, far_s=0.0)
SEED = 1


def whose_answers_are(*wanted: str) -> Origin:
    """Return a message that has these answers, by attempt."""
    each = (Origin(TOPIC, 0, offset) for offset in range(10_000))
    return next(
        origin
        for origin in each
        if all(answer_of(PLAN, SEED, origin, number).what == what for number, what in enumerate(wanted, 1))
    )


def message(topic: str, offset: int, value: bytes = b"v") -> Message:
    return Message(topic, 0, offset, b"k", value, (), 0, None)


def copy(topic: str, offset: int, origin: Origin, attempts: int, value: bytes = b"v") -> Copy:
    return Copy(message(topic, offset, value), Failures(GROUP, origin, attempts, 0, "error"))


def kinds(origin: Origin, copies: list[Copy], committed: dict[str, int], handled: tuple[int, ...] = ()) -> set[str]:
    truth = FailuresTruth([message(TOPIC, origin.offset)], copies)
    calls = Calls(handled={(origin, attempt) for attempt in handled})
    ends = {(topic, 0): end for topic, end in committed.items()}
    return {violation.kind for violation in judge_failures(truth, PLAN, SEED, calls, ends)}


def test_a_message_that_succeeds_at_its_second_attempt() -> None:
    at = whose_answers_are(NACK, SUCCESS)
    end = {TOPIC: at.offset + 1}
    first = copy(RETRY, 5, at, 1)
    assert kinds(at, [first], end | {RETRY: 6}, (2,)) == set()
    assert kinds(at, [first], end) == set(), "it waits"
    assert kinds(at, [], {}) == set(), "it was not read yet"
    assert kinds(at, [], end) == {"offset without its copy"}
    assert kinds(at, [first], end | {RETRY: 6}) == {"skipped"}
    assert kinds(at, [first], {TOPIC: at.offset}) == {"copy without its offset"}
    assert kinds(at, [first, copy(RETRY, 6, at, 1)], end) == {"moved twice"}
    assert kinds(at, [copy(RETRY, 5, at, 2)], end) == {"attempts miscounted"}
    assert kinds(at, [first, copy(RETRY, 6, at, 2)], end | {RETRY: 6}, (2,)) == {"moved though handled"}
    assert kinds(at, [copy(DEAD, 0, at, 1)], end) == {"wrong topic"}
    assert kinds(at, [copy(RETRY, 5, at, 1, b"w")], end) == {"changed copy"}
    stranger = copy(RETRY, 7, at._replace(partition=1), 1)
    assert kinds(at, [first, stranger], end) == {"changed copy"}


def test_a_message_that_fails_to_the_end() -> None:
    at = whose_answers_are(NACK, NACK, NACK)
    ends = {TOPIC: at.offset + 1, RETRY: 10}
    moves = [copy(RETRY, 5, at, 1), copy(RETRY, 7, at, 2)]
    assert kinds(at, [*moves, copy(DEAD, 3, at, 3)], ends) == set()
    assert kinds(at, [*moves, copy(RETRY, 9, at, 3)], ends) >= {"wrong topic"}
    assert kinds(at, moves, ends) == {"offset without its copy"}
    assert kinds(at, [*moves, copy(DEAD, 3, at, 3), copy(DEAD, 4, at, 3)], ends) == {"in two places"}
    assert kinds(at, [*moves, copy(DEAD, 3, at, 3), copy(RETRY, 8, at, 4)], ends) == {"in two places"}


def test_a_message_that_is_dead_at_once() -> None:
    at = whose_answers_are(DEAD_LETTER)
    assert kinds(at, [copy(DEAD, 3, at, 1)], {TOPIC: at.offset + 1}) == set()
    assert kinds(at, [copy(RETRY, 3, at, 1)], {TOPIC: at.offset + 1}) == {"wrong topic"}


@pytest.mark.parametrize("broken", ["8 succeeded main 2 7", "8 succeeded main 2 7 x"])
def test_a_diary_whose_member_was_killed_within_a_line(tmp_path: Path, broken: str) -> None:
    diary = tmp_path / "member-9.diary"
    diary.write_text(f"\n7 succeeded main 1 5 2\n7 handled main 1 5 p\n{broken}")
    assert succeeded([diary, tmp_path / "none"]) == {(Origin("main", 1, 5), 2)}
