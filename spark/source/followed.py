"""Keep the topics of a running query and the ledgers that hold them open between its triggers. No
Spark, no broker.

`refresh` reads what is new from the store: one GET per ledger if nothing is new. LISTs happen only
at the begin, after an unexpected answer, and when topics change. However often it is called, it
polls at most every `poll_s`, and less often while nothing new arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ledger import keys
from ledger.cluster import ClusterSettings
from ledger.keys import PartitionId
from ledger.log.ledger_ref import LedgerRef
from ledger.object_store.contract import ObjectStore
from ledger.topics.catalog import Catalog, Topic, read_catalog
from ledger.view.followed_ledger import FollowedLedger
from ledger.view.reader import LedgerReader
from ledgermq.runtime.tasks import all_of
from ledgermq.sources import Sources
from spark.source.move_wait import PAUSE_S, Chosen, MoveWait, gone, on_their_way, planned_whole
from spark.source.options import SourceOptions
from spark.source.planning import BUNDLES_AT_ONCE, INDEX_BATCHES_MAX

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
    """Call `open` first. Use it from one caller at a time."""

    def __init__(self, store: ObjectStore, cluster: ClusterSettings, options: SourceOptions) -> None:
        self.catalog = Catalog()
        self.topics: dict[str, Topic] = {}
        """Live topics of the query, by name."""
        self._store = store
        self._cluster = cluster
        self._sources = Sources()
        self._options = options
        self._metadata = self._follow(keys.METADATA_BUNDLE, frozenset())
        self._ledgers: dict[int, tuple[frozenset[int], FollowedLedger]] = {}
        """By bundle, with the ids of the topics that can be read there."""
        self._chosen: Chosen = ()
        self._wait = MoveWait(options.move_timeout_s)
        self._is_stale = False
        """The catalog has changed since it was taken in, or has a move that has not ended."""
        self._poll_at_s = self._catalog_at_s = self._news_at_s = 0.0

    async def open(self) -> None:
        """Wait for the end of moves first.

        Raises DataDamaged, FormatNotSupported, DeadlineExceeded (a move has not ended in time), the store's errors.
        """
        await self._metadata.open()
        while True:
            if await self._take():
                break
            await asyncio.sleep(PAUSE_S)
        self._news_at_s = asyncio.get_running_loop().time()

    async def refresh(self, *, at_once: bool = False) -> bool:
        """Apply what is new: records, topics, partitions. Raises as `open` does.

        Return False while a partition of the query is on its way to another bundle: then nothing can be planned,
        not even an end. Unless `at_once`, it waits until the next poll is due, but at most POLL_S (a query may have
        other sources); then nothing is new. `at_once` waits for the end of moves, too.
        """
        while not await self._refresh(at_once):
            if not at_once:
                return False
            await asyncio.sleep(PAUSE_S)
        return True

    async def _refresh(self, at_once: bool) -> bool:
        loop = asyncio.get_running_loop()
        wait_s = self._poll_at_s - loop.time()
        if not at_once and wait_s > 0:
            await asyncio.sleep(min(wait_s, POLL_S))
            if wait_s > POLL_S:
                return not self._is_stale
        if at_once or loop.time() >= self._catalog_at_s:
            self._is_stale |= await self._metadata.refresh()
            if self._is_stale:
                self._is_stale = not await self._take()
            self._catalog_at_s = loop.time() + CATALOG_POLL_S
        # also while a move is waited for, so that no ledger falls behind its trim
        if any(await all_of((ledger.refresh() for _, ledger in self._ledgers.values()), BUNDLES_AT_ONCE)):
            self._news_at_s = loop.time()
        self._is_stale |= bool(self._gone())
        self._poll_at_s = loop.time() + min(max(POLL_S, IDLE_SHARE * (loop.time() - self._news_at_s)), POLL_IDLE_S)
        return not self._is_stale

    async def planned(self, plan: Callable[[], Awaitable[T]]) -> T:
        """Return what is planned with these ledgers; if a partition leaves one meanwhile, plan again when its move has
        ended. Raises what `refresh` and the plan raise.
        """
        while (found := await planned_whole(plan, self._gone)) is None:
            self._is_stale = True
            await self.refresh(at_once=True)
        return found

    def reader(self, topic: Topic, partition: int) -> LedgerReader:
        return self._ledgers[topic.bundles[partition]][1].reader

    def partitions(self, topic: Topic) -> list[int]:
        """Return the partitions of the query."""
        chosen = self._options.partitions
        return [partition for partition in range(topic.partitions) if chosen is None or partition in chosen]

    async def _take(self) -> bool:
        """Take in the catalog that is in the store now, unless a partition of the query is on its way."""
        catalog = await read_catalog(self._ledger(keys.METADATA_BUNDLE))
        living = {topic.name: topic for topic in catalog.living_topics() if not topic.internal}
        topics = {name: living[name] for name in self._options.chosen(list(living)) if name in living}
        chosen = [(topic, partition) for topic in topics.values() for partition in self.partitions(topic)]
        if reasons := on_their_way(chosen):
            self._wait.put_off(reasons)
            return False
        wanted: dict[int, list[tuple[Topic, int]]] = {}
        for topic, partition in chosen:
            wanted.setdefault(topic.bundles[partition], []).append((topic, partition))
        ledgers = {bundle: self._known(bundle, parts) or self._new(bundle, parts) for bundle, parts in wanted.items()}
        new = [each[1] for bundle, each in ledgers.items() if each is not self._ledgers.get(bundle)]
        await all_of((ledger.open() for ledger in new), BUNDLES_AT_ONCE)
        if reasons := gone(chosen, {bundle: ledger for bundle, (_, ledger) in ledgers.items()}):
            self._wait.put_off(reasons)
            return False
        self._wait.go_on()
        self.catalog, self.topics, self._ledgers, self._chosen = catalog, topics, ledgers, chosen
        return True

    def _gone(self) -> list[str]:
        return gone(self._chosen, {bundle: ledger for bundle, (_, ledger) in self._ledgers.items()})

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
        chosen = self._options.partitions

        def wanted(key: PartitionId) -> bool:
            return key.topic_id in topic_ids and (chosen is None or key.partition in chosen)

        return FollowedLedger(
            self._ledger(bundle),
            wanted=wanted,
            index_batches_max=INDEX_BATCHES_MAX,
            recent_bytes_max=RECENT_BYTES_MAX,
        )
