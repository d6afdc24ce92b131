"""Small Parquet files get a merged one beside the log: the same rows, in fewer files, and nothing of the small ones
changes for those who read these.
"""

import io
from collections.abc import Sequence

import pyarrow.parquet as pq
import pytest

from ledgermq.errors import DataDamaged, InvalidConfig
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.merging import merge
from ledgermq_ledger.parquet.merging.merged_list import decode_list, encode_list, put_list
from ledgermq_ledger.parquet.merging.names import MergedName, parse_merged
from ledgermq_ledger.parquet.merging.plan import choose_run
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.topics.settings import TopicSettings, check_together, parse_settings
from tests.stores.backends import seeded_sources
from tests.stores.requests_made import Requests
from tests.virtual_time import virtual
from tests.worlds.merged_files import (
    a_root,
    check_all,
    compaction,
    counters_of,
    damage,
    make_file,
    merged_keys,
    read_all,
    spans,
)
from tests.worlds.roots import parquet_keys, read_parquet_rows

# What is chosen.


def a_file(first: int, last: int, size: int = 10, appended_us: int = 1, *, typed: bool = False) -> fmt.ParquetFile:
    return fmt.ParquetFile(first_offset=first, last_offset=last, size=size, appended_max_us=appended_us, typed=typed)


SETTINGS = TopicSettings(parquet_merge_files=3, parquet_target_bytes=100)
FOUR = [a_file(0, 9), a_file(10, 19), a_file(20, 29), a_file(30, 39)]


def chosen(
    files: Sequence[fmt.ParquetFile],
    merged: Sequence[fmt.ParquetFile] = (),
    log_start: int = 0,
    start: int = 0,
    deleted: int = 0,
) -> list[int]:
    counters = fmt.PartitionCheckpoint(log_start=log_start, parquet_start=start, parquet_end=10**6)
    counters.merged.first = deleted
    run = choose_run(files, merged, counters, SETTINGS)
    return [file.first_offset for file in run.files] if run.is_due else []


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
    behind = a_file(0, 29)
    assert chosen([*FOUR[1:], a_file(40, 49)], [behind], start=10) == [], "the list has it until it is deleted"
    assert chosen(FOUR[1:], [behind], start=10, deleted=10) == [10, 20, 30], "it stands for none"


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


async def test_a_list_with_an_overlap_is_never_put() -> None:
    store, sources = MemoryStore("lists", seeded_sources(1)), seeded_sources(2)
    with pytest.raises(AssertionError, match="would be listed beside"):
        await put_list(store, a_list((0, 9), (9, 12)), sources)
    assert [info async for info in store.list(keys.MERGED)] == []


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
