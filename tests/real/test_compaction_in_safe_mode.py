"""Compaction while an HDFS takes no writes: the NameNode was killed and begins again in safe mode."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from infra.hdfs import NAMENODE, Hdfs
from ledgermq.sources import Sources
from ledgermq_ledger.root.open import open_store
from tests.worlds.roots import Root, read_everything, read_parquet_rows

pytestmark = pytest.mark.real


def compact(root_url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ledgermq.cli.main", "compact", root_url]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.timeout(600)
async def test_a_round_waits_or_says_so_and_the_next_one_is_whole(hdfs: Hdfs, hdfs_root: str) -> None:
    sources = Sources()
    async with await open_store(hdfs_root, sources=sources) as store:
        root = await Root.open(store, sources)
        await root.create_topic("t", 3)
        for number in range(5):
            await root.produce("t", *((partition, [b"%d" % number] * 10) for partition in range(3)))
        await asyncio.to_thread(hdfs.kill, NAMENODE)
        await asyncio.to_thread(hdfs.start, NAMENODE)
        done = await asyncio.to_thread(compact, hdfs_root)
        assert "Traceback" not in done.stderr
        await asyncio.to_thread(hdfs.wait_ready)
        if done.returncode != 0:  # it gave up meanwhile
            done = await asyncio.to_thread(compact, hdfs_root)
        assert done.returncode == 0, done.stdout + done.stderr
        assert await read_everything(root) == root.produced
        assert {part: list(rows.values()) for part, rows in (await read_parquet_rows(store)).items()} == root.produced
