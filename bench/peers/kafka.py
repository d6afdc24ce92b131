"""Kafka as a peer: one broker in KRaft mode, measured with its own Java performance tools.

Settings: acks=all and idempotence, linger 5 ms, batches of 256 KiB, as its own guide to throughput
recommends; an fsync for each write (`log.flush.interval.messages=1`), for that is the durability of
the broker that it is held against. Payloads are the same text. Transactions are run by a small
program of ours with its Java client, with the same settings.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from bench.peers.peer import STREAMS, served
from infra import java, maven
from infra.ports import free_port

SUBJECT = "Kafka 4.1 (Java tools)"
DURABILITY = "fsync of each batch before the acknowledgement"
SOURCE = Path(__file__).resolve().parent / "kafka_client" / "Transactions.java"
WARM_UP = 300
"""Transactions before the clock starts; Java compiles what runs often."""
RUN_S_MAX = 300.0
JOIN_S_MAX = 60.0
PRODUCER = ("acks=all", "linger.ms=5", "batch.size=262144", "buffer.memory=67108864", "enable.idempotence=true")
_SENT = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec .*? ([\d.]+) ms avg latency.*? (\d+) ms 50th.*? (\d+) ms 99th",
    re.MULTILINE,
)


@dataclass
class Kafka:
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    subject: str = SUBJECT
    durability: str = DURABILITY
    _topics: Iterator[int] = field(default_factory=count)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def new_topic(self) -> str:
        name = f"bench-{next(self._topics)}"
        self.create_topic(name, STREAMS)
        return name

    def create_topic(self, name: str, partitions: int) -> None:
        self.run(
            "org.apache.kafka.tools.TopicCommand",
            "--bootstrap-server", self.address, "--create", "--topic", name,
            "--partitions", str(partitions), "--replication-factor", "1",
        )  # fmt: skip

    def produce(self, topic: str, records: int, payloads: Path, rate: int = -1) -> dict[str, float]:
        """Return records per second, and latencies in ms. `payloads`: a file with a value per line."""
        text = self.run(
            "org.apache.kafka.tools.ProducerPerformance",
            "--topic", topic, "--num-records", str(records), "--payload-file", str(payloads), "--throughput", str(rate),
            "--producer-props", f"bootstrap.servers={self.address}", *PRODUCER,
        )  # fmt: skip
        _, per_s, _, median, late = _SENT.findall(text)[-1]
        return {"per_s": float(per_s), "p50_ms": float(median), "p99_ms": float(late)}

    def consume(self, topic: str, records: int, *, committed: bool = False) -> dict[str, float]:
        """Return records per second while fetching, without joining the group, which takes Kafka
        three seconds. `committed`: read only records of committed transactions.
        """
        settings = self.folder / "consumer.properties"
        settings.write_text(f"isolation.level=read_{'committed' if committed else 'uncommitted'}\n")
        options = ("--consumer.config", str(settings))
        found = _reading(
            self.run("org.apache.kafka.tools.ConsumerPerformance", *self._reader(topic, records), *options)
        )
        return {"per_s": float(found["fetch.nMsg.sec"]), "records": float(found["data.consumed.in.nMsg"])}

    def produce_and_consume(self, topic: str, records: int, payloads: Path) -> float:
        """Return records per second, from the first one sent until a consumer that had joined its
        group before has read the last one.
        """
        group = f"both-{topic}"
        command = _command(
            "org.apache.kafka.tools.ConsumerPerformance", *self._reader(topic, records), "--group", group
        )
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"TZ": "UTC"}) as reader:
            try:
                self._wait_for_members(group)
                per_s = self.produce(topic, records, payloads)["per_s"]
                begun_s = time.time() - records / per_s  # the tool ends when it has printed its rate, and says no times
                text, _ = reader.communicate(timeout=RUN_S_MAX)
            finally:
                reader.kill()
        found = _reading(text)
        if float(found["data.consumed.in.nMsg"]) < records:
            raise RuntimeError(f"the consumer ended before it had read all of {topic}:\n{text[-2000:]}")
        ended = datetime.strptime(found["end.time"], "%Y-%m-%d %H:%M:%S:%f").replace(tzinfo=UTC)
        return records / (ended.timestamp() - begun_s)

    def commit(self, topic: str, partitions: int, transactions: int, records: int, payloads: Path) -> dict[str, Any]:
        """Run transactions of so many records one after the other, after WARM_UP others; return
        `transactions`, `seconds`, and two lists: `commit_ms` of the commits alone, and `whole_ms`
        from begin until committed.

        Kafka's tool has transactions, but ends them by time, not by records, and does not report
        how long a commit takes.
        """
        counts = (str(WARM_UP), str(transactions), str(records))
        return self._transactions("commit", topic, str(partitions), str(payloads), *counts)

    def beside(self, topic: str, seconds: int, rate: int, value_bytes: int, *, is_open: bool) -> dict[str, Any]:
        """Return `latencies_ms` of records at a rate, from when each was due until a consumer of
        committed records has it: beside a transaction that stays open for so many seconds, or
        without one.
        """
        return self._transactions(
            "beside", topic, "open" if is_open else "none", str(seconds), str(rate), str(value_bytes)
        )

    def _transactions(self, what: str, topic: str, *arguments: str) -> dict[str, Any]:
        classes = self.folder / "classes"
        if not classes.exists():
            java.compile_source(SOURCE, classes, maven.jars("kafka"))
        text = self.run("Transactions", what, self.address, topic, *arguments, *PRODUCER, classes=classes)
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    def _reader(self, topic: str, records: int) -> tuple[str, ...]:
        return ("--bootstrap-server", self.address, "--topic", topic, "--messages", str(records), "--timeout", "60000")

    def _wait_for_members(self, group: str) -> None:
        until = time.monotonic() + JOIN_S_MAX
        command = ("--bootstrap-server", self.address, "--describe", "--state", "--group", group)
        while "Stable" not in self.run("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *command):
            if time.monotonic() > until:
                raise RuntimeError(f"no member of {group} after {JOIN_S_MAX:.0f} s")

    def run(self, main: str, *arguments: str, classes: Path | None = None) -> str:
        done = subprocess.run(
            _command(main, *arguments, classes=classes), capture_output=True, text=True, timeout=RUN_S_MAX, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{main} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker runs"
        return self.process.pid


@contextmanager
def running(folder: Path) -> Iterator[Kafka]:
    """Run it; `folder` holds the data and the log."""
    kafka = Kafka(folder, free_port())
    controller = free_port()
    properties = folder / "server.properties"
    properties.write_text(
        "\n".join(
            (
                "process.roles=broker,controller",
                "node.id=1",
                f"controller.quorum.voters=1@127.0.0.1:{controller}",
                f"listeners=PLAINTEXT://127.0.0.1:{kafka.port},CONTROLLER://127.0.0.1:{controller}",
                f"advertised.listeners=PLAINTEXT://127.0.0.1:{kafka.port}",
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                f"log.dirs={folder / 'logs'}",
                "offsets.topic.replication.factor=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                "log.flush.interval.messages=1",
                "num.network.threads=3",
                "num.io.threads=8",
            )
        )
    )
    identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    kafka.run("kafka.tools.StorageTool", "format", "-t", identity, "-c", str(properties))
    with served(_command("kafka.Kafka", str(properties)), kafka.port, folder / "kafka.log") as kafka.process:
        yield kafka


def _reading(text: str) -> dict[str, str]:
    """Return the last line of a consumer's table, by the names of its columns."""
    names, *rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") >= 8]
    return dict(zip(names, rows[-1], strict=False))


def _command(main: str, *arguments: str, classes: Path | None = None) -> list[str]:
    home = java.installed()
    assert home is not None, "Java is needed: python infra/java.py installs it"
    path = os.pathsep.join([*([str(classes)] if classes is not None else []), f"{maven.jars('kafka')}/*"])
    heap = ("-Xmx1g", "-Xms1g") if main == "kafka.Kafka" else ("-Xmx512m",)
    return [os.fspath(home / "bin" / "java"), *heap, "-XX:+UseG1GC", "-cp", path, main, *arguments]
