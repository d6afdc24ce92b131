"""SIGSTOP of an owner, again and again, and a loaded machine on which no broker is stopped: how
soon others own, and do they own too soon?

python -m bench.stopped_owners [--seconds 300] [--every 10] [--loaded-seconds 120] [--hogs 8]
[--root s3://…] [--json]

Three brokers with their defaults; a producer that sends one record at a time to every partition,
and a consumer of all. Every ten seconds the broker with most partitions stands still, until others
own its bundles and both clients go on, and then continues. Of each stop:

    owned         until a broker that lives says that another one owns a bundle of the one that was stopped
    acknowledged  until a partition's first acknowledgement of a record that was sent after the stop
    read          until the consumer has the first such record of a partition

False takeovers are terms that were ended by another broker's claim although their owner was not
stopped. In the second part no broker is stopped, and processes that only count take all processors:
there every takeover is a false one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import ledgermq
from bench.ours import Cluster
from bench.percentiles import at
from ledgermq.errors import LedgerMQError
from tests.e2e.admin_port import ADMIN, AdminPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ledgermq.client.client import Client
    from tests.e2e.processes import BrokerProcess

BROKERS, PARTITIONS = 3, 16
PATIENCE_S = 90.0
"""A stop whose bundles have no other owner by then counts with this time, and the broker continues."""
SETTLE_S = 15.0
"""Bundles of a young cluster change hands until each broker has its share; after a stop fenced
brokers notice it.
"""
LOOK_S = 0.05
PARTS = (("min", 0.0), ("median", 0.5), ("p99", 0.99), ("max", 1.0))


@dataclass(slots=True)
class Found:
    """Times in seconds: `owned` per bundle and stop, the others per partition and stop."""

    stops: int = 0
    owned: list[float] = field(default_factory=list)
    acknowledged: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    false_takeovers: int = 0
    loaded_s: float = 0.0
    false_takeovers_loaded: int = 0
    records_loaded: int = 0


class Traffic:
    """`acknowledged_s`, `read_s`: by partition, when the newest record received so far was sent."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client, self._topic = client, topic
        self.acknowledged_s = dict.fromkeys(range(PARTITIONS), 0.0)
        self.read_s = dict.fromkeys(range(PARTITIONS), 0.0)
        self.records = 0

    async def run(self) -> None:
        async with self._client.producer() as producer, asyncio.TaskGroup() as group:
            group.create_task(self._read())
            for partition in range(PARTITIONS):
                group.create_task(self._send(producer, partition))

    async def _send(self, producer: ledgermq.Producer, partition: int) -> None:
        while True:
            sent_s = time.perf_counter()
            with suppress(LedgerMQError):
                await producer.send(self._topic, repr(sent_s).encode(), partition=partition)
                self.acknowledged_s[partition] = sent_s
                self.records += 1
            await asyncio.sleep(0.02)

    async def _read(self) -> None:
        while True:
            with suppress(LedgerMQError):
                async for message in self._client.consumer(self._topic, start="latest"):
                    self.read_s[message.partition] = float(message.value or b"0")


class Stops:
    def __init__(self, cluster: Cluster, topic: str, traffic: Traffic, found: Found) -> None:
        self._cluster, self._topic, self._traffic, self._found = cluster, topic, traffic, found

    async def once(self) -> None:
        victim, bundles, partitions = await self._busiest()
        others = ",".join(broker.address for broker in self._cluster.brokers.running if broker is not victim)
        stopped_s = time.perf_counter()
        self._cluster.brokers.pause(victim)
        try:
            async with asyncio.TaskGroup() as group:
                owned = group.create_task(self._owned_elsewhere(others, victim.address, bundles, stopped_s))
                sent = group.create_task(_passed(self._traffic.acknowledged_s, partitions, stopped_s))
                read = group.create_task(_passed(self._traffic.read_s, partitions, stopped_s))
        finally:
            self._cluster.brokers.resume(victim)
        self._found.stops += 1
        self._found.owned += owned.result()
        self._found.acknowledged += sent.result()
        self._found.read += read.result()
        self._found.false_takeovers -= len(bundles)  # the intended ones; `fenced` counts them all in the end

    async def _busiest(self) -> tuple[BrokerProcess, list[int], list[int]]:
        async with ledgermq.connect(self._cluster.brokers.addresses) as client:
            topic, cluster = await client.describe_topic(self._topic), await client.describe_cluster()
        [(address, _)] = Counter(part.owner for part in topic.partitions if part.owner).most_common(1)
        partitions = [part.partition for part in topic.partitions if part.owner == address]
        return self._cluster.brokers.at(address), [b.bundle for b in cluster.bundles if b.owner == address], partitions

    async def _owned_elsewhere(self, others: str, victim: str, bundles: list[int], stopped_s: float) -> list[float]:
        owned_s: dict[int, float] = {}
        async with ledgermq.connect(others) as client:
            while len(owned_s) < len(bundles) and time.perf_counter() - stopped_s < PATIENCE_S:
                with suppress(LedgerMQError, TimeoutError):
                    async with asyncio.timeout(1.0):
                        said = await client.describe_cluster()
                    now_s = time.perf_counter()
                    for bundle in said.bundles:
                        if bundle.bundle in bundles and bundle.owner not in ("", victim):
                            owned_s.setdefault(bundle.bundle, now_s - stopped_s)
                await asyncio.sleep(LOOK_S)
        return [owned_s.get(bundle, PATIENCE_S) for bundle in bundles]


