"""The backup of docs/operations.md as an operator does it: settings file and SIGHUP, a copying
tool, `fsck`, brokers on the copy.

`tests/broker/test_backup.py` does the same in virtual time, and in every test run.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ledgermq
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq_ledger import keys
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.waiting import wait_until
from tests.worlds.consumed import read_values

PARTITIONS = 3
OPTIONS = tuple(option for option in QUICK if option != "--no-background-compaction")


def copy(source: Path, target: Path, *, checkpoints: bool) -> bool:
    """One run of a copying tool: list, then copy file by file.

    False: something was gone meanwhile.
    """
    complete = True
    listed = sorted(
        Path(folder, name) for folder, _, names in os.walk(source) for name in names
    )  # asks no second time whether it is there
    for path in listed:
        key = path.relative_to(source)
        if key.parts[0] in (".tmp", keys.BROKERS.rstrip("/")) or (path.parent.name == "checkpoints") != checkpoints:
            continue
        (target / key).parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(path, target / key)
        except FileNotFoundError:
            complete = False
    return complete


class Writing:
    """To one partition each, without end; `stored` is what was acknowledged so far."""

    def __init__(self, client: ledgermq.Client) -> None:
        self._client = client
        self.stored: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}

    async def run(self, partition: int, stop: asyncio.Event) -> None:
        async with self._client.producer(linger_ms=0) as producer:
            while not stop.is_set():
                value = b"%d" % len(self.stored[partition])
                await producer.send("t", value, partition=partition)
                self.stored[partition].append(value)

    def held(self) -> dict[int, list[bytes]]:
        return {partition: list(values) for partition, values in self.stored.items()}


@pytest.mark.real
@pytest.mark.timeout(240)
async def test_a_copy_of_a_folder_that_is_written_to_is_a_whole_cluster(tmp_path: Path) -> None:
    root, target, settings = tmp_path / "root", tmp_path / "copy", tmp_path / "broker.toml"
    settings.write_text("background_compaction = true\n")
    options = (*OPTIONS, "--config", str(settings), "--checkpoint-slots", "16")
    with BrokerProcesses(tmp_path, root.as_uri(), options) as brokers:
        broker = await asyncio.to_thread(brokers.start)
        async with ledgermq.connect(broker.address) as client:
            await client.create_topic("t", PARTITIONS, {"parquet.max.lag.ms": 0})
            writing, stop = Writing(client), asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for partition in range(PARTITIONS):
                    tasks.create_task(writing.run(partition, stop))
                await asyncio.to_thread(wait_until, lambda: "compacted" in broker.text())
                settings.write_text("background_compaction = false\n")
                os.kill(broker.pid, signal.SIGHUP)
                await asyncio.to_thread(wait_until, lambda: "background compaction at rest" in broker.text())
                async with client.consumer("t", group="g", commit="manual") as consumer:
                    await consumer.commit(await consumer.fetch(50, timeout=30))
                    committed = await consumer.committed()
                before = writing.held()
                for checkpoints in (True, False):
                    while not await asyncio.to_thread(copy, root, target, checkpoints=checkpoints):
                        pass
                assert writing.held() != before, "it was taken under load"
                stop.set()
    command = [sys.executable, "-m", "ledgermq.cli.main", "fsck", str(target)]
    checked = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode == ExitCode.OK, checked.stdout
    with BrokerProcesses(tmp_path, target.as_uri()) as restored:
        broker = await asyncio.to_thread(restored.start)
        async with ledgermq.connect(broker.address) as client:
            found = await read_values(client)
            for partition, values in before.items():
                assert found[partition][: len(values)] == values, "all that was acknowledged before the copy began"
                assert found[partition] == writing.stored[partition][: len(found[partition])], (
                    "and of the rest a beginning"
                )
            kept = (await client.groups.describe("g")).committed
            assert {part: stored.stored.offset for part, stored in kept.items()} == {
                k: v for k, v in committed.items() if v is not None
            }
            async with client.producer() as producer:
                assert (await producer.send("t", b"new", partition=0)).offset == len(found[0])
