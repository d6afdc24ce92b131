"""Plain reads of `parquet/` by pyarrow, DuckDB and polars in a loop, while rival compactors work,
are killed and begin again, and retention deletes.

Each read is one contiguous run of each partition, or fails because a file has gone and succeeds
when it is made again.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger.cluster import ClusterDefaults, open_cluster
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.topics.topic import METADATA, encode_topic_record, topic_key
from tests.soak.numbered import Partition, values
from tests.soak.plain_reads import READERS, Found, PlainReads
from tests.worlds.roots import Root

pytestmark = pytest.mark.real

SECONDS_MAX = 200.0
READS_MIN, BEGINS_MIN, KILLS_MIN = 5, 3, 3
PARTITIONS = 3
RETENTION_MS = 6_000
DEFAULTS = ClusterDefaults(bundles=2, url_life_ms=1_000, parquet_min_age_ms=4_000)
RIVALS = 2


async def opened(store: ObjectStore) -> Root:
    sources = Sources()
    root = Root(store, sources, await open_cluster(store, sources, DEFAULTS))
    await root.put_internal(METADATA, topic_key(METADATA.name), encode_topic_record(METADATA, creation=True))
    settings = {"parquet_max_lag_ms": "500", "parquet_target_bytes": "60000"}
    await root.create_topic("kept", PARTITIONS, **settings)
    await root.create_topic("brief", PARTITIONS, **settings, retention_ms=str(RETENTION_MS))
    return root


async def produce(root: Root, ends: dict[Partition, int]) -> None:
    r = random.Random(1)
    while True:
        for topic in ("kept", "brief"):
            batches = []
            for partition in range(PARTITIONS):
                count = r.choice((1, 5, 50))
                batches.append((partition, values(partition, ends[topic, partition], count, 40).to_pylist()))
            await root.produce(topic, *batches, timestamp_ms=time.time_ns() // 1_000_000)
            for partition, produced in batches:
                ends[topic, partition] += len(produced)
        await asyncio.sleep(0.02)


def start_rival(url: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ledgermq.cli.main", "compact", url, "--every", "300ms"]
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output)


async def kill_rivals(url: str, rivals: list[subprocess.Popen[bytes]], log: Path, kills: list[int]) -> None:
    r = random.Random(2)
    while True:
        await asyncio.sleep(r.uniform(4.0, 10.0))
        number = r.randrange(RIVALS)
        rivals[number].kill()
        rivals[number].wait()
        kills.append(number)
        rivals[number] = start_rival(url, log)


@asynccontextmanager
async def disturbed(root: Root, ends: dict[Partition, int], log: Path) -> AsyncIterator[list[int]]:
    """Gives a list that grows with each kill."""
    url = root.store.url
    rivals = [start_rival(url, log) for _ in range(RIVALS)]
    kills: list[int] = []
    work = [asyncio.create_task(produce(root, ends)), asyncio.create_task(kill_rivals(url, rivals, log, kills))]
    try:
        yield kills
    finally:
        for task in work:
            task.cancel()
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        for rival in rivals:
            rival.send_signal(signal.SIGTERM)
        for rival in rivals:
            assert rival.wait(60) in (0, -signal.SIGTERM), "it had not begun, or it ended its round"
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), outcomes


@pytest.mark.timeout(300)
async def test_every_read_is_one_run_of_each_partition(tmp_path: Path) -> None:
    log = tmp_path / "rivals.log"
    async with FileStore(tmp_path / "root", Sources()) as store:
        root = await opened(store)
        ends = dict.fromkeys(((topic, p) for topic in ("kept", "brief") for p in range(PARTITIONS)), 0)
        reads = PlainReads(tmp_path / "root" / "parquet")
        problems: list[str] = []
        begins: set[int] = set()

        async def read(name: str) -> Found:
            found, wrong = await asyncio.to_thread(reads.look, name, READERS[name])
            problems.extend(wrong)
            return found

        def is_enough(kills: list[int]) -> bool:
            return (
                min(reads.looks[name] for name in READERS) >= READS_MIN
                and len(begins) >= BEGINS_MIN
                and len(kills) >= KILLS_MIN
            )

        async with disturbed(root, ends, log) as kills, asyncio.timeout(SECONDS_MAX):
            turn = 0
            while not is_enough(kills):
                if reads.folder.exists() and any(reads.folder.glob("topic=*/*/*.parquet")):
                    found = await read(list(READERS)[turn % len(READERS)])
                    begins |= {runs[0].first for (topic, _), runs in found.items() if topic == "brief"}
                    assert all(runs[0].first == 0 for (topic, _), runs in found.items() if topic == "kept")
                    assert all(run.shift == 0 for runs in found.values() for run in runs), (
                        "each offset has its own record"
                    )
                    turn += 1
                await asyncio.sleep(0.05)
        assert not problems
        assert not (await root.compact()).failures
        last = await read("pyarrow")
        for partition in ((topic, p) for topic, p in ends if topic == "kept"):
            (run,) = last[partition]
            assert (run.first, run.shift) == (0, 0)
            assert ends[partition] <= run.last + 1 <= ends[partition] + 50, (
                "the last batch may have been cut off after its put"
            )
    assert "Traceback" not in log.read_text()
