"""Small Parquet files get a merged one beside the log: the same rows, in fewer files, and nothing of the small ones
changes for those who read these.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from functools import partial

import pyarrow.parquet as pq
import pytest

from ledgermq.errors import DataDamaged, InvalidConfig
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.sweep import sweep
from ledgermq_ledger.garbage.topics import merged_files
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.keyed.reader import KeyedReader
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.merging import merge
from ledgermq_ledger.parquet.merging.merged_list import MergedReader, decode_list, encode_list, read_list
from ledgermq_ledger.parquet.merging.names import MergedName, parse_merged
from ledgermq_ledger.parquet.merging.plan import choose_run
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.parquet.reader import ParquetCache, read_parquet
from ledgermq_ledger.rounds.runner import bring_facts_into_force
from ledgermq_ledger.topics.settings import TopicSettings, check_together, parse_settings
from ledgermq_ledger.topics.topic import METADATA, topic_key
from ledgermq_ledger.view.find import Finder, KeySearch
from ledgermq_ledger.view.ranges.range_read import RangeReader, plan_ranges
from tests.stores.backends import seeded_sources
from tests.stores.dying import Crash, DyingStore
from tests.stores.requests_made import Requests
from tests.virtual_time import run_virtual, virtual, virtual_sources
from tests.worlds.cuts import drop_cut, end_cuts, take_cut
from tests.worlds.ledgers import ledger_of
from tests.worlds.reading import opened_ledger, read_to_end
from tests.worlds.restoring import restore_into, root_of
from tests.worlds.roots import Root, parquet_keys, read_parquet_rows

AGED_S = 60.0
"""Longer than any file has to stay."""


def a_sources(seed: int = 1) -> Sources:
    return virtual_sources(seed)


async def a_root(rounds: int = 0, bundles: int = 2, **settings: str) -> Root:
    """A topic `t` whose files are merged by threes."""
    sources = a_sources()
    root = await Root.open(MemoryStore("merging", sources), sources, bundles=bundles)
    await root.create_topic("t", **{"parquet_merge_files": "3", **settings})
    for _ in range(rounds):
        await make_file(root)
    return root


async def make_file(root: Root, name: str = "t", values: Sequence[bytes] = ()) -> None:
    """A round: one more file of partition 0, of two records, and whatever is merged then."""
    count = len(root.produced.get((name, 0), []))
    await root.produce(name, (0, list(values) or [b"%d" % count, b"%d" % (count + 1)]))
    await asyncio.sleep(1)
    assert not (await root.compact()).failures


def compaction(root: Root, store: ObjectStore | None = None, seed: int = 7) -> Compaction:
    sources = seeded_sources(seed)
    sources = Sources(root.sources.now_us, sources.random)
    return Compaction(store or root.store, root.cluster, sources, LocalEngine(sources, run_inline))


async def counters_of(root: Root, name: str = "t", bundle: int = 1) -> fmt.PartitionCheckpoint:
    return partition_of(await root.newest(bundle), root.topics[name].id, 0)


async def merged_keys(root: Root) -> list[str]:
    return [info.key async for info in root.store.list(keys.MERGED)]


async def spans(root: Root) -> list[tuple[int, int]]:
    """Return the offsets of the merged files that are there."""
    names = [parse_merged(key) for key in await merged_keys(root)]
    return sorted(name.offsets for name in names if name is not None and name.offsets is not None)


async def delete_below(root: Root, offset: int, name: str = "t", bundle: int = 1) -> None:
    """Delete records on demand, and let rounds delete the files."""
    ledger = ledger_of(root.store, bundle, cluster=root.cluster, sources=root.sources)
    assert await advance_checkpoint(ledger, deletion_move(root.topics[name], {0: offset}))
    for _ in range(2):
        await asyncio.sleep(AGED_S)
        assert not (await root.compact()).failures


async def read_all(root: Root, name: str = "t", bundle: int = 1, first: int = 0) -> list[bytes]:
    ledger = await opened_ledger(root.store, bundle)
    return list((await read_to_end(ledger.reader, keys.PartitionId(root.topics[name].id, 0), first)).values())


async def damage(root: Root) -> list[tuple[str, str]]:
    checked = await check_root(root.store, root.cluster, run_blocking=run_inline)
    return [(found.code, found.object_key) for found in checked.problems if found.severity is Severity.DAMAGE]


async def check_all(root: Root) -> None:
    """What lists name is there and right, and garbage collection leaves nothing else."""
    await asyncio.sleep(AGED_S)
    swept = await sweep(compaction(root), grace_ms=0)
    assert not swept.failures
    assert await damage(root) == []
    assert await merged_files.find(root.store, await root.catalog()) == []


# What is chosen.


def a_file(first: int, last: int, size: int = 10, appended_us: int = 1, *, typed: bool = False) -> fmt.ParquetFile:
    return fmt.ParquetFile(first_offset=first, last_offset=last, size=size, appended_max_us=appended_us, typed=typed)


SETTINGS = TopicSettings(parquet_merge_files=3, parquet_target_bytes=100)
FOUR = [a_file(0, 9), a_file(10, 19), a_file(20, 29), a_file(30, 39)]


def chosen(
    files: Sequence[fmt.ParquetFile], merged: Sequence[fmt.ParquetFile] = (), log_start: int = 0, start: int = 0
) -> list[int]:
    counters = fmt.PartitionCheckpoint(log_start=log_start, parquet_start=start, parquet_end=10**6)
    return [file.first_offset for file in choose_run(files, merged, counters, SETTINGS)]


def test_a_run_is_the_first_that_has_as_many_files_as_the_topic_says() -> None:
    assert chosen(FOUR) == [0, 10, 20]
    assert chosen(FOUR[:2]) == [], "two may become three"
    assert chosen([*FOUR, a_file(40, 49), a_file(50, 59)], [a_file(0, 29)]) == [30, 40, 50]
    assert chosen([*FOUR, a_file(40, 49)], [a_file(0, 29)]) == []


def test_a_run_ends_where_it_has_the_target_size() -> None:
    assert chosen([a_file(0, 9, 45), a_file(10, 19, 45), a_file(20, 29, 45)]) == [0, 10]
    assert chosen([a_file(0, 9, 70), a_file(10, 19, 70), a_file(20, 29, 20), a_file(30, 39, 20)]) == [10, 20]


@pytest.mark.parametrize(
    "breaks", [a_file(10, 19, 100), a_file(10, 19, typed=True), a_file(10, 19, appended_us=0)], ids=str
)
def test_what_cannot_be_in_a_merged_file_breaks_a_run(breaks: fmt.ParquetFile) -> None:
    files = [a_file(0, 9), breaks, a_file(20, 29), a_file(30, 39), a_file(40, 49)]
    assert chosen(files) == [20, 30, 40]
    assert chosen(files[:4]) == []


def test_what_is_about_to_go_is_not_merged() -> None:
    assert chosen(FOUR, log_start=5) == [10, 20, 30]
    assert chosen(FOUR[1:], [a_file(0, 29)], start=10) == [10, 20, 30], "its first file is gone: it stands for none"


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"unset parquet\.merge\.files"):
        check_together(parse_settings({"parquet.merge.files": "2", "cleanup.policy": "compact"}), 1)
    for text, why in (("1", "nothing would be merged"), ("10001", "from 0 to 10000"), ("many", "a whole number")):
        with pytest.raises(InvalidConfig, match=why):
            parse_settings({"parquet.merge.files": text})
    assert TopicSettings().parquet_merge_files == 0


# What a merge makes.


@virtual
async def test_a_merged_file_has_the_rows_of_its_small_ones() -> None:
    root = await a_root(7)
    assert await spans(root) == [(0, 5), (6, 11)]
    small = [pq.ParquetFile(io.BytesIO(await root.store.get(key))).read() for key in await parquet_keys(root.store)]
    for key in await merged_keys(root):
        name = parse_merged(key)
        assert name is not None
        if name.offsets is None:
            continue
        table = pq.ParquetFile(io.BytesIO(await root.store.get(key))).read()
        of_range = [each for each in small if name.offsets[0] <= each["offset"][0].as_py() <= name.offsets[1]]
        assert table.to_pylist() == [row for each in of_range for row in each.to_pylist()]
        assert len(set(table["appended"].to_pylist())) == 3, "each file had its own time"
        assert table.schema == of_range[0].schema, "field ids too"
    assert await damage(root) == []


@virtual
async def test_plain_readers_see_what_they_see_without_merges() -> None:
    merging, plain = await a_root(7), await a_root(7, parquet_merge_files="0")
    assert await read_parquet_rows(merging.store) == await read_parquet_rows(plain.store)
    assert await parquet_keys(merging.store) == await parquet_keys(plain.store)
    assert await merged_keys(plain) == []


@pytest.mark.parametrize("settings", [{"parquet_appended": "false"}, {"parquet_bloom_key": "true"}], ids=str)
@virtual
async def test_files_of_each_kind_are_merged(settings: dict[str, str]) -> None:
    root = await a_root(3, **settings)
    assert await spans(root) == [(0, 5)]
    assert await damage(root) == []
    assert await read_all(root) == root.produced["t", 0]


@virtual
async def test_a_change_of_columns_breaks_a_run_and_both_kinds_are_merged() -> None:
    root = await a_root(2, parquet_appended="false")
    await root.alter_topic("t", parquet_appended="true")
    for _ in range(3):
        await make_file(root)
    assert await spans(root) == [(4, 9)]
    assert await damage(root) == []


@virtual
async def test_a_topic_that_does_not_ask_for_merges_costs_no_request() -> None:
    root = await a_root(4, parquet_merge_files="0")
    store = Requests(root.store)
    assert await merge.merge_bundle(compaction(root, store), 1, await root.catalog()) == []
    assert not store.made


@virtual
async def test_a_file_that_cannot_be_read_stops_its_partition_alone() -> None:
    root = await a_root(2)
    await root.create_topic("u", parquet_merge_files="3")
    await make_file(root, "u")
    await make_file(root, "u")
    for name in ("t", "u"):
        await root.produce(name, (0, [b"x"]))
    store = root.store
    assert isinstance(store, MemoryStore)
    key = (await parquet_keys(root.store, "parquet/topic=t/"))[0]
    data = bytearray(await store.get(key))
    data[10] ^= 1
    await store.put(key, bytes(data))
    report = await root.compact()
    assert [error.object_key for error in report.failures.values()] == [key]
    assert [name.place.topic_id for name in map(parse_merged, await merged_keys(root)) if name] == [
        root.topics["u"].id
    ] * 2


# What readers do.


@virtual
async def test_a_reader_of_old_records_opens_merged_files() -> None:
    root = await a_root(12)
    wholes = []
    for merges in (True, False):
        store, checkpoint = Requests(root.store), await root.newest()
        if not merges:
            for part in checkpoint.partitions:
                part.ClearField("merged")
        cache, offset, values = ParquetCache(store, run_inline), 0, list[bytes]()
        while offset < 24:
            for found in await read_parquet(store, 1, checkpoint, root.topics["t"].id, 0, offset, 10**7, cache=cache):
                values += decode_batch(found.data).column("value").to_pylist()
                offset += found.record_count
        assert values == root.produced["t", 0]
        wholes.append(store.made["get_suffix", "merged"] + store.made["get_suffix", "parquet"])
    assert wholes == [4, 12]


@virtual
async def test_the_source_of_spark_reads_a_merged_file_as_one_range() -> None:
    root = await a_root(8)
    ledger = await opened_ledger(root.store)
    place = keys.PartitionId(root.topics["t"].id, 0)
    [ranges] = (await plan_ranges(ledger.reader, {place: (1, 15)})).values()
    assert [(each.first, each.end) for each in ranges] == [(1, 6), (6, 12), (12, 14), (14, 15)]
    store = Requests(root.store)
    for is_lost in (False, True):
        if is_lost:
            for key in await merged_keys(root):
                await root.store.delete([key])
        reader = RangeReader(store, run_inline)
        values = [
            value
            for each in ranges
            async for _, rows in reader.read(each)
            for value in rows.column("value").to_pylist()
        ]
        assert values == root.produced["t", 0][1:15], "also where the files went since it was planned"
        assert store.made["get_range", "merged"] == (0 if is_lost else 2)
        store.made.clear()


@virtual
async def test_a_key_is_looked_up_in_merged_files() -> None:
    root = await a_root(6)
    ledger, store = await opened_ledger(root.store), Requests(root.store)
    finder = Finder(
        ledger.reader, store, ParquetCache(store, run_inline), KeyedReader(store), asyncio.Semaphore(2), run_inline
    )
    place = keys.PartitionId(root.topics["t"].id, 0)
    wanted = KeySearch(place, b"nowhere", 0, 12, True, 5, 1 << 20, 1 << 20, 1e9)
    assert (await finder.search(wanted, root.topics["t"])).records == []
    assert store.made["get_suffix", "merged"] == 2
    assert store.made["get_suffix", "parquet"] == 0


@pytest.mark.parametrize("lost", ["file", "list"])
@virtual
async def test_where_a_merged_file_is_gone_the_small_ones_are_read(lost: str) -> None:
    root = await a_root(6)
    [key, *_] = [key for key in await merged_keys(root) if f"/{lost}s/" in key]
    await root.store.delete([key])
    assert await read_all(root) == root.produced["t", 0]
    assert await damage(root) == [("MERGED_FILE_MISSING", key)]
    for _ in range(3):
        await make_file(root)
    if lost == "list":
        assert await spans(root) == [(0, 5), (6, 11), (12, 17)], "the next list begins anew"
        await check_all(root)


@virtual
async def test_a_damaged_merged_file_is_reported_and_the_small_ones_are_read() -> None:
    root = await a_root(3)
    store = root.store
    assert isinstance(store, MemoryStore)
    [key] = [key for key in await merged_keys(root) if "/files/" in key]
    data = bytearray(await store.get(key))
    data[40] ^= 1
    await store.put(key, bytes(data))
    assert [code for code, _ in await damage(root)] == ["DATA_DAMAGED"]
    assert await read_all(root) == root.produced["t", 0]


@virtual
async def test_a_reader_keeps_lists_that_cannot_be_read_for_nothing() -> None:
    root = await a_root(3)
    counters, store = await counters_of(root), Requests(root.store)
    for key in await merged_keys(root):
        await root.store.delete([key])
    reader = MergedReader(store)
    assert [await reader.at(counters, offset) for offset in (0, 5)] == [None, None]
    assert store.made["get", "merged"] == 1


# What goes, and when.


@virtual
async def test_a_merged_file_goes_with_the_first_of_its_small_ones() -> None:
    root = await a_root(9)
    assert await spans(root) == [(0, 5), (6, 11), (12, 17)]
    await delete_below(root, 3)
    assert await spans(root) == [(6, 11), (12, 17)], "offsets 0 and 1 are nowhere any longer"
    assert (await counters_of(root)).merged.first == 6
    assert await read_all(root, first=3) == root.produced["t", 0][3:]
    await check_all(root)
    await make_file(root)
    assert await spans(root) == [(6, 11), (12, 17)], "what is left of the first run is no run"
    await delete_below(root, 18)
    assert await spans(root) == []
    await check_all(root)


@virtual
async def test_a_held_topic_keeps_all_of_them() -> None:
    root = await a_root(6)
    ledger = ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources)
    assert await advance_checkpoint(ledger, deletion_move(root.topics["t"], {0: 3}))
    await root.alter_topic("t", legal_hold="true")
    await bring_facts_into_force(ledger, await root.catalog())
    before = await merged_keys(root)
    await asyncio.sleep(AGED_S)
    assert not (await sweep(compaction(root), grace_ms=0)).failures
    assert await merged_keys(root) == before
    for _ in range(3):
        await make_file(root)
    assert (12, 17) in await spans(root), "a hold forbids no addition"
    await root.alter_topic("t", legal_hold="false")
    await bring_facts_into_force(ledger, await root.catalog())
    await delete_below(root, 4)
    assert await spans(root) == [(6, 11), (12, 17)]
    await check_all(root)


@virtual
async def test_all_of_a_removed_topic_goes_and_a_new_one_of_its_name_begins_anew() -> None:
    root = await a_root(6)
    old = root.topics["t"].id
    await root.remove_topic("t")
    for _ in range(4):
        await asyncio.sleep(AGED_S)
        assert not (await sweep(compaction(root), grace_ms=0)).failures
        assert not (await root.compact()).failures
    assert await merged_keys(root) == []
    await root.put_internal(METADATA, topic_key("t"), None)
    root.produced.clear()
    await root.create_topic("t", parquet_merge_files="3")
    assert root.topics["t"].id > old
    for _ in range(3):
        await make_file(root)
    assert await spans(root) == [(0, 5)]
    await check_all(root)


@virtual
async def test_what_a_dead_merge_left_goes_with_the_next_one() -> None:
    root = await a_root(3)
    place = keys.PartitionId(root.topics["t"].id, 0)
    left = [MergedName(place, 2, b"d" * 16, (0, 9)).key, MergedName(place, 2, b"d" * 16).key]
    for key in left:
        await root.store.put_if_absent(key, [b"put, and never listed"])
    await asyncio.sleep(10 * AGED_S)
    assert not (await sweep(compaction(root), grace_ms=0)).failures
    assert set(left) <= set(await merged_keys(root)), "merge 2 may list them yet, however old they are"
    for _ in range(3):
        await make_file(root)
    assert await spans(root) == [(0, 5), (6, 11)]
    await check_all(root)


# Pairs.


@virtual
async def test_two_mergers_of_one_run_make_one_list_and_garbage() -> None:
    root = await a_root(0, parquet_merge_files="0")
    for _ in range(3):
        await make_file(root)
    await root.alter_topic("t", parquet_merge_files="3")
    catalog = await root.catalog()
    both = [merge.merge_bundle(compaction(root, seed=seed), 1, catalog) for seed in (1, 2)]
    reports = await asyncio.gather(*both)
    assert sorted(len(found) for found in reports) == [0, 1]
    assert (await counters_of(root)).merged.number == 1
    assert await spans(root) == [(0, 5), (0, 5)]
    await check_all(root)
    assert await spans(root) == [(0, 5)]


class Meanwhile(Requests):
    """Something happens just before a list of merged files is put."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.then: list[object] = []

    async def put_if_absent(self, key: str, buffers: Sequence[bytes]) -> None:  # type: ignore[override]
        if "/lists/" in key and self.then:
            await self.then.pop()  # type: ignore[misc]
        await super().put_if_absent(key, buffers)


