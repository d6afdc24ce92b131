"""A range that was planned once gives the same rows wherever they are by the time that it is read."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import DataDamaged, OffsetOutOfRange
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore
from ledgermq_ledger.view.ranges.range_read import OffsetRange, RangeReader, plan_ranges, split
from tests.stores.counting import CountingMeter
from tests.worlds.ledgers import ledger_of
from tests.worlds.reading import opened_ledger
from tests.worlds.roots import Root, parquet_keys


@pytest.fixture
async def root(sources: Sources) -> Root:
    """Twelve records of one partition in two Parquet files, six in segments, three a batch."""
    root = await Root.open(MemoryStore("ranges", sources), sources, bundles=3)
    await root.create_topic("t")
    for number in range(6):
        await root.produce("t", (0, [b"%d/%d" % (number, i) for i in range(3)]))
        if number in (1, 3):
            await root.compact()
    return root


def key(root: Root) -> tuple[int, int]:
    return PartitionId(root.topics["t"].id, 0)


async def planned(root: Root, first: int = 0, end: int = 18) -> list[OffsetRange]:
    return (await plan_ranges((await opened_ledger(root.store)).reader, {key(root): (first, end)}))[key(root)]


async def rows(root: Root, ranges: list[OffsetRange]) -> dict[int, bytes]:
    """As another process reads them."""
    reader = RangeReader(root.store, run_inline)
    found: dict[int, bytes] = {}
    for each in pickle.loads(pickle.dumps(ranges)):
        expected = each.first
        async for first, batch in reader.read(each):
            assert first == expected
            expected += batch.num_rows
            found |= dict(enumerate(batch.column("value").to_pylist(), first))
        assert expected == each.end
    return found


def written(root: Root, first: int = 0, end: int = 18) -> dict[int, bytes]:
    return {offset: value for offset, value in enumerate(root.produced["t", 0]) if first <= offset < end}


async def test_a_range_is_cut_where_files_begin_and_parquet_ends(root: Root) -> None:
    ranges = await planned(root)
    assert [(each.first, each.end, len(each.batches)) for each in ranges] == [(0, 6, 0), (6, 12, 0), (12, 18, 2)]
    assert await rows(root, ranges) == written(root)


@pytest.mark.parametrize(("first", "end"), [(0, 1), (1, 17), (5, 7), (11, 13), (12, 18), (13, 14), (17, 18), (4, 4)])
async def test_any_part_can_be_had(root: Root, first: int, end: int) -> None:
    assert await rows(root, await planned(root, first, end)) == written(root, first, end)


@pytest.mark.parametrize(("first", "end"), [(0, 18), (1, 17), (5, 7), (11, 13), (3, 4)])
async def test_a_row_group_is_decoded_in_pieces(
    root: Root, first: int, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledgermq_ledger.parquet.files.row_group.PIECE_BYTES", 1)
    reader = RangeReader(root.store, run_inline)
    ranges = await planned(root, first, end)
    pieces = [(at, piece.num_rows) for each in ranges async for at, piece in reader.read(each)]
    assert [piece for piece in pieces if piece[0] < 12] == [(at, 1) for at in range(first, min(end, 12))]
    assert await rows(root, ranges) == written(root, first, end)


async def test_of_parquet_only_the_wanted_columns_are_fetched(root: Root) -> None:
    noise = [random.Random(i).randbytes(10_000) for i in range(100)]
    await root.produce("t", (0, noise))
    await root.compact()
    ranges = await planned(root, 18, 118)
    fetched = {}
    for columns in (["timestamp"], ["timestamp", "value"]):
        meter = CountingMeter()
        reader = RangeReader(MeteredStore(root.store, meter), run_inline)
        parts = [part for each in ranges async for _, part in reader.read(each, columns)]
        assert {tuple(part.schema.names) for part in parts} == {tuple(columns)}
        assert sum(part.num_rows for part in parts) == len(noise)
        fetched[len(columns)] = sum(
            total.bytes_received for (name, _), total in meter.totals.items() if name == "get_range"
        )
    assert fetched[2] > 1_000_000 > 100 * fetched[1]


async def test_a_damaged_page_is_told_by_name_and_nothing_of_it_is_read(root: Root) -> None:
    await root.compact()
    ranges = await planned(root)
    [name, *_] = await parquet_keys(root.store)
    data = bytearray(await root.store.get(name))
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(0).column(1)
    data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    await root.store.delete([name])
    await root.store.put_if_absent(name, [data])
    with pytest.raises(DataDamaged) as caught:
        await rows(root, ranges)
    assert caught.value.object_key == name


async def test_segments_that_have_become_parquet_meanwhile(root: Root) -> None:
    ranges = await planned(root)
    await root.compact()
    assert await rows(root, ranges) == written(root)


async def test_a_slot_that_was_deleted_and_holds_something_else_now(root: Root) -> None:
    """As a zombie's late put may leave it: not damage, for a checkpoint has trimmed it."""
    ranges = await planned(root)
    slot = ranges[-1].batches[0].slot
    await root.compact()
    await root.store.put_if_absent(keys.segment(1, slot), [b"?" * 5000])
    assert await rows(root, ranges) == written(root)


