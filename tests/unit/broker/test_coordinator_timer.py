"""A coordinator's timer on the loop that brokers run on."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
import uvloop

from ledgermq.sources import Sources
from ledgermq_broker.groups import partition
from ledgermq_broker.groups.partition import PartitionCoordinator
from ledgermq_broker.internal.bundle_log import BundleLog
from ledgermq_broker.internal.core import Opening
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.root.two_clocks import TwoClocks
from ledgermq_offsets.classic.both_kinds import BothKinds
from ledgermq_offsets.classic.values import ClassicLimits
from ledgermq_offsets.limits import GroupLimits
from tests.waiting import until
from tests.worlds.bundles import TOPIC
from tests.worlds.coordinators import Catalog


def test_a_timer_that_is_due_when_it_is_set_rings_all_the_same(
    sources: Sources, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process lost its processor between the look at the clock and the timer: uvloop then
    answers with a handle that has no time.
    """
    monkeypatch.setattr(partition, "TICK_PAUSE_S_MIN", 0.0)
    ticks: list[float] = []

    async def main() -> None:
        core = BothKinds(GroupLimits(), Catalog(), ClassicLimits(), str)
        core.start(asyncio.get_running_loop().time())
        owner = cast(Any, None)
        failed: list[str] = []
        log = BundleLog(owner, sources, lambda error: failed.append("log failed"))
        opening = Opening(owner, TOPIC, 0, log, owner, lambda: failed.append("failed"))
        coordinator = PartitionCoordinator(core, opening, TwoClocks(MemoryStore("", sources), sources), owner)
        monkeypatch.setattr(
            core, "next_tick_s", lambda: asyncio.get_running_loop().time() + (0.0 if len(ticks) < 3 else 1000.0)
        )
        tick = core.tick
        monkeypatch.setattr(core, "tick", lambda now_s, now_ms: (ticks.append(now_s), tick(now_s, now_ms))[1])
        coordinator.tick()
        await until(lambda: len(ticks) >= 3)
        assert not failed

    with caplog.at_level(logging.ERROR):
        uvloop.run(main())
    assert len(ticks) == 3
    assert not caplog.records