async def unmerged(rounds: int, bundles: int = 2) -> Root:
    root = await a_root(rounds, bundles, parquet_merge_files="0")
    await root.alter_topic("t", parquet_merge_files="3")
    return root


@virtual
async def test_retention_between_file_and_list_wins() -> None:
    root = await unmerged(3)
    store = Meanwhile(root.store)

    async def expire() -> None:
        await root.alter_topic("t", parquet_merge_files="0")
        await delete_below(root, 2)

    store.then = [expire()]
    assert await merge.merge_bundle(compaction(root, store), 1, await root.catalog()) == []
    assert (await counters_of(root)).merged.number == 0
    await check_all(root)
    assert await spans(root) == [], "it can stand for nothing any longer"
    await root.alter_topic("t", parquet_merge_files="3")
    for _ in range(3):
        await make_file(root)
    await check_all(root)
    assert len(await merged_keys(root)) == 2, "the list that was never in force has gone with the next merge"


@virtual
async def test_a_move_between_file_and_list_wins_and_the_list_goes_over() -> None:
    root = await unmerged(3, bundles=3)
    store = Meanwhile(root.store)
    store.then = [root.move("t", 0, 2)]
    catalog = await root.catalog()
    await merge.merge_bundle(compaction(root, store), 1, catalog)
    assert (await counters_of(root, bundle=1)).forgotten
    assert not (await counters_of(root, bundle=1)).merged.number
    assert not (await root.compact()).failures
    assert (await counters_of(root, bundle=2)).merged.number >= 1
    for _ in range(3):
        await make_file(root)
    number = (await counters_of(root, bundle=2)).merged.number
    await root.move("t", 0, 1)
    there = await counters_of(root)
    assert there.merged.number == number
    assert await read_list(root.store, there)
    assert await read_all(root) == root.produced["t", 0]
    await check_all(root)
    assert await spans(root) == [(0, 5), (6, 11)]


