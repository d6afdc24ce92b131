"""Damage in the bucket: a batch parks its partition and nothing else, an index stops its bundle,
what is missing is never empty.
"""

from __future__ import annotations

import pytest

from ledgermq.errors import DataDamaged
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.sweep import tidy_bundle
from ledgermq_ledger.garbage.topics.expired_files import remove_expired as remove_expired_files
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.chains.plans import read_plan
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.log.segments.segment import encode_segment, read_index
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from tests.stores.backends import memory_store
from tests.stores.one_put import OnePut
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import NoTasks, Root, parquet_keys, read_parquet_rows


async def _root(store: ObjectStore, sources: Sources) -> Root:
    root = await Root.open(store, sources, bundles=3)
    await root.create_topic("t", partitions=3)
    await root.create_topic("other", bundle=2)
    await root.produce("t", (0, [b"a"]), (1, [b"b"] * 3), (2, [b"c"]))
    await root.produce("t", (0, [b"d"]), (1, [b"e"] * 3), (2, [b"f"]))
    await root.produce("other", (0, [b"g"]))
    return root


async def _damage(store: ObjectStore, key: str, position: int) -> None:
    data = bytearray(await store.get(key))
    data[position] ^= 0xFF
    await store.delete([key])
    await store.put_if_absent(key, [bytes(data)])


