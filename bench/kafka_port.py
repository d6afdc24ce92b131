"""K1 to K10: the same client programs at the Kafka port of LedgerMQ and at Kafka: librdkafka, through confluent-kafka,
and Kafka's own Java tools.

Each broker is one process on local files with an fsync before an acknowledgement, and eight partitions. Settings of
the clients are those of rows P1 and P2. K1 to K3 and K5 are records a second; *CPU of the broker* is its processor
time by megabyte of values in the same runs, and of the SDK at the same broker where it is named. K4 reads a topic
whose broker keeps nothing in memory. K6 has 100 records a second from when each was due until a consumer of
committed records has it, without a transaction and beside one that stays open. K7 holds 1,000 connections that do
nothing. K8 sends batches of one record. K9 commits offsets of a group without members, one after the other; the SDK
does the same at the same broker. K10 has transactions of ten records over four partitions through the Java client, as
in T1, and counts the PUTs of one, also through the SDK.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ledgermq
from bench.load import payloads_in
from bench.measures import Results
from bench.ours import Cluster, cpu_s_of, rss_bytes_of
from bench.peers import confluent, kafka
from bench.percentiles import at
from bench.throughput import PARTITIONS
from bench.transactions import PARTITIONS as TRANSACTION_PARTITIONS
from bench.transactions import PARTS, PUTS, RATE, seen
from bench.transactions import RECORDS as EACH
from ledgermq import TopicPartition
from tests.e2e.admin_port import ADMIN
from tests.kafka.brokers import seed

OURS, KAFKA, SDK = "LedgerMQ's Kafka port", "Kafka 4.1", "LedgerMQ's SDK"
KAFKA_PORT = ("--kafka-port", "0")
SIZES = {1000: 300_000, 100: 2_000_000}
"""Records by the bytes of a value."""
LARGE = 1000
CPU = "CPU of the broker"
COLD_RECORDS = 300_000
SINGLE_RECORDS = 20_000
BESIDE_S, BESIDE_BYTES = 30, 1000
IDLE, IDLE_S = 1000, 10
COMMITS = 300
TRANSACTIONS = 200
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""A request: its length, its kind, version and number, and no name of a client."""


def produce(size: int, compression: str) -> str:
    return f"librdkafka produces {size} B, {compression}"


def consume(size: int) -> str:
    return f"librdkafka consumes {size} B"


