"""Bugs in quotas of principals: in what is counted, for whom, and from when on."""

from __future__ import annotations

import pytest

from ledgermq_broker.access.state.quotas import Limit
from ledgermq_broker.access.state.usage import Account, Usage, Usages
from ledgermq_broker.access.wrappers.throttled import ThrottledService
from tests.simulation.access_ambushes import polls_long, spends
from tests.simulation.mutants import mutant
from tests.simulation.throttle_watch import is_limited

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("access", is_limited)
def quota_forgotten_after_a_refusal(patch: Patch) -> None:
    """A caller that was told to come back finds its buckets full."""
    real = Usage.wait_s

    def wait_s(self: Usage, limit: Limit, now_s: float) -> float:
        wait_s = real(self, limit, now_s)
        if wait_s:
            self._buckets[limit]._level = self._buckets[limit].per_s
        return wait_s

    patch.setattr(Usage, "wait_s", wait_s)


@mutant("access", spends)
def requests_to_the_store_cost_nothing(patch: Patch) -> None:
    """What a principal's requests to the store cost is not taken from its budget."""
    patch.setattr(Usages, "spend", lambda self, principal, picodollars, now_s: None)


@mutant("access", is_limited)
def answers_do_not_count(patch: Patch) -> None:
    """What a principal receives is not taken from its quota."""
    real = Usage.take

    def take(self: Usage, limit: Limit, amount: int, now_s: float) -> None:
        if limit is not Limit.BYTES_OUT:
            real(self, limit, amount, now_s)

    patch.setattr(Usage, "take", take)


@mutant("access", is_limited)
def all_principals_use_one_quota(patch: Patch) -> None:
    """The buckets are those of the broker, for all its callers together."""
    real = Usages.usage

    def usage(self: Usages, principal: str, client_id: str | None = None) -> Usage:
        return real(self, "user:all", client_id)

    patch.setattr(Usages, "usage", usage)


@mutant("access", is_limited)
def quotas_count_for_later_callers_only(patch: Patch) -> None:
    """A caller that was admitted before a change goes on by the quota before."""
    real = Account._bound

    def bound(self: Account, now_s: float) -> tuple[Usage, ...]:
        return self._limited if self._generation else real(self, now_s)

    patch.setattr(Account, "_bound", bound)


@mutant("access", polls_long)
def calls_that_are_judged_again_count_again(patch: Patch) -> None:
    """A change of rules costs a principal a request for each of its calls that waits, or the call itself."""
    patch.setattr(ThrottledService, "for_one_call", lambda self: self)
