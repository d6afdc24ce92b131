"""A topic with a Delta table in a folder: deltalake and polars read it while retention deletes, a broker is killed, and
a former version stays readable.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

import ledgermq
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq_ledger import keys
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.waiting import wait_until

OPTIONS = (*QUICK, "--constant-url-life-ms=1000", "--constant-parquet-min-age-ms=4000")
TABLE = {"table.format": "delta", "table.delta.place": "topic", "table.keep.ms": 60_000}


async def ledgermq_says(*words: str) -> str:
    command = [sys.executable, "-m", "ledgermq.cli.main", *words]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    return done.stdout


def values_by_deltalake(folder: Path, version: int | None = None) -> list[bytes]:
    found = DeltaTable(folder, version=version).to_pyarrow_table(columns=["offset", "value"]).sort_by("offset")
    return found.column("value").to_pylist()


def values_by_polars(folder: Path) -> list[bytes]:
    return pl.scan_delta(str(folder)).sort("offset").select("value").collect()["value"].to_list()


def has(folder: Path, values: list[bytes]) -> bool:
    """Whether both readers see just these values."""
    there_is_a_table = any((folder / "_delta_log").glob("*.json"))
    return there_is_a_table and values_by_deltalake(folder) == values_by_polars(folder) == values


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_readers_of_delta_follow_a_topic(tmp_path: Path) -> None:
    root = tmp_path / "root"
    folder = root / keys.parquet_topic("t")
    with BrokerProcesses(tmp_path, root.as_uri(), OPTIONS) as brokers:
        first = await asyncio.to_thread(brokers.start)
        async with ledgermq.connect(first.address) as client:
            await client.create_topic("t", 1, TABLE)
            for batch in (b"a", b"b", b"c"):
                async with client.producer() as producer:
                    await producer.send("t", batch)
                await ledgermq_says("compact", str(root))
            await asyncio.to_thread(wait_until, lambda: has(folder, [b"a", b"b", b"c"]))
            before = DeltaTable(folder).version()
            await client.delete_records("t", {0: 2})
            await ledgermq_says("compact", str(root))
            await asyncio.to_thread(wait_until, lambda: has(folder, [b"c"]))
            await asyncio.sleep(4.5)  # files are old enough to go
            await ledgermq_says("compact", str(root))
            await ledgermq_says("gc", str(root))
            assert values_by_deltalake(folder, before) == [b"a", b"b", b"c"], "readers may have it open"
        second = await asyncio.to_thread(brokers.start)
        brokers.kill(first)
        async with ledgermq.connect(second.address) as client:
            async with client.producer() as producer:
                await producer.send("t", b"d")
            await ledgermq_says("compact", str(root))
            await asyncio.to_thread(wait_until, lambda: has(folder, [b"c", b"d"]))
            asked = ("table", "describe", "t", "--target", second.address)
            said = json.loads(await ledgermq_says(*asked, "--output", "json"))
            assert (said["version"], said["rows"]) == (DeltaTable(said["folder"]).version(), 2)
            assert [(each["start"], each["end"], each["missing"]) for each in said["partition_list"]] == [(2, 4, 0)]
            assert "is current" in await ledgermq_says(*asked)
            assert values_by_deltalake(folder, before) == [b"a", b"b", b"c"]
    await ledgermq_says("fsck", str(root))
