"""Groups keep their promises in random lives; and the machine that says so is tried on rules that
are broken on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_offsets.committing import commits, expiry, pending
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.membership import reconcile
from ledgermq_offsets.state.group import Group, Member
from ledgermq_offsets.state.records import PendingKey
from ledgermq_offsets.topics import TopicsView
from tests.property.group_life import GroupLife
from tests.property.group_transactions import TransactionLife

LIVES = settings(max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
HUNT = settings(
    LIVES,
    max_examples=10_000,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    print_blob=False,
)
Mutate = Callable[[pytest.MonkeyPatch], None]


def test_random_lives_of_a_group() -> None:
    run_state_machine_as_test(GroupLife, settings=LIVES)


def test_random_lives_of_a_group_with_transactions() -> None:
    run_state_machine_as_test(TransactionLife, settings=LIVES)


def commits_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commits, "is_current", lambda group, member, partition, commit: True)


def counters_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commits, "is_news", lambda stored, commit: True)


def commits_of_others_count_as_repetitions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commits, "check_same_program", lambda member, stored, commit: None)


def commits_may_go_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commits, "goes_back", lambda stored, commit: False)


def epochs_are_not_drawn_anew(patch: pytest.MonkeyPatch) -> None:
    def draw(group: Group) -> int:
        group._touched = True
        return group.epoch

    patch.setattr(Group, "draw", draw)


def a_reset_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "renew", lambda group, member, partition: None)


def a_partition_is_given_before_it_was_let_go(patch: pytest.MonkeyPatch) -> None:
    def withdraw(group: Group, member: Member, partition: PartitionId, now_s: float) -> None:
        group.release(member, partition)
        group.notify(member)

    patch.setattr(Group, "withdraw", withdraw)


def no_member_is_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "silent_at_s", property(lambda member: math.inf))


def freed_partitions_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "give_free", lambda group, partitions: None)
    patch.setattr("ledgermq_offsets.membership.members.give_free", lambda group, partitions: None)


def members_are_not_written(patch: pytest.MonkeyPatch) -> None:
    true = Group.drain
    patch.setattr(Group, "drain", lambda group: [r for r in true(group) if not r.key.startswith(b"member/")])


def let_go_is_not_written(patch: pytest.MonkeyPatch) -> None:
    true = Group.release

    def release(group: Group, member: Member, partition: PartitionId) -> None:
        before = dict(group._touched_members)
        true(group, member, partition)
        group._touched_members = before

    patch.setattr(Group, "release", release)


def a_new_group_begins_at_one(patch: pytest.MonkeyPatch) -> None:
    true = Group.begin
    patch.setattr(Group, "begin", lambda group, epoch, now_ms: true(group, 1, now_ms))


def the_bare_epoch_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "renew_bare", lambda group: None)


def growth_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "refresh", lambda group, meanings, view: None)


def tombstones_are_not_written(patch: pytest.MonkeyPatch) -> None:
    def drain(group: Group) -> list[LogRecord]:
        return [record for record in true(group) if record.value is not None]

    true = Group.drain
    patch.setattr(Group, "drain", drain)


MUTANTS: list[Mutate] = [
    commits_are_not_checked,
    counters_are_not_looked_at,
    commits_of_others_count_as_repetitions,
    commits_may_go_back,
    epochs_are_not_drawn_anew,
    a_reset_keeps_the_epoch,
    a_partition_is_given_before_it_was_let_go,
    no_member_is_removed,
    freed_partitions_are_forgotten,
    members_are_not_written,
    let_go_is_not_written,
    a_new_group_begins_at_one,
    the_bare_epoch_stays,
    growth_is_not_noticed,
    tombstones_are_not_written,
]


@pytest.mark.slow
@pytest.mark.timeout(1500)  # most are caught by tens of examples, two need some thousand
@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_broken_rule_is_caught(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an assertion: a promise of the group, or one of the program's own."""
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(GroupLife, settings=HUNT)


def plain_commits_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commits, "check_settled", lambda group, partition: None)


def resets_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("ledgermq_offsets.served_offsets.check_settled", lambda group, partition: None)


def other_transactions_and_readers_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pending, "check_settled", lambda group, partition: None)


def expiry_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    true = expiry.is_due

    def is_due(group: Group, limits: GroupLimits, now_ms: int) -> bool:
        kept, group.pending = group.pending, {}
        due = true(group, limits, now_ms)
        group.pending = kept
        return due

    patch.setattr(expiry, "is_due", is_due)
    patch.setattr("ledgermq_offsets.coordinator.is_due", is_due)


def staged_offsets_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pending, "is_current", lambda group, member, partition, commit: True)


def staged_counters_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pending, "is_news", lambda stored, commit: True)


def aborted_offsets_are_committed(patch: pytest.MonkeyPatch) -> None:
    true = pending.settle

    def settle(group: Group, key: PendingKey, *, commit: bool, view: TopicsView, now_ms: int) -> None:
        true(group, key, commit=True, view=view, now_ms=now_ms)

    patch.setattr(pending, "settle", settle)


def transactions_are_ordered_without_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingKey, "__le__", lambda one, other: one.number <= other.number)


def staged_offsets_are_not_written(patch: pytest.MonkeyPatch) -> None:
    true = Group.drain
    patch.setattr(Group, "drain", lambda group: [r for r in true(group) if not r.key.startswith(b"pending/")])


TRANSACTION_MUTANTS: list[Mutate] = [
    plain_commits_do_not_wait,
    resets_do_not_wait,
    other_transactions_and_readers_do_not_wait,
    expiry_does_not_wait,
    staged_offsets_are_not_checked,
    staged_counters_are_not_looked_at,
    aborted_offsets_are_committed,
    transactions_are_ordered_without_epochs,
    staged_offsets_are_not_written,
]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("mutate", TRANSACTION_MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_broken_rule_of_staged_offsets_is_caught(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(TransactionLife, settings=HUNT)
