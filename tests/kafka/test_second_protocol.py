"""Java speaks the second protocol of transactions (KIP-890), and goes on while brokers are killed between its steps.
librdkafka speaks the first one beside it.
"""

from __future__ import annotations

import re
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra import java, maven
from tests.e2e.processes import BrokerProcesses
from tests.kafka.brokers import processes, seed, seeds
from tests.kafka.java import command, tool
from tests.kafka.test_transactions import producer, read, reader
from tests.kafka.topics import create
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command("Steps")  # skips where there is no Java
    folder = tmp_path_factory.mktemp("classes")
    java.compile_source(PROGRAMS / "Steps.java", folder, maven.jars("kafka"))
    return folder


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"t{uuid.uuid4().hex}"
    create(bootstrap, name)
    return name


class Producer:
    """A producer of Java that does one step after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self.line() == "ready"

    def line(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.split()[0] in ("ready", "ok") or line.strip().endswith("Exception"):
                return line.strip()
        raise AssertionError(f"the program has ended with {self._process.wait()}")

    def step(self, *words: object) -> str:
        """Do a step, and return "ok", or the name of what was thrown."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self.line()

    def do(self, *words: object) -> None:
        assert self.step(*words) == "ok", words

    def transaction(self, topic: str, *values: str, end: str = "commit") -> None:
        self.do("begin")
        for row, value in enumerate(values):
            self.do("send", topic, row % 2, value)
        self.do(end)


@contextmanager
def stepping(bootstrap: str, name: str, classes: Path, timeout_ms: int = TIMEOUT_MS) -> Iterator[Producer]:
    program = command("Steps", bootstrap, name, str(timeout_ms), classes=classes)
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Producer(process)
    finally:
        process.kill()
        process.wait()
        for end in (process.stdin, process.stdout):
            assert end is not None
            end.close()


def epoch(bootstrap: str, name: str) -> int:
    """Return the epoch of the id's newest transaction."""
    said = tool("TransactionsCommand", "--bootstrap-server", bootstrap, "describe", "--transactional-id", name)
    heads, values = (line.split() for line in said.splitlines()[-2:])
    return int(dict(zip(heads, values, strict=False))["ProducerEpoch"])


def test_java_takes_an_epoch_for_each_transaction(bootstrap: str, topic: str, classes: Path) -> None:
    name = f"{topic}-x"
    with stepping(bootstrap, name, classes) as writer:
        writer.transaction(topic, "a", "b")
        writer.transaction(topic, "never", "never", end="abort")
        writer.do("begin")
        writer.do("abort")  # it has sent nothing
        writer.transaction(topic, "c", "d", "e")
        writer.do("begin")
        writer.do("send", topic, 0, "f")
        writer.do("offset", topic, f"{topic}-group", 3)
        assert epoch(bootstrap, name) == 3
        writer.do("commit")
    with reader(bootstrap, topic) as consumer:
        assert read(consumer, 6) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    group = ("--bootstrap-server", bootstrap, "--group", f"{topic}-group")
    assert re.search(rf"{topic} +0 +3 ", tool("consumer.group.ConsumerGroupCommand", *group, "--describe"))


def test_librdkafka_keeps_its_epoch_beside_it(bootstrap: str, topic: str) -> None:
    writer = producer(bootstrap, f"{topic}-x")
    for n in range(3):
        writer.begin_transaction()
        writer.produce(topic, b"%d" % n, partition=0)
        writer.commit_transaction(60)
    assert epoch(bootstrap, f"{topic}-x") == 0
    with reader(bootstrap, topic) as consumer:
        assert read(consumer, 3) == [b"0", b"1", b"2"]


def test_a_second_producer_of_an_id_fences_the_first(bootstrap: str, topic: str, classes: Path) -> None:
    with stepping(bootstrap, f"{topic}-x", classes) as first:
        first.transaction(topic, "a")
        first.do("begin")
        first.do("send", topic, 0, "never")
        second = producer(bootstrap, f"{topic}-x")  # of the first protocol
        assert first.step("send", topic, 0, "never") == "InvalidProducerEpochException"
        assert first.step("abort") == "ProducerFencedException"
        second.begin_transaction()
        second.produce(topic, b"b", partition=0)
        second.commit_transaction(60)
    with stepping(bootstrap, f"{topic}-x", classes) as third:
        third.transaction(topic, "c")
    with reader(bootstrap, topic) as consumer:
        assert read(consumer, 3) == [b"a", b"b", b"c"]


def test_after_a_time_out_java_aborts_and_goes_on(bootstrap: str, topic: str, classes: Path) -> None:
    """Kafka fences it: there the program has to close its producer."""
    name = f"{topic}-x"

    def is_over() -> bool:
        said = tool("TransactionsCommand", "--bootstrap-server", bootstrap, "describe", "--transactional-id", name)
        return "CompleteAbort" in said

    with stepping(bootstrap, name, classes, timeout_ms=10_000) as writer:
        for last in (("send", topic, 1, "never"), ("offset", topic, f"{topic}-group", 3), ("commit",)):
            writer.do("begin")
            writer.do("send", topic, 0, "never")
            wait_until(is_over)
            assert writer.step(*last) == "TransactionAbortableException"
            writer.do("abort")
            writer.transaction(topic, last[0])
    with reader(bootstrap, topic) as consumer:
        assert read(consumer, 3) == [b"commit", b"offset", b"send"]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerProcesses]:
    with processes(tmp_path, 3) as found:
        yield found


STEPS = ("begin", "send", "send again", "offset", "commit")


def test_java_goes_on_while_brokers_are_killed_between_its_steps(brokers: BrokerProcesses, classes: Path) -> None:
    topic = "t"
    create(seeds(brokers), topic)
    kept = []
    with stepping(seeds(brokers), "x", classes) as writer:
        for number, killed_behind in enumerate(STEPS):
            steps: list[tuple[object, ...]] = [
                ("begin",),
                ("send", topic, 0, f"{number}-a"),
                ("send", topic, 1, f"{number}-b"),
                ("offset", topic, "g", number + 1),
                ("commit",),
            ]
            for name, step in zip(STEPS, steps, strict=True):
                writer.do(*step)
                if name == killed_behind:
                    brokers.kill(brokers.running[number % 2])
                    brokers.wait_ready(brokers.spawn())
            kept += [f"{number}-a".encode(), f"{number}-b".encode()]
        writer.transaction(topic, "last")
    at = seed(brokers.running[0])
    with reader(at, topic) as consumer:
        assert read(consumer, len(kept) + 1) == sorted([*kept, b"last"])
    group = ("--bootstrap-server", at, "--group", "g")
    deadline_s = time.monotonic() + 60
    while not re.search(
        rf"{topic} +0 +{len(STEPS)} ", tool("consumer.group.ConsumerGroupCommand", *group, "--describe")
    ):
        assert time.monotonic() < deadline_s
