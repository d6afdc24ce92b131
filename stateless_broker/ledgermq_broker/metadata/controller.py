"""Run the controller: the broker that owns bundle 0 changes topics by appending to `__metadata`.

`Changes` says how a change becomes durable, `Endings` what is done in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from ledgermq.errors import InvalidRequest, LedgerMQError, TopicExists, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.wait import wait_for
from ledgermq_broker.bundle.moving import LEAVING_S
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.cluster.heartbeat import (
    ADDED_BUNDLES,
    CUT_DELETIONS,
    ICEBERG_TABLES,
    MOVES,
    RULES,
    SCHEMAS,
    TABLES,
    UNDELETE,
    Heartbeat,
)
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.logs import get_logger
from ledgermq_broker.metadata.endings import Endings
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_broker.metadata.topic_changes import (
    TopicLimits,
    TopicSpec,
    altered,
    created,
    created_internal,
    deleted,
    moved,
    undeleted,
    with_more_bundles,
)
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import BUNDLES_MAX, mark_grown
from ledgermq_ledger.cuts.record import dropped_with, encode, key_of, refuse_pending
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.rounds.runner import bring_facts_into_force
from ledgermq_ledger.tables.formats.choose import check_catalog
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.facts import concern_protection
from ledgermq_ledger.topics.settings import ICEBERG, parse_stored_settings
from ledgermq_ledger.topics.tables import FORMAT
from ledgermq_ledger.topics.topic import PartitionMove, Topic, encode_topic_record, topic_key

Decide = Callable[[Catalog], list[tuple[bytes, bytes | None]]]
"""Decides on records of `__metadata` that are no topic's: (key, value, or None to delete the key)."""
Also = Callable[[Catalog, Topic], list[tuple[bytes, bytes | None]]]
REMOVAL_PAUSE_S_MIN = 0.5
REMOVAL_PAUSE_S_MAX = 60.0
MOVING_PAUSE_S_MAX = 5.0
"""No jitter: a cluster has one controller, so nothing comes back at the same time."""


log = get_logger(__name__)


class InternalTopics(Protocol):
    """Internal topics that are created together, at the first use of one of them, in this order.

    `announced`: the feature that a broker announces if it can read the catalog with these topics, and serve them;
    "" if every release does.
    """

    @property
    def topics(self) -> Sequence[TopicSpec]: ...

    @property
    def announced(self) -> str: ...


