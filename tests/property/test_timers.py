"""Check that timed messages keep their promises in random years, and that the same lives find rules that are
broken on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from ledgermq.errors import LedgerMQError
from ledgermq_broker.timed.state import places
from ledgermq_broker.timed.state.blocks import START, end_of
from ledgermq_broker.timed.state.bundle_timers import BundleTimers
from ledgermq_broker.timed.state.memory.waiting import Waiting
from ledgermq_broker.timed.state.places import Range, RangeId
from ledgermq_broker.timed.state.recalls import Recalls
from tests.property import timer_life
from tests.property.timer_life import live, live_through_an_outage

SEEDS = range(8)
HUNTED = range(100, 130)
Mutate = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_year_of_timed_messages(seed: int) -> None:
    life = live(seed)
    assert life.delivered


@pytest.mark.parametrize("seed", range(3))
def test_overdue_ranges_find_places(seed: int) -> None:
    assert live_through_an_outage(seed).delivered


def turns_go_by_the_present(patch: pytest.MonkeyPatch) -> None:
    """All that is overdue goes to minutes, of which there are few."""

    def present(*arguments: Any, **named: Any) -> places.Placement:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(Range, "turn_us", 1 << 62)
            return places.place(*arguments, **named)

    patch.setattr(timer_life, "place", present)


def a_minute_is_loaded_before_wider_ranges_are_turned(patch: pytest.MonkeyPatch) -> None:
    def near(self: BundleTimers, loaded: Collection[RangeId]) -> list[tuple[RangeId, Range]]:
        return [(range_id, r) for range_id, r in self.ranges.items() if not range_id.far and range_id not in loaded]

    patch.setattr(BundleTimers, "_near", near)


def the_watermark_passes_what_is_not_loaded(patch: pytest.MonkeyPatch) -> None:
    true = BundleTimers.delivered
    patch.setattr(BundleTimers, "deliverable_to", lambda self, now_us, loaded: now_us)
    patch.setattr(BundleTimers, "delivered", lambda self, to, loaded: true(self, to, set(self.ranges)))


def flushed_rows_are_loaded_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BundleTimers, "horizon_of", lambda self, offset: None)


def flushed_rows_stay_in_memory(patch: pytest.MonkeyPatch) -> None:
    def flushed(self: Waiting, end_offset: int, horizon_us: int) -> None:
        self._unflushed = [offset for offset in self._unflushed if offset >= end_offset]

    patch.setattr(Waiting, "flushed", flushed)


def the_watermark_is_a_time(patch: pytest.MonkeyPatch) -> None:
    true = BundleTimers.delivered
    patch.setattr(BundleTimers, "delivered", lambda self, to, loaded: true(self, end_of(to.due_us), loaded))


def a_range_is_over_with_its_first_message(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        BundleTimers,
        "_finished",
        lambda self, to: [r for r in self.ranges if not r.far and self.ranges[r].from_us <= to.due_us],
    )


def rows_of_one_time_are_in_any_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("ledgermq_broker.timed.state.memory.rows._BY_KEY", [("due", "ascending"), ("offset", "descending")])


def recalled_messages_are_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BundleTimers, "live", lambda self, rows, exists: rows)


def recalled_after_delivery(patch: pytest.MonkeyPatch) -> None:
    true = BundleTimers.recall
    patch.setattr(
        BundleTimers, "recall", lambda self, message, due_us, *rest: true(self, message, due_us, START, START, rest[-1])
    )


def recalls_count_for_any_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recalls, "holds", lambda self, message, topic_id: message in self.known)


MUTANTS: list[Mutate] = [
    turns_go_by_the_present,
    a_minute_is_loaded_before_wider_ranges_are_turned,
    the_watermark_passes_what_is_not_loaded,
    flushed_rows_are_loaded_again,
    flushed_rows_stay_in_memory,
    the_watermark_is_a_time,
    a_range_is_over_with_its_first_message,
    rows_of_one_time_are_in_any_order,
    recalled_messages_are_delivered,
    recalled_after_delivery,
    recalls_count_for_any_topic,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_broken_rule_is_found(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    for seed in HUNTED:
        try:
            live_through_an_outage(seed)
            live(seed)
        except (AssertionError, LedgerMQError, LookupError):
            return
    pytest.fail(f"no life of {len(HUNTED)} noticed that {mutate.__name__}")
