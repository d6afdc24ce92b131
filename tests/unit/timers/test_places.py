"""Where due times wait: in exactly one range, late enough, never in one that turns or is loaded."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ledgermq_broker.timed.state.limits import DAY_US, MINUTE_US, SECOND_US
from ledgermq_broker.timed.state.places import (
    FAR_PLACES,
    MARGINS_US,
    NEAR_PLACES,
    NEAR_WIDTH_US,
    RESERVED,
    WIDTHS_US,
    Placement,
    Range,
    RangeId,
    flush_horizon,
    place,
)

T0_US = 19_000 * DAY_US
TEN_US = 10 * MINUTE_US
TWO_HOURS_US = 120 * MINUTE_US


def placed(
    *dues: int,
    now_us: int = T0_US,
    ranges: dict[RangeId, Range] | None = None,
    closed_us: int = T0_US,
    loaded: tuple[RangeId, ...] = (),
    turned: Range | None = None,
) -> Placement:
    return place(
        pa.array(sorted(dues), pa.int64()),
        now_us,
        ranges or {},
        closed_us,
        lambda r: 100 + r.place,
        loaded=loaded,
        turned=turned,
    )


def near(place: int, from_us: int) -> tuple[RangeId, Range]:
    return RangeId(False, place), Range(from_us, from_us + MINUTE_US, 0)


def far(place: int, from_us: int, width_us: int, *, turning: bool = False) -> tuple[RangeId, Range]:
    return RangeId(True, place), Range(from_us, from_us + width_us, 0, turning)


def full(far: bool, width_us: int, from_us: int, places: range) -> dict[RangeId, Range]:
    begins = range(from_us, from_us + len(places) * width_us, width_us)
    return {RangeId(far, n): Range(begin, begin + width_us, 0) for n, begin in zip(places, begins, strict=True)}


def test_each_due_time_waits_in_the_widest_range_that_begins_late_enough() -> None:
    widths = [
        group.range.width_us
        for due_us in (2 * MINUTE_US, TEN_US, 3 * TEN_US, TWO_HOURS_US, 5 * TWO_HOURS_US, DAY_US, 60 * DAY_US)
        for group in placed(T0_US + due_us + 1).groups
    ]
    assert widths == [MINUTE_US, TEN_US, TEN_US, TWO_HOURS_US, TWO_HOURS_US, DAY_US, 30 * DAY_US]


def test_a_new_range_begins_at_the_end_of_its_partition() -> None:
    [group] = placed(T0_US + TEN_US).groups
    assert group.range_id == RangeId(True, 0)
    assert group.range == Range(T0_US + TEN_US, T0_US + 2 * TEN_US, 100)


def test_due_times_of_one_interval_are_one_group() -> None:
    groups = placed(T0_US + 11 * MINUTE_US, T0_US + 12 * MINUTE_US, T0_US + 21 * MINUTE_US).groups
    assert [(group.start, group.stop) for group in groups] == [(0, 2), (2, 3)]


def test_a_range_that_exists_is_used() -> None:
    range_id, found = far(9, T0_US + TEN_US, TEN_US)
    [group] = placed(T0_US + TEN_US + 1, ranges={range_id: found}).groups
    assert (group.range_id, group.range) == (range_id, found)


def test_a_range_that_turns_takes_nothing() -> None:
    range_id, found = far(9, T0_US + TEN_US, TEN_US, turning=True)
    [group] = placed(T0_US + TEN_US + 1, ranges={range_id: found}).groups
    assert group.range.width_us == MINUTE_US


def test_a_range_that_is_loaded_takes_nothing() -> None:
    range_id, found = near(1, T0_US + 2 * MINUTE_US)
    placement = placed(T0_US + 2 * MINUTE_US + 1, ranges={range_id: found}, loaded=(range_id,))
    assert placement == Placement((), T0_US + 2 * MINUTE_US + 1)


def test_nothing_begins_at_or_below_what_is_closed() -> None:
    due_us = T0_US + 3 * MINUTE_US
    assert placed(due_us, closed_us=due_us - 1, now_us=T0_US).groups
    assert placed(due_us, closed_us=due_us, now_us=T0_US).lacking_us == due_us


def test_a_turn_places_in_narrower_ranges_only() -> None:
    turned = Range(T0_US, T0_US + TEN_US, 0, turning=True)
    [group] = placed(T0_US + 5 * MINUTE_US, closed_us=T0_US - 1, turned=turned).groups
    assert group.range.width_us == MINUTE_US


def test_a_turn_that_is_days_late_does_not_cut_into_minutes() -> None:
    turned = Range(T0_US, T0_US + DAY_US, 0, turning=True)
    dues = [T0_US + n * MINUTE_US for n in range(24 * 60)]
    placement = placed(*dues, now_us=T0_US + 3 * DAY_US, closed_us=T0_US - 1, turned=turned)
    assert placement.lacking_us is None
    assert {group.range.width_us for group in placement.groups} == {TWO_HOURS_US}


def test_a_flush_leaves_places_for_turns_and_a_turn_uses_them() -> None:
    """A flush takes a minute only if ten are free behind it."""
    minutes = full(False, MINUTE_US, T0_US + 2 * MINUTE_US, NEAR_PLACES[: len(NEAR_PLACES) - RESERVED[0]])
    due_us = T0_US + 9 * MINUTE_US
    assert placed(due_us, ranges=minutes).lacking_us == due_us
    turned = Range(T0_US, T0_US + TEN_US, 0, turning=True)
    assert placed(due_us, ranges=minutes, closed_us=T0_US - 1, turned=turned).lacking_us is None


def test_without_a_free_place_a_range_that_contains_the_due_time_is_used() -> None:
    full_far = full(True, TEN_US, T0_US + 40 * DAY_US, FAR_PLACES[:-1])
    day_id, day = far(FAR_PLACES[-1], T0_US + DAY_US, DAY_US)
    assert placed(T0_US + 2 * DAY_US - 1, ranges=full_far | {day_id: day}).groups[0].range == day
    due_us = T0_US + TWO_HOURS_US
    [group] = placed(due_us, ranges=full_far | dict([far(FAR_PLACES[-1], due_us, TEN_US)])).groups
    assert (group.range.from_us, group.range.width_us) == (due_us, TEN_US)
    assert placed(due_us, ranges=full_far | {day_id: day}).lacking_us == due_us


def test_what_has_a_place_before_the_first_that_lacks_one_is_placed() -> None:
    full_far = full(True, TEN_US, T0_US + 40 * DAY_US, FAR_PLACES)
    placement = placed(T0_US + 5 * MINUTE_US, T0_US + DAY_US, ranges=full_far)
    assert [(group.start, group.stop) for group in placement.groups] == [(0, 1)]
    assert placement.lacking_us == T0_US + DAY_US


def test_the_horizon_is_a_whole_minute_ahead() -> None:
    assert flush_horizon(T0_US, {}, 0) == T0_US + 4 * MINUTE_US  # six minutes fit before the first ten minutes
    assert flush_horizon(T0_US + 8 * MINUTE_US, {}, 0) == T0_US + TEN_US
    assert flush_horizon(T0_US, {}, T0_US + 8 * MINUTE_US) == T0_US + TEN_US


def test_the_horizon_is_lower_if_minutes_have_ranges() -> None:
    minutes = full(False, MINUTE_US, T0_US + 2 * MINUTE_US, NEAR_PLACES[:8])
    assert flush_horizon(T0_US, minutes, 0) == T0_US + 2 * MINUTE_US
    later = full(False, MINUTE_US, T0_US + 60 * MINUTE_US, NEAR_PLACES[:8])
    assert flush_horizon(T0_US, later, 0) == T0_US + TEN_US


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, dict[RangeId, Range]]:
    now_us = T0_US + draw(st.integers(0, 2 * DAY_US))
    ranges = {}
    for range_id in [*(RangeId(False, n) for n in NEAR_PLACES), *(RangeId(True, n) for n in FAR_PLACES[:12])]:
        if draw(st.booleans()):
            width_us = draw(st.sampled_from(WIDTHS_US[:-1])) if range_id.far else NEAR_WIDTH_US
            begin = (now_us // width_us + draw(st.integers(-1, 12))) * width_us
            ranges[range_id] = Range(begin, begin + width_us, 0, range_id.far and draw(st.booleans()))
    return now_us, ranges


@given(worlds(), st.lists(st.integers(0, 366 * DAY_US), max_size=30), st.booleans())
def test_each_due_time_gets_one_place(world: tuple[int, dict[RangeId, Range]], after: list[int], is_turn: bool) -> None:
    now_us, ranges = world
    loaded = {i for i, r in ranges.items() if not i.far and r.from_us <= now_us + 20 * SECOND_US}
    turned = min((r for r in ranges.values() if r.turning), default=None, key=lambda r: r.from_us) if is_turn else None
    dues = sorted(now_us + 1 + span for span in after)
    if turned is not None:
        dues = sorted(turned.from_us + span % turned.width_us for span in after)
    closed_us = now_us if turned is None else turned.from_us - 1
    placement = place(pa.array(dues, pa.int64()), now_us, ranges, closed_us, lambda r: 7, loaded=loaded, turned=turned)
    at = 0
    begun: dict[RangeId, Range] = {}
    for group in placement.groups:
        found = group.range
        assert group.start == at < group.stop
        assert all(found.from_us <= due < found.to_us for due in dues[group.start : group.stop])
        assert found.from_us > closed_us
        assert not found.turning
        assert group.range_id not in loaded
        assert turned is None or found.width_us < turned.width_us
        assert found == ranges.get(group.range_id, found)
        assert begun.setdefault(group.range_id, found) == found
        if group.range_id not in ranges and turned is None:
            assert found.width_us == NEAR_WIDTH_US or found.from_us >= now_us + MARGINS_US[found.width_us]
        at = group.stop
    assert (at == len(dues)) == (placement.lacking_us is None)
    assert placement.lacking_us is None or placement.lacking_us == dues[at]


@given(worlds())
def test_the_minutes_behind_the_horizon_find_places(world: tuple[int, dict[RangeId, Range]]) -> None:
    now_us, ranges = world
    minutes = {range_id: found for range_id, found in ranges.items() if not range_id.far}
    horizon_us = flush_horizon(now_us, minutes, 0)
    assert horizon_us % MINUTE_US == 0
    assert horizon_us >= now_us + 90 * SECOND_US
    dues = pa.array(range(horizon_us + 1, horizon_us + 3 * TWO_HOURS_US, MINUTE_US), pa.int64())
    assert place(dues, now_us, minutes, now_us, lambda r: 0).lacking_us is None
