"""Return the owner of a bundle to callers: the one here, or the address of the broker that has it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ledgermq.errors import LedgerMQError, NotOwner
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_to_proto
from ledgermq.runtime.wait import wait_until
from ledgermq_broker.bundle.loads import LoadTimes
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.cluster.directory import Directory
from ledgermq_broker.cluster.membership import Membership
from ledgermq_broker.cluster.terms import Terms

RETRY_AFTER_MS = 250


@dataclass(frozen=True, slots=True)
class OwnershipTimes:
    """Times in seconds. `request_wait_s`: how long a request waits for a takeover that is due here."""

    interval_s: float
    holding_s: float
    damaged_retry_s: float
    request_wait_s: float
    loads: LoadTimes = field(default_factory=LoadTimes)


class Owners:
    """What this broker knows of owners. A caller waits for a takeover that is due here, and can have a look at the
    other brokers made. `times` may be replaced, except for the interval.
    """

    def __init__(
        self,
        membership: Membership,
        directory: Directory,
        terms: Terms,
        opened: dict[int, BundleOwner],
        times: OwnershipTimes,
    ) -> None:
        self.opened = opened
        """The bundles that are served here; `terms` opens and drops them."""
        self.terms = terms
        self.wanted: dict[int, str] = {}
        self.leaving = False
        self.times = times
        self._membership = membership
        self._directory = directory
        self._wake = asyncio.Event()
        self._round = asyncio.Event()
        self._look_due = True
        self._looks_begun = self._looks_done = 0

    @property
    def write_refusal(self) -> LedgerMQError | None:
        """Return why the store accepts no records at present (reads continue), or None if it
        accepts them.
        """
        return self.terms.context.write_gate.refusal

    @property
    def me(self) -> str:
        return self._membership.me.broker

    def address_of(self, bundle: int) -> str:
        """Return the address to ask for a bundle: that of its owner, else of its wanted owner; ""
        if no such broker is known.
        """
        opened, owner = self.opened.get(bundle), self._directory.owners.get(bundle)
        if opened is not None and opened.lost is None:
            return self._membership.me.address
        if owner is not None and owner.broker != self.me:
            return owner.address
        heartbeat = self._membership.live().get(self.wanted.get(bundle, ""))
        return heartbeat.address if heartbeat is not None else ""

    def racks_of(self, addresses: Collection[str]) -> dict[str, str]:
        """Return the racks of brokers, by their address, without those that have said none."""
        known = (self._membership.me, *(member.heartbeat for member in self._membership.members.values()))
        return {each.address: each.rack for each in known if each.rack and each.address in addresses}

    def put_ms(self, bundles: Iterable[int | None]) -> int:
        """Return how long a put of the slowest of these bundles takes now, rounded up; 0 if it is not known."""
        times_s = (owner.put_s for bundle in bundles if bundle is not None and (owner := self.opened.get(bundle)))
        return math.ceil(1000 * max(times_s, default=0.0))

    async def owner(self, bundle: int) -> BundleOwner:
        """Return the bundle once it is open here; waits for a takeover that is due.

        Raises NotOwner, or the bundle's trouble.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.times.request_wait_s
        looks_needed = self._looks_begun + 1
        while True:
            found = self.opened.get(bundle)
            if found is not None and found.lost is None:
                return found
            if bundle in self.terms.troubles:
                raise self.terms.troubles[bundle].error
            served_by = self._directory.owners.get(bundle)
            mine = self.wanted.get(bundle) == self.me and (served_by is None or served_by.leaving)
            looked = self._looks_done >= looks_needed
            if self.leaving or (looked and not mine) or loop.time() >= deadline:
                raise self.not_owner(bundle)
            await self._next_round(deadline)

    async def redirect(self, bundle: int) -> NotOwner:
        """Return the error for a caller whose term has just ended; one look at the other brokers
        finds the new owner.
        """
        await self.look()
        return self.not_owner(bundle)

    async def look(self) -> None:
        """Wait until another look at the other brokers is done, or after `request_wait_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.times.request_wait_s
        looks_needed = self._looks_begun + 1
        while self._looks_done < looks_needed and loop.time() < deadline and not self.leaving:
            await self._next_round(deadline)

    def error(self, error: LedgerMQError, bundle: int | None = None) -> pb.Error:
        """Return the error as it goes to the client: NOT_OWNER names the owner, where it is known."""
        if error.code == "NOT_OWNER" and not error.owner and bundle is not None:
            error = self.not_owner(bundle)
        return error_to_proto(error)

    def not_owner(self, bundle: int) -> NotOwner:
        """Return the error for a bundle that is not served here."""
        address = self.address_of(bundle)
        if address in ("", self._membership.me.address):
            return NotOwner(f"bundle {bundle} is not served by any broker at present", retry_after_ms=RETRY_AFTER_MS)
        return NotOwner(f"bundle {bundle} is served by {address}", owner=address)

    async def _next_round(self, deadline: float) -> None:
        """Request a look at the other brokers, and wait until it is done or something has changed."""
        self._look_due = True
        self._wake.set()
        self._round.clear()
        await wait_until(self._round, deadline)