async def test_a_damaged_segment_that_still_counts_is_damage(root: Root) -> None:
    ranges = await planned(root)
    slot = keys.segment(1, ranges[-1].batches[0].slot)
    data = bytearray(await root.store.get(slot))
    data[ranges[-1].batches[0].position + 100] ^= 1
    await root.store.put(slot, bytes(data))
    with pytest.raises(DataDamaged) as caught:
        await rows(root, ranges)
    assert caught.value.object_key == slot


async def delete_first_file(root: Root, bundle: int = 1) -> None:
    """As retention does, at the bundle that lists it."""
    await advance_checkpoint(ledger_of(root.store, bundle, sources=root.sources), log_start_move({key(root): 6}))

    def forget(draft: fmt.Checkpoint) -> bool:
        draft.partitions[0].parquet_start = 6
        return True

    await advance_checkpoint(ledger_of(root.store, bundle, sources=root.sources), forget)
    await root.store.delete((await parquet_keys(root.store))[:1])


async def test_records_that_retention_has_taken_are_out_of_range(root: Root) -> None:
    ranges = await planned(root)
    await root.compact()
    await delete_first_file(root)
    with pytest.raises(OffsetOutOfRange, match="deleted before"):
        await rows(root, ranges[:1])
    assert await rows(root, ranges[1:]) == written(root, 6)


async def test_a_file_that_is_gone_for_no_reason_is_damage(root: Root) -> None:
    ranges = await planned(root)
    files = [info.key async for info in root.store.list(keys.PARQUET)]
    await root.store.delete(files[:1])
    with pytest.raises(DataDamaged):
        await rows(root, ranges)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 30))
def test_splitting_leaves_nothing_out_and_takes_nothing_twice(sizes: list[int], count: int) -> None:
    ranges, first = [], 0
    for size in sizes:
        ranges.append(OffsetRange(1, (7, 0), first, first + size))
        first += size
    parts = split(ranges, count)
    assert [offset for part in parts for offset in range(part.first, part.end)] == list(range(first))
    assert len(parts) >= min(count, first) or len(parts) >= count


def test_of_many_ranges_the_largest_are_halved() -> None:
    ranges = [
        OffsetRange(1, (7, 0), 0, 1 << 18),
        *(OffsetRange(1, (7, partition), 0, 3) for partition in range(1, 10_000)),
    ]
    parts = split(ranges, 20_000)
    assert len(parts) == 20_000
    assert [part.key for part in parts] == sorted(part.key for part in parts)
    assert max(part.end - part.first for part in parts) <= 32


async def test_parts_of_a_range_keep_the_batches_that_they_need(root: Root) -> None:
    parts = split(await planned(root), 9)
    assert len(parts) == 9
    assert await rows(root, parts) == written(root)


