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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

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

    def produce(
        self, topic: str, records: int, payloads: Path, compression: str = "lz4", batch_records: int = 100_000
    ) -> dict[str, float]:
        """`batch_records`: how many records a batch has at most."""
        more = ["--compression", compression, "--batch-records", batch_records]
        return self._run("produce", topic, records, "--payloads", payloads, *more)

    def produce_keyed(self, topic: str, records: int, payloads: Path, *, header: bool) -> dict[str, float]:
        """Produce text with keys, and with a header each."""
        more = ["--keyed", *(["--header"] if header else [])]
        return self._run("produce", topic, records, "--payloads", payloads, *more)

    def consume(self, topic: str, records: int) -> dict[str, float]:
        return self._run("consume", topic, records)

    def commits(self, topic: str, commits: int) -> list[float]:
        """Return the milliseconds of each commit of a group, sorted. The topic has more records than commits."""
        return list(_answer(self._start("commit", topic, "--records", commits))["commit_ms"])

    def paced(self, topic: str, records: int, rate: float, payloads: Path) -> list[float]:
        """Return the milliseconds until each record was acknowledged, sorted."""
        found = _answer(self._start("paced", topic, "--records", records, "--rate", rate, "--payloads", payloads))
        return list(found["latencies_ms"])

    @contextmanager
    def draining(self, topic: str, megabytes_per_s: float, seconds: float) -> Iterator[Callable[[], float]]:
        """Read a topic again and again beside what runs inside; yield what waits for the end and returns the
        rate that was reached.
        """
        with self._start("drain", topic, "--megabytes-per-s", megabytes_per_s, "--seconds", seconds) as reader:

            def rate() -> float:
                found = _answer(reader)
                return float(found["bytes"] / 1e6 / found["seconds"])

            try:
                yield rate
            finally:
                reader.kill()

    def _run(self, what: str, topic: str, records: int, *options: object) -> dict[str, float]:
        found = _answer(self._start(what, topic, "--records", records, *options))
        return found | {"per_s": found["records"] / found["seconds"]}

    def _start(self, what: str, topic: str, *options: object) -> subprocess.Popen[str]:
        install()
        command = [sys.executable, "-m", "bench.peers.confluent_client", what, self.kafka.address, topic]
        return subprocess.Popen(
            [*command, *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


def _answer(client: subprocess.Popen[str]) -> dict[str, Any]:
    text, errors = client.communicate(timeout=RUN_S_MAX)
    if client.returncode != 0:
        raise RuntimeError(f"confluent-kafka failed:\n{errors[-2000:]}")
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


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
