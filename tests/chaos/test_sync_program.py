"""The synchronous program of `make chaos`: it works, gets an error in time where it cannot, and a call that takes too
long is found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgermq.runtime.process.loop_thread import LoopThread
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.settings.processes import load_settings
from tests.chaos import sync_program
from tests.chaos.measures import Measures
from tests.chaos.sync_program import SyncProgram
from tests.chaos.workload import Workload


def work_at(address: str) -> Workload:
    return Workload(address, 1, Measures(0.0))


async def run_until(is_enough: Callable[[], object], program: SyncProgram, work: Workload) -> None:
    task = asyncio.create_task(program.run())
    async with asyncio.timeout(60):
        while not is_enough():
            await asyncio.sleep(0.02)
    work.stopped.set()
    await asyncio.wait_for(task, 120)


async def test_it_goes_on_beside_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_program, "CALL_S", 1.0)
    settings = load_settings(None, port=0, background_compaction=False)
    async with await Node.start(tmp_path.as_uri(), settings, Sources()) as node:
        work = work_at(node.address)
        program = SyncProgram(work, "sync")
        await run_until(lambda: program.blocked and len(program._acknowledged) > 3, program, work)
    assert work.violations == []


async def test_without_brokers_each_call_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_program, "CALL_S", 0.5)
    monkeypatch.setattr(sync_program, "SHORT_S", 0.2)
    monkeypatch.setattr(sync_program, "DELIVERY_S", 0.5)
    work = work_at("127.0.0.1:1")
    program = SyncProgram(work, "sync")
    await run_until(lambda: program.calls > 3, program, work)
    assert work.violations == []
    assert not program._acknowledged


async def test_a_call_that_takes_too_long_and_one_that_says_nothing_are_found() -> None:
    work = work_at("127.0.0.1:1")
    program = SyncProgram(work, "sync", late_s=0.0)
    program._loop = asyncio.get_running_loop()
    program._timed("sleep", 0.01, lambda: time.sleep(0.05))
    program._timed("nothing", 10.0, lambda: None, blocked=True)
    await asyncio.sleep(0)
    assert [violation.kind for violation in work.violations] == ["hang", "hang"]
    assert "sleep took 0." in str(work.violations[0])
    assert "None in place of DeadlineExceeded" in str(work.violations[1])


async def test_a_client_that_waits_for_its_blocked_thread_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former wait, which had no bound."""
    monkeypatch.setattr(sync_program, "CALL_S", 0.2)
    monkeypatch.setattr(LoopThread, "_result", lambda self, future, stalled_s_max: future.result(1.0))
    work = work_at("127.0.0.1:1")
    program = SyncProgram(work, "sync", late_s=0.5)
    program._loop = asyncio.get_running_loop()
    client = await asyncio.to_thread(program._client)
    try:
        with pytest.raises(TimeoutError):  # it would wait for ever: the test ends it
            await asyncio.to_thread(program._while_blocked, client)
    finally:
        monkeypatch.undo()
        await asyncio.to_thread(client.abort)
