"""Bugs in what consumers do with messages that expire."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.client.consuming.expiring import ExpiringRun
from ledgermq.client.groups.holding.holding import Holding
from ledgermq.client.groups.holding.progress import Progress
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.transactions.handling import moving
from tests.simulation.failures_truth import failures_plan_of
from tests.simulation.groups_clients import groups_plan_of
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


def _expires(seed: int) -> bool:
    return groups_plan_of(seed).expiring > 0


def _keeps(seed: int) -> bool:
    plan = failures_plan_of(seed)
    return _expires(seed) and plan.members > 0 and plan.keeps_expired


@mutant("groups", _expires)
def expired_messages_handed_out(patch: Patch) -> None:
    """Messages are returned until the first one of a batch is found that has expired; it is returned, too."""
    real = ExpiringRun._alive

    def alive(self: ExpiringRun[Any], now_us: int, most: int) -> int:
        return min(real(self, now_us, most) + 1, self._count - self._taken, most)

    patch.setattr(ExpiringRun, "_alive", alive)


@mutant("groups", _expires)
def messages_skipped_with_an_expired_one(patch: Patch) -> None:
    """What stands in a batch behind an expired message is skipped with it."""
    real = ExpiringRun._skip

    def skip(self: ExpiringRun[Any], now_us: int) -> bool:
        times, self._listed = self._expires_us, [now_us] * len(self._expires_us)
        try:
            return real(self, now_us)
        finally:
            self._listed = times

    patch.setattr(ExpiringRun, "_skip", skip)


@mutant("groups", _expires, hangs=True)
def skipped_messages_never_finished(patch: Patch) -> None:
    """Committed offsets stay before messages that were skipped."""
    patch.setattr(Progress, "skip", lambda self, first, end: self.hand_out(first, end))


@mutant("groups", _keeps)
def expired_messages_finished_without_a_letter(patch: Patch) -> None:
    """An expired message counts as finished, and does not become a dead letter."""

    def expire(self: Holding, message: GroupMessage, generation: int) -> bool:
        return not self.gone and self.progress.ack(message.offset, generation)

    patch.setattr(Holding, "expire", expire)


@mutant("groups", _expires)
def copies_without_their_time_to_live(patch: Patch) -> None:
    """A failed message that is tried again never expires."""
    real = moving.copy_of

    def copy_of(*given: Any) -> Any:
        return real(*given[:5])

    patch.setattr(moving, "copy_of", copy_of)
