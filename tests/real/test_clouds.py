"""A cluster on each cloud's emulator: what a user checks, produced, read, compacted and checked again."""

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


@pytest.mark.parametrize("cloud", ["azure", "gcs"])
async def test_a_cluster_lives_on_an_emulator(request: pytest.FixtureRequest, cloud: str) -> None:
    root: str = request.getfixturevalue(f"{cloud}_root")
    assert "not fit" not in await ledgermq_command("store", "check", root)
    async with ledgermq.connect(root) as client:
        await client.create_topic("orders", partitions=2)
        async with client.producer() as producer:
            for i in range(RECORDS):
                producer.send("orders", b"v%d" % i, key=b"k%d" % i)
            await producer.flush()
    assert "records left        0" in await ledgermq_command("compact", root)
    assert "clean" in await ledgermq_command("fsck", root)
    async with (
        ledgermq.connect(root) as client,
        client.consumer("orders", start="earliest", until_end=True) as consumer,
    ):
        read = [message.value async for message in consumer]
    assert sorted(read) == sorted(b"v%d" % i for i in range(RECORDS))
