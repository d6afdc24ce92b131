"""The checker finds each thing that it is there to find, and nothing in a history that is right."""

from __future__ import annotations

import pytest

from tests.simulation.checker import check
from tests.simulation.history import Assign, FinalLog, Gone, History, LogStart, Outcome, PlainRead, Poll

P = ("t", 0)


def kinds(history: History, log: dict[int, str], *, log_start: int = 0, drained: list[str] | None = None) -> set[str]:
    found = check(history, {P: FinalLog(log, log_start)}, [(reader, P) for reader in drained or []])
    return {violation.kind for violation in found}


def sent(
    history: History,
    value: str,
    offset: int | None,
    *,
    client: str = "c",
    outcome: Outcome = Outcome.OK,
    once: bool = True,
) -> None:
    op = history.begin_produce(client, P, (value,), once=once)
    history.end_produce(op, outcome, -1 if offset is None else offset)


def test_a_right_history_is_clean() -> None:
    history = History()
    sent(history, "a", 0)
    unknown = history.begin_produce("d", P, ("b", "c"))
    history.add(Assign("r", P, 0))
    history.add(Poll("r", P, ((0, "a"), (1, "b"))))
    history.end_produce(unknown, Outcome.INFO)
    sent(history, "never", None, outcome=Outcome.FAIL)
    sent(history, "perhaps not", None, outcome=Outcome.INFO)
    asked = history.ask_end("c", P)
    sent(history, "d", 3)
    history.tell_end(asked, 3)
    history.add(Poll("r", P, ((2, "c"), (3, "d"))))
    history.add(PlainRead(P, ((0, 1), (2, 3)), live=((2, 3),)))
    assert kinds(history, {0: "a", 1: "b", 2: "c", 3: "d"}, drained=["r"]) == set()


def test_lost_write() -> None:
    history = History()
    sent(history, "a", 0)
    assert kinds(history, {}) == {"lost write"}


def test_acknowledged_at_an_offset_that_holds_something_else() -> None:
    history = History()
    sent(history, "a", 0)
    sent(history, "b", None, outcome=Outcome.INFO)
    assert kinds(history, {0: "b"}) == {"lost write", "stale append"}


def test_records_that_were_read_must_last() -> None:
    history = History()
    sent(history, "a", None, outcome=Outcome.INFO)
    history.add(Poll("r", P, ((0, "a"),)))
    assert kinds(history, {}) == {"lost write"}


def test_inconsistent_offsets() -> None:
    history = History()
    sent(history, "a", None, outcome=Outcome.INFO)
    sent(history, "b", None, outcome=Outcome.INFO)
    history.add(Poll("r", P, ((0, "a"),)))
    history.add(Poll("s", P, ((0, "b"),)))
    assert kinds(history, {0: "a"}) == {"inconsistent offsets", "lost write"}


def test_duplicate_only_of_what_must_be_stored_once() -> None:
    history = History()
    sent(history, "a", 0)
    assert kinds(history, {0: "a", 1: "a"}) == {"duplicate"}
    again = History()
    sent(again, "a", 0, once=False)
    assert kinds(again, {0: "a", 1: "a"}) == set()


def test_a_refused_write_that_is_stored() -> None:
    history = History()
    sent(history, "a", None, outcome=Outcome.FAIL)
    assert kinds(history, {0: "a"}) == {"failed write stored"}


def test_phantom() -> None:
    assert kinds(History(), {0: "a"}) == {"phantom"}
    early = History()
    early.add(Poll("r", P, ((0, "a"),)))
    sent(early, "a", 0)
    assert kinds(early, {0: "a"}) == {"phantom", "stale append"}


def test_gap() -> None:
    history = History()
    sent(history, "a", 1)
    assert kinds(history, {1: "a"}) == {"gap"}


def test_reordered() -> None:
    history = History()
    first = history.begin_produce("c", P, ("a",))
    second = history.begin_produce("c", P, ("b",))
    history.end_produce(first, Outcome.OK, 1)
    history.end_produce(second, Outcome.OK, 0)
    assert kinds(history, {0: "b", 1: "a"}) == {"reordered"}