JAVA_PRODUCES, JAVA_CONSUMES = "Java's tool produces 1000 B", "Java's tool consumes 1000 B"
BACKLOG = "librdkafka consumes 1000 B of segments"
SINGLE = f"{CPU}, batches of one record"
MEMORY, REST = f"memory of {IDLE} connections", f"CPU of {IDLE} connections"
COMMIT, TRANSACTION = "commit of a group", "commit of a transaction"


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker, and the clients that are measured at it. `cluster`: of LedgerMQ; None: it is Kafka."""

    name: str
    java: kafka.Kafka
    librdkafka: confluent.Confluent
    cluster: Cluster | None = None

    @property
    def pid(self) -> int:
        return self.java.pid


@contextmanager
def ours(folder: Path, name: str, *options: str) -> Iterator[Broker]:
    """Run a broker of LedgerMQ with the port, on an empty root."""
    (folder / name).mkdir()
    with closing(Cluster(folder, (folder / name).as_uri(), 1, *KAFKA_PORT, *ADMIN, *options)) as cluster:
        process = cluster.brokers.running[0]
        (folder / f"{name}-clients").mkdir()
        port = int(seed(process).rpartition(":")[2])
        java = kafka.Kafka(folder / f"{name}-clients", port, process.process, OURS)
        yield Broker(OURS, java, confluent.Confluent(java), cluster)


@contextmanager
def theirs(folder: Path) -> Iterator[Broker]:
    (folder / "kafka").mkdir()
    with kafka.running(folder / "kafka") as java, confluent.running(java) as client:
        yield Broker(KAFKA, java, client)


class KafkaPort:
    """`scale`: a quick run takes a fraction of the records. `peers`: None: without Kafka."""

    def __init__(self, results: Results, rounds: int, scale: float, peers: str | None) -> None:
        self._results, self._rounds, self._scale, self._has_kafka = results, rounds, scale, peers is not None

    def run(self) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgermq-bench-")))
            confluent.install()
            broker = stack.enter_context(ours(folder, "root"))
            subjects = [broker]
            if self._has_kafka:
                subjects.append(stack.enter_context(theirs(folder)))
            for number in range(self._rounds):
                turn = subjects[:: 1 if number % 2 == 0 else -1]
                for size in SIZES:
                    self._size(turn, payloads_in(folder, size), size)
                self._single(turn, payloads_in(folder, LARGE))
                self._transactions(turn, payloads_in(folder, LARGE))
                self._commits(turn)
            for subject in subjects:
                self._beside(subject)
            self._idle(broker)
            cold = stack.enter_context(ours(folder, "cold", "--cache-bytes-max=0", "--no-background-compaction"))
            self._backlog([cold, *subjects[1:]], payloads_in(folder, LARGE))

    def _add(self, row: str, what: str, subject: str, unit: str, value: float) -> None:
        self._results.add(row, what, subject, unit, value)

    def _rate(self, row: str, what: str, broker: Broker, size: int, once: Callable[[], dict[str, float]]) -> None:
        """Add records a second, and the broker's processor time in the same run."""
        before_s = cpu_s_of(broker.pid)
        found = once()
        megabytes = found["records"] * size / 1e6
        self._add(row, what, broker.name, "records/s", found["per_s"])
        self._add(row, f"{CPU}, {what}", broker.name, "ms/MB", 1000 * (cpu_s_of(broker.pid) - before_s) / megabytes)

    def _size(self, subjects: list[Broker], payloads: Path, size: int) -> None:
        records, row = int(SIZES[size] * self._scale), "K1" if size == LARGE else "K2"
        for broker in subjects:
            client = broker.librdkafka
            for compression in ("none", "lz4"):
                topic = client.new_topic()
                sending = partial(client.produce, topic, records, payloads, compression)
                self._rate(row, produce(size, compression), broker, size, sending)
            self._rate("K3", consume(size), broker, size, partial(client.consume, topic, records))
            if size == LARGE:
                self._java(broker, payloads, records)
            self._sdk(broker, row, size, records)

    def _java(self, broker: Broker, payloads: Path, records: int) -> None:
        topic = broker.java.new_topic()
        self._add("K5", JAVA_PRODUCES, broker.name, "records/s", broker.java.produce(topic, records, payloads)["per_s"])
        self._add("K5", JAVA_CONSUMES, broker.name, "records/s", broker.java.consume(topic, records)["per_s"])

    def _sdk(self, broker: Broker, row: str, size: int, records: int) -> None:
        """Measure the broker's processor time by the SDK."""
        if broker.cluster is None:
            return
        topic, megabytes = _new_topic(broker, PARTITIONS), records * size / 1e6
        before_s = cpu_s_of(broker.pid)
        broker.cluster.client("produce", topic, records=records, value_bytes=size, via="send_batch")
        between_s = cpu_s_of(broker.pid)
        broker.cluster.client("consume", topic, records=records, via="messages")
        after_s = cpu_s_of(broker.pid)
        for of, what, seconds in (
            (row, produce(size, "none"), between_s - before_s),
            ("K3", consume(size), after_s - between_s),
        ):
            self._add(of, f"{CPU}, {what}", SDK, "ms/MB", 1000 * seconds / megabytes)

    def _backlog(self, subjects: list[Broker], payloads: Path) -> None:
        records = int(COLD_RECORDS * self._scale)
        topics = {broker.name: broker.librdkafka.new_topic() for broker in subjects}
        for broker in subjects:
            broker.librdkafka.produce(topics[broker.name], records, payloads)
        for number in range(self._rounds):
            for broker in subjects[:: 1 if number % 2 == 0 else -1]:
                found = broker.librdkafka.consume(topics[broker.name], records)
                self._add("K4", BACKLOG, broker.name, "records/s", found["per_s"])

    def _beside(self, broker: Broker) -> None:
        for is_open in (False, True):
            topic = _new_topic(broker, 1)
            seconds = max(5, int(BESIDE_S * self._scale))
            found = sorted(broker.java.beside(topic, seconds, RATE, BESIDE_BYTES, is_open=is_open)["latencies_ms"])
            for part, which in PARTS:
                self._add("K6", seen(which, is_open=is_open), broker.name, "ms", at(found, part))

    def _idle(self, broker: Broker) -> None:
        before_bytes = rss_bytes_of(broker.pid)
        with ExitStack() as stack:
            for _ in range(IDLE):
                line = stack.enter_context(socket.create_connection(("127.0.0.1", broker.java.port), timeout=60))
                line.sendall(API_VERSIONS)
                if not line.recv(1 << 16):
                    raise RuntimeError("the broker has closed a connection")
            begun_s, cpu_s = time.perf_counter(), cpu_s_of(broker.pid)
            time.sleep(IDLE_S)
            share = (cpu_s_of(broker.pid) - cpu_s) / (time.perf_counter() - begun_s)
            memory = rss_bytes_of(broker.pid) - before_bytes
        self._add("K7", MEMORY, broker.name, "MiB", memory / 2**20)
        self._add("K7", REST, broker.name, "% of a core", 100 * share)

    def _single(self, subjects: list[Broker], payloads: Path) -> None:
        records = int(SINGLE_RECORDS * self._scale)
        for broker in subjects:
            topic, before_s = broker.librdkafka.new_topic(), cpu_s_of(broker.pid)
            broker.librdkafka.produce(topic, records, payloads, "none", batch_records=1)
            self._add("K8", SINGLE, broker.name, "µs a record", 1e6 * (cpu_s_of(broker.pid) - before_s) / records)

    def _commits(self, subjects: list[Broker]) -> None:
        for broker in subjects:
            topic, payloads = _new_topic(broker, 1), Path(broker.java.folder, "commits")
            payloads.write_bytes(b"value")
            broker.librdkafka.produce(topic, 2 * COMMITS, payloads)
            found = {broker.name: broker.librdkafka.commits(topic, COMMITS)}
            if broker.cluster is not None:
                found[SDK] = asyncio.run(_sdk_commits(broker.cluster.brokers.addresses, topic))
            for subject, took_ms in found.items():
                for part, which in PARTS:
                    self._add("K9", f"{COMMIT}, {which}", subject, "ms", at(took_ms, part))

    def _transactions(self, subjects: list[Broker], payloads: Path) -> None:
        transactions = int(TRANSACTIONS * self._scale)
        for broker in subjects:
            topic = _new_topic(broker, TRANSACTION_PARTITIONS)
            before = broker.cluster.bill() if broker.cluster is not None else None
            found = broker.java.commit(topic, TRANSACTION_PARTITIONS, transactions, EACH, payloads)
            took_ms = sorted(found["commit_ms"])
            for part, which in PARTS:
                self._add("K10", f"{TRANSACTION}, {which}", broker.name, "ms", at(took_ms, part))
            if broker.cluster is not None and before is not None:
                puts = broker.cluster.bill().since(before).puts
                self._add("K10", PUTS, broker.name, "", puts / (found["transactions"] + kafka.WARM_UP))
                self._sdk_transactions(broker, broker.cluster, transactions)

    def _sdk_transactions(self, broker: Broker, cluster: Cluster, transactions: int) -> None:
        topic, before = _new_topic(broker, TRANSACTION_PARTITIONS), cluster.bill()
        found = cluster.client("commit", topic, transactions=transactions, each=EACH, ids=1, warm_up=kafka.WARM_UP)
        puts = cluster.bill().since(before).puts
        self._add("K10", PUTS, SDK, "", puts / (found["transactions"] + kafka.WARM_UP))
        for part, which in PARTS:
            self._add("K10", f"{TRANSACTION}, {which}", SDK, "ms", at(sorted(found["commit_ms"]), part))


def _new_topic(broker: Broker, partitions: int) -> str:
    """Create a topic whose name no peer draws."""
    name = f"k-{time.monotonic_ns()}"
    broker.java.create_topic(name, partitions)
    return name


async def _sdk_commits(addresses: str, topic: str) -> list[float]:
    """Commit one offset of partition 0 after the other; return the milliseconds of each, sorted."""
    took_ms: list[float] = []
    async with (
        ledgermq.connect(addresses) as client,
        client.consumer(topic, group="commits", commit="manual") as consumer,
    ):
        await consumer.wait_ready()
        for offset in range(1, COMMITS + 2):
            begun_s = time.perf_counter()
            await consumer.commit({TopicPartition(topic, 0): offset})
            took_ms.append(1000 * (time.perf_counter() - begun_s))
    return sorted(took_ms[1:])
