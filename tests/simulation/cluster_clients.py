"""Clients of a simulated cluster: the SDK itself, one class for each kind of use.

Each records its requests and the answers.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

from ledgermq.client.client import Client
from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import Message
from ledgermq.client.producing.delivery import Delivery
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import (
    LedgerMQError,
    LegalHold,
    OffsetOutOfRange,
    OutcomeUnknown,
    ResourceExhausted,
    TopicExists,
    UnknownTopic,
)
from tests.judges.violation import Violation
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.direct import LateThreads
from tests.simulation.history import Assign, Outcome, Partition, Poll
from tests.simulation.loop import Process
from tests.simulation.network import Network
from tests.simulation.tags import tag_of
from tests.simulation.watch import PLACE
from tests.simulation.world import World

PARTITIONS = 3


class SimulatedClient:
    def __init__(self, world: World, network: Network, plan: ClusterPlan, name: str) -> None:
        self.name = name
        self.process: Process = world.start(name)
        self.random = random.Random(f"client {name} {world.seed}")
        self.label = name
        """Of what it draws: a client that is killed and started again draws other ids."""
        self.stopped = asyncio.Event()
        self.client: Client
        self._world = world
        self._network = network
        self._plan = plan
        self._values = 0

    def start(self) -> asyncio.Task[None]:
        return self.process.spawn(self._live())

    async def _live(self) -> None:
        brokers = [f"b{i}" for i in range(self._plan.brokers)]
        self.random.shuffle(brokers)
        settings = ClientSettings(timeout_s=15.0, attempt_timeout_s=self._plan.request_timeout_s)
        connector = self._network.connector(self.name, self._plan.request_timeout_s)
        threads = LateThreads(self.random, self._plan.request_timeout_s / 2) if self._plan.direct_reads else None
        self.client = Client(connector, brokers[:2], settings, self._world.sources(self.label), threads)
        await self.work()
        try:
            await self.client.close()
        except LedgerMQError as error:
            self._world.note(self.name, f"close: {error.message[:100]}")
        self._world.note(self.name, "has ended")

    async def work(self) -> None:
        raise NotImplementedError

    def next_value(self) -> str:
        self._values += 1
        return f"{self.name}.{self._values}"

    def partition(self, topic: str, number: int) -> Partition:
        """Topics are told apart by their creation."""
        return (f"{topic}#{self._world.topic_ids[topic]}", number)


class Sender(SimulatedClient):
    """Produces to all partitions of some topics, and writes down each record's fate."""

    def __init__(
        self, world: World, network: Network, plan: ClusterPlan, name: str, topics: list[str], **settings: object
    ) -> None:
        super().__init__(world, network, plan, name)
        self._topics = topics
        self._settings = settings
        self._once = settings.get("idempotent", True) is True and settings.get("acks", "durable") == "durable"

    async def work(self) -> None:
        producer = self.client.producer(
            linger_ms=self._plan.linger_ms,
            compression=self._plan.compression,
            delivery_timeout_s=self._plan.delivery_timeout_s,
            request_timeout_s=self._plan.request_timeout_s,
            **self._settings,
        )
        async with asyncio.TaskGroup() as group:
            while not self.stopped.is_set():
                topic, number = self.random.choice(self._topics), self.random.randrange(PARTITIONS)
                for _ in range(self.random.choice((1, 1, 2, 5))):
                    value = self.next_value()
                    op = self._world.history.begin_produce(
                        f"{self.name}", self.partition(topic, number), (value,), once=self._once, ordered=self._once
                    )
                    own_us = self._world.sources("times").now_us()
                    try:
                        delivery = producer.send(
                            topic, value, key=value, tag=tag_of(value), partition=number, ttl=self.ttl_s()
                        )
                    except ResourceExhausted as error:
                        self._world.history.end_produce(op, Outcome.FAIL, why=error.message)
                    else:
                        group.create_task(self._await(op, delivery, self.partition(topic, number), own_us))
                await asyncio.sleep(self.random.expovariate(self._plan.records_s / 2))

    def ttl_s(self) -> float | None:
        """Return the time to live of the next record."""
        return None

    async def _await(self, op: int, delivery: Delivery, partition: Partition, own_us: int) -> None:
        try:
            result = await delivery
        except LedgerMQError as error:
            self._world.coverage.saw(f"a send failed: {type(error).__name__}")
            self._world.history.end_produce(op, fate_of(error), why=error.message)
        else:
            self._world.history.end_produce(op, Outcome.OK, result.offset)
            if self._world.stamps is not None and self._settings.get("acks") != "received":
                self._world.stamps.told(self.name, partition, result.offset, result.timestamp_us, own_us)


