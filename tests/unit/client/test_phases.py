"""The state machines of a consumer, walked by their tables."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import ModuleType

import pytest

from ledgermq.client.consuming import reading
from ledgermq.client.consuming.reading import FLOWS, Flow, FlowStep, Reading
from ledgermq.client.groups.holding import holding
from ledgermq.client.groups.holding.holding import TRANSITIONS, Event, Holding, Phase
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.offset_stores.contract import GivenPartition
from ledgermq.runtime.backoff import Backoff
from ledgermq.runtime.transitions import IllegalTransition
from ledgermq.sources import Sources

AT = TopicPartition("orders", 3)


def a_holding(phase: Phase) -> Holding:
    made = Holding(GivenPartition(AT, 1, 7), lambda _: None, lambda *_: None)
    made.phase = phase
    return made


def a_reading(flow: Flow) -> Reading:
    return Reading(AT, 1, 0, Backoff(Sources(), 0.001, 0.001), flow=flow)


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("phase", Phase)
def test_a_holding_takes_the_listed_events_and_refuses_all_others(phase: Phase, event: Event) -> None:
    made = a_holding(phase)
    following = TRANSITIONS.get((phase, event))
    if following is None:
        with pytest.raises(
            IllegalTransition, match=f"orders/3: event {event.name} is not allowed in state {phase.name}"
        ):
            made.advance(event)
        assert made.phase is phase
    else:
        made.advance(event)
        assert made.phase is following


@pytest.mark.parametrize("step", FlowStep)
@pytest.mark.parametrize("flow", Flow)
def test_a_reading_takes_the_listed_steps_and_refuses_all_others(flow: Flow, step: FlowStep) -> None:
    made = a_reading(flow)
    following = FLOWS.get((flow, step))
    if following is None:
        with pytest.raises(IllegalTransition, match="orders/3"):
            made.turn(step)
        assert made.flow is flow
    else:
        made.turn(step)
        assert made.flow is following


def reachable(table: Mapping[tuple[Enum, Enum], Enum], start: Enum) -> set[Enum]:
    found = {start}
    while more := {to for (state, _), to in table.items() if state in found} - found:
        found |= more
    return found


def test_every_phase_is_reached_from_the_first_one() -> None:
    assert reachable(TRANSITIONS, Phase.LOADING) == set(Phase)  # type: ignore[arg-type]
    assert reachable(FLOWS, Flow.OPEN) == set(Flow)  # type: ignore[arg-type]


def test_every_phase_ends_and_no_phase_comes_back() -> None:
    order = list(Phase)
    for phase in Phase:
        assert Phase.GONE in reachable(TRANSITIONS, phase)  # type: ignore[arg-type]
    assert all(order.index(state) < order.index(to) for (state, _), to in TRANSITIONS.items())


@pytest.mark.parametrize(
    ("module", "table", "states", "events"),
    [(holding, TRANSITIONS, Phase, Event), (reading, FLOWS, Flow, FlowStep)],
)
def test_the_docstring_draws_the_table_that_is_in_force(
    module: ModuleType, table: Mapping[tuple[Enum, Enum], Enum], states: type[Enum], events: type[Enum]
) -> None:
    drawn = {}
    for line in (module.__doc__ or "").splitlines():
        cells = line.split()
        if cells and cells[0] in states.__members__:
            drawn[cells[0]] = cells[-len(events) :]
    expected = {
        state.name: [table[state, event].name if (state, event) in table else "-" for event in events]
        for state in states
    }
    assert drawn == expected


@pytest.mark.parametrize("phase", Phase)
def test_what_a_phase_means(phase: Phase) -> None:
    made = a_holding(phase)
    assert made.kept == (phase in (Phase.LOADING, Phase.LOADED, Phase.ASSIGNED, Phase.READY))
    assert made.with_program == (phase in (Phase.ASSIGNED, Phase.READY, Phase.REVOKING))
    assert made.gone == (phase is Phase.GONE)


def test_a_bug_is_no_error_of_the_user() -> None:
    assert issubclass(IllegalTransition, AssertionError)
