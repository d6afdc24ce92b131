"""Which producer has a partition for itself: leases, bounds, and a state that is loaded from its records."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import PartitionHeld, ProducerFenced, ResourceExhausted
from ledgermq.protocol.naming.exclusive_ids import exclusive_id, is_exclusive
from ledgermq_broker.exclusive.state.bundle_holders import BundleHolders, Claim, Standing
from ledgermq_broker.exclusive.state.limits import HolderLimits
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord

KEY = PartitionId(7, 0)
A, B = (exclusive_id(random.Random(seed).randbytes(16)) for seed in (1, 2))
LIMITS = HolderLimits(lease_ms=10_000, partitions_max=3)


def held(claim: Claim, holders: BundleHolders, now_s: float = 0.0) -> Standing:
    return holders.hold(KEY, claim, now_s).answer


def test_a_claim_needs_the_newest_number() -> None:
    holders = BundleHolders(LIMITS)
    assert held(Claim(A, "a"), holders).holder.producer_id == b"", "it only looks"
    assert held(Claim(A, "a", 1), holders).holder.producer_id == b""
    first = holders.hold(KEY, Claim(A, "a", 0), 0.0)
    assert (first.answer.holder.producer_id, first.answer.holder.number, len(first.records)) == (A, 1, 1)
    assert held(Claim(B, "b", 0, fences=True), holders).holder.producer_id == A
    second = holders.hold(KEY, Claim(B, "b", 1, fences=True), 0.0)
    assert second.answer.before is not None
    assert (second.answer.before.name, second.answer.holder.number) == ("a", 2)


def test_a_lease_keeps_others_away_until_it_is_over() -> None:
    holders = BundleHolders(LIMITS)
    holders.hold(KEY, Claim(A, "a", 0), 0.0)
    assert holders.renew(KEY, A, 0.0) == 10.0
    assert held(Claim(B, "b", 1), holders, 9.9).lease_left_s == pytest.approx(0.1)
    assert holders.renew(KEY, B, 9.9) == 0.0, "it is not the holder"
    assert holders.expire(KEY, 9.9).answer is None
    with pytest.raises(PartitionHeld, match="'a' has the partition for itself"):
        holders.check(KEY, b"s" * 16, 9.9)
    assert holders.check(KEY, A, 99.0), "it writes until another takes its place"
    assert not holders.check(KEY, b"", 10.0)
    assert held(Claim(A, "a", 1), holders, 10.0).holder.producer_id == A
    gone = holders.expire(KEY, 10.0)
    assert gone.answer is not None
    assert gone.answer.name == "a"
    assert holders.check(KEY, b"", 10.0)
    with pytest.raises(ProducerFenced):
        holders.check(KEY, A, 10.0)
    assert holders.expire(KEY, 10.0).records == []
    assert not holders.release(KEY, A).answer


def test_a_bundle_knows_so_many_partitions_and_no_more() -> None:
    holders = BundleHolders(LIMITS)
    for number in range(3):
        holders.hold(PartitionId(7, number), Claim(A, "", 0), 0.0)
    with pytest.raises(ResourceExhausted, match="partitions, the most that it takes"):
        holders.hold(PartitionId(7, 3), Claim(A, "", 0), 0.0)
    holders.release(PartitionId(7, 0), A)
    assert holders.hold(PartitionId(7, 0), Claim(B, "", 2), 0.0).answer.holder.producer_id == B
    removed = holders.remove(lambda key: key.partition != 1)
    assert [record.value for record in removed.records] == [None, None]
    assert [key for key, _ in holders] == [PartitionId(7, 1)]
    assert holders.hold(PartitionId(7, 3), Claim(A, "", 0), 0.0).answer.holder.producer_id == A


steps = st.lists(
    st.tuples(
        st.sampled_from(["hold", "release", "expire"]), st.sampled_from([A, B]), st.booleans(), st.integers(0, 12)
    ),
    max_size=40,
)


@given(steps)
def test_the_records_give_the_state_that_wrote_them(steps: list[tuple[str, bytes, bool, int]]) -> None:
    """Also from the newest record alone, as in a snapshot; and a number never comes again."""
    holders, records, now_s = BundleHolders(LIMITS), list[LogRecord](), 0.0
    for kind, producer, fences, pause_s in steps:
        now_s += pause_s
        number = held(Claim(b"", ""), holders, now_s).holder.number
        if kind == "hold":
            decided = holders.hold(KEY, Claim(producer, "n", number, fences), now_s)
            if decided.records:
                holders.renew(KEY, producer, now_s)
            records += decided.records
        else:
            found = holders.release(KEY, producer) if kind == "release" else holders.expire(KEY, now_s)
            records += found.records
        assert held(Claim(b"", ""), holders, now_s).holder.number == len(records)
    for some in (records, records[-1:]):
        loaded = BundleHolders(LIMITS)
        for record in some:
            loaded.apply(record.key, record.value)
        loaded.loaded(now_s)
        assert list(loaded) == list(holders)
        assert all(held(Claim(b"", ""), loaded, now_s).lease_left_s == 10.0 for _ in loaded)


def test_ids_of_exclusive_producers_are_told_from_others() -> None:
    drawn = random.Random(3)
    for _ in range(1000):
        some = drawn.randbytes(16)
        assert not is_exclusive(some)
        assert is_exclusive(exclusive_id(some))
        assert exclusive_id(some)[8:] == some[8:]
    assert not is_exclusive(A[:15])
    assert not is_exclusive(b"")
