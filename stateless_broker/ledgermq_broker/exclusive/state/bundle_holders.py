"""Decide which producers have partitions of one bundle for themselves: the fold of the records, and each change.

How a broker uses it (one term, one bundle; no call waits):

    holders = BundleHolders(limits)
    for record in snapshot + tail: holders.apply(record.key, record.value)
    holders.loaded(now)
    decision = holders.hold(key, claim, now)      # write nothing to it before decision.records are durable
    holders.renew(key, producer_id, now)          # after that, or after a fence check
    holders.check(key, producer_id, now)          # for each batch that is written

A *holder* is the producer that has a partition for itself. Each change of it is a record with the next number. Its
lease is in memory: when it is over, another producer may take the holder's place, or a record may remove it. Until
then the holder writes. The rules, and a model that walks them, are in docs/decisions/0065 and tests/models/access.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ledgermq.errors import PartitionHeld, ProducerFenced, ResourceExhausted
from ledgermq.protocol.naming.exclusive_ids import is_exclusive
from ledgermq_broker.exclusive.state.limits import FULL_RETRY_MS, HolderLimits
from ledgermq_broker.exclusive.state.records import Entry, Holder, decode, encode
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_ledger.log.partitions.shares import Shares

T = TypeVar("T")
NO_HOLDER = Holder(b"", "", 0)


class Claim(NamedTuple):
    """What a producer asks for. `number`: of the change that it has seen last, and from which it wants the partition;
    None: it only looks. `fences`: also if another producer has the partition. `principal`: a hash of the caller's
    name; 0: not known.
    """

    producer_id: bytes
    name: str
    number: int | None = None
    fences: bool = False
    principal: int = 0


class Standing(NamedTuple):
    """Who has the partition, after the call. `before`: who lost it by the call."""

    holder: Holder
    lease_left_s: float
    before: Holder | None = None


class BundleHolders:
    """`name_of`: what errors call a partition."""

    def __init__(self, limits: HolderLimits, name_of: Callable[[PartitionId], str] = str) -> None:
        self._limits = limits
        self._name_of = name_of
        self._holders: dict[PartitionId, Holder] = {}
        self.shares = Shares("held_partitions", "partitions that have, or had, an exclusive producer")
        """A partition counts to the principal that took it last, also when its producer has left."""
        self._until_s: dict[PartitionId, float] = {}
        """When leases end."""

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log. Raises DataDamaged, FormatNotSupported."""
        entry = decode(key, value)
        self._put(entry.key, entry.holder)

    def _put(self, key: PartitionId, holder: Holder | None) -> None:
        if (before := self._holders.pop(key, None)) is not None:
            self.shares.add(before.principal, -1)
        if holder is not None:
            self._holders[key] = holder
            self.shares.add(holder.principal)

    def loaded(self, now_s: float) -> None:
        """Call it once, after the last record: each holder has a whole lease, because an owner before this one may
        have renewed it just now.
        """
        for key, holder in self._holders.items():
            if holder.producer_id:
                self._until_s[key] = now_s + self._limits.lease_ms / 1000

    def hold(self, key: PartitionId, claim: Claim, now_s: float, before: int = 0) -> Decision[Standing]:
        """Let a producer have the partition for itself, if it may. The answer says who has it. `before`: no change of
        the partition has had a higher number before it came to this bundle. Raises ResourceExhausted; QuotaExceeded if
        the principal has its share of the partitions that the bundle knows.
        """
        holder = self._holders.get(key) or replace(NO_HOLDER, number=before)
        left_s = self._left_s(key, now_s)
        may = (
            claim.number == holder.number
            and not holder.is_of(claim.producer_id, claim.principal)
            and (not holder.producer_id or left_s <= 0 or claim.fences)
        )
        if not may:
            return Decision([], Standing(holder, left_s))
        if key not in self._holders:
            self._check_room(claim.principal)
        now = Holder(claim.producer_id, claim.name, holder.number + 1, claim.principal)
        loser = holder if holder.producer_id else None
        return Decision([self._change(key, now)], Standing(now, self._limits.lease_ms / 1000, loser))

    def _check_room(self, principal: int) -> None:
        free = self._limits.partitions_max - len(self._holders)
        if free <= 0:
            raise ResourceExhausted(
                f"this bundle knows exclusive producers of {len(self._holders)} partitions, the most that it takes",
                retry_after_ms=FULL_RETRY_MS,
            )
        self.shares.check(principal, 1, free, where="this bundle", retry_after_ms=FULL_RETRY_MS)

    def renew(self, key: PartitionId, producer_id: bytes, now_s: float, principal: int = 0) -> float:
        """Begin the holder's lease again, because the next answer says that it has the partition. Return the
        length of the lease; 0 if it is no longer the holder.
        """
        if not self._holders.get(key, NO_HOLDER).is_of(producer_id, principal):
            return 0.0
        lease_s = self._limits.lease_ms / 1000
        self._until_s[key] = now_s + lease_s
        return lease_s

    def release(self, key: PartitionId, producer_id: bytes, principal: int = 0) -> Decision[bool]:
        """Let the holder leave. The answer is whether this producer was the holder."""
        if not producer_id or not self._holders.get(key, NO_HOLDER).is_of(producer_id, principal):
            return Decision([], False)
        return Decision([self._end(key)], True)

    def expire(self, key: PartitionId, now_s: float) -> Decision[Holder | None]:
        """Remove the holder if its lease is over; the answer is the holder that was removed."""
        holder = self._holders.get(key, NO_HOLDER)
        if not holder.producer_id or self._left_s(key, now_s) > 0:
            return Decision([], None)
        return Decision([self._end(key)], holder)

    def remove(self, is_gone: Callable[[PartitionId], bool]) -> Decision[None]:
        """Forget the partitions of topics that were removed."""
        gone = [key for key in self._holders if is_gone(key)]
        for key in gone:
            self._put(key, None)
            self._until_s.pop(key, None)
        return Decision([encode(Entry(key, None)) for key in gone], None)

    def check(self, key: PartitionId, producer_id: bytes, now_s: float, principal: int = 0) -> bool:
        """Return whether a batch of this producer (empty: it has no id) may be written to the partition now; False:
        a holder whose lease is over has to be removed first (`expire`).

        Raises ProducerFenced for an exclusive producer that does not have the partition, PartitionHeld for any other
        one while an exclusive producer has it.
        """
        holder = self._holders.get(key)
        if is_exclusive(producer_id):
            if holder is not None and holder.is_of(producer_id, principal):
                return True
            raise ProducerFenced(
                f"{self._name_of(key)}: this exclusive producer lost the partition"
                + (f" to {_named(holder)}" if holder is not None and holder.producer_id else "")
                + "; nothing of the batch was stored"
            )
        if holder is None or not holder.producer_id:
            return True
        if self._left_s(key, now_s) <= 0:
            return False
        raise PartitionHeld(
            f"{self._name_of(key)}: {_named(holder)} has the partition for itself; nothing of the batch was stored"
        )

    def known(self) -> list[PartitionId]:
        """Return the partitions that have, or once had, a holder."""
        return list(self._holders)

    def __iter__(self) -> Iterator[tuple[PartitionId, Holder]]:
        """Yield the partitions that have a holder, in ascending order."""
        for key, holder in sorted(self._holders.items()):
            if holder.producer_id:
                yield key, holder

    def _left_s(self, key: PartitionId, now_s: float) -> float:
        return max(0.0, self._until_s.get(key, now_s) - now_s)

    def _change(self, key: PartitionId, holder: Holder) -> LogRecord:
        self._put(key, holder)
        self._until_s.pop(key, None)
        return encode(Entry(key, holder))

    def _end(self, key: PartitionId) -> LogRecord:
        before = self._holders[key]
        return self._change(key, Holder(b"", "", before.number + 1, before.principal))


def _named(holder: Holder) -> str:
    return f"exclusive producer {holder.name!r}" if holder.name else "an exclusive producer"
