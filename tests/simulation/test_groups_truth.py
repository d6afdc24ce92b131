"""The judge of groups sees a commit of before a reset."""

from __future__ import annotations

from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.state.records import (
    Held,
    MemberEntry,
    MemberValue,
    OffsetEntry,
    OffsetValue,
    Subscription,
    encode,
)
from tests.simulation.groups_truth import GroupTruth

PLACE = PartitionId(7, 0)


def taken(*entries: MemberEntry | OffsetEntry) -> GroupTruth:
    """Return the truth after these records, each of a decision of its own."""
    truth = GroupTruth()
    for entry in entries:
        record = encode(entry)
        truth.take([(record.key, record.value)], set())
    return truth


def given(epoch: int) -> MemberEntry:
    value = MemberValue(Subscription(("main",)), False, {PLACE: Held(epoch, False)}, {7: "main"})
    return MemberEntry("workers", "m", value)


def committed(offset: int, epoch: int, counter: int) -> OffsetEntry:
    return OffsetEntry("workers", PLACE, OffsetValue(offset, "", 0, epoch, counter, "main"))


def test_a_commit_of_before_a_reset_is_a_zombie() -> None:
    truth = taken(given(3), committed(50, 3, 1), committed(5, 4, 0), committed(55, 3, 2))
    assert [each.kind for each in truth.violations] == ["zombie commit"]
    assert "after a reset under 4" in truth.violations[0].text


def test_a_commit_under_the_epoch_of_the_reset_is_none() -> None:
    truth = taken(given(3), committed(50, 3, 1), committed(5, 4, 0), given(4), committed(8, 4, 1))
    assert truth.violations == []