class Reader(SimulatedClient):
    """Reads some topics from the earliest on; now and then it begins again, where it was or at the
    earliest.
    """

    def __init__(self, world: World, network: Network, plan: ClusterPlan, name: str, topics: list[str]) -> None:
        super().__init__(world, network, plan, name)
        self._topics = topics

    async def work(self) -> None:
        session = 0
        positions: dict[tuple[str, int], int] | str = "earliest"
        while not self.stopped.is_set():
            session += 1
            positions = await self._session(f"{self.name}.{session}", positions)
            if self.random.random() < 0.3:
                positions = "earliest"

    async def _session(self, reader: str, start: dict[tuple[str, int], int] | str) -> dict[tuple[str, int], int] | str:
        loop = asyncio.get_running_loop()
        over = loop.time() + self.random.choice((5.0, 30.0, 1000.0))
        consumer = self.client.consumer(
            self._topics,
            start=start,
            auto_offset_reset="earliest",
            request_timeout_s=self._plan.request_timeout_s,  # type: ignore[arg-type]
            direct_reads=PLACE if self._plan.direct_reads else "",
        )
        if not isinstance(start, str):
            for (topic, number), offset in start.items():
                self._world.history.add(Assign(reader, self.partition(topic, number), offset))
        try:
            while not self.stopped.is_set() and loop.time() < over:
                await self._poll(reader, consumer)
            return {(p.topic, p.partition): offset for p, offset in consumer.positions().items()} or start
        finally:
            await consumer.close()

    async def _poll(self, reader: str, consumer: Consumer) -> None:
        try:
            messages = await consumer.fetch(self.random.choice((1, 10, 500)), timeout=1.0)
        except LedgerMQError as error:
            self._world.coverage.saw(f"a reader was told: {type(error).__name__}")
            self._world.judge_error(error)
            await asyncio.sleep(0.2)
            return
        note_polls(self, reader, messages)


def fate_of(error: LedgerMQError) -> Outcome:
    """The SDK says OutcomeUnknown where a record may be stored; any other error means that it is
    not, and never will be.
    """
    return Outcome.INFO if isinstance(error, OutcomeUnknown) else Outcome.FAIL


def note_polls(client: SimulatedClient, reader: str, messages: list[Message]) -> None:
    by_partition: defaultdict[Partition, list[tuple[int, str]]] = defaultdict(list)
    for message in messages:
        assert message.value is not None
        partition = client.partition(message.topic, message.partition)
        by_partition[partition].append((message.offset, message.value.decode()))
        if client._world.stamps is not None:
            client._world.stamps.told(reader, partition, message.offset, message.timestamp_us)
    for partition, records in by_partition.items():
        client._world.history.add(Poll(reader, partition, tuple(records)))


class EndAsker(SimulatedClient):
    def __init__(self, world: World, network: Network, plan: ClusterPlan, name: str, topic: str) -> None:
        super().__init__(world, network, plan, name)
        self._topic = topic

    async def work(self) -> None:
        history = self._world.history
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(0.5))
            ops = {
                number: history.ask_end(self.name, self.partition(self._topic, number)) for number in range(PARTITIONS)
            }
            try:
                ends = await self.client.list_offsets(self._topic, "latest")
            except LedgerMQError:
                continue
            self._world.coverage.saw("latest offsets were told")
            for number, op in ops.items():
                history.tell_end(op, ends[number])


