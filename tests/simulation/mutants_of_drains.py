"""Bugs in drains of brokers (docs/decisions/0063)."""

from __future__ import annotations

import pytest

from ledgermq_broker.cluster.heartbeat import Heartbeat
from ledgermq_broker.cluster.membership import Membership
from ledgermq_broker.cluster.ownership import Ownership
from tests.simulation.drain_watch import drains
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("cluster", likely=drains)
def drained_brokers_are_given_bundles(patch: Patch) -> None:
    """Whoever places bundles does not look whether a broker is drained."""

    def live(self: Membership) -> dict[str, Heartbeat]:
        present = self.present()
        return {name: beat for name, beat in present.items() if beat.draining or not beat.leaving}

    patch.setattr(Membership, "live", live)


@mutant("cluster", likely=drains)
def undrain_is_forgotten(patch: Patch) -> None:
    """A broker that was drained once stays so until its next start."""
    real = Ownership.drain

    async def drain(self: Ownership, *, is_draining: bool) -> None:
        if is_draining:
            await real(self, is_draining=True)

    patch.setattr(Ownership, "drain", drain)
