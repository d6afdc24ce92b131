"""When a reader has to look, and when what it knows is worth nothing any more: design L7 as values."""

from __future__ import annotations

import pytest

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.view.following.follow import LOOK_AFTER_S, LOOK_AFTER_S_MAX, Follower

CLAIM, DATA = fmt.CLAIM, fmt.DATA


def segment(slot: int, kind: fmt.SegmentKind = DATA, previous: int | None = None, epoch: int = 1) -> fmt.SegmentIndex:
    put_id = bytes([slot]) * 16
    return fmt.SegmentIndex(
        bundle=1,
        slot=slot,
        kind=kind,
        epoch=epoch,
        writer=b"w" * 16,
        put_id=put_id,
        previous=bytes([previous]) * 16 if previous else b"",
    )


@pytest.fixture
def follower() -> Follower:
    """Has seen a claim and a data segment, in slots 1 and 2."""
    state = LedgerState(10)
    state.apply(segment(1, CLAIM))
    state.apply(segment(2, previous=1))
    return Follower(state)


def test_valid_segments_are_no_surprise(follower: Follower) -> None:
    assert follower.take(segment(3, previous=2))
    assert follower.take(segment(4, previous=3))
    assert not follower.is_look_due(1e9)
    assert follower.next_slot == 5


def test_a_void_segment_is_looked_into_at_once(follower: Follower) -> None:
    assert not follower.take(segment(3, previous=1))
    assert follower.is_look_due(0)
    with pytest.raises(AssertionError, match="has to be read first"):
        follower.take(segment(4, previous=2))
    assert follower.look(trim_slot=3, now_s=0)
    assert not follower.is_look_due(1e9)
    assert follower.take(segment(4, previous=2))


@pytest.mark.parametrize(("trim_slot", "goes_on"), [(1, True), (3, True), (4, False), (9, False)])
def test_what_was_read_since_the_last_look_must_not_be_trimmed(
    follower: Follower, trim_slot: int, goes_on: bool
) -> None:
    """Slot 3 was read first; a trim slot above it means that it, or one after it, may have been
    deleted and filled again.
    """
    follower.take(segment(3, previous=2))
    follower.take(segment(4, previous=1))
    assert follower.look(trim_slot, 0) is goes_on


def test_what_was_read_before_a_look_may_be_trimmed_after_it(follower: Follower) -> None:
    follower.take(segment(3, previous=2))
    assert follower.look(3, 0)
    assert follower.look(4, 0)
    assert not follower.look(5, 0), "slot 4 is read next, and may be gone"


def test_a_missing_slot_is_looked_into_after_a_second_and_then_ever_more_seldom(follower: Follower) -> None:
    now, waits = 100.0, []
    follower.miss(now)
    for _ in range(8):
        begun = now
        while not follower.is_look_due(now):
            follower.miss(now)
            now += 0.5
        waits.append(now - begun)
        assert follower.look(1, now)
    assert waits == [LOOK_AFTER_S, 2, 4, 8, 16, LOOK_AFTER_S_MAX, LOOK_AFTER_S_MAX, LOOK_AFTER_S_MAX]


def test_progress_makes_it_look_soon_again(follower: Follower) -> None:
    follower.miss(0)
    for now in (1, 3, 7):
        assert follower.is_look_due(now)
        assert follower.look(1, now)
    assert follower.take(segment(3, previous=2))
    assert not follower.is_look_due(1e9)
    follower.miss(50)
    assert not follower.is_look_due(50.9)
    assert follower.is_look_due(51)
