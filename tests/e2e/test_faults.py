"""Faults of the store and mistakes of its operator, on real broker processes: no process restarts,
no record is lost or doubled.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import ledgermq
from infra.minio import Minio
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.errors import StoreFull
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.root.open import open_store
from ledgermq_ledger.rounds.runner import compact_root
from tests.e2e.admin_port import ADMIN, AdminPort
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.servers.small_disk import small_disk
from tests.servers.throttling_proxy import throttling_proxy
from tests.waiting import until
from tests.worlds.consumed import read_values

PARTITIONS = 4


class Steady:
    """One record after the other to each partition; `stored`: what was acknowledged, by partition."""

    def __init__(self, client: ledgermq.Client) -> None:
        self._client = client
        self.stored: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        self.errors: Counter[str] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for partition in range(PARTITIONS):
                tasks.create_task(self._produce(partition, stop))
            yield
            stop.set()

    async def _produce(self, partition: int, stop: asyncio.Event) -> None:
        number = 0
        async with self._client.producer(linger_ms=0) as producer:
            while not stop.is_set():
                value = b"%d" % number
                done = await producer.send("t", value, partition=partition)
                assert done.offset == len(self.stored[partition])
                self.stored[partition].append(value)
                number += 1
                await asyncio.sleep(0.02)

    async def check(self) -> None:
        """Everything once, in order."""
        assert await read_values(self._client) == self.stored


async def survives_a_storm(folder: Path, server: Minio, root: str, storm_s: float) -> None:
    """Half of all requests answer 503, then every single one, then half again; the same processes
    go on.
    """
    async with throttling_proxy(server.endpoint, seed=1) as proxy:
        with BrokerProcesses(folder, root.replace(server.endpoint, proxy.endpoint), QUICK) as brokers:
            for _ in range(2):
                await asyncio.to_thread(brokers.start, *ADMIN)
            async with ledgermq.connect(brokers.addresses, timeout_s=60) as client:
                await client.create_topic("t", PARTITIONS)
                steady = Steady(client)
                async with steady.running():
                    for share in (0.5, 1.0, 0.5):
                        proxy.share = share
                        await asyncio.sleep(storm_s)
                    proxy.share = 0.0
                    await asyncio.sleep(1)
                assert all(len(values) > 1 for values in steady.stored.values())
                await steady.check()
            assert proxy.answers["refused"] > 20
            for broker in brokers.running:
                assert broker.process.poll() is None, broker.text()
                metrics = await asyncio.to_thread(AdminPort(broker).metrics)
                refused = sum(
                    value
                    for labels, value in metrics["ledgermq_store_requests_total"].items()
                    if "STORE_THROTTLED" in labels
                )
                assert refused > 0, "and the operator sees it"


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_storm_of_a_minute_is_survived_with_no_restart(tmp_path: Path, minio: Minio, minio_root: str) -> None:
    await survives_a_storm(tmp_path, minio, minio_root, 20.0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 4) as folder:
        yield folder


@pytest.mark.slow
async def test_a_full_disk_is_told_to_producers_and_needs_no_restart(tmp_path: Path, disk: Path) -> None:
    with BrokerProcesses(tmp_path, (disk / "root").as_uri()) as brokers:
        broker = await asyncio.to_thread(brokers.start, *ADMIN)
        async with ledgermq.connect(broker.address) as client:
            await client.create_topic("t", 1)
            stored = []
            async with client.producer(delivery_timeout_s=30, linger_ms=0) as producer:
                for number in range(10):
                    stored.append(b"%d" % number)
                    await producer.send("t", stored[-1])
            filler = disk / "filler"
            fill(filler)
            async with client.producer(delivery_timeout_s=10) as producer:
                with pytest.raises(StoreFull, match="no space is left"):
                    await producer.send("t", b"x" * 20_000)
            assert broker.process.poll() is None
            assert len(await read_to(client, stored[-1])) == len(stored)  # only writing is impossible
            async with client.producer(delivery_timeout_s=120) as producer:
                waiting = producer.send("t", b"room again")  # is tried again until there is room
                filler.unlink()
                await waiting
            assert await read_to(client, b"room again") == [*stored, b"room again"]
        assert await asyncio.to_thread(brokers.stop, broker) == 0


@pytest.mark.slow
async def test_a_full_disk_is_taken_over_and_emptied_from_its_reserve(tmp_path: Path, disk: Path) -> None:
    """Not one block is free: a killed broker starts again, serves reads, deletes a topic, and the
    room comes back.
    """
    root = (disk / "root").as_uri()
    with BrokerProcesses(tmp_path, root) as brokers:
        broker = await asyncio.to_thread(brokers.start, *ADMIN)
        async with ledgermq.connect(broker.address) as client:
            for topic in ("big", "small"):
                await client.create_topic(topic, 2)
            async with client.producer(delivery_timeout_s=30, compression="none") as producer:
                await producer.send("small", b"kept", partition=0)
                for _ in range(10):
                    await producer.send("big", random.Random(1).randbytes(150_000), partition=0)
            fill(disk / "filler")
            async with client.producer(delivery_timeout_s=10) as producer:
                with pytest.raises(StoreFull):
                    await producer.send("small", b"x" * 20_000)
        brokers.kill(broker)
        broker = await asyncio.to_thread(brokers.start, *ADMIN)
        async with ledgermq.connect(broker.address) as client:
            assert await read_to(client, b"kept", "small") == [b"kept"]
            await until_trouble(client, "takes no records")
            await client.delete_topic("big", now=True)
            async with await open_store(root, sources=Sources()) as store:
                report = await compact_root(store, Sources(), LocalEngine(Sources()))
            assert not report.failures, report.failures
            assert not list((disk / "root").glob("parquet/topic=big/*/*"))
            assert shutil.disk_usage(disk).free > 1024 * 1024, (contents(disk), report)
            async with client.producer(delivery_timeout_s=120) as producer:
                try:
                    await producer.send("small", b"room again", partition=0)
                except StoreFull as error:
                    error.add_note(f"{contents(disk)}, {report}")
                    raise
            assert await read_to(client, b"room again", "small") == [b"kept", b"room again"]
            await until_trouble(client, "")
            (disk / "filler").unlink()
        assert await asyncio.to_thread(brokers.stop, broker) == 0


async def until_trouble(client: ledgermq.Client, text: str) -> None:
    """Until the cluster says so of some bundle; "": until no bundle is in trouble."""

    async def told() -> bool:
        troubles = [bundle.trouble for bundle in (await client.describe_cluster()).bundles if bundle.trouble]
        return any(text in trouble for trouble in troubles) if text else not troubles

    await until(told, every_s=0.1, what=f"a bundle in trouble: {text}" if text else "no bundle in trouble")


async def read_to(client: ledgermq.Client, last: bytes, topic: str = "t") -> list[bytes | None]:
    async with client.consumer(topic) as consumer:
        values: list[bytes | None] = []
        while not values or values[-1] != last:
            values += [message.value for message in await consumer.fetch(timeout=10)]
        return values


def contents(disk: Path) -> list[tuple[str, int]]:
    return [(str(path), path.stat().st_size) for path in sorted(disk.rglob("*")) if path.is_file()]


def fill(path: Path) -> None:
    """Until not one block is left."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