class Controller(Endings):
    """`internal`: all internal topics that this release knows, except `__metadata`. `lacking(feature)` returns the
    brokers that are present without it. `prepare_move(bundle, partition, dry_run)` asks the owner of a bundle to let a
    partition go (`BundleOwner.prepare_move`).
    """

    def __init__(
        self,
        compaction: Compaction,
        metadata: Metadata,
        ownership: Ownership,
        limits: TopicLimits,
        internal: Sequence[InternalTopics],
        lacking: Callable[[str], Sequence[Heartbeat]],
        prepare_move: Callable[[int, PartitionId, bool], Awaitable[None]],
    ) -> None:
        super().__init__(compaction, metadata, ownership, lacking)
        self.limits = limits
        self._internal = [spec for each in internal for spec in each.topics]
        self._together = {spec.name: each for each in internal for spec in each.topics}
        self._prepare_move = prepare_move
        self._opened: BundleOwner | None = None

    async def create_topic(
        self, name: str, partitions: int, settings: dict[str, str], nonce: bytes = b"", *, dry_run: bool = False
    ) -> Topic:
        """Create a topic. Raises NotOwner if this broker is not the controller, and what `created` raises; with
        `dry_run`, which is by the catalog as it is here, only that."""

        def decide(catalog: Catalog) -> Topic:
            at_ms, bundles = self._sources.now_ms(), self._bundles()
            wish = created(catalog, name, partitions, settings, bundles, self.limits, at_ms, nonce)
            self._check_place(wish)
            return wish

        await self._check_catalog(settings)
        return decide(self._metadata.catalog) if dry_run else await self._change(decide)

    async def _check_catalog(self, change: Mapping[str, str], before: Topic | None = None) -> None:
        """Check that the catalog of a new Iceberg table answers this broker, and create its namespace there. Raises
        InvalidConfig, Unavailable.
        """
        if change.get(FORMAT) == ICEBERG:
            raw = {} if before is None else before.raw_settings
            settings = parse_stored_settings({**raw, **change})
            if settings.table_catalog and settings.table_namespace:
                await asyncio.to_thread(check_catalog, self._compaction.store.url, settings)

    def creates(self, name: str) -> bool:
        """Return whether brokers ask the controller to create this topic, at its first use."""
        return name in self._together

    async def create_internal_topic(self, name: str) -> Topic:
        """Create an internal topic if it does not exist, and before it what belongs to it; the caller chooses nothing
        about it. A controller that ends between two topics leaves the first, and the next call creates the others.

        Raises NotOwner, and Unavailable while a broker is present that lacks the feature of these topics: one that
        cannot read the catalog with them would stop with all that it serves, and one that does not serve them would
        refuse calls for the bundles that it owns, or store what an exclusive producer keeps others from writing.
        """
        wanted = self._together[name]

        def decide(catalog: Catalog, spec: TopicSpec) -> Topic:
            wish = created_internal(catalog, spec, self._bundles(), self.limits, self._sources.now_ms())
            if wanted.announced:
                self.require(wanted.announced)
            return wish

        for spec in wanted.topics:
            with suppress(TopicExists):
                await self._change(partial(decide, spec=spec))
        return self._metadata.catalog.living(name)

    async def alter_topic(self, wanted: pb.AlterTopicRequest) -> Topic:
        """Change settings or partitions of a topic, once for all calls with one nonce. When this returns, settings
        that protect or release records are in force everywhere. `dry_run`: as above.

        Raises what `created` raises, UnknownTopic, and Unavailable if it is not in force in a bundle: repeat it then.
        """
        name, partitions, change, unset = wanted.name, wanted.partitions, dict(wanted.set), list(wanted.unset)

        def decide(catalog: Catalog) -> Topic:
            of = (self._bundles(), self.limits, self._sources.now_ms(), wanted.nonce, wanted.topic_id)
            let_go = (wanted.let_go_table, wanted.table_held_bytes)
            rebuild = wanted.rebuild_table
            wish = altered(catalog, name, partitions, change, unset, *of, rebuild_table=rebuild, let_go=let_go)
            self._check_place(wish, catalog.topics_by_name.get(name))
            return wish

        await self._check_catalog(change, self._metadata.catalog.topics_by_name.get(name))
        if wanted.dry_run:
            return decide(self._metadata.catalog)
        topic = await self._change(decide)
        if partitions or wanted.rebuild_table or wanted.let_go_table or concern_protection([*change, *unset]):
            await self._put_in_force(topic)
        return topic

    async def add_bundles(self, bundles: int, *, dry_run: bool) -> tuple[int, int]:
        """Let the cluster have at least so many bundles, bundle 0 included. Return the number before, and the
        number after the change; with `dry_run` nothing is changed.

        The change is one batch of `__metadata`. Before it, `cluster.json` gets the version that older
        releases refuse; a controller that ends between the two has changed nothing else, and a repetition
        goes on. Raises NotOwner, InvalidRequest, and Unavailable while a broker is present that does not
        know added bundles.
        """
        if not 2 <= bundles <= BUNDLES_MAX:
            raise InvalidRequest(f"a cluster has 2 to {BUNDLES_MAX} bundles, not {bundles}")

        async def add() -> tuple[int, int]:
            async with self._lock:
                owner = await self._ready()
                before = self._bundles()
                now_ms = self._sources.now_ms()
                wish = with_more_bundles(self._metadata.catalog, before, bundles, now_ms, self._internal)
                if not wish:
                    await owner.check_fence()  # another controller may have added some since
                    return before, before
                self.require(ADDED_BUNDLES)
                refuse_pending(self._metadata.catalog)
                if not dry_run:
                    await mark_grown(self._compaction.store, self._cluster)
                    self.require(ADDED_BUNDLES)  # one may have started before it could see the new version
                    records = [(topic_key(topic.name), encode_topic_record(topic)) for topic in wish]
                    await self._append_all(owner, records)
                return before, bundles

        return await self._to_its_end(add())

    async def move_partition(
        self, name: str, partition: int, bundle: int, *, dry_run: bool, nonce: bytes = b"", topic_id: int = 0
    ) -> PartitionMove | None:
        """Decide that a partition moves to a bundle, once for one nonce; the owners of both carry it out. Return its
        newest move; None if the partition never left its bundle, and with `dry_run`, which changes nothing.

        Before that the owner of the bundle that it leaves says whether something keeps it there, and takes nothing
        more of that kind for a few seconds (`BundleOwner.prepare_move`). Raises NotOwner if this broker is not the
        controller, what `topic_changes.moved` raises, PartitionBusy, and Unavailable while a broker is present that
        cannot carry moves through.
        """

        def decide(catalog: Catalog) -> tuple[Topic, PartitionMove | None]:
            self.require(MOVES)
            refuse_pending(catalog)
            wish = moved(catalog, name, partition, bundle, self._bundles(), nonce, topic_id)
            return wish, wish.moves.get(partition)

        async def move() -> PartitionMove | None:
            async with self._lock:
                owner = await self._ready()
                wish, first = decide(self._metadata.catalog)
                if first is None or first.id:
                    if dry_run or wish is self._metadata.catalog.topics_by_name[name]:
                        await owner.check_fence()  # another controller may have moved it since
                    else:  # it is there, and a repetition is not to move it back
                        await self._append(owner, topic_key(name), encode_topic_record(wish))
                    return None if dry_run else first
            loop = asyncio.get_running_loop()
            asked_of, asked_s = wish.id, loop.time()
            await self._prepare_move(first.source, PartitionId(wish.id, partition), dry_run)
            if dry_run:
                return None
            async with self._lock:
                owner = await self._ready()
                wish, found = decide(self._metadata.catalog)
                if found is None or found.id == 0:
                    if found != first or wish.id != asked_of:  # the answer was about another bundle, or a deleted topic
                        raise Unavailable(f"{name}/{partition} has moved meanwhile; retry", retry_after_ms=100)
                    if loop.time() - asked_s > LEAVING_S / 2:  # soon the owner takes in again what keeps the partition
                        raise Unavailable(f"the owner of {name}/{partition} was asked too long ago; retry")
                    await self._append(owner, topic_key(wish.name), encode_topic_record(wish))
                    self._changed.set()
                return self._metadata.catalog.topics_by_name[name].moves.get(partition)

        return await self._to_its_end(move())

    async def delete_topic(
        self, name: str, topic_id: int = 0, *, at_once: bool = False, dropped_cuts: list[str] | None = None
    ) -> Topic:
        """Delete a topic: for good with `at_once` or without a grace, otherwise so that it can be brought back until
        its grace is over. Nothing of it is deleted anywhere when this returns, and until then. `dropped_cuts`: drop
        the cuts that have it, all or none with the topic, and add their names; also if the topic is removed already.

        Raises NotOwner, what `topic_changes.deleted` raises, and Unavailable while a broker is present that lacks the
        feature UNDELETE or CUT_DELETIONS, if it is needed, or if the deletion is not in force in a bundle: repeat it.
        """

        def decide(catalog: Catalog, now_ms: int) -> Topic:
            topic, grace_ms = catalog.topics_by_name.get(name), 0
            if dropped_cuts is not None and topic is not None and topic.removed and topic.id == topic_id:
                return topic  # by another call, or by an attempt whose answer was lost
            if topic is not None and not at_once:
                grace_ms = topic.trash.grace_ms if topic.trash is not None else self.limits.grace_ms_of(topic)
            wish = deleted(catalog, name, topic_id, grace_ms, now_ms)
            if wish.trash is not None:
                self.require(UNDELETE)
            return wish

        def drop_cuts(catalog: Catalog, topic: Topic) -> list[tuple[bytes, bytes | None]]:
            records = [] if dropped_cuts is None else dropped_with(catalog, topic.id)
            if dropped_cuts is not None and records:
                self.require(CUT_DELETIONS)
                dropped_cuts[:] = [record.name for record in records]
            return [(key_of(record.name), encode(record)) for record in records]

        return await self._to_its_end(self._delete_or_undelete(decide, drop_cuts, is_timed=not at_once))

    async def undelete_topic(self, name: str, nonce: bytes = b"", topic_id: int = 0) -> Topic:
        """Bring a deleted topic back, once for one nonce; a living one stays as it is. Raises NotOwner, what
        `undeleted` raises, and Unavailable if a bundle has not confirmed it: repeat it then."""
        call = self._delete_or_undelete(lambda catalog, now: undeleted(catalog, name, now, nonce, topic_id))
        return await self._to_its_end(call)

    async def _delete_or_undelete(
        self, decide: Callable[[Catalog, int], Topic], also: Also = lambda *_: [], *, is_timed: bool = True
    ) -> Topic:
        """`also`: records that are put together with the topic's. `is_timed`: the change needs the time, which costs a
        request; a file store that is full refuses it.
        """
        async with self._lock:
            owner = await self._ready()
            now_ms = self._sources.now_ms()
            if is_timed:
                now_ms = max(now_ms, await self._compaction.store.store_time_ms())
            wish = decide(self._metadata.catalog, now_ms)
            records = also(self._metadata.catalog, wish)
            if wish is not self._metadata.catalog.topics_by_name.get(wish.name):
                records.insert(0, (topic_key(wish.name), encode_topic_record(wish)))
            if records:
                await self._append_all(owner, records)
                self._changed.set()
            else:
                await owner.check_fence()  # another controller may have changed it since
            topic = self._metadata.catalog.topics_by_name[wish.name]
        if not topic.removed:
            await self._put_in_force(topic)
        return topic

    def ownership_changed(self) -> None:
        opened = self._ownership.opened.get(keys.METADATA_BUNDLE)
        if opened is not self._opened:
            self._opened = opened
            self._changed.set()

    async def run(self) -> None:
        """Create the topic `__metadata`, and free names of deleted topics, whenever this broker is the controller."""
        pause_s = REMOVAL_PAUSE_S_MIN
        while True:
            self._changed.clear()
            freed = False
            if keys.METADATA_BUNDLE in self._ownership.opened:
                try:
                    async with self._lock:
                        await self._ready()
                    if self._bundles() > self._cluster.bundles:  # an old copy of `cluster.json` may have been put back
                        await mark_grown(self._compaction.store, self._cluster)
                    await self._end_moves()
                    await self._end_graces()
                    freed = await self._free_names() | await self._end_cuts()
                except LedgerMQError as error:
                    log.info("controller's work put off", error=str(error))
                except Exception:  # a bug in background work must not end the bundles of this broker
                    log.exception("controller's work failed")
            pause_s_max = MOVING_PAUSE_S_MAX if self._moving() else REMOVAL_PAUSE_S_MAX
            pause_s = REMOVAL_PAUSE_S_MIN if freed else min(pause_s_max, 2 * pause_s)
            ends_soon = self._removed() or self._moving() or self._cuts_end()
            waits_s = pause_s if ends_soon else self._until_something_ends_s(pause_s)
            if await wait_for(self._changed, waits_s):
                pause_s = REMOVAL_PAUSE_S_MIN

    def _check_place(self, wish: Topic, before: Topic | None = None) -> None:
        """Check where an archive may be, and whether every broker keeps tables. Raises InvalidConfig, Unavailable."""
        self.limits.check_archive(self._compaction.store.url, wish, before)
        if wish.settings.table_generation and (before is None or not before.settings.table_generation):
            self.require(ICEBERG_TABLES if wish.settings.table_format == ICEBERG else TABLES)
        if wish.settings.value_schema_subject and (before is None or not before.settings.value_schema_subject):
            self.require(SCHEMAS)

    async def put_rules(self, decide: Decide, feature: str = RULES) -> int:
        """Write records of access rules, tokens and quotas; return the offset behind all that the decision builds
        on, and behind its records. They are durable then.

        Raises NotOwner if this broker is not the controller, what `decide` raises, and Unavailable while
        a broker is present that lacks `feature`, and would pass over them.
        """

        async def put() -> int:
            async with self._lock:
                owner = await self._ready()
                records = decide(self._metadata.catalog)
                if records:
                    self.require(feature)
                    await self._append_all(owner, records)
                else:
                    await owner.check_fence()  # another controller may have changed them since
                return self._metadata.catalog.offset

        return await self._to_its_end(put())

    async def _put_in_force(self, topic: Topic) -> None:
        """Write into the newest checkpoint of each of the topic's bundles what protects its records now (design D1)."""

        async def in_bundle(bundle: int) -> None:
            catalog = self._metadata.catalog
            await bring_facts_into_force(self._compaction.unindexed(bundle), catalog)

        bundles = sorted(topic.bundles_in_use)
        done = await asyncio.gather(*(in_bundle(bundle) for bundle in bundles), return_exceptions=True)
        for bundle, error in zip(bundles, done, strict=True):
            if isinstance(error, LedgerMQError):
                text = (
                    f"topic {topic.name!r} is changed, but bundle {bundle} did not confirm it, "
                    f"so it may not be in force there yet: {error.message}"
                )
                raise Unavailable(text, retry_after_ms=1000, object_key=error.object_key) from error
            if isinstance(error, BaseException):
                raise error
