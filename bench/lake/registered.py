"""How soon the files of a round are in the Delta table, and what naming a file costs."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ledgermq
from bench.percentiles import at
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.delta.actions import Add, decode_commit
from ledgermq_ledger.delta.names import FOLDER
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.root.open import open_store
from ledgermq_ledger.tables.formats.contract import Committed
from ledgermq_ledger.tables.registrar import Registrar
from tests.e2e.processes import BrokerProcesses
from tests.worlds.roots import Root
from tests.worlds.set_tables import set_table

TOPIC = "lake"
PARTITIONS = 4
LAG_MS = 2_000
SETTINGS = {
    "table.format": "delta",
    "table.delta.place": "topic",
    "parquet.max.lag.ms": str(LAG_MS),
    "parquet.file.min.bytes": "0",
}


def visible(root: str, seconds: float, rate: int, broker_options: str) -> dict[str, Any]:
    """One broker process, a producer at a steady rate, rounds every few seconds. Each file is compared with the version
    that names it: the date of that object, and when the round was committed, by the clock of this machine. On S3 dates
    are whole seconds.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcesses(Path(folder), root, shlex.split(broker_options)) as brokers,
    ):
        servers = brokers.start().address
        command = [sys.executable, "-m", "bench.lake", "--produce", servers, "visible"]
        subprocess.run([*command, "--seconds", str(seconds), "--rate", str(rate)], check=True)
        time.sleep(5 * LAG_MS / 1000)
        waits = sorted(asyncio.run(_waits(root)))
    return {
        "row": "commit of a round until it is in the table",
        "root": root.split("?", maxsplit=1)[0],
        "files": len(waits),
        "p50_s": round(at(waits, 0.5), 3),
        "p99_s": round(at(waits, 0.99), 3),
        "max_s": round(waits[-1], 3),
    }


async def produce(servers: str, seconds: float, rate: int) -> None:
    async with ledgermq.connect(servers) as client:
        await client.create_topic(TOPIC, PARTITIONS, settings=SETTINGS)
        async with client.producer() as producer:
            begun_s = time.monotonic()
            for number in range(int(seconds * rate)):
                await asyncio.sleep(begun_s + number / rate - time.monotonic())
                await producer.send(TOPIC, b"x" * 100, partition=number % PARTITIONS)


async def _waits(root: str) -> list[float]:
    """Return the seconds between a file's commit and the version that names it first."""
    folder, found = keys.parquet_topic(TOPIC) + FOLDER, []
    async with await open_store(root, sources=Sources()) as store:
        async for info in store.list(folder):
            if info.key.endswith(".json"):
                actions = decode_commit(await store.get(info.key), info.key).actions
                named = [action for action in actions if isinstance(action, Add)]
                found += [(info.modified_ms - add.modification_time) / 1000 for add in named]
    return found


async def cpu_of_a_file(folder: Path, partitions: int, rounds: int) -> dict[str, Any]:
    """Rounds of one file for each partition; the registrar takes its turns after each of them."""
    sources = Sources()
    async with FileStore(folder, sources) as store:
        root = await Root.open(store, sources)
        await root.create_topic("t", partitions)
        await set_table(root, 1)
        used_s, versions = 0.0, 0
        for _ in range(rounds):
            await root.produce("t", *((partition, [b"value"]) for partition in range(partitions)))
            assert not (await root.compact()).failures
            registrar = Registrar(store, root.cluster, root.topics["t"], sources)
            begun_s = time.process_time()
            while (await registrar.turn()).committed is Committed.WON:
                versions += 1
            used_s += time.process_time() - begun_s
    files = partitions * rounds
    ms = round(1000 * used_s / files, 3)
    return {"row": "CPU of registering a file, Delta", "files": files, "versions": versions, "ms_a_file": ms}