@virtual
async def test_deletion_between_file_and_list_wins() -> None:
    root = await unmerged(3)
    store = Meanwhile(root.store)

    async def delete() -> None:
        await root.remove_topic("t")
        for _ in range(3):
            await asyncio.sleep(AGED_S)
            assert not (await root.compact()).failures

    store.then = [delete()]
    assert await merge.merge_bundle(compaction(root, store), 1, await root.catalog()) == []
    await asyncio.sleep(AGED_S)
    assert not (await sweep(compaction(root), grace_ms=0)).failures
    assert await merged_keys(root) == []


@virtual
async def test_a_cut_is_read_and_restored_without_merged_files() -> None:
    root = await a_root(6)
    await take_cut(root)
    await delete_below(root, 8)
    assert await spans(root) == [], "a cut keeps small files alone"
    store = MemoryStore("target", a_sources(3))
    target = root_of(await restore_into(root.store, "c", store), store, root)
    assert await merged_keys(target) == []
    assert await read_all(target) == root.produced["t", 0][:12]
    assert await damage(target) == []
    for _ in range(3):
        await target.produce("t", (0, [b"later"]))
        assert not (await target.compact()).failures
    assert (await counters_of(target)).merged.number == 3, "the copy begins to merge anew"
    await drop_cut(root)
    await end_cuts(root)
    await check_all(root)


