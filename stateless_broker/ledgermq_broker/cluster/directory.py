"""Directory of the bundles' owners, as far as this broker knows. Pure; times are this process's
monotonic seconds.

The highest epoch seen so far counts: a heartbeat that names an older one comes from a former owner
that has not noticed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ledgermq_broker.cluster.heartbeat import Heartbeat
from ledgermq_broker.cluster.placement.takeover import ClaimHistory


@dataclass(frozen=True, slots=True)
class Owner:
    """A broker that claims to own a bundle, in the term of `epoch`.

    `leaving`: it is about to hand the bundle over.
    """

    broker: str
    address: str
    epoch: int
    leaving: bool
    rack: str = ""


class Directory:
    """`claims` has all bundles that this broker knows of; it never gets fewer."""

    def __init__(self, bundles: int) -> None:
        self.claims = {bundle: ClaimHistory() for bundle in range(bundles)}
        self.owners: dict[int, Owner] = {}
        self.loads: dict[int, int] = {}
        """What the last known owner of each bundle announced; the next one begins with that."""
        self._last: dict[int, Owner] = {}
        """Also the last owners of bundles that no broker owns now."""
        self.troubles: dict[int, str] = {}

    def grow(self, bundles: int) -> bool:
        """Take in bundles that were added to the cluster; return whether there are any."""
        added = range(len(self.claims), bundles)
        self.claims.update((bundle, ClaimHistory()) for bundle in added)
        return bool(added)

    def update(self, present: Mapping[str, Heartbeat], now: float, is_uncontested: Callable[[str], bool]) -> None:
        """Apply the heartbeats of all present brokers, this one included.

        `is_uncontested` returns, for a broker that was present once, whether a claim of its
        bundles conflicts with no live broker.
        """
        for bundle, last in self._last.items():
            owner = present.get(last.broker)
            released = owner is not None and bundle in owner.releasing
            self.claims[bundle].is_free = last.leaving or released or is_uncontested(last.broker)
        said: dict[int, int] = {}
        for heartbeat in present.values():
            for bundle, epoch in heartbeat.bundles.items():
                said[bundle] = max(epoch, said.get(bundle, 0))
        for bundle in said.keys() & self.claims.keys():
            self.claims[bundle].note(said[bundle], now)
        self.owners = {}
        for heartbeat in present.values():
            for bundle, epoch in heartbeat.bundles.items():
                leaving = heartbeat.leaving or bundle in heartbeat.releasing
                if bundle in self.claims and epoch >= self.claims[bundle].epoch:
                    self.owners[bundle] = Owner(heartbeat.broker, heartbeat.address, epoch, leaving, heartbeat.rack)
        self._last |= self.owners
        self.loads |= {bundle: present[owner.broker].loads.get(bundle, 0) for bundle, owner in self.owners.items()}
        self.troubles = {bundle: why for heartbeat in present.values() for bundle, why in heartbeat.troubles.items()}
