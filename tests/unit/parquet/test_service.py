"""The compaction service: what it tells, and how it stops."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.log.segments.segment import read_index
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.report import CleaningReport, Lag, ParkedFile, RoundReport
from ledgermq_ledger.rounds.service import CompactionService, ServiceEvents
from ledgermq_ledger.rounds.stillness import STILL_S_MAX
from ledgermq_tools.ledger.compact.service import parse_interval_s
from tests.stores.no_deletes import NoDeletes
from tests.stores.requests_made import LateLists, Requests
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.keyed_topics import Written, put_pairs
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys, read_everything

VALUES = [b"x" * 50] * 4


class Heard(ServiceEvents):
    def __init__(self) -> None:
        self.rounds: list[RoundReport] = []
        self.left: dict[int, Lag] = {}
        self.versions: list[CleaningReport] = []
        self.parked: list[tuple[int, str, int]] = []
        self.failed: list[tuple[int, LedgerMQError]] = []

    def round_finished(self, report: RoundReport) -> None:
        self.rounds.append(report)

    def partition_parked(self, bundle: int, parked: ParkedFile) -> None:
        assert self.rounds, "after the round that has parked it"
        self.parked.append((bundle, parked.topic, parked.partition))

    def garbage_collected(self, objects: int) -> None:
        assert objects, "only where there was any"

    def bundle_done(self, bundle: int, lag: Lag) -> None:
        self.left[bundle] = lag

    def version_published(self, report: CleaningReport) -> None:
        self.versions.append(report)

    def bundle_failed(self, bundle: int, error: LedgerMQError) -> None:
        self.failed.append((bundle, error))


class SlowStore(StoreWrapper):
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


@virtual
async def test_what_is_left_is_told_after_the_rounds_of_a_run() -> None:
    heard = Heard()
    root = await root_with(10**6, 0)
    written_ms = root.sources.now_ms()
    await (await service_on(root, heard)).run_once(collect=True)
    assert [(done.bundle, done.files, done.records) for done in heard.rounds] == [(1, 2, 32)]
    left = heard.left[1]
    assert (left.records, left.written_ms is not None and left.written_ms <= written_ms) == (2, True)
    assert left.bytes > 0
    assert await read_everything(root) == root.produced


@virtual
async def test_a_parked_partition_is_reported_after_its_round() -> None:
    heard = Heard()
    root = await root_with(10**6, 0)
    key = keys.segment(1, 2)
    index = (await read_index(root.store, 1, 2)).index
    data = bytearray(await root.store.get(key))
    data[index.batches[0].position + index.batches[0].length // 2] ^= 0xFF
    await root.store.delete([key])
    await root.store.put_if_absent(key, [data])
    await (await service_on(root, heard)).run_once(collect=True)
    assert heard.parked == [(1, "t", index.batches[0].partition)]


@pytest.mark.parametrize(("finish_s", "rounds"), [(100.0, 1), (3.0, 0)])
@virtual
async def test_a_stop_ends_the_round_that_is_under_way_or_leaves_it_to_others(finish_s: float, rounds: int) -> None:
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


@virtual
async def test_what_cannot_be_deleted_keeps_neither_rounds_nor_cleaning_waiting_and_is_told() -> None:
    heard = Heard()
    root = await root_with(1024, 10**9)
    keyed, written = await root.create_topic("k", cleanup_policy="compact", parquet_max_lag_ms="0"), Written()
    await put_pairs(root, keyed, written, [(b"a", b"1"), (b"a", b"2")])
    store = NoDeletes(root.store, keys.segments(1))
    service = CompactionService(store, root.cluster, root.sources, LocalEngine(root.sources, run_inline), heard)
    await service.run_once(collect=False)
    assert len(heard.rounds) > 1
    assert [version.topic for version in heard.versions] == ["k"]
    assert [(bundle, str(error)) for bundle, error in heard.failed] == [(1, "the store does not answer")]
    assert store.tries == 1, "in one run"
    await service.run_once(collect=False)
    assert store.tries == len(heard.failed) == 2, "the bundle is not taken for one that stands still"
    store.broken = False
    await service.run_once(collect=False)
    assert len(heard.failed) == 2
    assert (await root.newest()).trim_slot > 2
    left = [keys.number(info.key) async for info in root.store.list(keys.segments(1))]
    assert left[1:] == [slot for slot in left[1:] if slot >= (await root.newest()).trim_slot], "all but the claim"


@virtual
async def test_a_run_by_hand_cleans_and_tells_the_rounds_though_something_cannot_be_deleted() -> None:
    root = await root_with(1024, 0)
    keyed = await root.create_topic("k", cleanup_policy="compact")
    await put_pairs(root, keyed, Written(), [(b"a", b"1"), (b"a", b"2")])
    report = await root.compact(NoDeletes(root.store, keys.segments(1)))
    assert len([done for done in report.rounds if done.bundle == 1]) > 1
    assert [version.topic for version in report.cleaned] == ["k"]
    assert [(bundle, str(error)) for bundle, error in report.failures.items()] == [(1, "the store does not answer")]


async def made_by_a_run(service: CompactionService, store: Requests) -> dict[tuple[str, str], int]:
    store.made.clear()
    await service.run_once(collect=False)
    return dict(store.made)


async def still_root(bundles: int = 2) -> tuple[Root, Requests, Heard, CompactionService]:
    """Everything in Parquet, and a service that has found it so.

    Bundle 0 has records for an hour, which no round of it is due for.
    """
    sources = virtual_sources(1)
    store = Requests(MemoryStore("", sources))
    root = await Root.open(store, sources, bundles)
    await root.create_topic("t", 1, parquet_max_lag_ms="0")
    await root.produce("t", (0, VALUES))
    heard = Heard()
    service = CompactionService(
        store, root.cluster, sources, LocalEngine(sources, run_inline), heard, bundles=range(1, bundles)
    )
    for _ in range(2):  # the second run knows that what it knew is trimmed
        await service.run_once(collect=False)
    assert [done.records for done in heard.rounds] == [4]
    heard.rounds.clear()
    return root, store, heard, service


@virtual
async def test_a_still_bundle_costs_two_lists_a_run() -> None:
    few, many = await still_root(bundles=2), await still_root(bundles=7)
    one, six = [await made_by_a_run(service, store) for _, store, _, service in (few, many)]
    more = {place: six[place] - one[place] for place in six if six[place] != one[place]}
    assert more == {("list", "checkpoints"): 5, ("list", "segments"): 5}, (
        "five bundles more; what the catalog costs is the same"
    )


@virtual
async def test_a_still_bundle_is_compacted_as_soon_as_something_is_due() -> None:
    root, _, heard, service = await still_root()
    for _ in range(3):
        await service.run_once(collect=False)
        await root.produce("t", (0, VALUES))
        await service.run_once(collect=False)
        assert [done.records for done in heard.rounds] == [4]
        heard.rounds.clear()
    assert await read_everything(root) == root.produced


@virtual
async def test_a_bundle_with_records_that_wait_for_their_lag_is_not_still() -> None:
    root, _, heard, service = await still_root()
    await root.create_topic("later", 1, parquet_max_lag_ms="30000")
    await root.produce("later", (0, VALUES))
    await service.run_once(collect=False)
    await service.run_once(collect=False)
    assert heard.rounds == []
    await asyncio.sleep(31)
    await service.run_once(collect=False)
    assert [done.records for done in heard.rounds] == [4]


@virtual
async def test_retention_in_a_still_bundle_waits_ten_minutes_at_most() -> None:
    root, _, _, service = await still_root()
    await root.alter_topic("t", retention_ms="1000")
    await service.run_once(collect=False)  # what it says is in the catalog, and so the bundle is looked at as a whole
    assert (await root.newest()).partitions[0].log_start == 4, "records are as old as their timestamps say"

    root, store, _, service = await still_root()
    await advance_checkpoint(
        ledger_of(store, 1, sources=root.sources), log_start_move({PartitionId(root.topics["t"].id, 0): 4})
    )
    await service.run_once(collect=False)  # a rival did that, and so it is looked at
    assert len(await parquet_keys(store)) == 1, "not old enough"
    await asyncio.sleep(60)
    await service.run_once(collect=False)
    assert len(await parquet_keys(store)) == 1, "old enough, and not looked at"
    await asyncio.sleep(STILL_S_MAX - 60)
    await service.run_once(collect=False)
    assert await parquet_keys(store) == []


@virtual
async def test_bundles_wait_for_the_store_side_by_side() -> None:
    root, store, _, _ = await still_root(bundles=9)
    late = LateLists(store, 0.1)
    service = CompactionService(late, root.cluster, root.sources, LocalEngine(root.sources, run_inline), Heard())
    begun_s = asyncio.get_running_loop().time()
    await service.run_once(collect=False)
    took_s = asyncio.get_running_loop().time() - begun_s
    in_turn_s = sum(count for (operation, _), count in late.made.items() if operation == "list") * 0.1
    assert took_s < in_turn_s / 2


@virtual
async def test_a_stop_between_two_runs_is_heard_at_once() -> None:
    root = await root_with(10**6, 0)
    service = await service_on(root, Heard())
    working = asyncio.create_task(service.run(lambda: 1000.0))
    await asyncio.sleep(500)
    service.stop()
    asked_s = asyncio.get_running_loop().time()
    await working
    assert asyncio.get_running_loop().time() == asked_s


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("500ms", 0.5), ("1.5h", 5400), ("2 m", 120), ("1d", 86400)]
)
def test_intervals(text: str, seconds: float) -> None:
    assert parse_interval_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-1s", "99ms", "7", "s", "1e3"])
def test_a_text_that_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--every"):
        parse_interval_s(text)
