"""Bugs in timestamps that brokers set (docs/decisions/0060)."""

from __future__ import annotations

import pytest

from ledgermq_broker.bundle.committing.append_times import AppendTimes
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_ledger.log.segments.segment import Batch
from tests.simulation.mutants import mutant
from tests.simulation.stamp_watch import stamped_of

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("cluster", likely=stamped_of)
def producer_is_told_the_time_of_the_answer(patch: Patch) -> None:
    """A produce answer has the time at which it is written."""
    real = BundleOwner.append_us

    async def append_us(self: BundleOwner, batch: Batch, base_offset: int) -> int:
        return await real(self, batch, base_offset) and self._context.sources.now_us()

    patch.setattr(BundleOwner, "append_us", append_us)


@mutant("cluster", likely=stamped_of)
def append_times_by_the_clock_of_each_owner(patch: Patch) -> None:
    """A term begins with its machine's clock, whatever the terms before it have written."""
    real = AppendTimes.__init__

    def init(self: AppendTimes, context: BundleContext, last_us: int) -> None:
        real(self, context, 0)

    patch.setattr(AppendTimes, "__init__", init)
    patch.setattr(AppendTimes, "_now_us", lambda self: self._context.sources.now_us())
