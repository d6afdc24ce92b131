"""A file store that fills up and is freed, again and again, beside everything else of a soak: a
small disk of its own, one broker.

Each turn: produce until the broker says that its store is full, fill what is left as another
program would (but for the room of the reserve, if the broker has given it back), kill -9 the
broker, start it again, read everything that was acknowledged, delete the topic, and wait until
records are taken again. python -m tests.soak.full_disk --seconds 60
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import ledgermq
from infra.ports import free_port
from ledgermq.errors import LedgerMQError, OutcomeUnknown, StoreFull, TopicExists
from ledgermq_ledger.object_store.file.reserve import DISK_SHARE, HEADER_BYTES, NAME
from tests.chaos.children import LEDGERMQ, Child, Children
from tests.judges.violation import Violation

DISK_MIB = 48
VALUE_BYTES = 20_000
ROOM_S_MAX = 120.0
"""Until records are taken again after the topic was deleted: compaction's interval, and a machine
that is busy with a soak.
"""
READ_S_MAX = UP_S_MAX = 120.0


class FullDisk:
    """`turns`: how often the disk was filled and freed.

    `violations`: what went wrong; then no further turn is begun.
    """

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self.turns = 0
        self.violations: list[Violation] = []
        self._disk = folder / "small-disk"
        self._note = note
        self._port = free_port()
        (folder / "small-disk-logs").mkdir()
        self._children = Children(folder / "small-disk-logs")

    async def run(self) -> None:
        """Until cancelled. Does nothing where no file system may be mounted."""
        self._disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(self._disk)]
        if (await asyncio.to_thread(subprocess.run, mount, capture_output=True, check=False)).returncode != 0:
            self._note("no right to mount a small file system: no disk is filled")
            return
        try:
            while not self.violations:
                await self._turn(f"turn-{self.turns}")
                self.turns += 1
        except (LedgerMQError, TimeoutError) as error:
            self.violations.append(Violation("full disk", f"turn {self.turns}: {error!r}"))
        finally:
            self._children.close()
            await asyncio.to_thread(subprocess.run, ["umount", "-l", str(self._disk)], check=False)

    async def _turn(self, topic: str) -> None:
        broker = await self._start()
        async with ledgermq.connect(f"127.0.0.1:{self._port}") as client:
            await client.create_topic(topic, 2)
            stored = await self._fill(client, topic)
        filler = self._disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(65536)):
                pass
        if (self._disk / "root" / NAME).stat().st_size <= HEADER_BYTES:
            os.truncate(filler, max(0, filler.stat().st_size - DISK_MIB * 1024 * 1024 // DISK_SHARE))
        await broker.kill()
        broker = await self._start()
        async with ledgermq.connect(f"127.0.0.1:{self._port}") as client:
            await self._read(client, topic, stored)
            await client.delete_topic(topic, now=True)
            filler.unlink()
            await self._until_room(client)
        await broker.kill()
        self._note(f"a disk was full with {sum(stored.values()):,} records, and is free again")

    async def _start(self) -> Child:
        url = (self._disk / "root").as_uri()
        command = [*LEDGERMQ, "broker", url, "--port", str(self._port)]
        broker = self._children.spawn("full-disk", command)
        async with asyncio.timeout(UP_S_MAX):
            while "broker listens" not in broker.text():
                if broker.code is not None:
                    self.violations.append(
                        Violation("full disk", f"the broker ended with {broker.code}: {broker.text()[-1000:]}")
                    )
                    raise TimeoutError
                await asyncio.sleep(0.2)
        return broker

    async def _fill(self, client: ledgermq.Client, topic: str) -> dict[int, int]:
        """Records that were acknowledged, by partition; each says which it is."""
        stored: dict[int, int] = {0: 0, 1: 0}
        async with client.producer(delivery_timeout_s=15, compression="none", linger_ms=0) as producer:
            while True:
                partition = sum(stored.values()) % 2
                value = f"{stored[partition]}:".encode().ljust(VALUE_BYTES, b"x")
                try:
                    await producer.send(topic, value, partition=partition)
                except (StoreFull, OutcomeUnknown):  # of the last one nothing is known where the machine was too busy
                    return stored
                stored[partition] += 1

    async def _read(self, client: ledgermq.Client, topic: str, stored: dict[int, int]) -> None:
        found: dict[int, int] = {0: 0, 1: 0}
        async with client.consumer(topic) as consumer, asyncio.timeout(READ_S_MAX):
            while any(found[partition] < end for partition, end in stored.items()):
                for message in await consumer.fetch(timeout=10):
                    wanted = found[message.partition]
                    if message.value is None or int(message.value.partition(b":")[0]) != wanted:
                        self.violations.append(
                            Violation("full disk", f"{topic}/{message.partition}: record {wanted} is missing")
                        )
                        return
                    found[message.partition] += 1

    async def _until_room(self, client: ledgermq.Client) -> None:
        async with asyncio.timeout(ROOM_S_MAX):
            with suppress(TopicExists):
                await client.create_topic("steady", 2)
            while True:
                try:
                    async with client.producer(delivery_timeout_s=5) as producer:
                        await producer.send("steady", b"room again")
                        return
                except LedgerMQError:
                    await asyncio.sleep(1.0)


async def main() -> int:
    parser = argparse.ArgumentParser(description="Fill a small disk and free it, over and over.")
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="ledgermq-full-disk-") as folder:
        disk = FullDisk(Path(folder), print)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await disk.run()
        print(f"{disk.turns} turns, {len(disk.violations)} violations", *disk.violations, sep="\n")
        return 1 if disk.violations else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
