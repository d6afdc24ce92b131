"""Serve the partitions of internal topics that lie in one bundle, from the bundle's opening to the
end of the term.

All partitions are loaded together, once; those of a topic that is created later are loaded then. A
damaged partition refuses calls with an error that names the object, and is loaded again from time to
time. A partition that failed is loaded again from the log when none of its appends is under way. If
the log itself failed, all partitions are loaded again, with a new log. Calls that arrive meanwhile
wait for `LOAD_WAIT_S`, then raise Unavailable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ledgermq.errors import DataDamaged, FormatNotSupported, LedgerMQError, NotOwner, Unavailable
from ledgermq.runtime.backoff import Backoff
from ledgermq.runtime.wait import wait_for
from ledgermq.sources import Sources
from ledgermq_broker.bundle.moving import UNDER_WAY
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.reading.internal_state import LatestRecords
from ledgermq_broker.internal.bundle_log import BundleLog
from ledgermq_broker.internal.core import Core, CoreKind, Hosted, Opening
from ledgermq_broker.logs import get_logger
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic

LOAD_WAIT_S = 1.0
RETRY_AFTER_MS = 200
RETRY_FIRST_S, RETRY_S_MAX = 0.2, 10.0
RECORDS_A_TURN = 1000

NamedPartition = tuple[str, int]
"""(topic name, partition)."""

log = get_logger(__name__)


@dataclass(frozen=True)
class TermParts:
    """What all terms of a broker share."""

    catalog: Callable[[], Catalog]
    sources: Sources
    damaged_retry_s: Callable[[], float]


@dataclass(frozen=True, slots=True)
class _Missing:
    """A partition of this bundle that is not served."""

    kind: CoreKind[Any, Any]
    topic: Topic
    partition: int

    @property
    def name(self) -> NamedPartition:
        return self.topic.name, self.partition


class InternalTerm:
    """`ready`: the loaded partitions. `refused`: the errors of the damaged ones. All others are being
    loaded.
    """

    def __init__(self, owner: BundleOwner, kinds: Sequence[CoreKind[Any, Any]], parts: TermParts) -> None:
        self.owner = owner
        self.ready: dict[NamedPartition, Hosted] = {}
        self.refused: dict[NamedPartition, LedgerMQError] = {}
        self._kinds = kinds
        self._parts = parts
        self._log = self._new_log()
        self._progress = asyncio.Event()
        self._work = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"internal topics of bundle {owner.bundle}")

    def hosted(self, topic: str, partition: int) -> Hosted:
        """Return a partition that is served now, for a decision of another partition.

        Raises Unavailable while it is being loaded, NotOwner when it is no longer served; DataDamaged or
        FormatNotSupported, which name the object.
        """
        found = self._find(topic, partition)
        if found is None:
            raise self._is_loading(topic, partition)
        if found.lost is not None:
            raise NotOwner(
                f"partition {partition} of {topic} is no longer served here: {found.lost.message}",
                owner=found.lost.owner,
                retry_after_ms=RETRY_AFTER_MS,
            ) from found.lost
        return found

    def kept(self, place: PartitionId) -> list[str]:
        """Return why a partition of users may not leave this bundle, for each partition of internal topics that
        says so (`Hosted.keeps`). Raises as `hosted`.
        """
        topics = self._parts.catalog().topics_by_name
        said = [
            self.hosted(kind.topic, partition).keeps(place)
            for kind in self._kinds
            if (topic := topics.get(kind.topic)) is not None
            for partition in topic.partitions_in(self.owner.bundle)
        ]
        if self._log.has_data_of(place):
            said.append(UNDER_WAY)
        return [text for text in said if text]

    async def loaded(self, topic: str, partition: int) -> Hosted:
        """Return a partition to call; wait up to `LOAD_WAIT_S` while it is being loaded. It may be
        closed already; then the call to it raises the reason.

        Raises Unavailable if it is still being loaded, NotOwner when the term is over; DataDamaged or
        FormatNotSupported, which name the object.
        """
        try:
            async with asyncio.timeout(LOAD_WAIT_S):
                while (found := self._find(topic, partition)) is None:
                    self._progress.clear()
                    await self._progress.wait()
                return found
        except TimeoutError:
            raise self._is_loading(topic, partition) from None

    def tick(self) -> None:
        """Apply a change of the catalog, which may have new topics."""
        for hosted in list(self.ready.values()):
            hosted.tick()
        if any(missing.name not in self.refused for missing in self._missing()):
            self._work.set()

    def resume(self) -> None:
        """Load partitions again that were closed for a handover of the bundle that did not take place."""
        if self.owner.lost is None and not self.owner.is_being_released:
            self._drop_lost()

    async def close(self) -> None:
        """End the term. Idempotent; leaves no task behind."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._end()

    async def _run(self) -> None:
        bundle = self.owner.bundle
        ended = asyncio.create_task(self.owner.ended.wait(), name=f"end of bundle {bundle}")
        loading = asyncio.create_task(self._load_always(), name=f"load internal topics of bundle {bundle}")
        try:
            await asyncio.wait([ended, loading], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._end()
            for task in (ended, loading):
                task.cancel()
            await asyncio.gather(ended, loading, return_exceptions=True)

    def _end(self) -> None:
        error = self.owner.lost or NotOwner(f"bundle {self.owner.bundle} was closed")
        for hosted in self.ready.values():
            hosted.close(error)
        self._progress.set()

    def _find(self, topic: str, partition: int) -> Hosted | None:
        name = (topic, partition)
        if name in self.ready:
            return self.ready[name]
        if self.owner.lost is not None:
            raise NotOwner(f"bundle {self.owner.bundle}: its term is over", owner=self.owner.lost.owner)
        if name in self.refused:
            raise self.refused[name]
        return None

    def _is_loading(self, topic: str, partition: int) -> Unavailable:
        return Unavailable(f"partition {partition} of {topic} is being loaded; retry", retry_after_ms=RETRY_AFTER_MS)

    # Loading

    async def _load_always(self) -> None:
        """Load partitions that are not served, until the term ends."""
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
                    return  # the read failed because the term has ended
                pause_s = backoff.next_s()
                log.warning(
                    "internal partitions not loaded",
                    bundle=self.owner.bundle,
                    error=repr(error),
                    retry_s=round(pause_s, 1),
                )
                await asyncio.sleep(pause_s)

    def _missing(self) -> list[_Missing]:
        topics = self._parts.catalog().topics_by_name
        return [
            _Missing(kind, topic, partition)
            for kind in self._kinds
            if (topic := topics.get(kind.topic)) is not None
            for partition, bundle in enumerate(topic.bundles)
            if bundle == self.owner.bundle and (topic.name, partition) not in self.ready
        ]

    async def _load(self, missing: Sequence[_Missing]) -> None:
        await self._settle_log()
        begun_s = asyncio.get_running_loop().time()
        wanted: dict[str, tuple[Topic, list[int]]] = {}
        for each in missing:
            wanted.setdefault(each.topic.name, (each.topic, []))[1].append(each.partition)
        found = await self.owner.internal_state(list(wanted.values()))
        bugs: list[Exception] = []
        for each in missing:
            try:
                await self._open(each, found[PartitionId(each.topic.id, each.partition)])
            except Exception as bug:
                bugs.append(bug)  # the other partitions are still served
        seconds = asyncio.get_running_loop().time() - begun_s
        log.info(
            "internal partitions loaded",
            bundle=self.owner.bundle,
            topics=sorted(wanted),
            partitions=len(found),
            records=sum(len(latest.records) for latest in found.values()),
            seconds=round(seconds, 3),
        )
        self._progress.set()
        if bugs:
            raise bugs[0]

    async def _open(self, missing: _Missing, latest: LatestRecords) -> None:
        """Serve the partition, or refuse it if its data is damaged."""
        try:
            core = await _replayed(missing.kind, missing.partition, latest)
        except (DataDamaged, FormatNotSupported) as error:
            self.refused[missing.name] = error
            log.error(
                "internal partition refused",
                bundle=self.owner.bundle,
                topic=missing.topic.name,
                partition=missing.partition,
                error=str(error),
                damaged=error.object_key,
            )
            return
        if self._log.failed is not None:
            return  # it is loaded with the others, which have a new log
        opening = Opening(
            self.owner, missing.topic, missing.partition, self._log, self.hosted, on_failed=self._drop_lost
        )
        self.ready[missing.name] = missing.kind.host(core, opening)
        self.refused.pop(missing.name, None)

    # The log

    def _new_log(self) -> BundleLog:
        return BundleLog(self.owner, self._parts.sources, self._log_failed)

    async def _settle_log(self) -> None:
        """Wait until no append is under way that could become durable after the state is read."""
        if self._log.failed is None:
            await self._log.settled()
        if self._log.failed is not None:  # it accepts no appends any longer
            await self._log.settled()
            self._log = self._new_log()

    def _log_failed(self, error: LedgerMQError) -> None:
        """Drop all states: they are ahead of the log."""
        for hosted in list(self.ready.values()):
            hosted.close(error)
        self._drop_lost()
        self._work.set()  # also for a partition that is being loaded for the failed log

    def _drop_lost(self) -> None:
        """Load closed partitions again. While the bundle is being handed over, they stay closed: they
        refuse calls and name the successor until the term is over.
        """
        for name, hosted in list(self.ready.items()):
            lost = hosted.lost
            if lost is not None and not (lost.owner and self.owner.is_being_released):
                del self.ready[name]
                self._work.set()


async def _replayed(kind: CoreKind[Any, Any], partition: int, latest: LatestRecords) -> Core:
    if latest.damage is not None:
        raise latest.damage
    core: Core = kind.core(partition)
    for i, (record, object_key) in enumerate(latest.records):
        try:
            core.apply(record.key, record.value)
        except (DataDamaged, FormatNotSupported) as error:
            error.object_key = error.object_key or object_key
            raise
        if i % RECORDS_A_TURN == RECORDS_A_TURN - 1:
            await asyncio.sleep(0)
    return core
