"""The judge of timed messages, on handmade runs."""

from __future__ import annotations

from ledgermq import RecallOutcome
from tests.chaos.timed import BEFORE_US, TimedMessage, judge_timed
from tests.simulation.history import Outcome, Partition

MAIN: Partition = ("main", 0)
LEFT: Partition = ("left", 1)
DUE_US = 100 * BEFORE_US


def sent(name: str, due_us: int = DUE_US, *recalls: RecallOutcome, told: Outcome | None = Outcome.OK) -> TimedMessage:
    return TimedMessage(f"timed.{name}", MAIN, due_us, told, 1 if told is Outcome.OK else 0, list(recalls))


def kinds(
    messages: list[TimedMessage],
    stored: dict[int, str],
    elsewhere: dict[int, str] | None = None,
    seen_us: dict[str, int] | None = None,
) -> list[str]:
    return [found.kind for found in judge_timed(messages, {MAIN: stored, LEFT: elsewhere or {}}, seen_us or {})]


def test_what_is_due_recalled_or_unknown_as_it_was_told_is_right() -> None:
    messages = [
        sent("a"),
        sent("b", DUE_US, RecallOutcome.RECALLED),
        sent("c", DUE_US + 1, RecallOutcome.TOO_LATE),
        sent("d", told=Outcome.INFO),
        sent("e", told=Outcome.FAIL),
    ]
    assert kinds(messages, {0: "other", 1: "timed.a", 2: "timed.c"}, seen_us={"timed.a": DUE_US}) == []
    assert kinds(messages, {0: "timed.a", 1: "timed.d", 2: "timed.c"}) == [], "one without an answer may be stored"


def test_lost_twice_early_or_elsewhere() -> None:
    assert kinds([sent("a")], {}) == ["lost message"]
    assert kinds([sent("a")], {0: "timed.a", 7: "timed.a"}) == ["duplicate"]
    assert kinds([sent("a")], {0: "timed.a"}, seen_us={"timed.a": DUE_US - 1}) == ["early"]
    assert kinds([sent("a")], {}, {0: "timed.a"}) == ["wrong place"]
    assert kinds([sent("a", told=Outcome.FAIL)], {0: "timed.a"}) == ["failed write stored"]


def test_recalls_that_were_told_otherwise() -> None:
    assert kinds([sent("a", DUE_US, RecallOutcome.RECALLED)], {0: "timed.a"}) == ["recalled and visible"]
    assert kinds([sent("a", DUE_US, RecallOutcome.TOO_LATE)], {}) == ["too late and not visible"]


def test_a_recall_without_an_answer_may_have_taken_effect() -> None:
    message = sent("a")
    message.recall_in_doubt = True
    assert kinds([message], {}) == []
    assert kinds([message], {0: "timed.a"}) == []
    assert kinds([message], {0: "timed.a", 7: "timed.a"}) == ["duplicate"]
    message.recalls.append(RecallOutcome.TOO_LATE)
    assert kinds([message], {}) == ["too late and not visible"], "after a recall the answer would be: recalled"


def test_the_order_of_due_times_counts_where_messages_came_long_before() -> None:
    first, second = sent("a", DUE_US), sent("b", DUE_US + 1)
    assert kinds([second, first], {0: "timed.a", 1: "timed.b"}) == []
    assert kinds([first, second], {0: "timed.b", 1: "timed.a"}) == ["out of order"]
    second.acked_us = DUE_US
    assert kinds([first, second], {0: "timed.b", 1: "timed.a"}) == []
