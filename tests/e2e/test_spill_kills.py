"""A producer's spill survives SIGKILL at every step, and a full disk: what was answered is stored, once and in
order.
"""

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
from infra.ports import free_port
from ledgermq import Spill, Spilled
from ledgermq.errors import StoreFull
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.settings.processes import load_settings
from tests.e2e.spilling_program import PARTITIONS, lines
from tests.servers.cutting_proxy import NEVER, CuttingProxy, cutting_proxy
from tests.servers.small_disk import small_disk
from tests.waiting import until
from tests.worlds.consumed import read_values

PROGRAM_S_MAX = 100.0


@asynccontextmanager
async def broker_behind_a_proxy(folder: Path) -> AsyncIterator[tuple[CuttingProxy, str]]:
    """And its own address, which no proxy cuts."""
    port = free_port()
    async with cutting_proxy(f"http://127.0.0.1:{port}", 0, NEVER) as proxy:
        own = f"127.0.0.1:{port}"
        settings = load_settings(
            None, port=port, advertised_address=proxy.address, peer_address=own, background_compaction=False
        )
        async with await Node.start(folder.as_uri(), settings, Sources()):
            yield proxy, own


def program(target: str, folder: Path, count: int, die_at: str = "", die_after: int = 1) -> int:
    """Run one process until it dies or ends; return its exit code."""
    given = [target, str(folder), str(count), die_at, str(die_after)]
    command = [sys.executable, "-m", "tests.e2e.spilling_program", *given]
    return subprocess.run(command, check=False, timeout=PROGRAM_S_MAX).returncode


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_nothing_that_was_answered_is_lost_though_the_process_is_killed_at_every_step(tmp_path: Path) -> None:
    async with broker_behind_a_proxy(tmp_path / "root") as (proxy, _):
        async with ledgermq.connect(proxy.address) as client:
            await client.create_topic("t", PARTITIONS)

        async def run(count: int, die_at: str = "", die_after: int = 1) -> None:
            code = await asyncio.to_thread(program, proxy.address, tmp_path, count, die_at, die_after)
            assert code == (-signal.SIGKILL if die_at else 0), (count, die_at)

        await run(4)  # the topic is known from now on
        proxy.cut_off()
        await run(20, "before add", 2)
        await run(20, "after add", 2)
        await run(20)
        proxy.restore()
        await run(0, "before put_lanes")
        await run(0, "after put_lanes")
        await run(0, "before remove")
        await run(0, "after remove")
        await run(20, "before remove", 2)
        await run(0)
        await run(4)
        async with ledgermq.connect(proxy.address) as client:
            stored = await read_values(client)
    answered = set(lines(tmp_path, "answered"))
    assert len(answered) > 30
    for partition in range(PARTITIONS):
        found = [int(value or b"") for value in stored[partition]]
        assert max(Counter(found).values()) == 1, "a kill repeats nothing while brokers remember the session"
        expected = sorted(number for number in answered if number % PARTITIONS == partition)
        assert [number for number in found if number in answered] == expected


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 10) as folder:
        yield folder


async def test_a_full_disk_fails_later_records_and_loses_none_that_was_answered(tmp_path: Path, disk: Path) -> None:
    async with broker_behind_a_proxy(tmp_path / "root") as (proxy, _), ledgermq.connect(proxy.address) as client:
        await client.create_topic("t", 1)
        async with client.producer(spill=Spill(disk / "t.spill"), delivery_timeout_s=1) as producer:
            await producer.send("t", b"first")
            proxy.cut_off()
            large = [b"%d" % number + bytes(100_000) for number in range(200)]
            spilled: list[bytes] = []

            async def fill() -> None:
                for value in large:
                    assert isinstance(await producer.send("t", value), Spilled)
                    spilled.append(value)

            with pytest.raises(StoreFull, match="no space is left"):
                await fill()
            assert spilled
            proxy.restore()
            await until(lambda: producer.spilled is not None and producer.spilled.records == 0)
        assert (await read_values(client))[0] == [b"first", *spilled]
