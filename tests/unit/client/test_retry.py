"""Retry policies as values: their waits, their bounds, and the combinations that are refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ledgermq import Retry, sync
from ledgermq.client.groups.handlers.handler import handler_settings
from ledgermq.errors import InvalidConfig


def function(message: object, error: Exception) -> None:
    """What follows the last attempt."""


def test_in_order_doubles_its_waits_and_counts_the_first_call() -> None:
    policy = Retry.in_order(max_attempts=3, then="drop", wait_ms_first=100, wait_ms_max=1000)
    waits = [policy.wait_s(attempt, Random(1)) for attempt in range(1, 8)]
    whole = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, whole, strict=True))
    assert len(set(waits)) > 4, "shortened at random"
    assert [policy.is_last(attempt) for attempt in (1, 2, 3, 4)] == [False, False, True, True]
    assert not Retry.in_order().is_last(999_999)


def test_metaq_waits_half_a_second_times_the_attempt_and_five_at_most() -> None:
    policy = Retry.metaq(store="x")
    assert [policy.wait_s(attempt, Random()) for attempt in (1, 2, 9, 10, 11)] == [0.5, 1.0, 4.5, 5.0, 5.0]
    assert [policy.is_last(attempt) for attempt in (4, 5, 6)] == [False, True, True]
    assert Retry.metaq(store="~/x").store == Path.home() / "x"


LEVELS_S = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200]
"""Of docs/retries.md, in seconds: literals, for the test must not read what it checks."""


def test_levels_wait_as_the_page_promises() -> None:
    policy = Retry.levels(max_attempts=18)
    assert [policy.wait_s(attempt, Random(1)) for attempt in range(1, 19)] == [*LEVELS_S, 7_200, 7_200]
    page = (Path(__file__).resolve().parents[3] / "docs" / "retries.md").read_text(encoding="utf-8")
    assert "`10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h`" in " ".join(page.split())


def test_levels_call_sixteen_times_by_default() -> None:
    policy = Retry.levels()
    assert [policy.is_last(attempt) for attempt in (1, 14, 15, 16)] == [False, False, False, True]
    assert [policy.wait_s(attempt, Random(1)) for attempt in range(1, 16)] == LEVELS_S[:15]


def test_defaults_of_the_policies_are_those_of_the_page() -> None:
    in_order, metaq, levels = Retry.in_order(), Retry.metaq(store="x"), Retry.levels()
    assert (in_order.max_attempts, in_order.wait_ms_first, in_order.wait_ms_max) == (None, 200, 30_000)
    assert (metaq.attempts, metaq.wait_ms_step, metaq.wait_ms_max, metaq.recover_every_s) == (5, 500, 5_000, 300.0)
    assert (metaq.recoveries_max, metaq.messages_max, metaq.bytes_max) == (None, 100_000, 1_073_741_824)
    assert (levels.max_attempts, levels.expired, levels.reorders, metaq.reorders) == (16, "skip", False, False)


def test_a_policy_is_a_frozen_value() -> None:
    policy = Retry.metaq(store="x")
    assert policy == Retry.metaq(store=Path("x"))
    assert policy != Retry.metaq(store="y")
    with pytest.raises(FrozenInstanceError):
        policy.attempts = 6  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_attempts": 0, "then": "drop"}, "max_attempts must be a whole number from 1"),
        ({"max_attempts": 3}, "max_attempts needs then"),
        ({"then": "drop"}, "then needs max_attempts"),
        ({"max_attempts": 3, "then": "dead_letter"}, "then must be 'stop' or 'drop' or a function, not 'dead_letter'"),
        ({"wait_ms_first": 2000, "wait_ms_max": 1000}, "wait_ms_first .2000. is more than wait_ms_max .1000."),
        ({"wait_ms_first": 0.5}, "wait_ms_first must be a whole number"),
    ],
)
def test_in_order_refuses_a_wrong_value_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        Retry.in_order(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"store": ""}, "store must be the path of a file"),
        ({"store": 5}, "store must be the path of a file"),
        ({"attempts": 0}, "attempts must be a whole number from 1"),
        ({"recover_every_s": 0}, "recover_every_s must be a number above 0"),
        ({"recoveries_max": 3}, "recoveries_max needs then"),
        ({"then": function}, "then needs recoveries_max"),
        ({"then": "stop", "recoveries_max": 3}, "then must be 'drop' or a function, not 'stop'"),
        ({"messages_max": 0}, "messages_max must be a whole number"),
        ({"bytes_max": 0}, "bytes_max must be a whole number"),
        ({"wait_ms_step": -1}, "wait_ms_step must be a whole number"),
        ({"reorders": 1}, "reorders must be True or False"),
    ],
)
def test_metaq_refuses_a_wrong_value_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        Retry.metaq(**{"store": "x", **given})


METAQ = Retry.metaq(store="x")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"retry": "metaq"}, r"retry must be .*Retry.levels\(…\), not 'metaq'"),
        ({"retry": Retry.in_order(), "retry_ms_first": 5}, "leave out retry_ms_first and retry_ms_max"),
        ({"retry": Retry.in_order(), "retry_ms_max": 5}, "leave out retry_ms_first and retry_ms_max"),
        ({"retry": Retry.in_order(), "commit": "before"}, "handled once, at most"),
        ({"retry": METAQ}, "after later ones of its partition"),
        ({"retry": METAQ, "ordered_by": "key"}, r"after later ones of its key.*reorders=True"),
        ({"retry": METAQ, "ordered_by": None, "transactional": True}, "outside of its transaction"),
        (
            {"retry": Retry.in_order(3, then="drop"), "transactional": True},
            "a transactional handler has no max_attempts",
        ),
    ],
)
def test_a_handler_refuses_what_would_break_another_of_its_settings(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        handler_settings("t", "g", given)


@pytest.mark.parametrize(
    "given",
    [
        {"retry": METAQ, "ordered_by": None},
        {"retry": Retry.metaq(store="x", reorders=True), "ordered_by": "key"},
        {"retry": Retry.in_order(), "transactional": True},
        {"retry": Retry.in_order(3, then=function), "broadcast": True},
    ],
)
def test_a_handler_accepts_the_rest(given: dict[str, Any]) -> None:
    assert handler_settings("t", "g", given).policy is given["retry"]


def test_without_a_policy_the_settings_of_a_handler_give_one() -> None:
    assert handler_settings("t", "g", {}).policy == Retry.in_order()
    given = {"retry_ms_first": 100, "retry_ms_max": 7}
    assert handler_settings("t", "g", given).policy == Retry.in_order(wait_ms_first=7, wait_ms_max=7)


def test_without_asyncio_the_function_runs_in_a_thread_and_all_else_is_kept() -> None:
    with sync.connect("localhost:1") as client:
        handler = client.handler("t", group="g", retry=Retry.in_order(3, then=function))(print)
        assert handler.settings.policy != Retry.in_order(3, then=function)
        assert handler.settings.policy.is_last(3)
        handler = client.handler("t", group="g", ordered_by=None, retry=METAQ)(print)
        assert handler.settings.policy is METAQ