async def _damage_batch(root: Root, slot: int, partition: int) -> str:
    key = keys.segment(1, slot)
    index = (await read_index(root.store, 1, slot)).index
    entry = next(entry for entry in index.batches if entry.partition == partition)
    await _damage(root.store, key, entry.position + entry.length // 2)
    return key


async def test_a_damaged_batch_parks_only_its_partition(sources: Sources) -> None:
    async with memory_store() as store:
        root = await _root(store, sources)
        key = await _damage_batch(root, 3, partition=1)
        report = await root.compact()
        assert not report.failures
        assert [(p.topic, p.partition, p.object_key) for p in report.parked] == [("t", 1, key)]
        rows = await read_parquet_rows(store)
        assert set(rows) == {("t", 0), ("t", 2), ("other", 0)}
        checkpoint = await root.newest()
        parked = partition_of(checkpoint, root.topics["t"].id, 1).parked
        assert (parked.plan, parked.first_slot, parked.object_key) == (1, 2, key)
        assert "checksum" in parked.reason
        assert checkpoint.trim_slot == 2, "the parked partition holds its batches, the good ones too"
        assert [info.key async for info in store.list(keys.segments(1))] == [
            keys.segment(1, slot) for slot in (1, 2, 3)
        ]


async def test_others_go_on_behind_a_parked_partition(sources: Sources) -> None:
    async with memory_store() as store:
        root = await _root(store, sources)
        await _damage_batch(root, 3, partition=1)
        await root.compact()
        await root.produce("t", (0, [b"h"]), (1, [b"i"]))
        report = await root.compact()
        assert not report.failures
        assert report.records == 1
        assert not report.parked, "told once"
        assert list((await read_parquet_rows(store))["t", 0].values()) == root.produced["t", 0]
        assert (await root.newest()).trim_slot == 2


async def test_the_file_that_stands_for_damage_has_no_rows_and_goes_in_time(sources: Sources) -> None:
    clock_us = [10**15]
    async with memory_store(Sources(lambda: clock_us[0], sources.random)) as store:
        root = await _root(store, sources)
        await _damage_batch(root, 3, partition=1)
        await root.compact()
        marker = [key for key in await parquet_keys(store) if "/partition=1/" in key]
        assert len(marker) == 1
        clock_us[0] += 19_000_000
        assert (await root.compact()).collected == []
        clock_us[0] += 2_000_000
        assert (await root.compact()).collected == marker, "after parquet_min_age no late put can bring it back"


async def test_rivals_agree_on_damage_that_only_one_of_them_sees(sources: Sources) -> None:
    async with memory_store() as store:
        root = await _root(store, sources)
        healthy = await store.get(keys.segment(1, 3))
        await _damage_batch(root, 3, partition=1)
        report = await root.compact(_NoCommit(store))
        assert report.failures[1].message == "no commit"
        await store.delete([keys.segment(1, 3)])
        await store.put_if_absent(keys.segment(1, 3), [healthy])
        assert [p.partition for p in (await root.compact()).parked] == [1], "what the key holds is recorded"


class _NoCommit(OnePut):
    """A process that stops before its first commit in bundle 1."""

    async def put_if_absent(self, key: str, buffers: object) -> None:
        if key.startswith(keys.checkpoints(1)):
            raise DataDamaged("no commit")
        await self.inner.put_if_absent(key, buffers)  # type: ignore[arg-type]


class _FlippingOnce(StoreWrapper):
    """The first range read of each segment comes back damaged."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.damaged: set[str] = set()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        data = await self.inner.get_range(key, start, length)
        if "/segments/" in key and key.startswith("ledgers/0001") and key not in self.damaged:
            self.damaged.add(key)
            data = bytes([data[0] ^ 1]) + data[1:]
        return data


async def test_damage_on_the_way_parks_nothing(sources: Sources) -> None:
    async with memory_store() as store:
        root = await _root(store, sources)
        flipping = _FlippingOnce(store)
        report = await root.compact(flipping)
        assert len(flipping.damaged) == 2
        assert not report.parked
        assert {part: list(found.values()) for part, found in (await read_parquet_rows(store)).items()} == root.produced


async def test_a_damaged_index_stops_its_bundle_and_no_other(sources: Sources) -> None:
    async with memory_store() as store:
        root = await _root(store, sources)
        key = keys.segment(1, 2)
        await _damage(store, key, len(await store.get(key)) - 40)
        report = await root.compact()
        assert set(report.failures) == {1}
        assert isinstance(report.failures[1], DataDamaged)
        assert report.failures[1].object_key == key
        assert set(await read_parquet_rows(store)) == {("other", 0)}


async def test_a_damaged_checkpoint_stops_its_bundle(sources: Sources) -> None:
    async with memory_store() as store:
        root = await _root(store, sources)
        await root.compact()
        await root.produce("t", (0, [b"x"]))
        key = keys.checkpoint(1, (await root.newest()).number)
        await _damage(store, key, 10)
        report = await root.compact()
        assert {bundle: error.object_key for bundle, error in report.failures.items()} == {1: key}


@pytest.mark.parametrize("what", ["missing", "another"])
async def test_a_slot_that_the_plan_names_is_never_taken_for_empty(sources: Sources, what: str) -> None:
    async with memory_store() as store:
        root = await _root(store, sources)
        assert (await root.compact(NoTasks(store))).failures, "stopped after the plan"
        plan = await read_plan(store, 1, 1)
        assert plan is not None
        key = keys.segment(1, 2)
        there = await store.get(key)
        index = (await read_index(store, 1, 2)).index
        await store.delete([key])
        if what == "another":  # as a late put of a former owner would leave it: the same batches, another put id
            index.put_id = b"z" * 16
            data = [there[entry.position :][: entry.length] for entry in index.batches]
            await store.put_if_absent(key, encode_segment(index, data))
        report = await root.compact()
        assert report.failures[1].object_key == key
        assert isinstance(report.failures[1], DataDamaged)
        assert not [k for k in await parquet_keys(store) if "topic=t/" in k]


async def test_another_file_of_the_same_name_stops_the_bundle(sources: Sources) -> None:
    async with memory_store() as store:
        root = await _root(store, sources)
        await root.compact(NoTasks(store))
        plan = await read_plan(store, 1, 1)
        assert plan is not None
        await store.put_if_absent(plan.files[0].key, [b"not Parquet"])
        report = await root.compact()
        assert report.failures[1].object_key == plan.files[0].key


async def test_a_damaged_page_keeps_the_files_of_its_partitions_and_no_others(sources: Sources) -> None:
    clock_us = [10**15]
    sources = Sources(lambda: clock_us[0], sources.random)
    async with memory_store(sources) as store:
        root = await Root.open(store, sources)
        topic = await root.create_topic("t", partitions=2, retention_ms="1000")
        for partition in (0, 1):
            await root.produce("t", (partition, [b"x"]), timestamp_ms=clock_us[0] // 1000)
            assert not (await root.compact()).failures
        page = keys.file_page(1, partition_of(await root.newest(), topic.id, 0).newest_page)
        await _damage(store, page, 1)
        for _ in range(2):
            clock_us[0] += 30_000_000
            with pytest.raises(DataDamaged, match=page):
                await tidy_bundle(ledger_of(store, 1, cluster=root.cluster, sources=sources), await root.catalog())
        checkpoint = await root.newest()
        starts = [
            (part.log_start, part.parquet_start)
            for part in (partition_of(checkpoint, topic.id, partition) for partition in (0, 1))
        ]
        assert starts == [(0, 0), (1, 1)]
        assert {name.partition for key in await parquet_keys(store) if (name := keys.parse_parquet(key))} == {0}


async def test_a_page_that_is_damaged_once_retention_has_moved_the_log_keeps_no_other_file(sources: Sources) -> None:
    clock_us = [10**15]
    sources = Sources(lambda: clock_us[0], sources.random)
    async with memory_store(sources) as store:
        root = await Root.open(store, sources)
        topic = await root.create_topic("t", partitions=3)
        for partition in (0, 1, 2):
            await root.produce("t", (partition, [b"x"]))
            assert not (await root.compact()).failures
        await advance_checkpoint(
            ledger_of(store, 1, cluster=root.cluster, sources=sources),
            log_start_move({PartitionId(topic.id, p): 1 for p in range(3)}),
        )
        page = keys.file_page(1, partition_of(await root.newest(), topic.id, 1).newest_page)
        await _damage(store, page, 1)
        clock_us[0] += 30_000_000
        with pytest.raises(DataDamaged, match=page):
            await remove_expired_files(ledger_of(store, 1, cluster=root.cluster, sources=sources), await root.catalog())
        checkpoint = await root.newest()
        assert [partition_of(checkpoint, topic.id, partition).parquet_start for partition in range(3)] == [1, 0, 1]
        assert {name.partition for key in await parquet_keys(store) if (name := keys.parse_parquet(key))} == {1}
