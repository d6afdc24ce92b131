"""Bugs in backlog quotas (docs/decisions/0064)."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq_broker.backlogs import quotas as backlogs
from ledgermq_broker.backlogs.quotas import Backlogs, Checked
from tests.simulation.mutants import mutant
from tests.simulation.quota_watch import EVICT, HOLD, REFUSE, quota_policy_of

LOADED = True
Patch = pytest.MonkeyPatch


def _evicts(seed: int) -> bool:
    return quota_policy_of(seed) == EVICT


def _refuses(seed: int) -> bool:
    return quota_policy_of(seed) in (HOLD, REFUSE)


@mutant("cluster", likely=_evicts)
def eviction_goes_on_below_the_quota(patch: Patch) -> None:
    """An eviction deletes half of what the policy keeps."""
    patch.setattr(backlogs, "EVICTED_SHARE", 0.5)


@mutant("cluster", likely=_refuses)
def held_backlog_is_evicted(patch: Patch) -> None:
    """Records are deleted whatever the policy is, once a backlog is above the quota."""
    real = Backlogs._check

    async def check(self: Backlogs, key: Any, topic: Any, owner: Any, slowest: Any) -> Checked:
        found = await real(self, key, topic, owner, slowest)
        if found.excess and slowest is not None:
            backlog = await owner.backlog(topic, key.partition, slowest[0])
            await self._evict(topic, key.partition, owner, backlog, slowest[1])
        return found

    patch.setattr(Backlogs, "_check", check)


@mutant("cluster", likely=lambda seed: bool(quota_policy_of(seed)))
def backlog_measured_once(patch: Patch) -> None:
    """A partition that was once below its quota is not measured again."""
    patch.setattr(Checked, "is_quiet", lambda self, owner, topic, end: not self.excess)


@mutant("cluster", likely=_refuses)
def backlog_never_forgiven(patch: Patch) -> None:
    """A partition that was once above its quota stays so, whatever its group has read."""
    patch.setattr(Checked, "is_quiet", lambda self, owner, topic, end: bool(self.excess))
