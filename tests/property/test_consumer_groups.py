"""Groups keep their promises with members of our own protocol and of Kafka's (KIP-848); and the machine that says so
is tried on rules that are broken on purpose.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from ledgermq_offsets.consumer import rules
from tests.property.consumer_life import ConsumerLife
from tests.property.test_groups import HUNT, LIVES

Mutate = Callable[[pytest.MonkeyPatch], None]


def test_random_lives_of_a_group_of_both_protocols() -> None:
    run_state_machine_as_test(ConsumerLife, settings=settings(LIVES, max_examples=30))


def commits_are_not_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "check_commit", lambda group, member, seen, partition, topic: None)


def commits_count_under_any_epoch(patch: pytest.MonkeyPatch) -> None:
    true = rules.check_commit
    patch.setattr(
        rules,
        "check_commit",
        lambda group, member, seen, partition, topic: true(group, member, 2**62, partition, topic),
    )


def a_member_that_takes_a_partition_has_let_it_go(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "_may_be_taking", lambda member, partition, seen: False)


def a_member_that_says_nothing_has_let_go(patch: pytest.MonkeyPatch) -> None:
    true = rules.note_heartbeat

    def note(group, member, request, seen, now_s):  # type: ignore[no-untyped-def]
        request.kafka.owned = True
        true(group, member, request, seen, now_s)

    patch.setattr(rules, "note_heartbeat", note)


def a_member_that_begins_again_keeps_what_was_withdrawn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "begin_again", lambda group, member: None)


MUTANTS: list[Mutate] = [
    commits_are_not_fenced,
    commits_count_under_any_epoch,
    a_member_that_takes_a_partition_has_let_it_go,
    a_member_that_says_nothing_has_let_go,
    a_member_that_begins_again_keeps_what_was_withdrawn,
]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_broken_rule_is_caught(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(ConsumerLife, settings=HUNT)
