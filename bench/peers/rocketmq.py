"""RocketMQ as a peer: a name server and one broker that syncs before it answers
(`flushDiskType=SYNC_FLUSH`), a topic of eight queues.

Batches of 1000 messages, or 500 KB, are sent asynchronously to the queues in turn, 32 in flight;
the broker syncs once for those that wait. A message may wait a minute in the broker's queue (its
default of 200 ms refuses under load), and 1000 are pulled at once, not 32, as its documents advise
for throughput. Its own benchmark is not among its artifacts: a small program of ours runs its Java
client.

Timed messages (`send_timed`) are sent one by one, because it delays no batches, with 1000 in flight.
Its timer wheel has a step of a second, its default.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from bench.peers.peer import STREAMS, served
from infra import java, maven
from infra.ports import free_port, is_free

SUBJECT = "RocketMQ 5.3 (sync flush)"
DURABILITY = "fsync before the acknowledgement, one for all that wait"
SOURCE = Path(__file__).resolve().parent / "rocketmq_client" / "Client.java"
RUN_S_MAX = 300
BATCH_RECORDS, BATCH_BYTES, IN_FLIGHT = 1000, 500_000, 32
SINGLE_IN_FLIGHT = 1000
WARM = "warm"


@dataclass
class RocketMQ:
    servers: str
    broker: str
    classes: Path
    home: Path
    subject: str = SUBJECT
    durability: str = DURABILITY
    _topics: Iterator[int] = field(default_factory=count)
    _newest: str | None = None

    def new_topic(self) -> str:
        """Create a topic. The one before it is deleted; its records stay in the log, which all
        topics share.
        """
        if self._newest is not None:
            self._run("delete", self._newest)
        self._newest = f"bench-{next(self._topics)}"
        self._run("create", self._newest)
        return self._newest

    def produce(self, topic: str, records: int, payloads: Path) -> dict[str, float]:
        with payloads.open("rb") as values:
            batch = min(BATCH_RECORDS, BATCH_BYTES // len(values.readline()))
        return _rate(self._run("produce", topic, str(records), str(payloads), str(batch), str(IN_FLIGHT)))

    def consume(self, topic: str, records: int) -> dict[str, float]:
        return _rate(self._run("consume", topic, str(records)))

    def send_timed(
        self, topic: str, records: int, payloads: Path, *, at_s: float = 0.0, rate: float = 0.0
    ) -> dict[str, float]:
        """Send messages that are due at `at_s` (seconds since the epoch), or `rate` a second that are due
        2 to 10 s later. Return `per_s`.
        """
        options = (str(records), str(payloads), str(SINGLE_IN_FLIGHT), str(rate), str(int(at_s * 1000)))
        return _rate(self._run("timed", topic, *options))

    @contextmanager
    def receiving(self, topic: str, records: int) -> Iterator[Callable[[], dict[str, float]]]:
        """Read timed messages beside what the block does. The result waits until all have come, and
        returns `p50_ms`, `p99_ms` and `max_ms` after their due times, the number of `early` ones, and
        `ended_at_s`.
        """
        client = subprocess.Popen(
            self._command("late", topic, str(records)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert client.stdout is not None
            while (line := client.stdout.readline()).strip() != WARM:
                if not line:
                    raise RuntimeError(f"RocketMQ: late ended before it began:\n{client.communicate()[1][-2000:]}")

            def received() -> dict[str, float]:
                text, errors = client.communicate(timeout=RUN_S_MAX)
                return _answer("late", client.returncode, text, errors)

            yield received
        finally:
            client.kill()
            client.communicate()

    def _run(self, what: str, topic: str, *options: str) -> dict[str, float]:
        command = self._command(what, topic, *options)
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
        return _answer(what, done.returncode, done.stdout, done.stderr)

    def _command(self, what: str, topic: str, *options: str) -> list[str]:
        place = (self.servers, self.broker, topic, str(STREAMS))
        return _java(self.home, "512m", "Client", what, *place, *options, classes=self.classes)


def _answer(what: str, code: int, text: str, errors: str) -> dict[str, float]:
    if code != 0:
        raise RuntimeError(f"RocketMQ: {what} failed:\n{text[-1000:]}\n{errors[-2000:]}")
    found: dict[str, float] = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    return found


def _rate(found: dict[str, float]) -> dict[str, float]:
    return found | {"per_s": found["timed"] / found["seconds"]}


@contextmanager
def running(folder: Path) -> Iterator[RocketMQ]:
    """Run it; `folder` holds the data and the logs."""
    classes = folder / "classes"
    java.compile_source(SOURCE, classes, maven.jars("rocketmq"))
    names_port, replication_port = free_port(), free_port()
    taken = (names_port, replication_port)  # it listens two ports below its own, too
    port = next(port for port in iter(free_port, None) if port - 2 not in taken and is_free(port - 2))
    names = _settings(folder / "names.conf", {"listenPort": names_port, "bindAddress": "127.0.0.1"})
    broker = _settings(
        folder / "broker.conf",
        {
            "brokerName": "peer",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": port,
            "haListenPort": replication_port,
            "namesrvAddr": f"127.0.0.1:{names_port}",
            "storePathRootDir": folder / "store",
            "flushDiskType": "SYNC_FLUSH",
            "autoCreateTopicEnable": "false",
            "waitTimeMillsInSendQueue": 60_000,
            "maxTransferCountOnMessageInMemory": 1000,
            "maxTransferBytesOnMessageInMemory": 4 << 20,
            "maxTransferCountOnMessageInDisk": 1000,
            "maxTransferBytesOnMessageInDisk": 4 << 20,
            "timerWheelEnable": "true",
        },
    )
    environment = {"ROCKETMQ_HOME": str(folder)}
    with ExitStack() as stack:
        command = _java(folder, "256m", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(names))
        stack.enter_context(served(command, names_port, folder / "names.log", environment))
        command = _java(folder, "1g", "org.apache.rocketmq.broker.BrokerStartup", "-c", str(broker))
        stack.enter_context(served(command, port, folder / "broker.log", environment))
        yield RocketMQ(f"127.0.0.1:{names_port}", f"127.0.0.1:{port}", classes, folder)


def _settings(path: Path, settings: dict[str, object]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def _java(home: Path, heap: str, main: str, *arguments: str, classes: Path | None = None) -> list[str]:
    """`home`: where it may write its logs."""
    found = java.installed()
    assert found is not None, "Java is needed: python infra/java.py installs it"
    path = os.pathsep.join([*([str(classes)] if classes is not None else []), f"{maven.jars('rocketmq')}/*"])
    return [str(found / "bin" / "java"), f"-Xmx{heap}", f"-Duser.home={home}", "-cp", path, main, *arguments]