def test_an_append_below_what_was_acknowledged_before() -> None:
    history = History()
    sent(history, "a", 1)
    sent(history, "b", 0, client="d")
    assert kinds(history, {0: "b", 1: "a"}) == {"stale append"}


def test_stale_end() -> None:
    history = History()
    sent(history, "a", 0)
    history.tell_end(history.ask_end("c", P), 0)
    assert kinds(history, {0: "a"}) == {"stale end"}


def test_an_end_that_forgets_what_was_told_before() -> None:
    history = History()
    sent(history, "a", None, outcome=Outcome.INFO)
    history.tell_end(history.ask_end("c", P), 1)
    history.tell_end(history.ask_end("d", P), 0)
    assert kinds(history, {0: "a"}) == {"stale end"}


def test_end_above_the_log() -> None:
    history = History()
    history.tell_end(history.ask_end("c", P), 1)
    assert kinds(history, {}) == {"end above the log"}


def test_an_append_that_began_after_a_higher_end_was_told() -> None:
    history = History()
    sent(history, "a", None, outcome=Outcome.INFO)
    history.tell_end(history.ask_end("c", P), 1)
    sent(history, "b", 0)
    assert "stale append" in kinds(history, {0: "b", 1: "a"})


def test_an_append_of_unknown_fate_lands_behind_the_end_that_was_told_before_it() -> None:
    history = History()
    sent(history, "a", None, outcome=Outcome.INFO)
    history.tell_end(history.ask_end("c", P), 2)
    sent(history, "b", None, outcome=Outcome.INFO)
    sent(history, "c", None, outcome=Outcome.INFO)
    assert kinds(history, {0: "a", 1: "b"}) == {"stale append"}
    assert kinds(history, {0: "a", 1: "a2", 2: "c"}) == {"phantom"}


@pytest.mark.parametrize(("log_start", "found"), [(0, {"poll skip"}), (1, set())])
def test_poll_skip_unless_retention_allowed_it(log_start: int, found: set[str]) -> None:
    history = History()
    sent(history, "a", 0)
    sent(history, "b", 1)
    history.add(Assign("r", P, 0))
    history.add(LogStart(P, log_start))
    history.add(Poll("r", P, ((1, "b"),)))
    assert kinds(history, {0: "a", 1: "b"}) == found


def test_non_monotonic_poll_unless_it_seeks() -> None:
    history = History()
    sent(history, "a", 0)
    history.add(Poll("r", P, ((0, "a"),)))
    history.add(Assign("r", P, 0))
    history.add(Poll("r", P, ((0, "a"),)))
    assert kinds(history, {0: "a"}) == set()
    history.add(Poll("r", P, ((0, "a"),)))
    assert kinds(history, {0: "a"}) == {"non-monotonic poll"}


def test_unseen() -> None:
    history = History()
    sent(history, "a", 0)
    assert kinds(history, {0: "a"}, drained=["r"]) == {"unseen"}
    assert kinds(history, {0: "a"}, log_start=1, drained=["r"]) == set()


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (PlainRead(P, ((0, 1), (3, 4))), {"parquet gap"}),
        (PlainRead(P, ((0, 3), (3, 4))), {"parquet doubled"}),
        (PlainRead(P, ((2, 3),), live=((0, 1), (2, 3))), {"live file missing"}),
        (PlainRead(P, ()), set()),
    ],
)
def test_plain_reads(read: PlainRead, found: set[str]) -> None:
    history = History()
    history.add(read)
    assert kinds(history, {}) == found


def test_read_after_removal() -> None:
    history = History()
    sent(history, "a", 0)
    history.add(Poll("r", P, ((0, "a"),)))
    history.add(Gone("t"))
    history.add(Poll("s", P, ((0, "a"),)))
    assert kinds(history, {0: "a"}) == {"read after removal"}
