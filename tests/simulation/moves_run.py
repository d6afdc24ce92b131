"""Level *moves*: two ledgers as in level *ledger*, and partitions that move from one to the other and back while
producers write to them.

Each broker owns one of the two bundles now and then, reads the records that decide moves late, and carries them
out with the product's code; compactors do, too, with rounds by old catalogs, delete records, and collect garbage,
slowly, so that partitions move while they look. Brokers say where the log of a partition begins that came a moment
ago, which the product reads in the other ledger. A judge of one log
for each partition does not know where its records are: the logs of both ledgers together are that log, and what a
plain reader finds is judged at every moment.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from ledgermq.errors import LedgerMQError
from ledgermq_broker.metadata.topic_changes import move_ended, moved
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.sweep import find_garbage, remove_garbage
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.keyed.version import newest_version
from ledgermq_ledger.keys import ParquetName, PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.chains.checkpoint import partition_of as partition_of_checkpoint
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import PUTS, StoreWrapper
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.hand_over import has_forgotten
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic, encode_topic_record
from tests.judges.violation import Violation
from tests.simulation.history import FinalLog, Partition
from tests.simulation.keyed_watch import KeyedWatch
from tests.simulation.ledger_broker import BUNDLE
from tests.simulation.ledger_clients import TOPIC_ID, PlainProducer, partition_of
from tests.simulation.ledger_run import HEALING_S, PARTITIONS, LedgerRun
from tests.simulation.loop import SimulatedLoop
from tests.simulation.moves_ambushes import MovesAmbush, calm, comes_between
from tests.simulation.moves_broker import (
    OTHER,
    SELDOM,
    TOPIC,
    LogStarts,
    MovingBroker,
    is_keyed,
    known_chance,
    overtakes,
    read_records,
    topic_of,
)
from tests.simulation.parquet_watch import ParquetWatch, judge_parquet
from tests.simulation.result import Result, finish
from tests.simulation.watch import ledger_log
from tests.simulation.world import NoAnswer, Unreachable
from tests.worlds.ledgers import ledger_of

KEYED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
DECIDED_EVERY_S = 3.0
PARQUET_MIN_AGE_MS = 4000
DELETION_CHANCE = 0.3
COLLECTION_CHANCE = 0.2
PAUSE_CHANCE = 0.1
PAUSE_S_MAX = 6.0
OVERTAKEN_CHANCE = 0.5
T = TypeVar("T")
PRODUCER_STATES_MAX = 2
"""Few, so that a ledger forgets producers that the other one would not."""


class Slow(StoreWrapper):
    """The store of a process that pauses between its requests."""

    def __init__(self, inner: ObjectStore, random: random.Random) -> None:
        super().__init__(inner)
        self._random = random

    async def _pause(self) -> None:
        if self._random.random() < PAUSE_CHANCE:
            await asyncio.sleep(self._random.uniform(0, PAUSE_S_MAX))

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        await self._pause()
        return await step()

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._pause()
        async for info in self.inner.list(prefix, start_after):
            yield info


class LatePuts(StoreWrapper):
    """The store of a process that decides, and puts what it has decided only when something has happened."""

    def __init__(self, inner: ObjectStore, happened: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._happened = happened

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if operation in PUTS:
            await self._happened()
        return await step()


class MovesRun(LedgerRun):
    bundles = (BUNDLE, OTHER)

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self.plan = replace(
            self.plan,
            brokers=2 * self.plan.brokers,
            requests_max=2 * self.plan.requests_max,
            producer_states_max=PRODUCER_STATES_MAX,
            parquet_min_age_ms=PARQUET_MIN_AGE_MS,
        )
        if comes_between(seed):
            self.plan = calm(self.plan)
        self._catalog = Catalog()
        self._records: list[bytes] = []
        self._random = random.Random(f"moves {seed}")
        self._pace = SELDOM if overtakes(seed) else 1.0
        self._decided: list[int] = []
        """The target of each move."""
        self._watch = ParquetWatch(self.world)
        self._log_starts = LogStarts(self.world)
        raw = {"parquet.target.bytes": "4096", "parquet.max.lag.ms": "500"}
        self._keyed: KeyedWatch | None = None
        if is_keyed(seed):
            raw |= KEYED
            self._keyed = KeyedWatch(self.world, TOPIC, lambda partition: self.bundles)
            self._keyed.topic_id = TOPIC_ID
            self.world.judged_elsewhere.add(TOPIC)
        self._put(Topic(TOPIC_ID, TOPIC, (BUNDLE,) * PARTITIONS, raw))

    def _put(self, topic: Topic) -> None:
        """Write a record of `__metadata`. Who reads it, and when, is up to the brokers."""
        self._records.append(encode_topic_record(topic))
        read_records(self._catalog, self._records)

    def _broker(self, name: str) -> MovingBroker:
        return self._moving_broker(name, self._bundle_of(name))

    def _moving_broker(self, name: str, bundle: int) -> MovingBroker:
        return MovingBroker(
            self.world, self.plan, name, self._incarnation, self.brokers, bundle, self._records, self._log_starts
        )

    def _genesis(self) -> None:
        world = self.world
        world.topic_ids[TOPIC] = TOPIC_ID
        world.store.on_checkpoint, world.store.on_parquet = self._on_checkpoint, self._on_parquet
        if self._keyed is not None:
            world.store.on_keyed = self._keyed.on_keyed

    def _on_checkpoint(self, checkpoint: fmt.Checkpoint) -> None:
        self._watch.on_checkpoint(checkpoint)
        self._log_starts.on_checkpoint(checkpoint)

    def _on_parquet(self, changed: ParquetName) -> None:
        self._watch.on_parquet(changed)
        if self._keyed is not None:
            self._keyed.on_parquet(changed)

    async def _compact(self, name: str, incarnation: int) -> None:
        store, sources = self.world.line(name), self.world.sources(f"{name} {incarnation}")
        compaction = Compaction(store, self.plan.cluster, sources, LocalEngine(sources, run_inline))
        catalog, random, known = Catalog(), sources.random, known_chance(self.world.seed)
        while not self.world.healed:
            await asyncio.sleep(random.uniform(0, 2 * self.plan.compact_every_s) / self._pace)
            if catalog.offset == 0 or random.random() < known:
                read_records(catalog, self._records)
            bundle = random.choice(self.bundles)
            try:
                if random.random() < COLLECTION_CHANCE:
                    await self._collect_garbage(compaction)
                if self._keyed is None and random.random() < DELETION_CHANCE:
                    await self._delete_records(compaction.ledger(bundle), catalog)
                everything = random.random() < 0.7
                await self._round(compaction, bundle, catalog, everything=everything)
                if self._keyed is not None:
                    slow = replace(compaction, store=Slow(store, random))
                    await clean_bundle(slow, bundle, catalog, everything=everything)
            except LedgerMQError as error:
                self.world.note(name, f"round: {type(error).__name__} {error.message[:80]}")
                self.world.judge_error(error)

    async def _round(self, compaction: Compaction, bundle: int, catalog: Catalog, *, everything: bool) -> None:
        done = await compact_bundle(compaction, bundle, catalog, everything=everything)
        if done is not None:
            self.world.coverage.saw("a round was finished")

    async def _collect_garbage(self, compaction: Compaction) -> None:
        store, cluster = (
            Slow(compaction.store, compaction.sources.random),
            replace(compaction.cluster, bundles=OTHER + 1),
        )
        collected = await remove_garbage(store, cluster, await find_garbage(store, cluster))
        for error in collected.failures.values():
            self.world.judge_error(error)
        self.world.coverage.saw("garbage was looked for")

    async def _delete_records(self, ledger: LedgerRef, catalog: Catalog) -> None:
        """To anywhere in the log, by who may not know that the partition has left."""
        topic, random = topic_of(catalog), ledger.sources.random
        partition = random.randrange(PARTITIONS)
        end = (await recover(ledger)).state.end(TOPIC_ID, partition)
        if await advance_checkpoint(ledger, deletion_move(topic, {partition: random.randint(0, end)})) is not None:
            self.world.coverage.saw("a log start was raised by hand")

    def _start_clients(self) -> None:
        super()._start_clients()
        self._work.append(self.world.loop.in_world(self._decide()))

    async def _decide(self) -> None:
        """Decide moves, of a partition the next one only when the one before is complete."""
        while not self.world.healed:
            await asyncio.sleep(self._random.expovariate(1 / DECIDED_EVERY_S))
            partition = self._random.randrange(PARTITIONS)
            topic = topic_of(self._catalog)
            if not await self._end(partition):
                continue
            target = OTHER if topic.bundles[partition] == BUNDLE else BUNDLE
            self._put(moved(self._catalog, TOPIC, partition, target, OTHER + 1))
            self._decided.append(target)
            if comes_between(self.world.seed):
                ambush = MovesAmbush(self.world, self.plan.cluster, self._records, self._watch)
                move = topic_of(self._catalog).moves[partition]
                self._work.append(self.world.loop.in_world(ambush.decided(partition, move, len(self._records) - 1)))
            if self._keyed is None and self._random.random() < OVERTAKEN_CHANCE / self._pace:
                self._work.append(self.world.loop.in_world(self._delete_late(partition)))
            self.world.note("world", f"decides {topic_of(self._catalog).moves[partition]} of partition {partition}")

    async def _delete_late(self, partition: int) -> None:
        """Delete records in the ledger that a partition leaves, by what that was before the seal, once the new owner
        has read it: the seal overtakes that.
        """
        topic, key = topic_of(self._catalog), PartitionId(TOPIC_ID, partition)
        move, sources = topic.moves[partition], self.world.sources(f"deletion {len(self._decided)}")

        async def read_by_the_new_owner() -> None:
            end_s = self.world.loop.time() + PAUSE_S_MAX
            while self._log_starts.asked.get(key, 0) < move.id and self.world.loop.time() < end_s:
                await asyncio.sleep(0.05)

        store = LatePuts(self.world.store, read_by_the_new_owner)
        ledger = ledger_of(store, move.source, cluster=self.plan.cluster, sources=sources)
        try:
            end = (await recover(ledger)).state.end(*key)
            moved_to = self._random.randint(0, end)
            if await advance_checkpoint(ledger, deletion_move(topic, {partition: moved_to})) is not None:
                read = self._log_starts.asked.get(key, 0) >= move.id
                self.world.coverage.saw("a deletion came after the new owner had read where the log begins", int(read))
        except LedgerMQError as error:
            self.world.judge_error(error)

    async def _end(self, partition: int) -> bool:
        """Record that the newest move of a partition has ended, as the controller does. Return False if it has not."""
        topic = topic_of(self._catalog)
        move = topic.moves.get(partition)
        if move is None or move.ended:
            return True
        checkpoint = await newest_checkpoint(self.world.store, move.source)
        if not has_forgotten(checkpoint, PartitionId(TOPIC_ID, partition), move.id):
            return False
        ended = move_ended(self._catalog, TOPIC_ID, partition, move.id)
        assert ended is not None
        self._put(ended)
        self.world.coverage.saw("a move ended")
        return True

    async def _conclude(self) -> Result:
        """Last brokers take both bundles over, carry out what is decided, and are asked for the ends."""
        world = self.world
        for broker in self.brokers.values():
            broker.process.kill()
        self.brokers.clear()
        for bundle in self.bundles:
            self.brokers[f"last{bundle}"] = self._moving_broker(f"last{bundle}", bundle)
        compaction = Compaction(
            world.store, self.plan.cluster, world.sources("last round"), LocalEngine(world.sources("last"), run_inline)
        )
        async with asyncio.timeout(HEALING_S):
            while not all([await self._end(partition) for partition in range(PARTITIONS)]):
                for bundle in self.bundles:
                    await self._round(compaction, bundle, self._catalog, everything=True)
                await asyncio.sleep(0.5)
            for number in range(PARTITIONS):
                await self._ask_end(number)
        logs = self._logs()
        for number in range(PARTITIONS):
            bundle = topic_of(self._catalog).bundles[number]
            state = (await recover(ledger_of(world.store, bundle, cluster=self.plan.cluster))).state
            end = logs.get(partition_of(number), FinalLog({})).end
            if state.end(TOPIC_ID, number) != end:
                text = f"partition {number}: bundle {bundle} ends at {state.end(TOPIC_ID, number)}, both logs at {end}"
                world.violations.append(Violation("recovery differs", text))
        world.violations += self._judge(logs)
        if self._keyed is None:
            await self._judge_files(compaction, logs)
        else:
            await self._judge_versions(compaction, self._keyed)
        self._cover()
        world.coverage.saw("a move was decided", len(self._decided))
        world.coverage.saw("a partition moved back", self._decided.count(BUNDLE))
        return finish(world)

    async def _judge_versions(self, compaction: Compaction, keyed: KeyedWatch) -> None:
        """Cleaning goes on where the partitions are, up to the end, and a plain reader finds the latest records."""
        for bundle in self.bundles:
            while await compact_bundle(compaction, bundle, self._catalog, everything=True):
                pass
            await clean_bundle(compaction, bundle, self._catalog, everything=True)
        for number in range(PARTITIONS):
            keyed.look(PartitionId(TOPIC_ID, number))
            checkpoint = await newest_checkpoint(self.world.store, topic_of(self._catalog).bundles[number])
            end = partition_of_checkpoint(checkpoint, TOPIC_ID, number).parquet_end
            published = await newest_version(self.world.store, PartitionId(TOPIC_ID, number))
            if end != (published.version.end if published is not None else 0):
                text = f"partition {number}: Parquet ends at {end}, the newest version is {published}"
                self.world.violations.append(Violation("not cleaned", text))
            self.world.coverage.saw("a keyed partition that moved was cleaned", int(published is not None))

    async def _judge_files(self, compaction: Compaction, logs: Mapping[Partition, FinalLog]) -> None:
        """All that is kept is in Parquet, and the bundle of the last move lists just what a plain reader finds."""
        for bundle in self.bundles:
            while await compact_bundle(compaction, bundle, self._catalog, everything=True):
                pass
        kept = {}
        for partition, log in logs.items():
            checkpoint = await newest_checkpoint(self.world.store, topic_of(self._catalog).bundles[partition[1]])
            start = partition_of_checkpoint(checkpoint, TOPIC_ID, partition[1]).log_start
            kept[f"{TOPIC}#{TOPIC_ID}", partition[1]] = FinalLog(log.records, start)
        self._watch.look_at_all()
        self.world.violations += judge_parquet(self.world, kept, kept)

    async def _ask_end(self, number: int) -> None:
        asker = PlainProducer(self.world, "last", self.brokers)
        op = self.world.history.ask_end("last", partition_of(number))
        while True:
            try:
                end = await asker.ask(lambda broker: broker.latest(TOPIC_ID, number))
            except (LedgerMQError, NoAnswer, Unreachable):
                await asyncio.sleep(0.5)
                continue
            self.world.history.tell_end(op, end)
            return

    def _logs(self) -> dict[Partition, FinalLog]:
        logs: dict[int, dict[int, str]] = {}
        for bundle in self.bundles:
            for (_, partition), log in sorted(ledger_log(self.world.store, bundle).items()):
                whole = logs.setdefault(partition, {})
                for offset, value in log.items():
                    whole[offset] = f"{whole[offset]}|{value}" if offset in whole else value
        return {partition_of(partition): FinalLog(log) for partition, log in sorted(logs.items())}
