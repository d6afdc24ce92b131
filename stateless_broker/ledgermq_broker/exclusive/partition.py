"""Serve one partition of `__holders` for one term of its bundle: which producers have partitions of this bundle for
themselves.

From the decision that changes a holder until its record is durable, nothing is written to the partition. So no
batch of the former holder, and none of another producer, can be behind the record, whatever becomes of the term.
Must not know: how a caller finds the bundle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ledgermq.errors import LedgerMQError, PartitionHeld, ProducerFenced, Unavailable
from ledgermq_broker.exclusive.counts import HolderCounts
from ledgermq_broker.exclusive.state.bundle_holders import BundleHolders, Claim, Standing
from ledgermq_broker.exclusive.state.records import Holder
from ledgermq_broker.internal.core import Opening
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.topics.catalog import Catalog

CHANGING_RETRY_MS = 20


@dataclass(frozen=True)
class HolderParts:
    """What all terms of a broker share."""

    catalog: Callable[[], Catalog]
    counts: HolderCounts


class HeldPartitions:
    """Make it when the state is loaded."""

    def __init__(self, holders: BundleHolders, opening: Opening, parts: HolderParts) -> None:
        self.owner = opening.owner
        self._holders = holders
        self._parts = parts
        self._on_failed = opening.on_failed
        self._state = IssuedState("holders", opening.owner, opening.log, opening.place, self._fail)
        self._changing: dict[PartitionId, int] = {}
        """Changes of the holder that are not durable yet."""
        holders.loaded(self._now_s())
        self.owner.exclusive.asks = self.check
        self.tick()

    @property
    def lost(self) -> LedgerMQError | None:
        return self._state.lost

    def tick(self) -> None:
        """Remove the state of topics that were removed, and of partitions that have moved to another bundle."""
        catalog = self._parts.catalog()

        def is_gone(key: PartitionId) -> bool:
            return self.owner.has_left(key) or catalog.is_removed(key.topic_id, catalog.offset)

        if not self._state.is_lost() and any(is_gone(key) for key in self._holders.known()):
            try:
                self._state.issued(lambda: self._holders.remove(is_gone))
            except LedgerMQError:
                return  # no room now; the next change of the catalog tries again

    def close(self, error: LedgerMQError) -> None:
        """End the term: every later call raises NotOwner, and nothing is written. Idempotent."""
        self._state.close(error)
        if self.owner.exclusive.asks == self.check:
            self.owner.exclusive.asks = None

    # Calls

    async def hold(self, key: PartitionId, claim: Claim) -> Standing:
        """Let a producer have the partition for itself, if it may; renew its lease if it has it already. Raises as
        `IssuedState.decided` and `BundleOwner.check_in_charge`.
        """
        self._state.check_room()
        self.owner.check_in_charge(key)
        decision = self._state.ask(lambda: self._holders.hold(key, claim, self._now_s(), self.owner.count_before(key)))
        await self._stored(key, decision, "fenced" if decision.answer.before else "opened")
        standing = decision.answer
        if claim.producer_id and standing.holder.is_of(claim.producer_id, claim.principal):
            lease_s = self._holders.renew(key, claim.producer_id, self._now_s(), claim.principal)
            if not lease_s:  # it has lost the partition meanwhile
                raise self._is_changing(key)
            standing = standing._replace(lease_left_s=lease_s)
        return standing

    async def release(self, key: PartitionId, producer_id: bytes, principal: int = 0) -> bool:
        """Let the holder leave; return whether this producer was the holder. Raises as `IssuedState.decided`."""
        self._state.check_room()
        decision = self._state.ask(lambda: self._holders.release(key, producer_id, principal))
        await self._stored(key, decision, "released")
        return decision.answer

    def check(self, key: PartitionId, producer_id: bytes, principal: int = 0) -> None:
        """Raise PartitionHeld or ProducerFenced if this producer may not write to the partition; ask the caller to
        come again while its holder changes.
        """
        try:
            self._check(key, producer_id, principal)
        except (PartitionHeld, ProducerFenced) as error:
            self._parts.counts.refused(error.code)
            raise

    def keeps(self, place: PartitionId) -> str:
        try:
            self._check(place, b"")
        except PartitionHeld:
            return "a producer has it for itself: close that one, or wait until its lease is over"
        return ""

    def _check(self, key: PartitionId, producer_id: bytes, principal: int = 0) -> None:
        self._state.check()
        if key in self._changing:
            raise self._is_changing(key)
        if self._holders.check(key, producer_id, self._now_s(), principal):
            return
        self._state.check_room()
        decision = self._state.ask(lambda: self._holders.expire(key, self._now_s()))
        self._change(key, decision, "expired")
        raise self._is_changing(key)

    # For other parts of this broker

    def used_by(self, principal: int) -> dict[str, int]:
        """Return what a principal (a hash of its name) has of this bundle's table, by its name."""
        shares = self._holders.shares
        return {shares.limit: shares.of(principal)}

    def held(self) -> list[tuple[PartitionId, Holder]]:
        """Return the partitions that have a holder, as they are in memory."""
        return list(self._holders)

    # Inside

    async def _stored(self, key: PartitionId, decision: Decision[Any], change: str) -> None:
        """Wait until the answer of a decision may be sent. `change`: what it is counted as, if it changes the
        holder.
        """
        if decision.records:
            await asyncio.shield(self._change(key, decision, change))  # it goes on without the caller
        else:
            await self._state.confirmed()

    def _change(self, key: PartitionId, decision: Decision[Any], change: str) -> asyncio.Task[None]:
        """Write a change of the holder. Return a task that is done when it is durable."""
        self._parts.counts.changed(change)
        self._changing[key] = self._changing.get(key, 0) + 1
        self._state.take(decision)
        durable = self._state.durable_soon()
        durable.add_done_callback(lambda _: self._changed(key))
        return durable

    def _changed(self, key: PartitionId) -> None:
        self._changing[key] -= 1
        if not self._changing[key]:
            del self._changing[key]

    def _is_changing(self, key: PartitionId) -> Unavailable:
        return Unavailable(
            f"the exclusive producer of partition {key.partition} changes; retry", retry_after_ms=CHANGING_RETRY_MS
        )

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _fail(self, error: LedgerMQError) -> None:
        self.close(error)
        self._on_failed()