@pytest.mark.slow
@pytest.mark.parametrize("after_effect", [False, True])
def test_a_merge_that_dies_anywhere_is_done_by_the_next(after_effect: bool) -> None:
    async def run(dies_at: int) -> bool:
        root = await unmerged(4)
        catalog = await root.catalog()
        dying = DyingStore(root.store, dies_at, after_effect)
        try:
            await merge.merge_bundle(compaction(root, dying, dies_at), 1, catalog)
            died = False
        except Crash:
            died = True
        assert await read_all(root) == root.produced["t", 0]
        assert await damage(root) == []
        assert not (await root.compact(sources=seeded_sources(99))).failures
        await check_all(root)
        assert (0, 5) in await spans(root)
        assert await read_all(root) == root.produced["t", 0]
        return died

    dies_at = 1
    while run_virtual(partial(run, dies_at)):
        dies_at += 1
    assert dies_at > 8, "a merge has more operations than that"


@virtual
async def test_an_expired_input_ends_a_merge_without_an_error() -> None:
    root = await unmerged(3)
    key = (await parquet_keys(root.store))[0]
    merges = await merge.find_merges(compaction(root), 1, await root.catalog())
    await root.store.delete([key])
    with pytest.raises(ObjectMissing):
        await merges[0].task.run(root.store, root.sources, run_inline)
    assert await merge.merge_bundle(compaction(root), 1, await root.catalog()) == []


