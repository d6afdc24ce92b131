"""A cluster on Azurite: what a user checks, produced, read, compacted and checked again."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import ledgermq

pytestmark = [pytest.mark.real, pytest.mark.slow]
RECORDS = 50


async def ledgermq_command(*words: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "ledgermq.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_a_cluster_lives_on_azurite(azure_root: str) -> None:
    assert "not fit" not in await ledgermq_command("store", "check", azure_root)
    async with ledgermq.connect(azure_root) as client:
        await client.create_topic("orders", partitions=2)
        async with client.producer() as producer:
            for i in range(RECORDS):
                producer.send("orders", b"v%d" % i, key=b"k%d" % i)
            await producer.flush()
    assert "records left        0" in await ledgermq_command("compact", azure_root)
    assert "clean" in await ledgermq_command("fsck", azure_root)
    async with (
        ledgermq.connect(azure_root) as client,
        client.consumer("orders", start="earliest", until_end=True) as consumer,
    ):
        read = [message.value async for message in consumer]
    assert sorted(read) == sorted(b"v%d" % i for i in range(RECORDS))
