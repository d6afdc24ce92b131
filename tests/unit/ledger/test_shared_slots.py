"""A task asks for each segment once, however many of its partitions it reads, and gets what each
alone would get.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledgermq.errors import DataDamaged
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from ledgermq_ledger.view.ranges.range_read import OffsetRange, RangeReader, plan_ranges
from ledgermq_ledger.view.ranges.shared_slots import SharedSlots
from tests.stores.counting import CountingStore
from tests.worlds.reading import opened_ledger
from tests.worlds.roots import Root

PARTITIONS = 4
SEGMENTS = 5


@pytest.fixture
async def root(sources: Sources) -> Root:
    """Records of each partition in each segment."""
    root = await Root.open(MemoryStore("shared", sources), sources)
    await root.create_topic("t", PARTITIONS)
    for number in range(SEGMENTS):
        await root.produce(
            "t", *((partition, [b"%d/%d" % (number, partition)] * (partition + 1)) for partition in range(PARTITIONS))
        )
    return root


async def planned(root: Root, ledger: FollowedLedger | None = None) -> list[OffsetRange]:
    reader = (ledger or await opened_ledger(root.store)).reader
    keys_of = [(root.topics["t"].id, partition) for partition in range(PARTITIONS)]
    return [
        part
        for parts in (await plan_ranges(reader, {key: (0, reader.end(key)) for key in keys_of})).values()
        for part in parts
    ]


async def rows(store: CountingStore, ranges: list[OffsetRange], bytes_max: int = 1 << 20) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    reader = RangeReader(SharedSlots(store, ranges, bytes_max), run_inline)
    for each in ranges:
        async for _, batch in reader.read(each):
            found.setdefault(each.key[1], []).extend(batch.column("value").to_pylist())
    return found


@pytest.mark.parametrize(("bytes_max", "requests"), [(1 << 20, SEGMENTS), (0, SEGMENTS * PARTITIONS), (6000, None)])
async def test_each_segment_is_fetched_once(root: Root, bytes_max: int, requests: int | None) -> None:
    """As far as there is room; with room for some, these."""
    store = CountingStore(root.store)
    assert await rows(store, await planned(root), bytes_max) == {p: root.produced["t", p] for p in range(PARTITIONS)}
    if requests is None:
        assert SEGMENTS < store.reads["get_range"] < SEGMENTS * PARTITIONS
    else:
        assert store.reads["get_range"] == requests


async def test_what_one_partition_wants_alone_is_asked_for_alone(root: Root) -> None:
    ranges = await planned(root)
    store = CountingStore(root.store)
    await rows(store, [ranges[0], ranges[3]])
    alone = store.bytes
    store.forget()
    await rows(store, ranges[:1])
    assert store.reads["get_range"] == SEGMENTS
    assert store.bytes < alone


@pytest.mark.parametrize("spoilt", [False, True])
async def test_what_is_at_hand_is_not_fetched_with_the_rest(root: Root, spoilt: bool) -> None:
    """One segment came after the reader; what is wrong of it at hand is fetched after all."""
    ledger = await opened_ledger(root.store, recent_bytes_max=1 << 20)
    await root.produce("t", *((partition, [b"new %d" % partition]) for partition in range(PARTITIONS)))
    await ledger.refresh()
    ranges = await planned(root, ledger)
    assert [len(each.at_hand) for each in ranges] == [1] * PARTITIONS
    if spoilt:
        [(place, data)] = ranges[1].at_hand.items()
        ranges[1] = replace(ranges[1], at_hand={place: bytes(len(data))})
    store = CountingStore(root.store)
    assert await rows(store, ranges) == {p: root.produced["t", p] for p in range(PARTITIONS)}
    assert store.reads["get_range"] == SEGMENTS + spoilt


async def test_segments_that_have_become_parquet_meanwhile(root: Root) -> None:
    ranges = await planned(root)
    await root.compact()
    assert await rows(CountingStore(root.store), ranges) == {p: root.produced["t", p] for p in range(PARTITIONS)}


async def test_damage_is_told_of_the_partition_that_has_it(root: Root) -> None:
    ranges = await planned(root)
    batch = ranges[1].batches[0]
    data = bytearray(await root.store.get(keys.segment(1, batch.slot)))
    data[batch.position + 100] ^= 1
    await root.store.put(keys.segment(1, batch.slot), bytes(data))
    store = SharedSlots(root.store, ranges)
    reader = RangeReader(store, run_inline)
    assert [first async for first, _ in reader.read(ranges[0])]
    with pytest.raises(DataDamaged):
        _ = [first async for first, _ in reader.read(ranges[1])]