class Keeper(SimulatedClient):
    """Deletes records of a topic on demand, holds it, lets it go; what it was told counts from then
    on.
    """

    topic = "brief"
    _may_be_released = False
    """A request to end the hold has no answer: it may still arrive, however late."""

    async def work(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.uniform(0.5, 4.0))
            step = self.random.choice((self._delete, self._delete, self._hold, self._let_go))
            try:
                await step()
            except (LegalHold, OffsetOutOfRange) as error:
                self._world.coverage.saw(f"a deletion was refused: {error.code}")
            except LedgerMQError as error:
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")

    async def _delete(self) -> None:
        partition = self.random.randrange(PARTITIONS)
        end = (await self.client.list_offsets(self.topic, "latest"))[partition]
        wanted = self.random.randint(0, end + (self.random.random() < 0.1))
        told = (await self.client.delete_records(self.topic, wanted, [partition]))[partition]
        self._world.coverage.saw("records were deleted on demand", told.records)
        topic = await self.client.describe_topic(self.topic)
        parts = self._world.store.newest_checkpoint(topic.partitions[partition].bundle).partitions
        stored = next((p.log_start for p in parts if (p.topic_id, p.partition) == (topic.topic_id, partition)), 0)
        if stored < max(wanted, told.log_start):
            text = (
                f"{self.topic}-{partition}: told that the log starts at {told.log_start} for {wanted}, it is {stored}"
            )
            self._world.violations.append(Violation("deletion not durable", text))

    async def _hold(self) -> None:
        made = await self.client.alter_topic(self.topic, settings={"legal.hold": True})
        if not self._may_be_released:
            self._world.retention.hold(made.topic_id, tuple(partition.bundle for partition in made.partitions))

    async def _let_go(self) -> None:
        self._world.retention.let_go(self._world.topic_ids[self.topic])
        before, self._may_be_released = self._may_be_released, True
        await self.client.alter_topic(self.topic, unset=["legal.hold"])
        self._may_be_released = before


class Churner(SimulatedClient):
    """Creates a topic, writes, reads it, deletes it, and begins again under the same name: nothing
    old may ever show.
    """

    _reads = 0

    async def work(self) -> None:
        while not self.stopped.is_set():
            try:
                await self._generation()
            except LedgerMQError as error:
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")
            await asyncio.sleep(self.random.uniform(0.2, 2.0))

    async def _generation(self) -> None:
        topic = "temp"
        try:
            made = await self.client.create_topic(topic, 2, {"parquet.max.lag.ms": 500, "parquet.target.bytes": 1024})
            self._world.coverage.saw("a topic was created")
        except TopicExists:
            made = await self.client.describe_topic(topic)
        before = self._world.topic_ids.get(topic, made.topic_id)
        if before != made.topic_id:
            self._world.freed.add(before)
        self._world.topic_ids[topic] = made.topic_id
        producer = self.client.producer(delivery_timeout_s=10.0, request_timeout_s=self._plan.request_timeout_s)
        for _ in range(self.random.randrange(8)):
            await self._send(producer, topic)
        await producer.abort()
        await self._read(topic)
        try:
            await self.client.delete_topic(topic)
            self._world.coverage.saw("a topic was deleted")
        except UnknownTopic:
            self._world.coverage.saw("a topic was deleted twice")

    async def _send(self, producer: object, topic: str) -> None:
        number, value = self.random.randrange(2), self.next_value()
        op = self._world.history.begin_produce(self.name, self.partition(topic, number), (value,))
        try:
            result = await producer.send(topic, value, partition=number)  # type: ignore[attr-defined]
        except LedgerMQError as error:
            self._world.history.end_produce(op, fate_of(error), why=error.message)
        else:
            self._world.history.end_produce(op, Outcome.OK, result.offset)

    async def _read(self, topic: str) -> None:
        consumer = self.client.consumer(topic, request_timeout_s=self._plan.request_timeout_s)
        self._reads += 1  # each consumer begins anew, whatever was sent since the one before
        reader = f"{self.name}.{self._world.topic_ids[topic]}.{self._reads}"
        try:
            note_polls(self, reader, await consumer.fetch(100, timeout=2.0))
        except OffsetOutOfRange:
            pass
        finally:
            await consumer.close()
