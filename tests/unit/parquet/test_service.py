"""The compaction service: what it tells, and how it stops."""

from __future__ import annotations

import asyncio

import pytest

from ledger import keys
from ledger.blocking import run_inline
from ledger.commands.compaction_service import parse_interval_s
from ledger.object_store.memory import MemoryStore
from ledger.parquet.engine import LocalEngine
from ledger.parquet.report import Lag, RoundReport
from ledger.parquet.service import CompactionService, ServiceEvents
from ledgermq.errors import InvalidRequest
from tests.passing_store import PassingStore
from tests.roots import Root, read_everything
from tests.virtual_time import run_virtual, virtual_sources

VALUES = [b"x" * 50] * 4


class Heard(ServiceEvents):
    def __init__(self) -> None:
        self.rounds: list[RoundReport] = []
        self.left: dict[int, Lag] = {}

    def round_finished(self, report: RoundReport) -> None:
        self.rounds.append(report)

    def bundle_done(self, bundle: int, left: Lag) -> None:
        self.left[bundle] = left


class SlowStore(PassingStore):
    """Each range of a segment of bundle 1 takes its time."""

    def __init__(self, inner: MemoryStore, seconds: float) -> None:
        super().__init__(inner)
        self.seconds = seconds

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if key.startswith(keys.segments(1)):
            await asyncio.sleep(self.seconds)
        return await super().get_range(key, start, length)


async def service_on(root: Root, heard: Heard, range_seconds: float = 0.0) -> CompactionService:
    assert isinstance(root.store, MemoryStore)
    store = SlowStore(root.store, range_seconds)
    return CompactionService(store, root.cluster, root.sources, LocalEngine(root.sources, run_inline), heard)


async def root_with(target_bytes: int, lag_ms: int) -> Root:
    sources = virtual_sources(1)
    root = await Root.open(MemoryStore("", sources), sources)
    await root.create_topic("t", 2, parquet_target_bytes=str(target_bytes), parquet_max_lag_ms=str(lag_ms))
    await root.create_topic("late", 1, parquet_max_lag_ms=str(10**9))
    for _ in range(4):
        await root.produce("t", (0, VALUES), (1, VALUES))
    await root.produce("late", (0, [b"1", b"2"]))
    return root


def test_what_is_left_is_told_after_the_rounds_of_a_run() -> None:
    async def scenario() -> None:
        heard = Heard()
        root = await root_with(10**6, 0)
        written_ms = root.sources.now_ms()
        await (await service_on(root, heard)).run_once(collect=True)
        assert [(done.bundle, done.files, done.records) for done in heard.rounds] == [(1, 2, 32)]
        left = heard.left[1]
        assert (left.records, left.written_ms is not None and left.written_ms <= written_ms) == (2, True)
        assert left.bytes > 0
        assert await read_everything(root) == root.produced

    run_virtual(scenario)


@pytest.mark.parametrize(("finish_s", "rounds"), [(100.0, 1), (3.0, 0)])
def test_a_stop_ends_the_round_that_is_under_way_or_leaves_it_to_others(finish_s: float, rounds: int) -> None:
    async def scenario() -> None:
        heard = Heard()
        root = await root_with(1024, 10**9)  # several rounds of five seconds
        service = await service_on(root, heard, range_seconds=5.0)
        working = asyncio.create_task(service.run(lambda: 10.0))
        await asyncio.sleep(2.0)
        asked_s = asyncio.get_running_loop().time()
        service.stop(finish_s)
        await working
        assert asyncio.get_running_loop().time() - asked_s <= min(finish_s, 30.0)
        assert len(heard.rounds) == rounds
        rival = Heard()
        await (await service_on(root, rival)).run_once(collect=False)
        assert sum(done.records for done in [*heard.rounds, *rival.rounds]) == 32, "what was left is finished by the next"
        assert await read_everything(root) == root.produced

    run_virtual(scenario)


def test_a_stop_between_two_runs_is_heard_at_once() -> None:
    async def scenario() -> None:
        root = await root_with(10**6, 0)
        service = await service_on(root, Heard())
        working = asyncio.create_task(service.run(lambda: 1000.0))
        await asyncio.sleep(500)
        service.stop()
        asked_s = asyncio.get_running_loop().time()
        await working
        assert asyncio.get_running_loop().time() == asked_s

    run_virtual(scenario)


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("500ms", 0.5), ("1.5h", 5400), ("2 m", 120), ("7", 7)])
def test_intervals(text: str, seconds: float) -> None:
    assert parse_interval_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-1s", "99ms", "1d", "s", "1e3"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="give one as 30s"):
        parse_interval_s(text)
