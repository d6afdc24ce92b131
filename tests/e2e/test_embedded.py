"""Embedded brokers: a root URL instead of an address, no server to start."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import ledgermq
from ledger import keys
from ledgermq.errors import InvalidConfig

PRODUCE = """
import asyncio, sys, ledgermq

async def main(root):
    async with ledgermq.connect(root) as client, client.producer() as producer:
        for i in range(20):
            await producer.send("shared", b"%d" % i, partition=i % 4)
        print(sum(1 for broker in (await client.describe_cluster()).brokers if broker.alive))

asyncio.run(main(sys.argv[1]))
"""


async def consumed(client: ledgermq.Client, topic: str, count: int) -> list[bytes]:
    values: list[bytes] = []
    async with asyncio.timeout(60), client.consumer(topic, start="earliest") as consumer:
        while len(values) < count:
            values += [message.value or b"" for message in await consumer.fetch(1000, 1.0)]
    return values


async def test_embedded_brokers_of_several_processes_are_one_cluster(tmp_path: Path) -> None:
    root = (tmp_path / "root").as_uri()
    async with ledgermq.connect(root) as client:
        await client.create_topic("shared", partitions=4)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", PRODUCE, root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await asyncio.wait_for(child.communicate(), 60)
        assert (child.returncode, out.strip()) == (0, b"2"), err.decode()
        assert sorted(await consumed(client, "shared", 20), key=int) == [b"%d" % i for i in range(20)]
    assert list((tmp_path / "root" / keys.BROKERS).iterdir()) == [], "both have taken their leave"
    async with ledgermq.connect(root) as client:
        assert sorted(await consumed(client, "shared", 20), key=int) == [b"%d" % i for i in range(20)]


async def test_a_memory_root_is_one_cluster_in_this_process() -> None:
    async with ledgermq.connect("memory://embedded-test") as first, ledgermq.connect("memory://embedded-test") as second:
        await first.create_topic("t", partitions=2)
        async with second.producer() as producer:
            for i in range(10):
                await producer.send("t", b"%d" % i)
        assert sorted(await consumed(first, "t", 10)) == [b"%d" % i for i in range(10)]
    async with ledgermq.connect("memory://embedded-test") as again:
        assert len(await consumed(again, "t", 10)) == 10
    async with ledgermq.connect("memory://another") as other:
        assert await other.list_topics() == []


async def test_an_embedded_broker_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with ledgermq.connect((tmp_path / "root").as_uri()) as client:
        await client.create_topic("t")
    assert capfd.readouterr() == ("", "")


async def test_a_root_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidConfig):
        async with ledgermq.connect("gopher://hole"):
            pass