@pytest.mark.slow
async def test_two_clusters_on_one_root_are_one_and_lose_nothing(tmp_path: Path) -> None:
    """An operator starts the brokers of a new cluster on the root of another: the settings
    of the new cluster do not count.
    """
    root = (tmp_path / "root").as_uri()
    with BrokerProcesses(tmp_path, root) as ours, BrokerProcesses(tmp_path / "theirs", root) as theirs:
        (tmp_path / "theirs").mkdir()
        first = await asyncio.to_thread(ours.start, "--bundles", "3")
        stranger = await asyncio.to_thread(theirs.start, "--bundles", "9", "--constant-url-life-ms=5000")
        cluster = json.loads((tmp_path / "root" / keys.CLUSTER).read_text())
        assert cluster["bundles"] == 3
        async with ledgermq.connect(first.address) as here, ledgermq.connect(stranger.address) as there:
            await here.create_topic("t", PARTITIONS)
            steady = Steady(here)
            async with steady.running():
                await asyncio.sleep(1)
            assert [topic.name for topic in await there.list_topics()] == ["t"]
            ids = {(await client.describe_cluster()).cluster_id for client in (here, there)}
            assert ids == {cluster["cluster_id"]}
            assert await asyncio.to_thread(theirs.stop, stranger) == 0
            async with steady.running():
                await asyncio.sleep(0.5)
            await steady.check()


def test_a_broker_that_was_told_its_cluster_refuses_another_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    cluster = (
        b'{"format": "ledgermq", "bundles": 5, "producer_states_max": 9, "url_life_ms": 5000, "parquet_min_age_ms":'
        b" 20000, "
    )
    (tmp_path / "root" / keys.CLUSTER).write_bytes(
        cluster + b'"cluster_id": "ours", "format_version": 1, "created_ms": 1}'
    )
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        broker = brokers.spawn("--cluster-id", "0" * 32)
        assert brokers.wait(broker) == ExitCode.USAGE
        assert "this root belongs to cluster ours" in broker.text().splitlines()[-1]
    assert [path.name for path in (tmp_path / "root").iterdir() if not path.name.startswith(".")] == [keys.CLUSTER]
