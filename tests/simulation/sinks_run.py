"""Level *sinks*: what drivers of Spark sinks and brokers leave in a root, beside sweeps that collect it.

Weeks of virtual time in which little happens: drivers stage rows, decide, publish and mark epochs as
done, by the product's own commit; brokers write heartbeats for a while and are silent for hours;
rival sweeps take what may go. Each of them may sleep for a day before any request, or die. No records
are in the ledgers: brokers that take staged rows are a table of what each put id has stored.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from ledgermq.client.client import Client
from ledgermq.client.connection.routing import TopicRoute
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.delivery import Outcome
from ledgermq.client.producing.partition.sessions import EncodedBatch, Session
from ledgermq.protocol.batches.records import SCHEMA
from ledgermq_broker.cluster.heartbeat import Heartbeat, encode_heartbeat
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterDefaults, ClusterSettings, open_cluster
from ledgermq_ledger.garbage import heartbeats
from ledgermq_ledger.garbage.found import Kind
from ledgermq_ledger.garbage.sweep import sweep
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_spark.sink.cluster import Place
from ledgermq_spark.sink.driver import commit_epoch
from ledgermq_spark.sink.epochs.staging import StagedWriter
from ledgermq_spark.sink.options import SinkOptions
from ledgermq_spark.sink.rows.rows import Routed
from ledgermq_spark.sink.staged import Staged
from tests.judges.violation import Violation
from tests.simulation.disturbances import Disturbances
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.plan import plan_of
from tests.simulation.result import Result, finish
from tests.simulation.rounds_plan import rounds_plan_of
from tests.simulation.rounds_processes import Compactor, Worker
from tests.simulation.store import NO_FAULTS
from tests.simulation.stored_segments import values_of
from tests.simulation.world import World
from tests.stores.faulty import Faults

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 24 * 3600.0
SECONDS = 20 * DAY_S
WAIT_S_MAX = 9 * DAY_S
"""Between rows that are staged and their commit: longer than undecided rows are kept."""
NAP_S_MAX = DAY_S
"""A driver may sleep before each of a commit's few requests: together far less than the half of
`STAGED_AGE_MS` that lies between its look at the rows' dates and the sweep that may take them.
"""
TOPIC = TopicRoute("sunk", 7, 2, {}, 0.0)
WRITES = ("stream", "other")
BEATS_EVERY_S = 20 * MINUTE_S
JUST_NOW_MS = 60_000
"""A heartbeat that is so young may have been written after a sweep has looked at it again."""


@dataclass(slots=True)
class Topics:
    """What brokers have stored: each put id's sequences count, as they do for a real producer."""

    stored: defaultdict[tuple[bytes, TopicPartition], list[str]] = field(default_factory=lambda: defaultdict(list))

    def take(self, put_id: bytes, partition: TopicPartition, batch: EncodedBatch, sequence: int) -> None:
        log = self.stored[put_id, partition]
        values = [cast(bytes, value).decode() for value in values_of(batch.data)]
        assert sequence <= len(log), f"{partition}: sequence {sequence} after {len(log)} records"
        log += values[len(log) - sequence :]


