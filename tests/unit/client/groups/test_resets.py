"""Where resets of committed offsets go: the pure plan."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ledgermq.client.groups.admin.resets import Bounds, Like, PlannedReset, Shift, Where, check_where, plan
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import InvalidConfig, InvalidRequest, OffsetOutOfRange

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOUNDS = {P0: Bounds(7, 10, 100), P1: Bounds(7, 0, 50)}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def after(where: Where, *, at_time: int | None = None) -> dict[TopicPartition, int]:
    bounds = {at: Bounds(b.topic_id, b.log_start, b.end, at_time) for at, b in BOUNDS.items()}
    return {
        change.partition: change.after
        for change in plan(where, bounds, {P0: 60}, {P1: 20, TopicPartition("other", 0): 5})
    }


def test_every_way_to_say_where() -> None:
    assert after("earliest") == {P0: 10, P1: 0}
    assert after("latest") == {P0: 100, P1: 50}
    assert after(30) == {P0: 30, P1: 30}
    assert after(NOON, at_time=17) == {P0: 17, P1: 17}
    assert after(NOON) == {P0: 100, P1: 50}, "nothing that young: the end"
    assert after(Shift(-10)) == {P0: 50}, "where nothing is committed there is nothing to shift"
    assert after(Like("other")) == {P1: 20}


def test_shifts_stop_at_the_first_and_at_the_next_record() -> None:
    assert after(Shift(-1000)) == {P0: 10}
    assert after(Shift(1000)) == {P0: 100}


def test_how_far_it_goes() -> None:
    assert plan("earliest", {P0: BOUNDS[P0]}, {P0: 60}, {})[0].records == -50
    assert plan("earliest", {P0: BOUNDS[P0]}, {}, {}) == [PlannedReset(P0, 7, None, 10)]
    assert PlannedReset(P0, 7, None, 10).records is None


@pytest.mark.parametrize("offset", [9, 51, 101, -1])
def test_an_offset_that_some_partition_does_not_have_resets_none(offset: int) -> None:
    with pytest.raises(OffsetOutOfRange, match=r"t/\d holds offsets"):
        after(offset)


@pytest.mark.parametrize("where", [Shift(1), Like("g")])
def test_nothing_to_reset_is_said(where: Where) -> None:
    with pytest.raises(InvalidRequest, match="no partition"):
        plan(where, BOUNDS, {}, {})


@pytest.mark.parametrize("where", [None, True, 1.5, "middle", datetime(2026, 1, 1)])  # noqa: DTZ001  that is the point
def test_an_invalid_place_is_refused(where: object) -> None:
    with pytest.raises(InvalidConfig):
        check_where(where)
