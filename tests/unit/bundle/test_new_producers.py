"""How fast one principal brings new producers, which push out those that were silent for longest."""

from __future__ import annotations

import pytest

from ledgermq.errors import QuotaExceeded
from ledgermq_broker.bundle.committing import new_producers
from ledgermq_broker.bundle.committing.new_producers import REFILL_S, RETRY_MS_MAX, NewProducers
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.log.segments.segment import Batch

REMEMBERED = 100


class World:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.known: set[bytes] = set()
        self.new = NewProducers(REMEMBERED, self._is_known, lambda: self.now_s)
        self._drawn = 0

    def _is_known(self, producer_id: bytes, key: PartitionId) -> bool:
        return producer_id in self.known

    def batch(self, principal: int, producer_id: bytes = b"", sequence: int = 0) -> Batch:
        self._drawn += 1
        session = ProducerSession(producer_id or self._drawn.to_bytes(16, "big"), 0, sequence, 0, principal)
        return Batch(1, 0, 1, 0, 0, 0, b"", session)

    def brought(self, principal: int) -> int:
        """Bring producers, one by one, until that is refused."""
        for number in range(10 * REMEMBERED):
            try:
                self.new.admit([self.batch(principal)])
            except QuotaExceeded:
                return number
        raise AssertionError("it was never refused")


def test_half_may_come_at_once_and_as_many_again_within_the_time() -> None:
    world = World()
    assert world.brought(1) == REMEMBERED // 2
    assert world.brought(2) == REMEMBERED // 2, "for each principal"
    world.now_s += REFILL_S / 10
    assert world.new.spent(1) == 45
    assert world.brought(1) == 5
    world.now_s += 10 * REFILL_S
    assert world.brought(1) == REMEMBERED // 2, "no more are saved up"


def test_a_producer_that_was_active_within_the_time_stays() -> None:
    """The most that one principal brings between two batches of another one's producer, whatever it does."""
    world = World()
    brought = 0
    for _ in range(1000):
        brought += world.brought(1)
        world.now_s += REFILL_S / 1000
    assert brought <= REMEMBERED + 1


def test_a_large_frame_passes_and_is_paid_for_later() -> None:
    world = World()
    world.new.admit([world.batch(1) for _ in range(80)])
    with pytest.raises(QuotaExceeded, match="80 new producers") as refused:
        world.new.admit([world.batch(1)])
    assert refused.value.limit == new_producers.LIMIT
    assert refused.value.retry_after_ms == RETRY_MS_MAX
    world.now_s += REFILL_S * 31 / 50
    world.new.admit([world.batch(1)])


def test_what_is_known_or_has_no_principal_counts_for_nothing() -> None:
    world = World()
    world.brought(1)
    world.known.add(b"k" * 16)
    world.new.admit([world.batch(1, b"k" * 16), world.batch(1, sequence=3), world.batch(0)])
    for _ in range(2 * REMEMBERED):
        world.new.admit([world.batch(0)])


def test_principals_are_forgotten_when_they_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_producers, "KEPT_MAX", 3)
    world = World()
    world.brought(1)
    for principal in range(2, 50):
        world.new.admit([world.batch(principal)])
    assert len(world.new._paces) == 3
    assert world.brought(1) == 0, "the one that brought most is kept"