class SinkClient:
    """As much of an SDK client as a commit asks for."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def open_sessions(self, put_id: bytes, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Session]:
        return {
            each: Session(put_id, 1, next_sequence=len(self._topics.stored.get((put_id, each), ())))
            for each in partitions
        }

    async def describe_topic(self, name: str) -> Any:
        return SimpleNamespace(topic_id=TOPIC.topic_id)

    @asynccontextmanager
    async def resumed_producer(
        self, sessions: dict[TopicPartition, Session], **settings: object
    ) -> AsyncIterator[SinkProducer]:
        yield SinkProducer(self._topics, sessions)


class SinkProducer:
    def __init__(self, topics: Topics, sessions: dict[TopicPartition, Session]) -> None:
        self._topics = topics
        self._sessions = sessions

    async def send_encoded(
        self, name: str, topic_id: int, partition: int, batch: EncodedBatch, sequence: int
    ) -> Outcome:
        each = TopicPartition(name, partition)
        await asyncio.sleep(0.01)
        self._topics.take(self._sessions[each].id, each, batch, sequence)
        outcome = Outcome()
        outcome.settle()
        return outcome

    async def flush(self) -> None:
        return None


class Driver(Worker):
    """Of the write that its name begins with. A rival works on the same write, as a driver does that
    Spark has given up and that still runs.
    """

    topics: Topics
    committed: dict[str, int]
    """By write: how many epochs Spark's checkpoint says are committed."""

    def pause_s(self) -> float:
        return 12 * HOUR_S

    async def step(self) -> None:
        write = self.name.partition(" ")[0]
        epoch = self.committed[write]
        staged = await self._staged(write, epoch)
        await asyncio.sleep(self._random.choice((1.0, HOUR_S, WAIT_S_MAX)) * self._random.random())
        began_s = asyncio.get_running_loop().time()
        place = Place(cast(Client, SinkClient(self.topics)), self._store, self._sources, SinkOptions(servers="b0"))
        await commit_epoch(place, write, epoch, staged, repeatable=True)
        self.committed[write] = max(self.committed[write], epoch + 1)
        self._world.coverage.saw("an epoch was committed")
        if asyncio.get_running_loop().time() - began_s > HOUR_S:
            self._world.coverage.saw("a driver slept while it committed")

    async def _staged(self, write: str, epoch: int) -> list[Staged]:
        """Of two tasks. A driver that dies leaves them, and the next one stages anew."""
        messages = []
        for task in range(2):
            writer = StagedWriter(self._store, self._sources, write, epoch, "none")
            values = [f"{write}.{epoch}.{task}.{i}" for i in range(3)]
            rows = pa.RecordBatch.from_pylist(
                [{"value": value.encode(), "timestamp": self._sources.now_ms() * 1000} for value in values],
                schema=SCHEMA,
            )
            await writer.add(Routed(TOPIC, task, rows))
            await writer.finish()
            partitions = {TopicPartition(TOPIC.name, task)}
            messages.append(Staged(write, epoch, 3, writer.objects, {TOPIC.name: TOPIC.topic_id}, partitions))
        return messages


class Beating(Worker):
    """A broker, as far as its heartbeat goes: it writes some, and is silent for hours."""

    _counter = 0

    def pause_s(self) -> float:
        return 12 * HOUR_S

    async def step(self) -> None:
        for _ in range(self._random.randint(2, 10)):
            self._counter += 1
            beat = Heartbeat(self.name, f"{self.name}:1", 1, self._sources.new_id().hex(), self._counter)
            await self._store.put(keys.broker(self.name), encode_heartbeat(beat))
            await asyncio.sleep(BEATS_EVERY_S * self._random.uniform(0.5, 1.5))


class Sweeper(Compactor):
    """Sweeps the root, as `ledgermq gc` does and the compaction service once an hour."""

    def pause_s(self) -> float:
        return 10 * HOUR_S

    async def step(self) -> None:
        store = SweptStore(self._store, self._world)
        grace_ms = self._random.choice((0, 0, 3_600_000))
        swept = await sweep(replace(self._compaction, store=store), grace_ms=grace_ms)
        self._judge(swept.failures)
        for kind in (Kind.STAGED, Kind.HEARTBEAT):
            gone = {each.key for each in swept.removed if each.kind is kind}
            self._world.coverage.saw(f"swept: {kind}", len(gone))
            kept = [key for key in swept.found.keys(kind) if key not in gone]
            self._world.coverage.saw(f"found, and not taken: {kind}", len(kept))
        self._world.coverage.saw("a sweep ran beside a decision that was not done", len(open_decisions(self._world)))


