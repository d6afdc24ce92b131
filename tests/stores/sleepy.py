"""`SleepyStore`: the view of the store of a process that now and then stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore
from tests.stores.faulty import Faults, FaultyStore

CALM = Faults()


class SleepyStore(FaultyStore):
    """Before or after a share of its operations, `naps`, it sleeps for up to one of `naps_s_max`
    seconds.
    """

    def __init__(
        self,
        inner: ObjectStore,
        sources: Sources,
        faults: Faults = CALM,
        *,
        naps: float = 0.01,
        naps_s_max: Sequence[float] = (2, 10, 40),
    ) -> None:
        super().__init__(inner, sources, faults)
        self._naps = naps
        self._naps_s_max = naps_s_max

    async def _delay(self) -> None:
        await super()._delay()
        if self._random.random() < self._naps:
            await asyncio.sleep(self._random.choice(self._naps_s_max) * self._random.random())
