"""Records come back from Parquet with their offsets, from any offset, in batches that decode."""

from __future__ import annotations

import pytest

from ledgermq.errors import OffsetOutOfRange
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet import reader
from ledgermq_ledger.parquet.reader import ParquetCache, read_parquet
from tests.stores.backends import memory_store
from tests.stores.counting import CountingStore
from tests.worlds.roots import Root


async def _filled(store: ObjectStore, sources: Sources, rounds: int = 3, records: int = 40) -> Root:
    root = await Root.open(store, sources)
    await root.create_topic("t", partitions=2)
    for i in range(rounds):
        values = [b"%d/%d" % (i, j) for j in range(records)]
        await root.produce("t", (0, values[: records // 2]), (0, values[records // 2 :]), (1, [b"other"]))
        await root.compact()
    return root


@pytest.mark.parametrize("bytes_max", [1, 2_000, 10_000_000])
async def test_every_offset_can_be_read_from(sources: Sources, bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES_MAX", 600)
    async with memory_store() as store:
        root = await _filled(store, sources)
        topic = root.topics["t"]
        cache = ParquetCache(store, run_inline)
        checkpoint = await root.newest()
        for start in range(0, 120, 7):
            offset = start
            values: list[bytes] = []
            while offset < 120:
                batches = await read_parquet(store, 1, checkpoint, topic.id, 0, offset, bytes_max, cache=cache)
                assert batches
                for found in batches:
                    assert found.base_offset == offset
                    check_crc(found.data, found.crc)
                    batch = decode_batch(found.data)
                    assert batch.num_rows == found.record_count
                    values += batch.column("value").to_pylist()
                    offset = found.end
                assert len(batches) == 1 or sum(len(b.data) for b in batches) <= bytes_max
            assert values == root.produced["t", 0][start:]


async def test_outside_of_parquet_is_out_of_range(sources: Sources) -> None:
    async with memory_store() as store:
        root = await _filled(store, sources, rounds=1)
        topic = root.topics["t"]
        for offset in (40, 1000):
            with pytest.raises(OffsetOutOfRange, match="Parquet holds offsets 0 to 39"):
                await read_parquet(store, 1, await root.newest(), topic.id, 0, offset, 100)
        assert partition_of(await root.newest(), topic.id, 0).parquet_end == 40


async def test_reading_on_costs_no_request(sources: Sources) -> None:
    async with memory_store() as inner:
        root = await _filled(inner, sources, rounds=1)
        topic = root.topics["t"]
        store = CountingStore(inner)
        checkpoint = await root.newest()
        await read_parquet(store, 1, checkpoint, topic.id, 0, 0, 1)
        assert store.reads.total() == 3, "page, footer, row group"
        await read_parquet(store, 1, checkpoint, topic.id, 0, 20, 1)
        assert store.reads.total() == 3
