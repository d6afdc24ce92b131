"""A reader without a broker sees every record once, in order, whatever others do to the ledger
under it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ledgermq.errors import DataDamaged, OffsetOutOfRange
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.log.segments.segment import encode_segment
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.view.fetch_index import far_indexes
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from ledgermq_ledger.view.partition_index import PartitionIndex
from tests.stores.faulty import FaultyStore
from tests.virtual_time import virtual_in, virtual_sources
from tests.worlds.ledgers import ledger_of
from tests.worlds.reading import following, opened_ledger, read_to_end, rows_of
from tests.worlds.roots import Root, parquet_keys


@asynccontextmanager
async def two_partitions() -> AsyncIterator[tuple[Root, FaultyStore]]:
    """Topic "t" has two partitions in bundle 1; `store` is what a reader has."""
    sources = virtual_sources(1)
    root = await Root.open(MemoryStore("reader", sources), sources)
    await root.create_topic("t", 2)
    yield root, FaultyStore(root.store, virtual_sources(2))


on_a_root = virtual_in(two_partitions, "root", "store")


def part(root: Root, partition: int = 0) -> tuple[int, int]:
    return PartitionId(root.topics["t"].id, partition)


def written(root: Root, partition: int = 0) -> dict[int, bytes]:
    return dict(enumerate(root.produced["t", partition]))


@on_a_root
async def test_parquet_and_segments_are_read_as_one(root: Root, store: FaultyStore) -> None:
    await root.produce("t", (0, [b"a", b"b"]), (1, [b"x"]))
    await root.compact()
    await root.produce("t", (0, [b"c"]), (1, [b"y", b"z"]))
    ledger = await opened_ledger(store)
    assert ledger.partitions() == [part(root, 0), part(root, 1)]
    assert (ledger.view.parquet_end(part(root)), ledger.reader.end(part(root))) == (2, 3)
    for partition in range(2):
        assert await read_to_end(ledger.reader, part(root, partition)) == written(root, partition)
    assert list(await read_to_end(ledger.reader, part(root), 1)) == [1, 2], "from the middle of a batch"


@on_a_root
async def test_a_poll_is_one_get_and_never_a_list(root: Root, store: FaultyStore) -> None:
    await root.produce("t", (0, [b"a"]))
    ledger = await opened_ledger(store)
    assert not await ledger.refresh()
    store.calls.clear()
    for number in range(20):
        await root.produce("t", (0, [b"%d" % number]))
        await asyncio.sleep(0.1)
        assert await ledger.refresh()
        assert not await ledger.refresh()
    assert store.calls["list"] == 0
    assert store.calls.total() <= 20 * 5
    store.calls.clear()
    assert not await ledger.refresh()
    assert store.calls == {"get_suffix": 1}


@on_a_root
async def test_an_idle_ledger_is_looked_at_ever_more_seldom(root: Root, store: FaultyStore) -> None:
    ledger = await opened_ledger(store)
    store.calls.clear()
    for _ in range(6000):
        await ledger.refresh()
        await asyncio.sleep(0.1)
    assert store.calls["list"] <= 5 + 600 / 30


@on_a_root
async def test_takeovers_and_void_segments_are_passed_over(root: Root, store: FaultyStore) -> None:
    await root.produce("t", (0, [b"a"]))
    ledger = await opened_ledger(store)
    for value in (b"b", b"c", b"d"):
        slot = (await root.writer(1)).issued_slot + 1
        await root.store.put_if_absent(keys.segment(1, slot), void_segment(slot))
        del root.writers[1]
        await root.produce("t", (0, [value]))
    while await ledger.refresh():
        pass
    assert await read_to_end(ledger.reader, part(root)) == written(root)


def void_segment(slot: int) -> list[bytes]:
    """Put by an unknown writer."""
    index = fmt.SegmentIndex(
        bundle=1, slot=slot, epoch=1, kind=fmt.DATA, writer=b"z" * 16, put_id=b"?" * 16, previous=b"!" * 16
    )
    return [bytes(buffer) for buffer in encode_segment(index, [])]


@on_a_root
async def test_what_is_trimmed_and_deleted_under_it_comes_from_parquet(root: Root, store: FaultyStore) -> None:
    await root.produce("t", (0, [b"a", b"b"]))
    ledger = await opened_ledger(store)
    await root.produce("t", (0, [b"c"]))
    await root.compact()
    await root.produce("t", (0, [b"d"]))
    assert ledger.view.parquet_end(part(root)) == 0
    assert await read_to_end(ledger.reader, part(root)) == written(root), "it looked when a segment was gone"
    assert ledger.view.parquet_end(part(root)) == 3
    await root.produce("t", (0, [b"e"]))
    assert await ledger.refresh()
    assert await read_to_end(ledger.reader, part(root)) == written(root)


@on_a_root
async def test_slots_that_were_deleted_before_it_read_them_do_not_hold_it_up(root: Root, store: FaultyStore) -> None:
    """It waits for a slot that will never be filled again."""
    await root.produce("t", (0, [b"a"]))
    ledger = await opened_ledger(store)
    for number in range(5):
        await root.produce("t", (0, [b"%d" % number]))
    await root.compact()
    await root.produce("t", (0, [b"last"]))
    assert not await ledger.refresh()
    await asyncio.sleep(1.1)
    assert await ledger.refresh()
    assert await read_to_end(ledger.reader, part(root)) == written(root)


@on_a_root
async def test_a_zombie_that_fills_a_deleted_slot_does_not_deceive_readers(root: Root, store: FaultyStore) -> None:
    """The slot that the reader reads next is deleted and filled again: void for its fold, and all
    that comes after it would be.
    """
    await root.produce("t", (0, [b"a"]))
    ledger = await opened_ledger(store)
    slot = (await root.writer(1)).issued_slot + 1
    await root.produce("t", (0, [b"b"]))
    await root.compact()
    await root.produce("t", (0, [b"c"]))
    await root.store.put_if_absent(keys.segment(1, slot), void_segment(slot))
    assert await ledger.refresh()
    assert await read_to_end(ledger.reader, part(root)) == written(root)


@on_a_root
async def test_records_below_the_log_start_are_refused(root: Root, store: FaultyStore) -> None:
    await root.produce("t", (0, [b"a", b"b"]))
    await root.compact()
    ledger = await opened_ledger(store)
    await advance_checkpoint(ledger_of(root.store, 1, sources=root.sources), log_start_move({part(root): 1}))
    await asyncio.sleep(2)
    for _ in range(2):
        await ledger.refresh()
        await asyncio.sleep(2)
    assert ledger.reader.log_start(part(root)) == 1
    with pytest.raises(OffsetOutOfRange):
        await ledger.reader.read(part(root), 0)
    with pytest.raises(OffsetOutOfRange):
        await ledger.reader.read(part(root), 3)
    assert await ledger.reader.read(part(root), 2) == []
    assert await read_to_end(ledger.reader, part(root), 1) == {1: b"b"}


@on_a_root
async def test_an_index_that_is_too_small_is_looked_up_again(root: Root, store: FaultyStore) -> None:
    for number in range(60):
        await root.produce("t", (number % 2, [b"%d" % number]))
    ledger = await opened_ledger(store, index_batches_max=10)
    for partition in range(2):
        assert await read_to_end(ledger.reader, part(root, partition)) == written(root, partition)


async def behind(root: Root, store: FaultyStore, partitions: int = 2, **bounds: int) -> tuple[FollowedLedger, int]:
    """A reader with room for the last five segments of 60, each with a record of each partition,
    and how many GETs it took to open it.

    The time of a record is its offset, in milliseconds.
    """
    for number in range(60):
        values = ((partition, [b"%d/%d" % (partition, number)]) for partition in range(partitions))
        await root.produce("t", *values, timestamp_ms=number)
    store.calls.clear()
    ledger = await opened_ledger(store, index_batches_max=5 * partitions, **bounds)
    return ledger, store.calls["get_suffix"]


@on_a_root
async def test_what_the_index_has_no_room_for_is_looked_up_once_for_all_partitions_and_for_what_follows(
    root: Root, store: FaultyStore
) -> None:
    ledger, opening = await behind(root, store)
    found = {part(root, partition): PartitionIndex() for partition in range(2)}
    store.calls.clear()
    for first in range(0, 60, 12):
        for key, batches in (await ledger.view.batches(dict.fromkeys(found, (first, first + 12)))).items():
            found[key].extend(batches)
        assert store.calls["get_suffix"] <= opening
    assert [len(batches) for batches in found.values()] == [60, 60]
    assert not any(map(len, ledger.view._far.values())), "what was planned is not held any more"


@on_a_root
async def test_partitions_that_are_searched_side_by_side_are_looked_up_together(root: Root, store: FaultyStore) -> None:
    ledger, opening = await behind(root, store, partitions=8)
    store.calls.clear()
    found = await asyncio.gather(*(ledger.reader.offset_at(part(root, partition), 30_000) for partition in range(8)))
    assert found == [30] * 8
    assert store.calls["get_suffix"] <= 2 * opening, "of the first, and of all that came meanwhile"


@on_a_root
async def test_what_is_kept_of_a_look_has_a_bound(root: Root, store: FaultyStore) -> None:
    ledger, opening = await behind(root, store, far_batches_max=30)
    store.calls.clear()
    for first in range(0, 60, 5):
        found = await ledger.view.batches({part(root, partition): (first, first + 5) for partition in range(2)})
        assert [len(batches) for batches in found.values()] == [5, 5]
        assert sum(map(len, ledger.view._far.values())) <= 30
    assert store.calls["get_suffix"] <= 4 * opening, "of 110 batches that did not fit, 10 and 30 at a time"
    assert await read_to_end(ledger.reader, part(root, 0)) == written(root, 0)
    assert await read_to_end(ledger.reader, part(root, 1)) == written(root, 1)
    assert sum(map(len, ledger.view._far.values())) <= 30


@on_a_root
async def test_unequal_partitions_are_looked_up_together_again_and_again(root: Root, store: FaultyStore) -> None:
    ledger, opening = await behind(root, store, partitions=8, far_batches_max=80)
    done = dict.fromkeys((part(root, partition) for partition in range(8)), 0)
    store.calls.clear()
    for batch in range(30):
        spans = {key: (first, min(first + 1 + (key[1] + batch) % 3, 55)) for key, first in done.items()}
        for key, batches in (await ledger.view.batches(spans)).items():
            assert len(batches) == spans[key][1] - spans[key][0]
            done[key] = spans[key][1]
    assert set(done.values()) == {55}
    assert store.calls["get_suffix"] <= 10 * opening, (
        "of 440 batches that did not fit, 80 at a time beyond what was wanted"
    )


def test_a_partition_whose_first_batch_is_late_is_found_beside_one_that_takes_all_room() -> None:
    busy, late = (1, 0), (2, 0)
    segments = [
        fmt.SegmentIndex(slot=slot, batches=[fmt.BatchEntry(topic_id=1, base_offset=slot, record_count=1, position=24)])
        for slot in range(1, 21)
    ]
    segments.append(
        fmt.SegmentIndex(slot=21, batches=[fmt.BatchEntry(topic_id=2, base_offset=7, record_count=1, position=24)])
    )
    found = far_indexes(segments, {busy: (1, 1), late: (7, 7)}, 5)
    assert [len(found[key]) for key in (busy, late)] == [5, 1]
    rest = iter(segments)
    assert len(far_indexes(rest, {busy: (1, 1)}, 5)[busy]) == 5
    assert next(rest).slot == 7, "no more segments are looked at than are needed, and one"


@on_a_root
async def test_a_segment_that_is_gone_and_that_no_checkpoint_has_trimmed_is_damage(
    root: Root, store: FaultyStore
) -> None:
    slot = (await root.writer(1)).issued_slot + 1
    await root.produce("t", (0, [b"a"]))
    ledger = await opened_ledger(store)
    await root.store.delete([keys.segment(1, slot)])
    with pytest.raises(DataDamaged) as caught:
        await ledger.reader.read(part(root), 0)
    assert caught.value.object_key == keys.segment(1, slot)


@on_a_root
async def test_following_shows_each_record_once_as_it_comes(root: Root, store: FaultyStore) -> None:
    await root.produce("t", (0, [b"a"]), (1, [b"x"]))
    ledger = await opened_ledger(store)
    seen: dict[tuple[int, int], dict[int, bytes]] = {part(root, 0): {}, part(root, 1): {}}

    async def follow() -> None:
        async for key, batches in following(ledger, dict.fromkeys(seen, 0)):
            seen[key] |= rows_of(batches, len(seen[key]))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        for number in range(30):
            await root.produce("t", (number % 2, [b"%d" % number]))
            if number % 7 == 0:
                await root.compact()
            await asyncio.sleep(0.3)
        await asyncio.sleep(40)
        task.cancel()
    assert seen == {part(root, partition): written(root, partition) for partition in range(2)}


@on_a_root
async def test_only_what_is_wanted_takes_memory(root: Root, store: FaultyStore) -> None:
    await root.produce("t", (0, [b"a"]), (1, [b"x"]))
    ledger = FollowedLedger(ledger_of(store, 1), wanted=lambda key: key[1] == 1, run_blocking=run_inline)
    await ledger.open()
    assert ledger.partitions() == [part(root, 1)]
    assert await read_to_end(ledger.reader, part(root, 1)) == written(root, 1)


@on_a_root
async def test_what_the_index_has_no_room_for_is_found_where_the_reader_has_to_begin_again(
    root: Root, store: FaultyStore
) -> None:
    await root.produce("t", (0, [b"a"]))
    ledger = await opened_ledger(store, index_batches_max=2)
    for value in (b"b", b"c", b"d"):
        await root.produce("t", (0, [value]))
    await ledger.refresh()
    await root.compact()  # the reader does not hear of it: what it has followed is trimmed
    for value in (b"e", b"f", b"g", b"h"):
        await root.produce("t", (0, [value]))
    await ledger.refresh()
    assert await read_to_end(ledger.reader, part(root), offset=4) == {
        offset: written(root)[offset] for offset in range(4, 8)
    }


@on_a_root
async def test_a_reader_that_looks_knows_all_that_is_durable_although_it_was_trimmed_unread(
    root: Root, store: FaultyStore
) -> None:
    ledger = await opened_ledger(store)
    await root.produce("t", (0, [b"a", b"b"]))
    await root.compact()
    await ledger.refresh()
    assert ledger.reader.end(part(root)) == 0  # until its next look
    await ledger.refresh(look=True)
    assert ledger.reader.end(part(root)) == 2
    assert await read_to_end(ledger.reader, part(root)) == written(root)


@on_a_root
async def test_nothing_is_read_beyond_the_end_that_a_reader_knows(root: Root, store: FaultyStore) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        await root.produce("t", (0, [value]))
    ledger = await opened_ledger(store, index_batches_max=2)
    await root.produce("t", (0, [b"e"]))
    assert await read_to_end(ledger.reader, part(root)) == {offset: written(root)[offset] for offset in range(4)}
    await ledger.refresh()
    assert await read_to_end(ledger.reader, part(root)) == written(root)


@on_a_root
async def test_a_time_is_found_in_parquet_and_in_segments(root: Root, store: FaultyStore) -> None:
    """The lowest offset of that time or a later one; times do not ascend."""
    times = [5, 3, 9, 4, 20, 7]
    for number, time in enumerate(times):
        await root.produce("t", (0, [b"a", b"b"]), timestamp_ms=time)
        if number in (1, 3):
            await root.compact()
    for batches_max in (3, 10_000):
        ledger = await opened_ledger(store, index_batches_max=batches_max)
        for wanted in range(22):
            expected = next((2 * number for number, time in enumerate(times) if time >= wanted), None)
            assert await ledger.reader.offset_at(part(root), wanted * 1000) == expected, wanted


@on_a_root
async def test_a_time_is_looked_for_where_the_log_starts_by_now(root: Root, store: FaultyStore) -> None:
    """The reader does not hear that retention has taken the first file."""
    for number in range(3):
        await root.produce("t", (0, [b"a", b"b"]), timestamp_ms=10 + number)
        await root.compact()
    ledger = await opened_ledger(store)
    await advance_checkpoint(ledger_of(root.store, 1, sources=root.sources), log_start_move({part(root): 3}))

    def forget(draft: fmt.Checkpoint) -> bool:
        draft.partitions[0].parquet_start = 2
        return True

    await advance_checkpoint(ledger_of(root.store, 1, sources=root.sources), forget)
    await root.store.delete((await parquet_keys(root.store))[:1])
    assert await ledger.reader.offset_at(part(root), 0) == 3
    assert await ledger.reader.offset_at(part(root), 12_000) == 4
    assert await ledger.reader.offset_at(part(root), 13_000) is None
