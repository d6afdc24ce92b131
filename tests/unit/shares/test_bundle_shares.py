"""Which principal a partition of a queue group counts to: stored with it, so owners and moves keep it."""

from __future__ import annotations

import pytest

from ledgermq.errors import QuotaExceeded, ResourceExhausted
from ledgermq_broker.queues.state.bundle_shares import FORGOTTEN_KEPT, BundleShares
from ledgermq_broker.queues.state.forgotten import ForgottenShares
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.queues.state.records import ShareKey, StartEntry, encode
from ledgermq_ledger.log.chains.snapshot import InternalRecord
from ledgermq_ledger.log.log_record import LogRecord

MOST = 8
LIMITS = ShareLimits(partitions_max=MOST)
MALLORY, VICTIM = 5, 6


def key(group: int, partition: int = 0) -> ShareKey:
    return ShareKey(f"g{group}", 1, partition)


class Stored:
    """A state, and the newest record of each key."""

    def __init__(self) -> None:
        self.shares = BundleShares(LIMITS)
        self.log: dict[bytes, LogRecord] = {}

    def write(self, records: list[LogRecord]) -> None:
        self.log |= {record.key: record for record in records}

    def begin(self, at: ShareKey, principal: int) -> None:
        self.write(self.shares.begin(at, 3, principal=principal).records)

    def again(self) -> BundleShares:
        """Return the state as the next owner loads it."""
        loaded = BundleShares(LIMITS)
        for record in self.log.values():
            loaded.apply(record.key, record.value)
        loaded.loaded()
        return loaded


def counted(shares: BundleShares) -> tuple[int, int]:
    return shares.shares.of(MALLORY), shares.shares.of(VICTIM)


def test_the_next_owner_counts_the_same_after_resets_and_progress() -> None:
    stored = Stored()
    stored.begin(key(1), MALLORY)
    stored.begin(key(2), VICTIM)
    stored.write(stored.shares.reset(key(1), 700, b"n", VICTIM).records)
    assert counted(stored.shares) == counted(stored.again()) == (1, 1)
    stored.shares.partitions[key(2)].log_starts_at(2_000)
    stored.write(stored.shares.answer(key(2), []).records)
    assert counted(stored.again()) == (1, 1)


def test_what_an_earlier_release_stored_counts_to_no_principal() -> None:
    stored = Stored()
    stored.write([encode(StartEntry(key(n), 0)) for n in range(MOST - 1)])
    assert counted(stored.again()) == (0, 0)
    full = stored.again()
    full.begin(key(20), 0)
    with pytest.raises(ResourceExhausted, match="most that it takes"):
        full.begin(key(21), 0)


def test_a_share_is_half_of_what_the_others_leave() -> None:
    stored = Stored()
    for n in range(4):
        stored.begin(key(n), MALLORY)
    with pytest.raises(QuotaExceeded, match="has 4 partitions of queue groups in this bundle"):
        stored.shares.begin(key(9), 0, principal=MALLORY)
    with pytest.raises(QuotaExceeded):
        stored.shares.reset(key(9), 0, b"n", MALLORY)
    assert counted(stored.shares) == (4, 0), "a refusal counts nothing"
    stored.begin(key(9), VICTIM)
    stored.write(stored.shares.forget(key(9), b"n").records)
    stored.write(stored.shares.remove(lambda each: each == key(0)).records)
    assert counted(stored.shares) == counted(stored.again()) == (3, 0)


def test_a_partition_that_moves_takes_its_principal_along_and_frees_the_share() -> None:
    source, target = Stored(), Stored()
    source.begin(key(1, 4), MALLORY)
    source.begin(key(1, 5), MALLORY)
    assert source.shares.part(lambda each: each.partition != 4) == [key(1, 4)]
    assert counted(source.shares) == (1, 0)
    records = [InternalRecord(n, each.key, each.value, 0) for n, each in enumerate(source.log.values())]
    for decision in target.shares.bring(records, [(1, 4)]):
        target.write(decision.records)
    assert counted(target.shares) == (0, 0), "it is not here yet"
    target.shares.part(lambda each: True)
    assert counted(target.shares) == counted(target.again()) == (1, 0)
    source.write(source.shares.remove(lambda each: each.partition == 4).records)
    assert counted(source.shares) == counted(source.again()) == (1, 0)
    source.shares.part(lambda each: True)
    assert counted(source.shares) == (1, 0)


def test_a_principal_that_deletes_many_groups_pushes_out_its_own_nonces() -> None:
    stored = Stored()
    stored.begin(key(0), VICTIM)
    stored.write(stored.shares.forget(key(0), b"theirs", principal=VICTIM).records)
    for number in range(1, 2 * FORGOTTEN_KEPT):
        stored.write(stored.shares.forget(key(number), b"n%d" % number, principal=MALLORY).records)
    stored.begin(key(0), VICTIM)
    assert not stored.shares.forget(key(0), b"theirs", principal=VICTIM).records, "it is a repetition"
    assert key(0) in stored.shares.partitions


def test_of_forgotten_groups_the_oldest_of_the_principal_with_most_goes() -> None:
    forgotten = ForgottenShares(3)
    for number, principal in enumerate((VICTIM, MALLORY, MALLORY, MALLORY)):
        forgotten.put(key(number), (b"n",), principal)
    assert [forgotten.get(key(number)) for number in range(4)] == [(b"n",), (), (b"n",), (b"n",)]
    forgotten.put(key(0), (b"n", b"m"), MALLORY)
    assert forgotten.get(key(0)) == (b"n", b"m")
    assert len(forgotten) == 3
    assert forgotten.pop(key(0)) == (b"n", b"m")
    assert forgotten.pop(key(0)) == ()
    assert len(forgotten) == 2
