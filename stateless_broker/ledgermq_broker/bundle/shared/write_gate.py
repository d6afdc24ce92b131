"""Track whether the object store takes records now. The first put that was certainly refused shuts
the gate; a probe that the store accepts opens it.

A store that is full, read-only or closed to this broker still serves reads, so no term ends because
of it. Writes are refused at once, with the store's reason, instead of filling the memory with
batches that cannot be stored. A full store counts for all bundles of a broker; any other refusal
counts for the bundle that met it. While a gate is shut, the broker puts a small probe every second.
When the store accepts the probe, all gates open again, without a restart.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ledgermq.errors import LedgerMQError, StoreFull, StoreUnusable, Unauthorized
from ledgermq.runtime.wait import wait_for
from ledgermq.sources import Sources
from ledgermq_broker.logs import get_logger
from ledgermq_ledger.keys import METADATA_BUNDLE
from ledgermq_ledger.object_store.contract import ObjectStore, StoreUncertain

PROBE_S = 1.0
PROBE_BYTES = 64 * 1024
RESERVE_LOOK_S = 60.0
"""Interval of the checks that the reserve is complete, while the gate is open."""
ALL = -1
"""Stands for all bundles."""
REFUSALS = (StoreFull, StoreUnusable, Unauthorized)

log = get_logger(__name__)


class WriteGate:
    def __init__(self, store: ObjectStore, sources: Sources) -> None:
        self._refusals: dict[int, LedgerMQError] = {}
        self._store = store
        self._sources = sources
        self._shut = asyncio.Event()

    @property
    def refusal(self) -> LedgerMQError | None:
        """Return why the store takes no records of some bundle at present; None if it takes them
        all.
        """
        return next(iter(self._refusals.values()), None)

    def refusal_of(self, bundle: int) -> LedgerMQError | None:
        """Return the same for one bundle.

        Bundle 0 is never refused: changes of topics may use the store's reserve.
        """
        if bundle == METADATA_BUNDLE:
            return None
        return self._refusals.get(ALL) or self._refusals.get(bundle)

    def check(self, bundle: int) -> None:
        """Raise the reason why the store takes no records of the bundle, if there is one."""
        refusal = self.refusal_of(bundle)
        if refusal is not None:
            raise refusal

    def refused(self, error: LedgerMQError, bundle: int = ALL) -> None:
        """Shut the gate because a put certainly stored nothing. Errors that do not come from the
        store shut nothing.
        """
        if not isinstance(error, REFUSALS):
            return
        if not self._refusals:
            log.error("the object store refuses writes, reads go on", code=error.code, error=error.message)
        self._refusals[ALL if isinstance(error, StoreFull) else bundle] = for_producer(error)
        self._shut.set()

    async def run(self, reserve_bytes: int) -> None:
        """Keep the store's reserve, and reopen the gate whenever it was shut.

        Runs until cancelled.
        """
        while True:
            if await self._is_open(reserve_bytes):
                self._open()
                await wait_for(self._shut, RESERVE_LOOK_S)
            await asyncio.sleep(PROBE_S * self._sources.random.uniform(0.75, 1.25))

    async def _is_open(self, reserve_bytes: int) -> bool:
        try:
            if not await self._store.keep_reserve(reserve_bytes):
                self.refused(StoreFull(f"{self._store.url}: no space is left but the reserve for deletions"))
                return False
            if self.refusal is not None:
                await self._probe()
        except StoreUncertain:
            return self.refusal is None
        except LedgerMQError as error:
            self.refused(error)
            return self.refusal is None
        return True

    async def _probe(self) -> None:
        key = f".probe-{self._sources.new_id().hex()}"
        try:
            await self._store.put_data(key, [bytes(PROBE_BYTES)])
        finally:
            with suppress(LedgerMQError):
                await self._store.delete([key])

    def _open(self) -> None:
        if self._refusals:
            log.warning("the object store takes writes again")
        self._refusals.clear()
        self._shut.clear()


def for_producer(error: LedgerMQError) -> LedgerMQError:
    """Return the error that a producer gets."""
    if isinstance(error, StoreFull):
        return StoreFull(
            f"the broker's store is full, nothing was stored: {error.message}",
            retry_after_ms=round(1000 * PROBE_S),
            object_key=error.object_key,
        )
    return error