async def followed(root: Root) -> list[OffsetRange]:
    """Planned by a reader that was there when segments 3 to 5 came, each with two batches of the
    partition and one of another.
    """
    ledger = await opened_ledger(root.store, recent_bytes_max=1 << 20)
    for number in range(3):
        await root.produce("t", (0, [b"%d" % number]), (0, [b"%d/1" % number, b"%d/2" % number]), (1, [b"of another"]))
        await ledger.refresh()
    return (await plan_ranges(ledger.reader, {key(root): (12, 27)}))[key(root)]


async def requests(root: Root, ranges: list[OffsetRange]) -> dict[str, int]:
    """Of reading them elsewhere; what is read is what was written."""
    meter = CountingMeter()
    reader = RangeReader(MeteredStore(root.store, meter), run_inline)
    for each in pickle.loads(pickle.dumps(ranges)):
        found = [value async for _, part in reader.read(each) for value in part.column("value").to_pylist()]
        assert found == root.produced["t", 0][each.first : each.end]
    return meter.by_operation()


async def test_what_came_with_the_indexes_travels_with_the_range(root: Root) -> None:
    [whole] = await followed(root)
    assert (whole.first, whole.end, len(whole.at_hand)) == (12, 27, 6)
    assert await requests(root, [whole]) == {"get_range": 2}
    assert await requests(root, [whole.part(19, 26)]) == {}
    assert [len(part.at_hand) for part in split([whole.part(18, 27)], 9)] == [1] * 9


async def test_bytes_at_hand_are_believed_by_their_checksum_only(root: Root) -> None:
    [whole] = await followed(root)
    place, data = next(iter(whole.at_hand.items()))
    damaged = replace(whole, at_hand=whole.at_hand | {place: bytes(data[:-1]) + bytes([data[-1] ^ 1])})
    assert await requests(root, [damaged]) == {"get_range": 3}, "what came damaged is asked for again"


# Partitions that move to another bundle


async def moved(root: Root) -> None:
    await root.move("t", 0, 2)


async def moved_there_and_back(root: Root) -> None:
    await root.move("t", 0, 2)
    await root.move("t", 0, 1)


async def moved_and_on_its_way_back(root: Root) -> None:
    """Bundle 1 has the partition again, and bundle 2 has its files."""
    await root.move("t", 0, 2)
    await root.produce("t", (0, [b"at bundle 2"]))
    await root.decide_move("t", 0, 1)
    await root.seal("t", 0)
    await root.open_moved("t", 0)


async def moved_without_an_end(root: Root) -> None:
    """The old bundle has forgotten the partition, and the catalog does not say so."""
    await root.decide_move("t", 0, 2)
    await root.seal("t", 0)
    await root.open_moved("t", 0)
    await root.hand_over("t", 0)


@pytest.mark.parametrize("move", [moved, moved_there_and_back, moved_and_on_its_way_back, moved_without_an_end])
async def test_a_range_is_read_where_its_partition_has_moved(
    root: Root, move: Callable[[Root], Awaitable[None]]
) -> None:
    ranges = await planned(root)
    await move(root)
    await root.produce("t", (0, [b"later"]))
    assert list((await rows(root, ranges)).values()) == root.produced["t", 0][:18]


async def test_what_was_deleted_where_its_partition_has_moved_is_lost_or_skipped(root: Root) -> None:
    ranges = await planned(root)
    await root.move("t", 0, 2)
    await delete_first_file(root, bundle=2)
    with pytest.raises(OffsetOutOfRange, match=r"bundle 2, .* deleted before the read"):
        await rows(root, ranges)
    reader = RangeReader(root.store, run_inline)
    found: list[int] = []
    for each in ranges:
        async for first, batch in reader.read(each, skip_lost=True):
            found += range(first, first + batch.num_rows)
    assert found == list(range(6, 18))
