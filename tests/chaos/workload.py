"""The clients of a run: SDK producers and consumers over gRPC that record their requests and the
answers.

All run in one event loop, so the history has one order. Each has its own client, hence its own
connections. Values begin with a name that no two sends share.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import ledgermq
from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import Message
from ledgermq.client.producing.delivery import Delivery
from ledgermq.errors import LedgerMQError, OutcomeUnknown, ResourceExhausted
from tests.chaos.librdkafka.sends import TimedHistory
from tests.chaos.measures import Measures
from tests.judges.violation import Violation
from tests.simulation.history import Assign, LogStart, Outcome, Partition, Poll

T = TypeVar("T")
PARTITIONS = 6
RETENTION_MS = 20_000
OUTPUTS = ("left", "right")
"""Topics that transactions write to, beside plain producers."""
TOPICS: dict[str, dict[str, int]] = {
    "main": {"parquet.target.bytes": 1024 * 1024, "parquet.max.lag.ms": 6000},
    "brief": {"parquet.target.bytes": 512 * 1024, "parquet.max.lag.ms": 1000, "retention.ms": RETENTION_MS},
    **{output: {"parquet.target.bytes": 256 * 1024, "parquet.max.lag.ms": 3000} for output in OUTPUTS},
}
TIMED = "timed."
"""Prefix of the names of timed messages."""
_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+)*(:[0-9]+)?")
DELIVERY_S = 60.0
REQUEST_S = 5.0
READ_S = 20.0
CLOSE_S_MAX = DELIVERY_S + 30.0
NEVER_TOLD = ("INTERNAL", "DATA_DAMAGED", "STORE_UNUSABLE", "FORMAT_NOT_SUPPORTED")


class Workload:
    """What all clients share."""

    def __init__(self, target: str, seed: int, measures: Measures) -> None:
        self.target = target
        self.seed = seed
        self.history = TimedHistory()
        self.measures = measures
        self.violations: list[Violation] = []
        self.stopped = asyncio.Event()
        self.sent_ms: dict[str, int] = {}
        """When each value was sent, by the wall clock."""
        self.seen_ns: dict[str, int] = {}
        """When a reader saw a record of an output first, monotonic."""
        self.timed_seen_us: dict[str, int] = {}
        """When a reader saw a timed message first, by the wall clock."""
        self.log_starts: list[tuple[Partition, int, int]] = []
        """(partition, log start, wall-clock time of the answer in ms)."""

    def connect(self) -> Any:
        return ledgermq.connect(self.target, timeout_s=20, attempt_timeout_s=REQUEST_S)

    def told(self, what: str, error: LedgerMQError) -> None:
        """INTERNAL is a bug, and so is damage: no trouble damages objects here."""
        self.measures.told[f"{what}: {type(error).__name__}: {_NUMBERS.sub('N', error.message)[:90]}"] += 1
        if error.code in NEVER_TOLD:
            self.violations.append(Violation("bug", f"{what} was told {error.code}: {error.message}"))

    async def insist(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except LedgerMQError as error:
                self.told(what, error)
                await asyncio.sleep(0.3)

    async def note_log_start(self, client: ledgermq.Client, partition: Partition) -> None:
        """Asks its owner alone: others may be cut off."""
        topic, number = partition
        async with client.consumer(topic, [number], "earliest", request_timeout_s=READ_S) as probe:
            await self.insist("log start", probe.wait_ready)
            offset = probe.position(number)
        self.history.add(LogStart(partition, offset))
        self.log_starts.append((partition, offset, time.time_ns() // 1_000_000))


class ChaosClient(Protocol):
    async def run(self) -> None:
        """Until the work is stopped."""
        ...


class Sender:
    """`once` and in order if the settings promise it.

    Now and then a new producer, as a program that is started again.
    """

    def __init__(self, work: Workload, name: str, topics: list[str], records_s: float, **settings: Any) -> None:
        self.name = name
        self._work = work
        self._topics = topics
        self._records_s = records_s
        self._settings = settings
        self._once = settings.get("idempotent", True) is True and settings.get("acks", "durable") == "durable"
        self._random = random.Random(f"{name} {work.seed}")
        self._number = 0

    async def run(self) -> None:
        session = 0
        while not self._work.stopped.is_set():
            session += 1
            await self._session(f"{self.name}{session}")

    async def _session(self, client_name: str) -> None:
        loop = asyncio.get_running_loop()
        over_s = loop.time() + self._random.choice((10, 60, 1000))
        async with self._work.connect() as client, asyncio.TaskGroup() as group:
            producer = client.producer(delivery_timeout_s=DELIVERY_S, request_timeout_s=REQUEST_S, **self._settings)
            while not self._work.stopped.is_set() and loop.time() < over_s:
                topic, number = self._random.choice(self._topics), self._random.randrange(PARTITIONS)
                count = self._random.choice((1, 2, 5, 30))
                for _ in range(count):
                    self._send(group, producer, client_name, topic, number)
                await asyncio.sleep(self._random.expovariate(self._records_s / count))
            try:
                async with asyncio.timeout(CLOSE_S_MAX):
                    await producer.close()
            except TimeoutError:
                self._work.violations.append(Violation("stuck", f"{client_name}: close took more than {CLOSE_S_MAX} s"))
            except LedgerMQError as error:
                self._work.told("close", error)

    def _send(self, group: asyncio.TaskGroup, producer: Any, client_name: str, topic: str, number: int) -> None:
        self._number += 1
        name = f"{self.name}.{self._number}"
        value = f"{name}|".encode() + self._random.randbytes(self._random.choice((0, 20, 200, 2000)))
        partition = (topic, number)
        op = self._work.history.begin_produce(client_name, partition, (name,), once=self._once, ordered=self._once)
        self._work.sent_ms[name] = time.time_ns() // 1_000_000
        try:
            delivery = producer.send(topic, value, key=name, partition=number)
        except ResourceExhausted as error:
            self._work.history.end_produce(op, Outcome.FAIL, why=error.message)
            return
        group.create_task(self._await(op, partition, delivery, asyncio.get_running_loop().time(), len(value)))

    async def _await(self, op: int, partition: Partition, delivery: Delivery, sent_s: float, size: int) -> None:
        try:
            result = await delivery
        except LedgerMQError as error:
            self._work.told("a send", error)
            fate = Outcome.INFO if isinstance(error, OutcomeUnknown) else Outcome.FAIL
            self._work.history.end_produce(op, fate, why=error.message)
            return
        self._work.history.end_produce(op, Outcome.OK, result.offset)
        if result.offset >= 0:
            self._work.measures.ack(partition, sent_s, asyncio.get_running_loop().time(), size)


class Reader:
    """Reads from the earliest on; now and then it begins again, where it was or at the earliest."""

    def __init__(self, work: Workload, name: str, topics: list[str]) -> None:
        self.name = name
        self._work = work
        self._topics = topics
        self._random = random.Random(f"{name} {work.seed}")
        self._positions: dict[tuple[str, Partition], int] = {}

    async def run(self) -> None:
        session = 0
        start: dict[tuple[str, int], int] | str = "earliest"
        async with self._work.connect() as client:
            while not self._work.stopped.is_set():
                session += 1
                start = await self._session(client, f"{self.name}.{session}", start)
                if self._random.random() < 0.3:
                    start = "earliest"

    async def _session(
        self, client: ledgermq.Client, reader: str, start: dict[tuple[str, int], int] | str
    ) -> dict[tuple[str, int], int] | str:
        over_s = asyncio.get_running_loop().time() + self._random.choice((5.0, 30.0, 1000.0))
        consumer = client.consumer(self._topics, start=start, auto_offset_reset="earliest", request_timeout_s=READ_S)  # type: ignore[arg-type]
        if not isinstance(start, str):
            for partition, offset in start.items():
                self._work.history.add(Assign(reader, partition, offset))
                self._positions[reader, partition] = offset
        try:
            while not self._work.stopped.is_set() and asyncio.get_running_loop().time() < over_s:
                try:
                    messages = await consumer.fetch(self._random.choice((1, 10, 500)), timeout=1.0)
                except LedgerMQError as error:
                    self._work.told("a reader", error)
                    await asyncio.sleep(0.2)
                    continue
                await self.note(client, reader, messages)
            return {(p.topic, p.partition): offset for p, offset in consumer.positions().items()} or start
        finally:
            await consumer.close()

    async def note(self, client: ledgermq.Client, reader: str, messages: list[Message]) -> None:
        """A reader passed over records: first ask where the log starts, so that the judge knows
        whether it had to.
        """
        self._work.measures.polled(reader.partition(".")[0], len(messages), asyncio.get_running_loop().time())
        by_partition: defaultdict[Partition, list[tuple[int, str]]] = defaultdict(list)
        passed_over = set()
        for message in messages:
            partition = (message.topic, message.partition)
            if message.offset != self._positions.get((reader, partition), 0):
                passed_over.add(partition)
            self._positions[reader, partition] = message.offset + 1
            name = name_of(message.value)
            by_partition[partition].append((message.offset, name))
            if name.startswith(TIMED):
                self._work.timed_seen_us.setdefault(name, time.time_ns() // 1000)
            if message.topic in OUTPUTS:
                self._work.seen_ns.setdefault(name, time.monotonic_ns())
        for partition in sorted(passed_over):
            await self._work.note_log_start(client, partition)
        for partition, records in by_partition.items():
            self._work.history.add(Poll(reader, partition, tuple(records)))

    async def drain(self, consumer: Consumer, client: ledgermq.Client, reader: str) -> None:
        """Read to the present ends."""
        work = self._work
        await work.insist(reader, consumer.wait_ready)
        asked = [
            (partition, work.history.ask_end(reader, (partition.topic, partition.partition)))
            for partition in consumer.assignment
        ]
        ends = await work.insist(reader, consumer.end_offsets)
        for partition, op in asked:
            work.history.tell_end(op, ends[partition])
        while any(consumer.positions()[partition] < end for partition, end in ends.items()):
            await self.note(client, reader, await work.insist(reader, lambda: consumer.fetch(2000, timeout=2.0)))


class EndAsker:
    def __init__(self, work: Workload, topics: list[str]) -> None:
        self._work = work
        self._topics = topics
        self._random = random.Random(f"ends {work.seed}")

    async def run(self) -> None:
        async with self._work.connect() as client:
            while not self._work.stopped.is_set():
                await asyncio.sleep(self._random.expovariate(1.0))
                topic = self._random.choice(self._topics)
                ops = {number: self._work.history.ask_end("ends", (topic, number)) for number in range(PARTITIONS)}
                try:
                    ends = await client.list_offsets(topic, "latest")
                except LedgerMQError as error:
                    self._work.told("ends", error)
                    continue
                for number, op in ops.items():
                    self._work.history.tell_end(op, ends[number])


class OwnerWatch:
    """Who serves what, for the measures only: as of a second ago."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self.owners: dict[Partition, str] = {}

    async def run(self) -> None:
        async with self._work.connect() as client:
            while not self._work.stopped.is_set():
                for topic in TOPICS:
                    try:
                        described = await client.describe_topic(topic)
                    except LedgerMQError:
                        continue
                    self.owners |= {(topic, part.partition): part.owner for part in described.partitions if part.owner}
                await asyncio.sleep(1.0)

    def of(self, address: str) -> list[Partition]:
        return [partition for partition, owner in self.owners.items() if owner == address]


def name_of(value: bytes | None) -> str:
    return (value or b"").partition(b"|")[0].decode(errors="replace")
