"""Classic groups keep their promises under random lives, and each planted bug breaks one."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from ledgermq.errors import GroupError, UnknownMember
from ledgermq_offsets.classic import records
from ledgermq_offsets.classic.coordinator import ClassicGroups
from ledgermq_offsets.classic.group import ClassicGroup, ClassicMember
from ledgermq_offsets.classic.values import State
from tests.property.classic_life import Life

SEEDS, HUNTED = 50, 150
STEPS = 160
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_lives(seed: int) -> None:
    Life(seed).run(STEPS)


def any_generation_counts(patch: pytest.MonkeyPatch) -> None:
    """A commit, sync or heartbeat of an old generation is taken for one of the present."""
    member = ClassicGroups._member

    def lax(self: ClassicGroups, name: str, member_id: str, instance_id: str, generation: int):  # type: ignore[no-untyped-def]
        group = self.groups.get(name)
        return member(self, name, member_id, instance_id, group.generation if group else generation)

    patch.setattr(ClassicGroups, "_member", lax)


def a_generation_is_given_out_again(patch: pytest.MonkeyPatch) -> None:
    """A coordinator goes on right behind what is in its log."""
    loaded = records._group

    def lax(name: str, data: bytes) -> ClassicGroup:
        group = loaded(name, data)
        group.given -= 1
        return group

    patch.setattr(records, "_group", lax)


def what_was_given_out_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """A second generation in a row that never gets whole leaves no trace in the log."""
    complete = ClassicGroup.complete

    def lax(self: ClassicGroup, now_s: float, now_ms: int) -> None:
        complete(self, now_s, now_ms)
        self.dirty = self.state is State.EMPTY

    patch.setattr(ClassicGroup, "complete", lax)


def assignments_are_not_recorded(patch: pytest.MonkeyPatch) -> None:
    assign = ClassicGroup.assign

    def lax(self: ClassicGroup, assignments: dict[str, bytes], now_s: float) -> None:
        assign(self, assignments, now_s)
        self.dirty = False

    patch.setattr(ClassicGroup, "assign", lax)


def the_dead_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClassicMember, "silent_at_s", property(lambda self: inf))


def a_held_member_is_silent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClassicMember, "silent_at_s", property(lambda self: self.heard_s + self.session_timeout_ms / 1000))


def any_member_assigns(patch: pytest.MonkeyPatch) -> None:
    sync = ClassicGroups.sync

    def lax(self: ClassicGroups, name: str, member_id: str, generation: int, now_s: float, **named):  # type: ignore[no-untyped-def]
        group = self.groups.get(name)
        if group is not None and member_id in group.members:
            group.leader = member_id
        return sync(self, name, member_id, generation, now_s, **named)

    patch.setattr(ClassicGroups, "sync", lax)


def held_syncs_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    prepare = ClassicGroup.prepare

    def lax(self: ClassicGroup, now_s: float, initial_delay_s: float | None = None) -> None:
        if self.state is State.COMPLETING:
            for member in self.members.values():
                member.held = False
        prepare(self, now_s, initial_delay_s)

    patch.setattr(ClassicGroup, "prepare", lax)


def the_first_members_protocol_is_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClassicGroup, "_voted", lambda self: next(iter(self.members.values())).protocols[0][0])


def former_processes_are_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """Two processes with one instance id throw each other out, without end."""

    def lax(self: ClassicGroups, group: ClassicGroup, member_id: str, instance_id: str) -> ClassicMember:
        if member_id not in group.members:
            raise UnknownMember("join again")
        return group.members[member_id]

    patch.setattr(ClassicGroups, "_checked", lax)


PLANTED: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        any_generation_counts,
        a_generation_is_given_out_again,
        what_was_given_out_is_not_recorded,
        assignments_are_not_recorded,
        the_dead_stay,
        a_held_member_is_silent,
        any_member_assigns,
        held_syncs_are_forgotten,
        the_first_members_protocol_is_taken,
        former_processes_are_not_fenced,
    )
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    for seed in range(HUNTED):
        try:
            Life(seed).run(STEPS)
        except (AssertionError, GroupError, KeyError) as caught:
            print(f"{name}: seed {seed}: {caught}")
            return
    pytest.fail(f"{name} was not caught by {HUNTED} seeds")
