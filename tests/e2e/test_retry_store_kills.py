"""Messages in the local store of `Retry.metaq` survive SIGKILL at every step, and a full disk."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import ledgermq
from ledgermq import Retry
from ledgermq.errors import StoreFull
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.settings.processes import load_settings
from tests.e2e.group_clients import fill
from tests.e2e.retrying_member import lines, unacknowledged
from tests.servers.small_disk import small_disk
from tests.waiting import until

COUNT, PARTITIONS = 40, 2
POISON = set(range(0, COUNT, 5))
MEMBER_S_MAX = 100.0


def member(target: str, folder: Path, die_at: str = "", die_after: int = 0, count: int = COUNT) -> int:
    """Run one member until it dies, or until `count` messages are handled; return its exit code."""
    given = [target, str(folder), str(count), die_at, str(die_after)]
    command = [sys.executable, "-m", "tests.e2e.retrying_member", *given]
    return subprocess.run(command, check=False, timeout=MEMBER_S_MAX).returncode


@asynccontextmanager
async def filled_broker(folder: Path) -> AsyncIterator[str]:
    settings = load_settings(None, port=0, background_compaction=False)
    async with await Node.start(folder.as_uri(), settings, Sources()) as node:
        async with ledgermq.connect(node.address) as client:
            await client.create_topic("t", PARTITIONS)
            await fill(client, "t", COUNT)
        yield node.address


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_no_message_is_lost_though_the_process_is_killed_at_every_step(tmp_path: Path) -> None:
    async with filled_broker(tmp_path / "root") as target:
        for die_at, die_after in (("before", 1), ("stored", 1)):
            assert await asyncio.to_thread(member, target, tmp_path, die_at, die_after) == -signal.SIGKILL
        assert set(lines(tmp_path, "handled")) <= set(range(COUNT)) - POISON
        (tmp_path / "cured").touch()
        for die_at in ("recovering", "recovered"):
            assert await asyncio.to_thread(member, target, tmp_path, die_at, 1) == -signal.SIGKILL
        assert await asyncio.to_thread(member, target, tmp_path) == 0
    handled = Counter(lines(tmp_path, "handled"))
    assert set(handled) == set(range(COUNT)), "each message is handled"
    assert set(lines(tmp_path, "failed")) == POISON, "and only the poison ever failed"
    assert max(handled.values()) <= 5, "a kill repeats a message once, at most"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 2) as folder:
        yield folder


async def test_a_full_disk_stops_the_lanes_of_failed_messages_and_loses_none(tmp_path: Path, disk: Path) -> None:
    """While the disk is full no failed message is acknowledged; the others are handled."""
    calls: Counter[int] = Counter()
    is_cured = was_full = False
    retry = Retry.metaq(attempts=1, wait_ms_step=300, wait_ms_max=300, store=disk / "g.retry", recover_every_s=0.3)
    async with filled_broker(tmp_path / "root") as target, ledgermq.connect(target) as client:

        @client.handler("t", group="g", ordered_by=None, concurrency=2, retry=retry)
        async def handle(message: ledgermq.GroupMessage) -> None:
            nonlocal was_full
            number = int(message.value or b"")
            if number in POISON and not is_cured:
                if not was_full:
                    was_full = True
                    _fill(disk / "filler")
                raise ZeroDivisionError
            calls[number] += 1

        stop = asyncio.Event()
        full: list[Exception] = []
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run_handlers(stop=stop))
            await until(lambda: len(calls) == COUNT - len(POISON))
            await until(lambda: _note(full, handle.last_error))
            assert set(calls) == set(range(COUNT)) - POISON
            assert handle.stored < len(POISON), "the disk had no room for all of them"
            (disk / "filler").unlink()
            await until(lambda: handle.stored == len(POISON))
            is_cured = True
            await until(lambda: len(calls) == COUNT and handle.stored == 0)
            stop.set()
        assert await unacknowledged(client) == 0
    assert set(calls) == set(range(COUNT))


def _note(full: list[Exception], error: Exception | None) -> bool:
    if isinstance(error, StoreFull):
        full.append(error)
    return bool(full)


def _fill(filler: Path) -> None:
    """Leave no byte."""
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return
