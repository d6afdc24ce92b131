"""Processes on a root in the level *rounds*: appenders, creators and deleters of topics, and rival
compactors; all with the code of the product.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from crc32c import crc32c

from ledgermq.errors import LedgerMQError, LegalHold
from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.garbage.sweep import collect_garbage, sweep
from ledgermq_ledger.garbage.topics.removed import remove as remove_topics
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.in_flight import Append
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.merging.merge import merge_bundle
from ledgermq_ledger.root.copies import copies_of
from ledgermq_ledger.root.mend import mend_copies
from ledgermq_ledger.rounds.runner import bring_facts_into_force, compact_bundle, compact_root
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.topics.settings import parse_settings
from ledgermq_ledger.topics.topic import METADATA, Topic, encode_topic_record, removed, topic_key
from tests.simulation.history import Outcome
from tests.simulation.loop import Process
from tests.simulation.rounds_plan import BUNDLES, RoundsPlan
from tests.simulation.world import World
from tests.worlds.ledgers import encode_values, ledger_of, take_over

PARTITIONS = 2
LASTING = ("main", "brief")
CHURNED = "temp"


class Worker:
    """One incarnation of a process."""

    def __init__(self, world: World, plan: RoundsPlan, cluster: ClusterSettings, name: str, incarnation: int) -> None:
        self.name = name
        self.process: Process = world.start(name)
        self._world = world
        self._plan = plan
        self._cluster = cluster
        self._store: ObjectStore = world.line(name)
        self._sources: Sources = world.sources(f"{name} {incarnation}", clock=name)
        self._random: random.Random = self._sources.random
        self._engine = LocalEngine(self._sources, run_inline)
        self._compaction = Compaction(self._store, cluster, self._sources, self._engine)
        """Kept from step to step, and so is what it knows of segments."""
        self.process.spawn(self._live())

    async def _live(self) -> None:
        while not self._world.healed:
            await asyncio.sleep(self._random.expovariate(1 / self.pause_s()))
            try:
                await self.step()
            except LedgerMQError as error:
                self._world.note(self.name, f"{type(error).__name__} {error.message[:100]}")
                self._world.judge_error(error)

    def pause_s(self) -> float:
        raise NotImplementedError

    async def step(self) -> None:
        raise NotImplementedError

    def _judge(self, failures: Mapping[str, LedgerMQError]) -> None:
        for where, error in failures.items():
            self._world.note(self.name, f"{where}: {type(error).__name__} {error.message[:100]}")
            self._world.judge_error(error)

    async def _catalog(self) -> Catalog:
        return await read_catalog(ledger_of(self._store, 0, cluster=self._cluster))


class Owner(Worker):
    """Has the ledgers of some bundles, as a broker would."""

    _writers: dict[int, LedgerWriter]

    async def writer(self, bundle: int) -> LedgerWriter:
        writers = self.__dict__.setdefault("_writers", {})
        if bundle not in writers or writers[bundle].lost is not None:
            writers[bundle] = await take_over(
                ledger_of(self._store, bundle, cluster=self._cluster, sources=self._sources), self.name
            )
        found: LedgerWriter = writers[bundle]
        return found

    async def append(self, bundle: int, batch: Batch) -> int:
        writer = await self.writer(bundle)
        append = Append(batch, asyncio.get_running_loop().create_future())
        writer.write([append])
        return await append.done


class Founder(Owner):
    """Writes what is there before the processes start; by itself it does nothing."""

    def pause_s(self) -> float:
        return 3600.0

    async def step(self) -> None:
        return


class Producer(Owner):
    """Appends to all topics. Sends each value once and takes what it is told."""

    _values = 0

    def pause_s(self) -> float:
        return 1 / self._plan.records_s

    async def step(self) -> None:
        name = self._random.choice([name for name in (*LASTING, CHURNED) if name in self._world.topic_ids])
        topic_id, partition = self._world.topic_ids[name], self._random.randrange(PARTITIONS)
        values = []
        for _ in range(self._random.choice((1, 1, 2, 5))):
            self._values += 1
            values.append(f"{self.name}.{id_of(self)}.{self._values}")
        data = encode_values([value.encode() for value in values], timestamp_ms=self._sources.now_ms())
        now_us = self._sources.now_ms() * 1000
        batch = Batch(topic_id, partition, len(values), crc32c(data), now_us, now_us, data)
        op = self._world.history.begin_produce(
            self.name, (f"{name}#{topic_id}", partition), tuple(values), ordered=False
        )
        try:
            offset = await self.append(bundle_of(partition), batch)
        except LedgerMQError as error:
            self._world.history.end_produce(op, Outcome.INFO, why=error.message)
            self._world.judge_error(error)
        else:
            if self._world.damaged:
                self._world.coverage.saw("an append was acknowledged beside the damage")
            self._world.history.end_produce(op, Outcome.OK, offset)


class TopicChanger(Owner):
    """The controller's work: creates a topic, deletes it, lets it leave its bundles, frees its
    name, begins again; holds and archives.
    """

    def pause_s(self) -> float:
        return self._plan.topic_every_s

    async def step(self) -> None:
        # as a broker does that owns bundle 0
        if self._world.mends_metadata and (copies := copies_of(self._store)) is not None:
            await mend_copies(copies)
        catalog = await self._catalog()
        if self._random.random() < self._plan.holds:
            await self._hold_or_let_go(catalog.topics_by_name[self._random.choice(LASTING)])
            return
        if self._plan.archives and self._random.random() < 0.3:
            brief = catalog.topics_by_name["brief"]
            await self._alter(brief, {"delete.action": "archive"})
            self._world.retention.archive(brief.id, brief.bundles)
            return
        known = catalog.topics_by_name.get(CHURNED)
        if known is None:
            await self._create()
        elif not known.removed:
            self._world.topic_ids[CHURNED] = known.id
            if self._random.random() < 0.4:
                await self._change(CHURNED, encode_topic_record(removed(known)))
                self._world.topic_ids.pop(CHURNED, None)
                self._world.coverage.saw("a topic was deleted")
        else:
            self._world.topic_ids.pop(CHURNED, None)
            removals = await remove_topics(Compaction(self._store, self._cluster, self._sources, self._engine), catalog)
            self._judge({f"bundle {bundle}": error for bundle, error in removals.failures.items()})
            for topic in removals.free:
                await self._change(topic.name, None)
                self._world.freed.add(topic.id)
                self._world.coverage.saw("a topic's name became free")

    async def _hold_or_let_go(self, topic: Topic) -> None:
        held = self._random.random() < 0.6
        if not held:
            self._world.retention.let_go(topic.id)
        await self._alter(topic, {"legal.hold": "true" if held else "false"})
        if held:
            self._world.retention.hold(topic.id, topic.bundles)

    async def _alter(self, topic: Topic, change: dict[str, str]) -> None:
        """As the controller does: on return it counts in every bundle."""
        raw = topic.raw_settings | change
        await self._change(
            topic.name, encode_topic_record(replace(topic, raw_settings=raw, altered_ms=self._sources.now_ms()))
        )
        catalog = await self._catalog()
        for bundle in sorted(set(topic.bundles)):
            await bring_facts_into_force(
                ledger_of(self._store, bundle, cluster=self._cluster, sources=self._sources), catalog
            )

    async def _create(self) -> None:
        topic = topic_of(CHURNED, self._plan)
        offset = await self._change(CHURNED, encode_topic_record(topic, creation=True))
        self._world.topic_ids[CHURNED] = offset
        self._world.coverage.saw("a topic was created")

    async def _change(self, name: str, value: bytes | None) -> int:
        return await self.append(keys.METADATA_BUNDLE, metadata_batch(name, value))


class Compactor(Worker):
    _known: Catalog | None = None

    def pause_s(self) -> float:
        return self._plan.round_every_s

    async def step(self) -> None:
        if self._random.random() < self._plan.log_start_moves:
            await self._delete_records()
            return
        if self._random.random() < self._plan.sweeps:
            await self._sweep()
            return
        if self._random.random() < self._plan.by_hand:
            report = await compact_root(self._store, self._sources, self._engine)
            self._world.coverage.saw("a round was finished", len(report.rounds))
            self._judge({f"bundle {bundle}": error for bundle, error in report.failures.items()})
            self._world.coverage.saw("garbage was collected", len(report.collected))
            return
        if self._known is None or self._random.random() >= self._plan.stale_catalog:
            self._known = await self._catalog()
        done = await compact_bundle(
            self._compaction, self._random.randrange(BUNDLES), self._known, everything=self._random.random() < 0.7
        )
        if done is not None:
            self._world.coverage.saw("a round was finished")
        if self._plan.merges and self._plan.merger in ("", self.name):
            for bundle in range(1, BUNDLES):
                merged = await merge_bundle(self._compaction, bundle, self._known)
                self._world.coverage.saw("small files were merged", len(merged))
        if self._random.random() < 0.2:
            collected = await collect_garbage(self._store, self._cluster)
            self._judge({f"bundle {bundle}": error for bundle, error in collected.failures.items()})

    async def _sweep(self) -> None:
        grace_ms = self._random.choice((0, 0, 5000))
        swept = await sweep(Compaction(self._store, self._cluster, self._sources, self._engine), grace_ms=grace_ms)
        self._world.coverage.saw("garbage was swept", len(swept.removed))
        self._judge(swept.failures)

    async def _delete_records(self) -> None:
        """To anywhere in the log: an operator may want records gone that are not in Parquet yet."""
        bundle = self._random.randrange(1, BUNDLES)
        recovered = await recover(ledger_of(self._store, bundle, cluster=self._cluster))
        main = (await self._catalog()).topics_by_name["main"]
        befores = {
            key[1]: self._random.randint(0, end) for key, end in recovered.state.ends.items() if key[0] == main.id
        }
        try:
            moved = await advance_checkpoint(
                ledger_of(self._store, bundle, cluster=self._cluster, sources=self._sources),
                deletion_move(main, befores),
            )
        except LegalHold:
            self._world.coverage.saw("a deletion was refused by a hold")
            return
        if moved:
            self._world.coverage.saw("a log start was raised by hand")


def id_of(worker: Worker) -> str:
    """Tells the values of one incarnation from those of another."""
    return f"{worker._random.getrandbits(32):x}"


def bundle_of(partition: int) -> int:
    return 1 + partition % (BUNDLES - 1)


def topic_of(name: str, plan: RoundsPlan) -> Topic:
    raw = {"parquet.target.bytes": "4096", "parquet.max.lag.ms": "500"}
    if plan.merges:
        raw |= {"parquet.merge.files": str(plan.merges), "parquet.target.bytes": "40000"}
    if name == "brief":
        raw["retention.ms"] = str(plan.retention_ms)
    return Topic(0, name, tuple(bundle_of(p) for p in range(PARTITIONS)), raw, parse_settings(raw))


def metadata_batch(name: str, value: bytes | None) -> Batch:
    data = encode_batch(pa.RecordBatch.from_pylist([{"key": topic_key(name), "value": value}], schema=SCHEMA))
    return Batch(METADATA.id, 0, 1, crc32c(data), 0, 0, data)
