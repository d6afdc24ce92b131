"""Keep the topics of a running query and the ledgers that hold them open between its triggers. No
Spark, no broker.

A partition that is on its way to another bundle is *away*: nothing of it can be planned before its
move has ended. The other partitions go on (design Y14).

`refresh` reads what is new from the store: one GET per ledger if nothing is new. LISTs happen only
at the begin, after an unexpected answer, and when topics change. However often it is called, it
polls at most every `poll_s`, and less often while nothing new arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from ledgermq.runtime.tasks import all_of
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from ledgermq_ledger.view.reader import LedgerReader
from ledgermq_spark.source.options import SourceOptions
from ledgermq_spark.source.ranges.move_wait import PAUSE_S, Chosen, MoveWait, gone, on_their_way, planned_whole
from ledgermq_spark.source.ranges.planning import BUNDLES_AT_ONCE, INDEX_BATCHES_MAX

POLL_S = 0.1
POLL_IDLE_S = 0.5
IDLE_SHARE = 0.02
"""The wait between two polls, as a share of the time since the last news: 0.1 s in the first five
seconds, half a second after 25.
"""
CATALOG_POLL_S = 1.0
RECENT_BYTES_MAX = 512 * 1024
"""Bytes per bundle: some seconds of single records, which then travel with the tasks, so that
executors send no request for them.
"""
T = TypeVar("T")


class FollowedTopics:
    """Call `open` first. Use it from one caller at a time. `index_batches_max`: of each bundle."""

    def __init__(
        self,
        store: ObjectStore,
        cluster: ClusterSettings,
        options: SourceOptions,
        *,
        index_batches_max: int = INDEX_BATCHES_MAX,
    ) -> None:
        self.catalog = Catalog()
        self.topics: dict[str, Topic] = {}
        """Live topics of the query, by name."""
        self.away: frozenset[PartitionId] = frozenset()
        """Partitions of the query that cannot be planned now."""
        self._store = store
        self._cluster = cluster
        self._sources = Sources()
        self.options = options
        self._index_batches_max = index_batches_max
        self._metadata = self._follow(keys.METADATA_BUNDLE, frozenset())
        self._ledgers: dict[int, tuple[frozenset[int], FollowedLedger]] = {}
        """By bundle, with the ids of the topics that can be read there."""
        self._due: Chosen = ()
        """The partitions of the query that were not away when the catalog was taken in."""
        self._wait = MoveWait(options.move_timeout_s)
        self._is_stale = False
        """The catalog has changed since it was taken in, or a partition is away."""
        self._poll_at_s = self._catalog_at_s = self._news_at_s = 0.0

    async def open(self) -> None:
        """Raises DataDamaged, FormatNotSupported, the store's errors."""
        await self._metadata.open()
        await self._take()
        self._news_at_s = asyncio.get_running_loop().time()

    async def refresh(self, *, at_once: bool = False, look: bool = False) -> None:
        """Apply what is new: records, topics, partitions, moves. Raises as `open` does, and DeadlineExceeded: a
        partition has been away for too long.

        Unless `at_once`, it waits until the next poll is due, but at most POLL_S (a query may have other sources);
        then nothing is new. `look`: all that was durable when it was called is known then.
        """
        loop = asyncio.get_running_loop()
        wait_s = self._poll_at_s - loop.time()
        if not at_once and wait_s > 0:
            await asyncio.sleep(min(wait_s, POLL_S))
            if wait_s > POLL_S:
                return
        if at_once or loop.time() >= self._catalog_at_s:
            self._is_stale |= await self._metadata.refresh(look=look)
            if self._is_stale:
                await self._take()
            self._catalog_at_s = loop.time() + CATALOG_POLL_S
        if any(await all_of((each.refresh(look=look) for _, each in self._ledgers.values()), BUNDLES_AT_ONCE)):
            self._news_at_s = loop.time()
        self._note_what_left()
        self._poll_at_s = loop.time() + min(max(POLL_S, IDLE_SHARE * (loop.time() - self._news_at_s)), POLL_IDLE_S)

    async def catalog_now(self) -> Catalog:
        """Return a catalog with all that was durable when this was called. Raises as `open` does."""
        self._is_stale |= await self._metadata.refresh(look=True)
        if self._is_stale:
            await self._take()
        return self.catalog

    async def here(self, wanted: Callable[[], Iterable[PartitionId]]) -> None:
        """Wait until none of these partitions is away. Raises as `refresh` does."""
        while not self.away.isdisjoint(wanted()):
            await asyncio.sleep(PAUSE_S)
            await self.refresh(at_once=True)

    async def planned(self, plan: Callable[[], Awaitable[T]], wanted: Callable[[], Iterable[PartitionId]]) -> T:
        """Return what is planned with these ledgers once the wanted partitions, which are all that it reads, are
        here; if one leaves meanwhile, plan again. Raises what `refresh` and the plan raise.
        """
        await self.here(wanted)
        while (found := await planned_whole(plan, self._left)) is None:
            self._note_what_left()
            await self.refresh(at_once=True)
            await self.here(wanted)
        return found

    def every(self) -> list[PartitionId]:
        """Return all partitions of the query."""
        return [PartitionId(topic.id, p) for topic in self.topics.values() for p in self.partitions(topic)]

    def reader(self, topic: Topic, partition: int) -> LedgerReader:
        assert (topic.id, partition) not in self.away, f"{topic.name}/{partition} is away"
        return self._ledgers[topic.bundles[partition]][1].reader

    def partitions(self, topic: Topic) -> list[int]:
        """Return the partitions of the query."""
        chosen = self.options.partitions
        return [partition for partition in range(topic.partitions) if chosen is None or partition in chosen]

    async def _take(self) -> None:
        """Take in the catalog that is in the store now, and open the ledgers of all partitions that are not away."""
        catalog = await read_catalog(self._ledger(keys.METADATA_BUNDLE))
        living = {topic.name: topic for topic in catalog.living_topics() if not topic.internal}
        topics = {name: living[name] for name in self.options.chosen(list(living)) if name in living}
        chosen = [(topic, partition) for topic in topics.values() for partition in self.partitions(topic)]
        moving = on_their_way(chosen)
        wanted: dict[int, list[tuple[Topic, int]]] = {}
        for topic, partition in chosen:
            if (topic.id, partition) not in moving:
                wanted.setdefault(topic.bundles[partition], []).append((topic, partition))
        ledgers = {bundle: self._known(bundle, parts) or self._new(bundle, parts) for bundle, parts in wanted.items()}
        new = [each[1] for bundle, each in ledgers.items() if each is not self._ledgers.get(bundle)]
        await all_of((ledger.open() for ledger in new), BUNDLES_AT_ONCE)
        self.catalog, self.topics, self._ledgers = catalog, topics, ledgers
        self._due = [part for parts in wanted.values() for part in parts]
        self.away = frozenset(moving)
        self._is_stale = False
        reasons = moving | self._left()
        self._note_what_left()
        if not reasons:
            self._wait.go_on()
            return
        self._is_stale = True
        self._wait.put_off(list(reasons.values()))

    def _note_what_left(self) -> None:
        self.away |= self._left().keys()
        self._is_stale |= bool(self.away)

    def _left(self) -> dict[PartitionId, str]:
        """Return what is not in its ledger any longer, and not known to be away."""
        due = [(topic, partition) for topic, partition in self._due if (topic.id, partition) not in self.away]
        return gone(due, {bundle: ledger for bundle, (_, ledger) in self._ledgers.items()})

    def _known(self, bundle: int, chosen: Chosen) -> tuple[frozenset[int], FollowedLedger] | None:
        """Return a ledger that is open and has these partitions; one that came is in a later state of it."""
        known = self._ledgers.get(bundle)
        can_read = known is not None and {topic.id for topic, _ in chosen} <= known[0]
        return None if known is None or not can_read or gone(chosen, {bundle: known[1]}) else known

    def _new(self, bundle: int, chosen: Chosen) -> tuple[frozenset[int], FollowedLedger]:
        ids = frozenset(topic.id for topic, _ in chosen)
        return ids, self._follow(bundle, ids)

    def _ledger(self, bundle: int) -> LedgerRef:
        return LedgerRef(self._store, bundle, self._cluster, self._sources)

    def _follow(self, bundle: int, topic_ids: frozenset[int]) -> FollowedLedger:
        chosen = self.options.partitions

        def wanted(key: PartitionId) -> bool:
            return key.topic_id in topic_ids and (chosen is None or key.partition in chosen)

        return FollowedLedger(
            self._ledger(bundle),
            wanted=wanted,
            index_batches_max=self._index_batches_max,
            recent_bytes_max=RECENT_BYTES_MAX,
        )
