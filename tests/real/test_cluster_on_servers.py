"""A whole cluster on a real S3 server and on a real HDFS: brokers as processes, one killed, an
outage, Parquet compaction by command.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import ledgermq
from infra.hdfs import NAMENODE, Hdfs
from infra.minio import Minio
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.root.open import open_store
from tests.e2e.processes import BrokerProcesses
from tests.servers.cutting_proxy import NEVER, cutting_proxy
from tests.worlds.consumed import read_values
from tests.worlds.roots import Root, parquet_keys, read_everything, read_parquet_rows

pytestmark = pytest.mark.real

PARTITIONS = 4


@pytest.fixture(params=["minio_root", "hdfs_root"])
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcesses]:
    with BrokerProcesses(tmp_path, request.getfixturevalue(request.param)) as processes:
        yield processes


async def consumed(target: str, topic: str) -> dict[int, list[bytes | None]]:
    async with ledgermq.connect(target) as client:
        return await read_values(client, topic)


async def test_nothing_is_lost_or_doubled_when_an_owner_is_killed_and_all_of_it_reaches_parquet(
    brokers: BrokerProcesses,
) -> None:
    for _ in range(3):
        await asyncio.to_thread(brokers.start)
    sent: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    async with asyncio.timeout(90), ledgermq.connect(brokers.addresses) as client:
        await client.create_topic("t", PARTITIONS)
        async with client.producer() as producer:
            for round_number in range(20):
                for partition, values in sent.items():
                    values += [b"%d/%d" % (round_number, number) for number in range(10)]
                    for value in values[-10:]:
                        producer.send("t", value, partition=partition)
                await producer.flush()
                if round_number == 10:
                    brokers.kill(brokers.running[0])
    assert await consumed(brokers.addresses, "t") == sent
    await asyncio.to_thread(compact, brokers.root_url)
    async with await open_store(brokers.root_url, sources=Sources()) as store:
        rows = await read_parquet_rows(store)
    assert {part: list(found.values()) for part, found in rows.items()} == {
        ("t", partition): values for partition, values in sent.items()
    }
    assert await consumed(brokers.addresses, "t") == sent, "the same is read from Parquet through the brokers"


def compact(root_url: str) -> None:
    command = [sys.executable, "-m", "ledgermq.cli.main", "compact", root_url, "--engine", "local"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def nothing_is_missed(tmp_path: Path, root_url: str, disturb: Callable[[], Awaitable[None]]) -> None:
    """Two brokers on the root; half-way through the producing `disturb` happens."""
    with BrokerProcesses(tmp_path, root_url) as brokers:
        for _ in range(2):
            await asyncio.to_thread(brokers.start)
        sent: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        async with asyncio.timeout(200), ledgermq.connect(brokers.addresses) as client:
            await client.create_topic("t", PARTITIONS)
            async with client.producer() as producer:
                for round_number in range(9):
                    for partition, values in sent.items():
                        values.append(b"%d" % round_number)
                        producer.send("t", values[-1], partition=partition)
                    if round_number == 4:
                        await disturb()
                    await producer.flush()
        assert await consumed(brokers.addresses, "t") == sent


async def test_an_outage_of_the_store_is_waited_out(tmp_path: Path, minio: Minio, minio_root: str) -> None:
    async with cutting_proxy(minio.endpoint, seed=1, pieces_max=NEVER) as proxy:

        async def cut_off() -> None:
            proxy.cut_off()
            await asyncio.sleep(4)
            proxy.restore()

        await nothing_is_missed(tmp_path, minio_root.replace(minio.endpoint, proxy.endpoint), cut_off)


async def test_a_namenode_may_be_killed_and_started_again(tmp_path: Path, hdfs: Hdfs, hdfs_root: str) -> None:
    """What follows its start, safe mode until the DataNode has reported, is waited out too."""

    async def kill() -> None:
        await asyncio.to_thread(hdfs.kill, NAMENODE)
        await asyncio.to_thread(hdfs.start, NAMENODE)
        await asyncio.to_thread(hdfs.wait_ready)

    await nothing_is_missed(tmp_path, hdfs_root, kill)


@pytest.mark.parametrize("root", ["minio_root", "hdfs_root"])
async def test_rounds_of_compaction(request: pytest.FixtureRequest, root: str) -> None:
    sources = Sources()
    async with await open_store(request.getfixturevalue(root), sources=sources) as store:
        root = await Root.open(store, sources)
        await root.create_topic("flights", partitions=2)
        for i in range(3):
            await root.produce("flights", (i % 2, [b"%d-%d" % (i, j) for j in range(10)]))
            report = await root.compact()
            assert not report.failures
            assert report.records == 10
        assert await read_everything(root) == root.produced
        assert len(await parquet_keys(store)) == 3
        assert [info.key async for info in store.list(keys.compactions(1))] == []


def test_wrong_credentials_are_one_clear_line(minio_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    done = subprocess.run(
        [sys.executable, "-m", "ledgermq.cli.main", "broker", minio_root, "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "credentials" in done.stderr
    assert "Traceback" not in done.stderr
