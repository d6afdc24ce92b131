"""Processes of level *tables*: one that produces and moves partitions, a controller of the topic and of its table,
registrars, and compactors. All of it with the code of the product.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pyarrow as pa
from crc32c import crc32c

from ledgermq.errors import LedgerMQError, Unavailable
from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq_broker.metadata.topic_changes import TopicLimits, altered, deleted, move_ended, moved, undeleted
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking, run_inline
from ledgermq_ledger.garbage.topics.removed import remove as remove_topics
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.partitions.moves import open_after
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.hand_over import has_forgotten
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.rounds.runner import bring_facts_into_force
from ledgermq_ledger.tables.drop import empty_table
from ledgermq_ledger.tables.follower import TableFollower
from ledgermq_ledger.tables.formats.contract import Committed
from ledgermq_ledger.tables.registrar import Registrar
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.settings import TopicSettings, parse_stored_settings
from ledgermq_ledger.topics.tables import with_generation
from ledgermq_ledger.topics.topic import PartitionMove, Topic, encode_topic_record
from tests.judges.violation import Violation
from tests.simulation.history import Outcome
from tests.simulation.rounds_plan import BUNDLES
from tests.simulation.rounds_processes import PARTITIONS, Compactor, Owner, Worker, bundle_of, id_of, metadata_batch
from tests.simulation.tables_plan import CATALOG, NAMESPACE, TablesPlan
from tests.simulation.typed_lake import TYPED, registration, value_of
from tests.worlds.ledgers import encode_values, ledger_of

LAKE = "lake"
GRACE_MS = 3_600_000
"""Longer than a run: a deleted topic stays until it is brought back, or deleted for good."""
DELTA = {"table.format": "delta", "table.delta.place": "topic"}
ICEBERG = {"table.format": "iceberg", "table.catalog": CATALOG, "table.namespace": NAMESPACE}
KEYED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
LIMITS = TopicLimits(1, 10, 100)


@dataclass(slots=True)
class LetGo:
    """A request to unset a table that holds back too much. It arrives late."""

    topic: Topic
    held_bytes: int


class LakeProducer(Owner):
    """Owns the bundles of the topic: it appends, and seals and opens partitions that move."""

    tables: TablesPlan
    deadly: list[int]
    """One number for each value that shall still end its decoder."""
    _known: Catalog | None = None
    _values = 0

    def pause_s(self) -> float:
        return 1 / self._plan.records_s

    async def step(self) -> None:
        if self._known is None or self._random.random() < 0.3:
            self._known = await self._catalog()
        topic = self._known.topics_by_name.get(LAKE)
        if topic is None or not topic.living:
            self._known = None
            return
        await self.carry_out(topic)
        await self._produce(topic, self._random.randrange(PARTITIONS))

    async def carry_out(self, topic: Topic) -> None:
        for partition, move in sorted(topic.moves.items()):
            if not move.ended:
                await self._carry_out(PartitionId(topic.id, partition), move, topic.bundles[partition])

    async def _carry_out(self, key: PartitionId, move: PartitionMove, target: int) -> None:
        source = await self.writer(move.source)
        if source.durable.moves.move(key) < move.id and (sealed := source.seal(key, move.id, target, move.before)):
            await sealed
            self._world.coverage.saw("a partition was sealed")
        seal = source.durable.moves.seal_of(key)
        opener = await self.writer(target)
        if seal is None or seal.move != move.id or opener.durable.moves.move(key) >= move.id:
            return
        if opened := opener.open_partition(open_after(seal, move.source)):
            await opened
            self._world.coverage.saw("a partition was opened")

    async def _produce(self, topic: Topic, partition: int) -> None:
        key = PartitionId(topic.id, partition)
        writer = await self.writer(topic.bundles[partition])
        move = topic.moves.get(partition)
        if move is not None and writer.durable.moves.move(key) < move.id:
            return  # it has not come yet
        writer.durable.moves.check_here(key)
        values = []
        for _ in range(self._random.choice((1, 1, 2, 5))):
            self._values += 1
            values.append(self._value(f"{self.name}.{id_of(self)}.{self._values}"))
        data = self._encode(values) if topic.settings.keyed else encode_values([value.encode() for value in values])
        now_us = self._sources.now_ms() * 1000
        batch = Batch(topic.id, partition, len(values), crc32c(data), now_us, now_us, data)
        op = self._world.history.begin_produce(
            self.name, (f"{LAKE}#{topic.id}", partition), tuple(values), ordered=False
        )
        try:
            offset = await self.append(topic.bundles[partition], batch)
        except LedgerMQError as error:
            self._world.history.end_produce(op, Outcome.INFO, why=error.message)
            self._world.judge_error(error)
        else:
            self._world.history.end_produce(op, Outcome.OK, offset)

    def _value(self, text: str) -> str:
        if not self.tables.is_typed:
            return text
        assert self._known is not None
        is_deadly = bool(self.deadly) and self._random.random() < 0.05
        if is_deadly:
            self.deadly.pop()
            self._world.coverage.saw("a value was sent that ends its decoder")
        return value_of(text, self._values, self._random, self._known, deadly=is_deadly)

    def _encode(self, values: list[str]) -> bytes:
        """A few keys, again and again."""
        rows = [{"key": b"k%d" % self._random.randrange(8), "value": value.encode()} for value in values]
        return encode_batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


class LakeController(Owner):
    """Creates the topic with a table, changes the table, moves partitions, deletes the topic and brings it back."""

    tables: TablesPlan
    requests: list[LetGo]
    """Those that wait, of all registrars."""

    @property
    def _format(self) -> dict[str, str]:
        return ICEBERG if self.tables.is_iceberg else DELTA

    def pause_s(self) -> float:
        return self._plan.topic_every_s

    async def step(self) -> None:
        topic = await self.settle()
        r, tables = self._random, self.tables
        if tables.is_typed and r.random() < 0.1:
            await self._register()
        if topic is None or not topic.living:
            await self._create_or_bring_back(topic)
        elif self.requests and r.random() < 0.5:
            await self._let_go(self.requests.pop(r.randrange(len(self.requests))))
        elif r.random() < tables.moves:
            await self._move(topic)
        elif r.random() < tables.changes or not topic.settings.table_generation:
            await self._change_table(topic)
        elif r.random() < tables.deletions and not any(not move.ended for move in topic.moves.values()):
            grace_ms = r.choice((GRACE_MS, GRACE_MS, 0))
            await self._record(deleted(await self._catalog(), LAKE, 0, grace_ms, self._sources.now_ms()))
            self._world.coverage.saw("the topic was deleted" + (", and can be brought back" if grace_ms else ""))

    async def settle(self) -> Topic | None:
        """End moves that are carried out, and removals. Return the topic as it is then."""
        await self.writer(keys.METADATA_BUNDLE)  # before the look: what was sent before has landed, or is void
        catalog = await self._catalog()
        for topic, partition, move in list(catalog.moving()):
            if has_forgotten(
                await newest_checkpoint(self._store, move.source), PartitionId(topic.id, partition), move.id
            ):
                ended = move_ended(catalog, topic.id, partition, move.id)
                assert ended is not None
                await self._record(ended)
                catalog = await self._catalog()
                self._world.coverage.saw("a move ended")
        removals = await remove_topics(Compaction(self._store, self._cluster, self._sources, self._engine), catalog)
        self._judge({f"bundle {bundle}": error for bundle, error in removals.failures.items()})
        for gone in removals.free:
            await self.append(keys.METADATA_BUNDLE, metadata_batch(gone.name, None))
            self._world.freed.add(gone.id)
            self._world.coverage.saw("a topic's name became free")
            catalog = await self._catalog()
        return catalog.topics_by_name.get(LAKE)

    async def _register(self) -> None:
        if (batch := registration(await self._catalog())) is not None:
            await self.append(keys.METADATA_BUNDLE, batch)
            self._world.coverage.saw("a version of a schema was registered")

    async def create(self) -> None:
        if self.tables.is_typed:
            await self._register()
        catalog = await self._catalog()
        raw = {
            "parquet.target.bytes": "4096",
            "parquet.max.lag.ms": "500",
            "table.keep.ms": str(self.tables.keep_ms),
            "table.hold.max.bytes": str(self.tables.hold_max_bytes),
        }
        raw |= KEYED if self.tables.is_keyed else {"retention.ms": str(self._plan.retention_ms)}
        raw |= self._format if self._random.random() < 0.8 else {}
        raw |= TYPED if self.tables.is_typed else {}
        if self._plan.merges:
            raw |= {"parquet.merge.files": str(self._plan.merges), "parquet.target.bytes": "40000"}
        raw, settings = with_generation(raw, parse_stored_settings(raw), TopicSettings(), catalog.offset)
        topic = Topic(0, LAKE, tuple(bundle_of(p) for p in range(PARTITIONS)), raw, settings)
        await self.append(keys.METADATA_BUNDLE, metadata_batch(LAKE, encode_topic_record(topic, creation=True)))
        self._world.coverage.saw("a topic was created")

    async def _create_or_bring_back(self, topic: Topic | None) -> None:
        if topic is None:
            await self.create()
        elif topic.trash is not None:
            catalog, now_ms = await self._catalog(), self._sources.now_ms()
            if self._random.random() < 0.7:
                await self._record(undeleted(catalog, LAKE, now_ms))
                self._world.coverage.saw("the topic was brought back")
            else:
                await self._record(deleted(catalog, LAKE, 0, 0, now_ms))

    async def _move(self, topic: Topic) -> None:
        partition = self._random.randrange(PARTITIONS)
        target = 1 + topic.bundles[partition] % (BUNDLES - 1)
        try:
            await self._record(moved(await self._catalog(), LAKE, partition, target, BUNDLES))
        except Unavailable:
            return  # it is on its way
        self._world.coverage.saw("a move was decided")

    async def _change_table(self, topic: Topic) -> None:
        has = bool(topic.settings.table_generation)
        if has and self._random.random() < 0.4:
            await self._alter({}, rebuild=True)
        elif has:
            await self._alter({"table.format": "none"} | ({} if self.tables.is_iceberg else {"table.delta.place": ""}))
            if self._random.random() < 0.4:
                unset = (await self._catalog()).topics_by_name[LAKE]
                await empty_table(self._store, self._cluster, unset, self._sources)
                self._world.coverage.saw("a table was dropped")
        else:
            await self._alter(self._format)
            self._world.coverage.saw("a table was set again")

    async def _let_go(self, wanted: LetGo) -> None:
        generation = wanted.topic.settings.table_generation
        before = (await self._catalog()).topics_by_name[LAKE].settings
        after = await self._alter({}, let_go=(generation, wanted.held_bytes))
        if before.table_generation != generation:
            self._world.coverage.saw("a table was to be unset that was another one by then")
        if before.table_generation and not after.table_generation:
            self._world.coverage.saw("a table was unset, because it held back too much")
            if before.table_generation != generation:
                text = f"generation {before.table_generation}, because generation {generation} held too much"
                self._world.violations.append(Violation("another table unset", text))

    async def _alter(
        self, change: dict[str, str], *, rebuild: bool = False, let_go: tuple[int, int] = (0, 0)
    ) -> TopicSettings:
        catalog = await self._catalog()
        now_ms = self._sources.now_ms()
        topic = altered(catalog, LAKE, 0, change, (), BUNDLES, LIMITS, now_ms, rebuild_table=rebuild, let_go=let_go)
        await self._record(topic)
        return topic.settings

    async def _record(self, topic: Topic) -> None:
        """As the controller does: when this returns it counts in every bundle."""
        await self.append(keys.METADATA_BUNDLE, metadata_batch(topic.name, encode_topic_record(topic)))
        await asyncio.sleep(self._random.uniform(0, self.tables.late_facts_s))
        catalog = await self._catalog()
        for bundle in sorted(topic.bundles_in_use):
            await bring_facts_into_force(
                ledger_of(self._store, bundle, cluster=self._cluster, sources=self._sources), catalog
            )


class Keeper(Worker):
    """Keeps the table as the owner of the topic's first partition does: it follows checkpoints, and measures. Any
    number of them at once, as where brokers are replaced that do not know it yet.
    """

    tables: TablesPlan
    requests: list[LetGo]
    _known: Catalog | None = None
    _follower: TableFollower | None = None

    def pause_s(self) -> float:
        return self.tables.follow_every_s

    async def step(self) -> None:
        if self._known is None or self._random.random() >= self.tables.stale_catalog:
            self._known = await self._catalog()
        topic = self._known.topics_by_name.get(LAKE)
        if topic is not None and topic.living and topic.settings.table_generation:
            await self.follow(topic, self._known)

    async def follow(self, topic: Topic, catalog: Catalog) -> None:
        follower = self._follower_of(topic)
        if follower.state.why:
            for bundle in sorted(topic.bundles_in_use):
                ledger = ledger_of(self._store, bundle, cluster=self._cluster, sources=self._sources)
                await bring_facts_into_force(ledger, catalog)
        await follower.follow()
        if follower.state.stopped:
            self._world.violations.append(Violation("a table stands still", str(follower.state.stopped)))
        if follower.holds_too_much:
            self.requests.append(LetGo(topic, follower.state.held_bytes))
            self._world.coverage.saw("a table held back too much")

    def _follower_of(self, topic: Topic) -> TableFollower:
        """As a broker chooses: a new one for each state of the topic, which goes on with what is known of a table."""
        before = self._follower
        if before is None or before.topic.version != topic.version:
            same = before is not None and before.topic.settings.table_generation == topic.settings.table_generation
            self._follower = TableFollower(
                self._store,
                self._cluster,
                topic,
                self._sources,
                asyncio.get_running_loop().time,
                before.state if before is not None and same else None,
                self.tables.log_checkpoint_every,
            )
        assert self._follower is not None
        return self._follower


class SlowRegistrar(Worker):
    """A registrar of an earlier owner: it knows the topic as it was when it began, and takes turns with long pauses."""

    tables: TablesPlan
    run_blocking: RunBlocking = staticmethod(run_inline)
    """How it calls the catalog of an Iceberg table."""
    _topic: Topic | None = None

    def pause_s(self) -> float:
        return 2 * self.tables.follow_every_s

    async def step(self) -> None:
        if self._topic is None or self._random.random() < 0.1:
            found = (await self._catalog()).topics_by_name.get(LAKE)
            self._topic = found if found is not None and found.living and found.settings.table_generation else None
        if self._topic is None:
            return
        every, run = self.tables.log_checkpoint_every, self.run_blocking
        registrar = Registrar(self._store, self._cluster, self._topic, self._sources, every, run)
        if self._random.random() < self.tables.gates:
            self._world.coverage.saw("a gate was raised", await registrar.raise_gates())
            return
        turn = await registrar.turn()
        self._world.coverage.saw("a slow registrar put a version", turn.committed is Committed.WON)


class LakeCompactor(Compactor):
    tables: TablesPlan

    async def step(self) -> None:
        if not self.tables.is_keyed or self._random.random() < 0.5:
            await super().step()
            return
        if self._known is None or self._random.random() >= self._plan.stale_catalog:
            self._known = await self._catalog()
        reports = await clean_bundle(self._compaction, self._random.randrange(1, BUNDLES), self._known, everything=True)
        self._world.coverage.saw("a keyed partition was cleaned", len(reports))

    async def _delete_records(self) -> None:
        """To anywhere in the log, in a bundle that may not have the partition any longer."""
        bundle = self._random.randrange(1, BUNDLES)
        topic = (await self._catalog()).topics_by_name.get(LAKE)
        if topic is None or not topic.living:
            return
        ledger = ledger_of(self._store, bundle, cluster=self._cluster, sources=self._sources)
        ends = (await recover(ledger)).state.ends
        befores = {key[1]: self._random.randint(0, end) for key, end in ends.items() if key[0] == topic.id}
        if befores and await advance_checkpoint(ledger, deletion_move(topic, befores)):
            self._world.coverage.saw("a log start was raised by hand")