class SweptStore(StoreWrapper):
    """Judges what a sweep is about to delete below brokers/, before its request may be late."""

    def __init__(self, inner: ObjectStore, world: World) -> None:
        super().__init__(inner)
        self._world = world

    async def delete(self, keys_of: Sequence[str]) -> None:
        world = self._world
        for key in keys_of:
            if keys.parse_broker(key) is not None and world.store.has(key):
                age_ms = world.store.now_ms() - world.store.info_now(key).modified_ms
                if JUST_NOW_MS < age_ms < heartbeats.AGE_MS:
                    text = f"{key} was written {age_ms / 60_000:.0f} minutes before a sweep took it"
                    world.violations.append(Violation("a living heartbeat deleted", text))
        await super().delete(keys_of)


class SinksRun:
    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        self.world = World(loop, seed, lines_kept)
        r = random.Random(f"sinks {seed}")
        self.world.is_s3 = r.random() < 0.5
        self._rounds = rounds_plan_of(seed)
        days = r.choice((0.5, 2.0))
        self._plan = replace(plan_of(seed), event_every_s=6 * HOUR_S, pause_s_max=days * DAY_S)
        self._naps = r.choice((0.01, 0.03))
        self._faults = Faults(
            delay_s_max=0.02, before=r.choice((0.0, 0.02)), after=r.choice((0.0, 0.02)), late=r.choice((0.0, 0.01))
        )
        self._topics = Topics()
        self._committed = dict.fromkeys(WRITES, 0)
        self._workers: dict[str, Worker] = {}
        self._cluster: ClusterSettings
        self._incarnation = 0

    async def run(self) -> Result:
        world = self.world
        self._cluster = await open_cluster(world.store, world.sources("genesis"), ClusterDefaults(2, 100, 3000, 12_000))
        for name in (*WRITES, f"{WRITES[0]} rival", "b0", "b1", "g0", "g1"):
            self._start(name)
        weather = world.weather
        weather.faults, weather.naps, weather.nap_s_max = self._faults, self._naps, NAP_S_MAX
        disturbances = Disturbances(world, self._plan, self._victims, self._start)
        disturbances.jump_s_max = 30.0 if world.is_s3 else 3600.0
        hand = world.loop.in_world(disturbances.run())
        await asyncio.sleep(SECONDS)
        hand.cancel()
        weather.faults, weather.naps = NO_FAULTS, 0.0
        world.note("world", "heals")
        world.healed = True
        world.skew_us.clear()
        await disturbances.heal()
        await asyncio.sleep(2 * WAIT_S_MAX)  # every worker ends its last step
        self._conclude()
        return finish(world)

    def _victims(self) -> list[Process]:
        return [worker.process for worker in self._workers.values()]

    def _start(self, name: str) -> None:
        self._incarnation += 1
        kind = {"b": Beating, "g": Sweeper}.get(name[0] if name[1:].isdigit() else "", Driver)
        worker = self._workers[name] = kind(self.world, self._rounds, self._cluster, name, self._incarnation)
        if isinstance(worker, Driver):
            worker.topics, worker.committed = self._topics, self._committed

    def _conclude(self) -> None:
        """The rows of each epoch that is committed are in their topic, once."""
        found = sorted(value for log in self._topics.stored.values() for value in log)
        for write, epochs in self._committed.items():
            for epoch in range(epochs):
                rows = [f"{write}.{epoch}.{task}.{i}" for task in range(2) for i in range(3)]
                there = [value for value in found if value.startswith(f"{write}.{epoch}.")]
                if there != rows:
                    self.world.violations.append(
                        Violation("rows of an epoch", f"epoch {epoch} of {write}: {there} are stored")
                    )
        self.world.coverage.saw("a run on S3" if self.world.is_s3 else "a run on files")


def open_decisions(world: World) -> list[str]:
    """Keys of those whose epochs are not done."""
    found = []
    for key in world.store.keys_now(keys.SINKS):
        name = keys.parse_sink(key)
        if (
            name is not None
            and name.kind == "decided"
            and keys.sink_done_epoch(name.write, name.epoch) not in world.store.first
        ):
            found.append(key)
    return found
