"""The brokers of a run, as processes: each has a place (id, address, lines) that outlives its
process, and is kept running.

Clients and other brokers reach a broker by its line, which is the address that it advertises. A
process that ends by itself is a violation, unless it could not start because its store did not
answer: then it is started again.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager

from ledgermq.cli.output.exit_codes import ExitCode
from tests.chaos.children import LEDGERMQ, Child, Children, Place
from tests.chaos.stores import ChaosStore
from tests.judges.violation import Violation
from tests.servers.cutting_proxy import NEVER, CuttingProxy, cutting_proxy

READY_S_MAX = 60.0
STOP_S_MAX = 75.0
"""The time for handing over, then one request to a store that says nothing."""
STARTS_AGAIN_S = 1.0
PORTS = range(20_000, 32_000)
"""Below those that systems give to clients."""

SETTINGS: dict[str, int] = {
    "heartbeat-interval-ms": 400,
    "holding-ms": 1500,
    "constant-damaged-retry-s": 2,
    "checkpoint-slots": 40,
    "shutdown-ms": 10_000,
    "cache-bytes-max": 200_000,
    "bundles": 4,
    "constant-url-life-ms": 5000,
    "constant-parquet-min-age-ms": 20_000,
    "constant-ask-after-ms": 2000,
    "constant-carry-after-ms": 3000,
    "constant-carry-slots": 20,
    "constant-chunk-bytes": 2000,
    "constant-log-start-ms": 2000,
}
"""Small waits, and little memory, so that every path is taken within minutes."""
KAFKA_SESSION_MS = 6_000
"""Of members by KIP-848, which ask for none."""


class Broker(Place):
    is_up_says = "broker listens on"

    def __init__(self, number: int, port: int, line: CuttingProxy, url: str) -> None:
        super().__init__(f"broker-{number}")
        self.number = number
        self.line = line
        self.url = url
        self.port = port
        self.kafka_port = 0
        self.kafka_line: CuttingProxy | None = None
        """For clients of the Kafka protocol."""

    @property
    def address(self) -> str:
        return self.line.address

    @property
    def lines(self) -> list[CuttingProxy]:
        """Those between it and its clients."""
        return [self.line] if self.kafka_line is None else [self.line, self.kafka_line]


class ChaosCluster:
    def __init__(
        self,
        children: Children,
        store: ChaosStore,
        note: Callable[[str], None],
        command: tuple[str, ...] = LEDGERMQ,
        *,
        is_kafka: bool = False,
    ) -> None:
        """`command`: what is killed and paused; brokers and rival compactions. `is_kafka`: brokers have a port for
        clients of the Kafka protocol, each over a separate line.
        """
        self.command, self._is_kafka = command, is_kafka
        self.brokers: list[Broker] = []
        self.violations: list[Violation] = []
        self.failed_starts = 0
        self.starts = 0
        self._store_bad: Counter[str] = Counter()
        self._store_bad_until_s: dict[str, float] = {}
        self._children, self._store, self._note = children, store, note

    async def prepare(self, count: int, stack: AsyncExitStack, seed: int) -> None:
        """Makes the places."""
        ports = _free_ports(2 * count)
        for number, port in enumerate(ports[:count]):
            line = await stack.enter_async_context(
                cutting_proxy(f"http://127.0.0.1:{port}", seed * 100 + 50 + number, NEVER)
            )
            broker = Broker(number, port, line, await self._store.url(f"broker-{number}"))
            self.brokers.append(broker)
            if self._is_kafka:
                broker.kafka_port = ports[count + number]
                endpoint = f"http://127.0.0.1:{broker.kafka_port}"
                broker.kafka_line = await stack.enter_async_context(
                    cutting_proxy(endpoint, seed * 100 + 70 + number, NEVER)
                )

    @property
    def target(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    @property
    def kafka_target(self) -> str:
        """Bootstrap servers."""
        return ",".join(broker.kafka_line.address for broker in self.brokers if broker.kafka_line is not None)

    def start(self, broker: Broker, *options: str) -> None:
        """Its process; `keep_running` sees whether it comes up."""
        broker.wanted = True
        self.starts += 1
        place = ("--port", str(broker.port), "--advertised-address", broker.address, "--broker-id", broker.name)
        if broker.kafka_line is not None:
            options = (
                *options,
                *("--kafka-port", str(broker.kafka_port), "--kafka-advertised-address", broker.kafka_line.address),
                *("--group-session-timeout-ms", str(KAFKA_SESSION_MS)),
            )
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        broker.child = self._children.spawn(
            broker.name, [*self.command, "broker", broker.url, *place, *settings, *options]
        )

    async def stop(self, broker: Broker) -> None:
        begun_s = asyncio.get_running_loop().time()

        def store_was_bad() -> bool:
            return self._store_bad[broker.name] > 0 or self._store_bad_until_s.get(broker.name, 0.0) >= begun_s

        self.violations += await broker.stop(STOP_S_MAX, store_was_bad)

    @contextmanager
    def store_bad(self, brokers: Iterable[Broker]) -> Iterator[None]:
        """A block in which these brokers may wait for the store in vain."""
        names = [broker.name for broker in brokers]
        self._store_bad.update(names)
        try:
            yield
        finally:
            self._store_bad.subtract(names)
            self._store_bad_until_s.update(dict.fromkeys(names, asyncio.get_running_loop().time()))

    async def ready(self, brokers: list[Broker]) -> None:
        """Raises TimeoutError, with what those who are not up said last."""
        try:
            async with asyncio.timeout(READY_S_MAX):
                while not all(broker.is_up for broker in brokers):
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            last = [broker.last_line for broker in brokers if not broker.is_up]
            raise TimeoutError(f"not up after {READY_S_MAX:.0f} s: {last}") from error

    async def keep_running(self) -> None:
        """For ever: starts what ended by itself again."""
        while True:
            await asyncio.sleep(0.2)
            for broker in self.brokers:
                child = broker.child
                if child is not None and broker.ended_by_itself:
                    self._judge_end(child, broker.was_up)
                    await asyncio.sleep(STARTS_AGAIN_S)
                    if broker.wanted and broker.child is child:
                        self.start(broker)

    def _judge_end(self, child: Child, was_ready: bool) -> None:
        last = (child.text().strip().splitlines() or [""])[-1]
        if was_ready or child.code != ExitCode.UNAVAILABLE:
            self.violations.append(Violation("broker ended", f"{child.log.name}: exit code {child.code}: {last}"))
        else:
            self.failed_starts += 1
            self._note(f"{child.log.name}: could not start: {last[:150]}")


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    for port in range(PORTS.start + os.getpid() % 5000 * 2, PORTS.stop):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free port")
