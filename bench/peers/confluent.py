"""Kafka through confluent-kafka's `produce()`, one call a message, and `consume()`: what a Python
program gets from the same Kafka broker.

acks=all and idempotence; linger 50 ms, as its library's own guide says for throughput, batches of
up to 1 MB and lz4: each faster here than without. A local queue that holds a million messages, and
a poll every 1000. Partitions are assigned when reading. Installed at need from the extra `bench`:
neither client nor broker has it. `bench.peers.confluent_client` is the process.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from bench.peers.kafka import Kafka
from bench.peers.peer import STREAMS

SUBJECT = "Kafka 4.1 (confluent-kafka)"
RUN_S_MAX = 600


@dataclass
class Confluent:
    """A client of a running broker."""

    kafka: Kafka
    subject: str = SUBJECT
    _topics: Iterator[int] = field(default_factory=count)

    @property
    def durability(self) -> str:
        return self.kafka.durability

    def new_topic(self) -> str:
        name = f"confluent-{next(self._topics)}"
        self.kafka.create_topic(name, STREAMS)
        return name

    def produce(self, topic: str, records: int, payloads: Path) -> dict[str, float]:
        return self._run("produce", topic, records, "--payloads", str(payloads))

    def consume(self, topic: str, records: int) -> dict[str, float]:
        return self._run("consume", topic, records)

    def _run(self, what: str, topic: str, records: int, *options: str) -> dict[str, float]:
        install()
        command = [
            sys.executable,
            "-m",
            "bench.peers.confluent_client",
            what,
            self.kafka.address,
            topic,
            "--records",
            str(records),
            *options,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"confluent-kafka: {what} failed:\n{done.stderr[-2000:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found | {"per_s": found["records"] / found["seconds"]}


@contextmanager
def running(kafka: Kafka) -> Iterator[Confluent]:
    """Run while `kafka` runs."""
    install()
    yield Confluent(kafka)


def install() -> None:
    """Install it into the current environment. Exits with one clear sentence if it is not
    available.
    """
    if importlib.util.find_spec("confluent_kafka") is not None:
        return
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
    wanted = project["project"]["optional-dependencies"]["bench"]
    print(f"Installing {', '.join(wanted)} …", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "install", "--quiet", *wanted]
    if subprocess.run(command, stdout=sys.stderr, timeout=RUN_S_MAX, check=False).returncode != 0:
        sys.exit("pip could not install what the benchmarks need, see above.")
