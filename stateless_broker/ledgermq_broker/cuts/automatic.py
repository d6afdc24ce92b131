"""Take cuts by itself, while this broker is the controller: one of each `cut_every_ms`.

Whether one is due is decided by the catalog, in the turn that begins it, so it makes no difference which broker is the
controller. A cut that fails is tried again after a pause; an old newest cut is an alarm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq.errors import LedgerMQError, NotOwner
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.cuts.taking import Taking
from ledgermq_broker.logs import get_logger
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_ledger import keys
from ledgermq_ledger.cuts.automatic import Schedule, automatic_in, is_due

LOOK_S_MAX = 5.0
RETRY_S_MIN = 1.0
RETRY_S_MAX = 60.0
LATE_ALLOWED_S = 60.0

log = get_logger(__name__)


class AutomaticCuts:
    """`settings()`: as they are now. `failed`: how many attempts failed."""

    def __init__(
        self,
        taking: Taking,
        context: BundleContext,
        ownership: Ownership,
        settings: Callable[[], BrokerSettings],
    ) -> None:
        self._taking = taking
        self._context = context
        self._ownership = ownership
        self._settings = settings
        self._since_ms = 0
        """When this controller took its first look; 0: it is none."""
        self._error = ""
        self.failed = 0

    async def run(self) -> None:
        """Take cuts when they are due, without end."""
        retry_s = RETRY_S_MIN
        while True:
            schedule = self._schedule()
            every_s = schedule.every_ms / 1000
            await asyncio.sleep(min(LOOK_S_MAX, every_s / 8) if every_s else LOOK_S_MAX)
            if not self._is_on(schedule):
                self._since_ms, self._error, retry_s = 0, "", RETRY_S_MIN
                continue
            self._since_ms = self._since_ms or self._now_ms()
            if not is_due(self._context.catalog(), schedule, self._now_ms()):
                continue
            try:
                record = await self._taking.take_if_due(schedule)
                if record is not None:
                    log.info("automatic cut taken", cut=record.name)
                self._error, retry_s = "", RETRY_S_MIN
                continue
            except NotOwner:
                continue
            except LedgerMQError as error:
                self._note(error.message)
            except Exception as error:  # a bug in background work must not end the bundles of this broker
                log.exception("automatic cut failed")
                self._note(str(error) or type(error).__name__)
            await asyncio.sleep(min(retry_s, every_s))
            retry_s = min(RETRY_S_MAX, 2 * retry_s)

    def _schedule(self) -> Schedule:
        return self._settings().cut_schedule()

    def _is_on(self, schedule: Schedule) -> bool:
        return bool(schedule.every_ms) and keys.METADATA_BUNDLE in self._ownership.opened

    def _now_ms(self) -> int:
        """Return the later of this machine's clock and the store's, as heartbeats show it."""
        return max(self._context.sources.now_ms(), self._context.append_now_us() // 1000)

    def _note(self, message: str) -> None:
        self.failed += 1
        self._error = message
        log.warning("automatic cut not taken", error=message)

    def kept(self) -> int | None:
        """Return how many automatic cuts there are; None if this broker takes none."""
        return len(automatic_in(self._context.catalog())) if self._is_on(self._schedule()) else None

    def age_s(self) -> float | None:
        """Return the time since the newest automatic cut was taken, or since this controller began if there is none;
        None if this broker takes none.
        """
        if not self._is_on(self._schedule()):
            return None
        now_ms = self._now_ms()
        taken = [record.taken_ms for record in automatic_in(self._context.catalog()) if record.taken_ms]
        return max(0, now_ms - (taken[-1] if taken else self._since_ms or now_ms)) / 1000

    def alarms(self) -> list[str]:
        """Return what an operator has to know: cuts fail, and the newest one is old."""
        age_s, every_s = self.age_s(), self._schedule().every_ms / 1000
        if age_s is None or not self._error or age_s < every_s + min(every_s, LATE_ALLOWED_S):
            return []
        return [f"no automatic cut for {age_s:.0f} s, they are to be taken every {every_s:.0f} s: {self._error}"]