# The list.


def a_list(*spans_: tuple[int, int]) -> fmt.MergedList:
    place = keys.PartitionId(7, 1)
    files = [
        fmt.ParquetFile(key=MergedName(place, 3, b"m" * 16, span).key, first_offset=span[0], last_offset=span[1])
        for span in spans_
    ]
    return fmt.MergedList(topic_id=7, partition=1, number=3, put_id=b"m" * 16, files=files)


def test_a_list_that_cannot_be_is_refused() -> None:
    key = MergedName(keys.PartitionId(7, 1), 3, b"m" * 16).key
    whole = a_list((0, 9), (20, 29))
    assert decode_list(encode_list(whole), key) == whole
    wrong = a_list((0, 9))
    wrong.files[0].last_offset = 8
    other = a_list((0, 9))
    other.number = 4
    for bad in (a_list((0, 9), (9, 12)), a_list((10, 12), (0, 3)), wrong, other):
        with pytest.raises(DataDamaged):
            decode_list(encode_list(bad), key)


def test_names_are_read_back_and_those_of_others_are_not() -> None:
    place = keys.PartitionId(7, 1)
    for name in (MergedName(place, 3, b"m" * 16), MergedName(place, 3, b"m" * 16, (0, 9))):
        assert parse_merged(name.key) == name
        assert parse_merged(name.key + "x") is None
        assert parse_merged(name.key.replace("_7", "_07")) is None
    assert parse_merged("merged/notes.txt") is None


@virtual
async def test_files_of_others_below_merged_are_never_touched() -> None:
    root = await a_root(3)
    await root.store.put_if_absent("merged/notes.txt", [b"hello"])
    await check_all(root)
    assert "merged/notes.txt" in await merged_keys(root)


@virtual
async def test_a_page_that_lists_small_files_is_not_changed_by_a_merge() -> None:
    root = await a_root(3)
    files = await PageReader(root.store, 1).files_from(await counters_of(root), 0)
    assert [file.key for file in files] == await parquet_keys(root.store)