async def _passed(newest_s: dict[int, float], partitions: list[int], stopped_s: float) -> list[float]:
    """Return for each partition the time until a record came that was sent after the stop."""
    passed_s: dict[int, float] = {}
    while len(passed_s) < len(partitions) and time.perf_counter() - stopped_s < PATIENCE_S:
        for partition in partitions:
            if newest_s[partition] > stopped_s:
                passed_s.setdefault(partition, time.perf_counter() - stopped_s)
        await asyncio.sleep(LOOK_S / 5)
    return [passed_s.get(partition, PATIENCE_S) for partition in partitions]


def _fenced(cluster: Cluster) -> int:
    """Return the number of terms that claims of other brokers have ended so far, on all brokers."""
    return sum(
        int(AdminPort(b).metrics().get("ledgermq_terms_ended_total", {}).get(("fenced",), 0))
        for b in cluster.brokers.running
    )


@asynccontextmanager
async def _at_work(cluster: Cluster) -> AsyncIterator[tuple[str, Traffic]]:
    topic = await asyncio.to_thread(cluster.new_topic, PARTITIONS)
    await asyncio.sleep(SETTLE_S)
    async with ledgermq.connect(cluster.brokers.addresses) as client:
        traffic = Traffic(client, topic)
        task = asyncio.create_task(traffic.run())
        try:
            yield topic, traffic
        finally:
            task.cancel()
            await asyncio.wait([task])


async def stop_again_and_again(cluster: Cluster, found: Found, seconds: float, every_s: float) -> None:
    async with _at_work(cluster) as (topic, traffic):
        before, begun_s = await asyncio.to_thread(_fenced, cluster), time.perf_counter()
        stops = Stops(cluster, topic, traffic, found)
        for number in range(max(1, int(seconds / every_s))):
            await asyncio.sleep(max(1.0, begun_s + (number + 1) * every_s - time.perf_counter()))
            await stops.once()
            print(f"stop {number + 1}: owned after {max(found.owned[-2:]):.1f} s", file=sys.stderr)
        await asyncio.sleep(SETTLE_S)
        found.false_takeovers += await asyncio.to_thread(_fenced, cluster) - before


@contextmanager
def _hogs(count: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in running:
            hog.kill()
            hog.wait()


async def load_without_stops(cluster: Cluster, found: Found, seconds: float, hogs: int) -> None:
    async with _at_work(cluster) as (_, traffic):
        before = await asyncio.to_thread(_fenced, cluster)
        with _hogs(hogs):
            await asyncio.sleep(seconds)
        found.loaded_s, found.records_loaded = seconds, traffic.records
        found.false_takeovers_loaded = await asyncio.to_thread(_fenced, cluster) - before


@contextmanager
def _brokers(root: str | None) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
        folder = Path(name)
        (folder / "root").mkdir()
        cluster = Cluster(folder, root or (folder / "root").as_uri(), BROKERS, *ADMIN)
        try:
            yield cluster
        finally:
            cluster.close()


async def measure(options: argparse.Namespace, found: Found) -> None:
    """Run everything in one event loop, because gRPC's exists once per process."""
    if options.seconds:
        with _brokers(options.root) as cluster:
            await stop_again_and_again(cluster, found, options.seconds, options.every)
    if options.loaded_seconds:
        with _brokers(options.root) as cluster:
            await load_without_stops(cluster, found, options.loaded_seconds, options.hogs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long brokers are stopped and continued")
    parser.add_argument("--every", type=float, default=10.0, help="seconds from one stop to the next")
    parser.add_argument(
        "--loaded-seconds", type=float, default=120.0, help="how long the machine is loaded; 0 leaves it out"
    )
    parser.add_argument("--hogs", type=int, default=4 * (os.cpu_count() or 1), help="processes that only count")
    parser.add_argument("--root", help="an empty root; else a temporary folder")
    parser.add_argument("--json", action="store_true", help="every value as JSON")
    options = parser.parse_args()
    found = Found()
    asyncio.run(measure(options, found))
    if options.json:
        print(json.dumps(asdict(found)))
        return
    print(f"{found.stops} stops, one every {options.every:g} s; load now {os.getloadavg()[0]:.1f}")
    for what in ("owned", "acknowledged", "read"):
        if values := sorted(getattr(found, what)):
            parts = "  ".join(f"{name} {at(values, part):.2f} s" for name, part in PARTS)
            print(f"{what:13} {parts}  ({len(values)} values)")
    print(f"false takeovers while brokers were stopped: {found.false_takeovers}")
    print(
        f"false takeovers of {found.loaded_s:g} s under load ({options.hogs} processes that count):"
        f" {found.false_takeovers_loaded}"
    )


if __name__ == "__main__":
    main()
