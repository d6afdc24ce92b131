"""Run the coordinators of one bundle's partitions of `__consumer_offsets`, from the opening of the
bundle to its end.

Their state is loaded once, for all partitions together. A damaged partition refuses calls with an
error that names the object, and is retried from time to time. A coordinator that failed restarts
from the log once nothing of the former one is under way. Calls in the meantime wait a moment, then
get Unavailable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ledger import keys
from ledger.root.two_clocks import TwoClocks
from ledger.topics.catalog import Topic
from ledgermq.errors import DataDamaged, FormatNotSupported, LedgerMQError, NotOwner, Unavailable
from ledgermq.runtime.backoff import Backoff
from ledgermq.runtime.wait import wait_for
from ledgermq.sources import Sources
from offsets.coordinator import GroupCoordinator
from stateless_broker.bundle.internal_state import LatestRecords
from stateless_broker.bundle.owner import BundleOwner
from stateless_broker.groups.append_log import AppendLog
from stateless_broker.groups.ends import PartitionEnds
from stateless_broker.groups.partition import PartitionCoordinator
from stateless_broker.logs import get_logger

LOAD_WAIT_S = 1.0
RETRY_AFTER_MS = 200
RETRY_FIRST_S, RETRY_S_MAX = 0.2, 10.0
RECORDS_A_TURN = 1000

log = get_logger(__name__)


@dataclass(frozen=True)
class TermParts:
    """What all terms of a broker share. `core()` returns a group state without any record."""

    core: Callable[[], GroupCoordinator]
    ends: PartitionEnds
    sources: Sources
    clocks: TwoClocks
    damaged_retry_s: Callable[[], float]


class CoordinatorTerm:
    """`ready` maps partitions to their coordinators, `refused` to the errors of their data; all
    others are being loaded.
    """

    def __init__(self, owner: BundleOwner, topic: Topic, parts: TermParts) -> None:
        self.owner = owner
        self.ready: dict[int, PartitionCoordinator] = {}
        self.refused: dict[int, LedgerMQError] = {}
        self._topic = topic
        self._parts = parts
        self._failed: list[PartitionCoordinator] = []
        self._progress = asyncio.Event()
        self._work = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"groups of bundle {owner.bundle}")

    async def coordinator(self, partition: int) -> PartitionCoordinator:
        """Return the coordinator. Raises Unavailable while it is loaded, NotOwner when the term is
        over, DataDamaged or FormatNotSupported naming the object.
        """
        if partition in self.ready:
            return self.ready[partition]
        try:
            async with asyncio.timeout(LOAD_WAIT_S):
                while True:
                    if self.owner.lost is not None:
                        raise NotOwner(f"bundle {self.owner.bundle}: its term is over", owner=self.owner.lost.owner)
                    if partition in self.ready:
                        return self.ready[partition]
                    if partition in self.refused:
                        raise self.refused[partition]
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            raise Unavailable(
                f"the groups of partition {partition} of {keys.OFFSETS_TOPIC} are being loaded",
                retry_after_ms=RETRY_AFTER_MS,
            ) from None

    def tick(self) -> None:
        """Apply a change of the catalog."""
        for coordinator in list(self.ready.values()):
            coordinator.tick()

    def resume(self) -> None:
        """Load again what has refused meanwhile, because the bundle was not handed over after all."""
        if self.owner.lost is None and not self.owner.is_being_released:
            for partition in [number for number, coordinator in self.ready.items() if coordinator.lost is not None]:
                self._lost(partition)

    async def close(self) -> None:
        """End the term. Idempotent; leaves no task behind."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._end()

    async def _run(self) -> None:
        ended = asyncio.create_task(self.owner.ended.wait(), name=f"end of bundle {self.owner.bundle}")
        loading = asyncio.create_task(self._load_always(), name=f"load groups of bundle {self.owner.bundle}")
        try:
            await asyncio.wait([ended, loading], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._end()
            for task in (ended, loading):
                task.cancel()
            await asyncio.gather(ended, loading, return_exceptions=True)

    def _end(self) -> None:
        error = self.owner.lost or NotOwner(f"bundle {self.owner.bundle} was closed")
        for coordinator in self.ready.values():
            coordinator.close(error)
        self._progress.set()

    async def _load_always(self) -> None:
        """Load what is not served, repeatedly, for as long as the term lasts."""
        backoff = Backoff(self._parts.sources, RETRY_FIRST_S, RETRY_S_MAX)
        while self.owner.lost is None:
            missing = self._missing()
            self._work.clear()
            try:
                if missing:
                    await self._load(missing)
                backoff.reset()
                await wait_for(self._work, self._parts.damaged_retry_s() if self.refused else None)
            except Exception as error:  # any error, bugs included: the other partitions are still served
                if self.owner.ended.is_set():
                    return  # what was under way ended with the term
                pause_s = backoff.next_s()
                log.warning("groups not loaded", bundle=self.owner.bundle, error=repr(error), retry_s=round(pause_s, 1))
                await asyncio.sleep(pause_s)

    def _missing(self) -> list[int]:
        mine = [partition for partition, bundle in enumerate(self._topic.bundles) if bundle == self.owner.bundle]
        return [partition for partition in mine if partition not in self.ready]

    async def _load(self, partitions: list[int]) -> None:
        for failed in self._failed:  # its appends under way may still become durable: read after them
            await failed.settled()
        self._failed.clear()
        begun_s = asyncio.get_running_loop().time()
        found = await self.owner.internal_state(self._topic, partitions)
        for partition, latest in found.items():
            try:
                self.ready[partition] = await self._replayed(partition, latest)
                self.refused.pop(partition, None)
            except (DataDamaged, FormatNotSupported) as error:
                self.refused[partition] = error
                log.error(
                    "groups refused",
                    bundle=self.owner.bundle,
                    partition=partition,
                    error=str(error),
                    damaged=error.object_key,
                )
        seconds = asyncio.get_running_loop().time() - begun_s
        records = sum(len(latest.records) for latest in found.values())
        log.info(
            "groups loaded", bundle=self.owner.bundle, partitions=len(found), records=records, seconds=round(seconds, 3)
        )
        self._progress.set()

    async def _replayed(self, partition: int, latest: LatestRecords) -> PartitionCoordinator:
        if latest.damage is not None:
            raise latest.damage
        core = self._parts.core()
        for i, (record, object_key) in enumerate(latest.records):
            try:
                core.apply(record.key, record.value)
            except (DataDamaged, FormatNotSupported) as error:
                error.object_key = error.object_key or object_key
                raise
            if i % RECORDS_A_TURN == RECORDS_A_TURN - 1:
                await asyncio.sleep(0)
        return PartitionCoordinator(
            core,
            self.owner,
            lambda on_failed: AppendLog(self.owner, self._topic.id, partition, self._parts.sources, on_failed),
            self._parts.clocks,
            self._parts.ends,
            lambda: self._lost(partition),
        )

    def _lost(self, partition: int) -> None:
        """Load the partition again, unless the bundle is being handed over: then it refuses, and
        names the successor, until the term is over.
        """
        lost = self.ready[partition].lost
        if lost is not None and lost.owner and self.owner.is_being_released:
            return
        self._failed.append(self.ready.pop(partition))
        self._work.set()
