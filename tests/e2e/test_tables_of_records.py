"""Arrow batches and data frames through the SDK: in this process and over gRPC."""

from __future__ import annotations

import itertools
import sys

import polars as pl
import pyarrow as pa
import pytest

import ledgermq
from ledgermq import errors
from ledgermq.client.producing.arrow.rows import PIECE_ROWS_MAX
from ledgermq.client.settings.partitioner import partition_of_key
from tests.e2e.two_ways import Connect, a_topic, connect_two_ways, values_of

connect = pytest.fixture(params=["in_process", "grpc"])(connect_two_ways)


async def test_an_arrow_batch_goes_in_and_comes_out_as_a_table(connect: Connect) -> None:
    async with a_topic(connect, 3) as client, client.producer(batch_bytes_max=5000) as producer:
        batch = pa.RecordBatch.from_pydict(
            {"key": [f"k{n % 5}" for n in range(1000)], "value": [b"%d" % n for n in range(1000)]}
        )
        results = await (await producer.send_batch("t", batch))
        assert sum(result.record_count for result in results) == 1000
        tables = []
        async with client.consumer("t") as consumer:
            while sum(table.num_rows for table in tables) < 1000:
                tables.append(await consumer.fetch_arrow(300, timeout=10))
                assert tables[-1].num_rows <= 300
        rows = pa.concat_tables(tables).sort_by([("partition", "ascending"), ("offset", "ascending")])
        assert sorted(int(value) for value in rows["value"].to_pylist()) == list(range(1000))
        for row in rows.to_pylist():
            assert row["key"] == b"k%d" % (int(row["value"]) % 5)
            assert row["partition"] == partition_of_key(row["key"], 3)


async def test_arrow_batches_without_keys_take_turns_among_partitions(connect: Connect) -> None:
    async with a_topic(connect, 3) as client, client.producer(batch_bytes_max=500) as producer:
        runs = [await (await producer.send_batch("t", pa.record_batch({"value": [b"x" * 99] * 10}))) for _ in range(20)]
        partitions = []
        for run in runs:
            assert len(run) > 1
            assert len({part.partition for part in run}) == 1, "the rows of one call stay together"
            partitions.append(run[0].partition)
        assert all(one != next_one for one, next_one in itertools.pairwise(partitions))
        assert set(partitions) == {0, 1, 2}


async def test_values_of_a_batch_s_size_travel_as_one(connect: Connect) -> None:
    """What else a row has, times and offsets, does not halve it."""
    async with a_topic(connect, 1) as client, client.producer(batch_bytes_max=100_000) as producer:
        (result,) = await (
            await producer.send_batch("t", pa.record_batch({"value": pa.array([b"x" * 99] * 1000, pa.binary())}))
        )
        assert result.record_count == 1000
        results = await (
            await producer.send_batch("t", pa.record_batch({"value": pa.array([b""] * 50_000, pa.binary())}))
        )
        assert len(results) > 1, "rows without data take room too"


async def test_rows_without_key_stay_together(connect: Connect) -> None:
    async with a_topic(connect, 3) as client, client.producer() as producer:
        batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
        (result,) = await (await producer.send_batch("t", batch, partition=2))
        assert result == ("t", 2, 0, 2)
        assert await values_of(client, partitions=[2]) == [b"a", b"b"]


async def test_data_frames_go_in_and_come_out(connect: Connect) -> None:
    frame = pl.DataFrame(
        {
            "key": [f"k{n % 5}" for n in range(30)],
            "value": [str(n) for n in range(30)],
            "partition": [None if n % 3 else 2 for n in range(30)],
        }
    )
    async with a_topic(connect, 3) as client, client.producer() as producer:
        results = await (await producer.send_batch("t", frame))
        assert sum(result.record_count for result in results) == 30
        for row in (await client.read_arrow("t")).to_pylist():
            number = int(row["value"])
            assert row["partition"] == (partition_of_key(row["key"], 3) if number % 3 else 2)
        table = await client.read_arrow("t", partitions=[2])
        read = ledgermq.to_polars(table)
        assert read.columns == table.column_names
        assert ledgermq.to_pandas(table)["value"].to_list() == read["value"].to_list()
        async with client.consumer("t", partitions=[2], until_end=True) as consumer:
            messages = await consumer.fetch(read.height, timeout=10)
        assert ledgermq.to_polars(messages).drop("timestampType").equals(read.drop("timestampType"))
        again = table.select(["key", "value", "headers", "tag", "timestamp"])
        await (await producer.send_batch("t", again, partition=0))
        assert (await values_of(client, partitions=[0]))[-read.height :] == read["value"].to_list()


async def test_a_table_larger_than_the_buffer_is_stored_in_order(connect: Connect) -> None:
    count = PIECE_ROWS_MAX + 1000
    table = pa.table({"value": [b"%d" % number for number in range(count)], "partition": [0] * count})
    async with a_topic(connect, 2) as client, client.producer(buffer_bytes_max=100_000) as producer:
        for topic_is_known in (False, True):
            results = await (await producer.send_batch("t", table))
            assert sum(result.record_count for result in results) == count
            read = (await client.read_arrow("t", {0: count * topic_is_known}, partitions=[0])).column("value")
            assert read.to_pylist() == table.column("value").to_pylist()


@pytest.mark.parametrize("wrong", [{"partition": -1}, {"partition": 2}, {"value": b"x" * 5000}])
async def test_no_row_of_a_refused_table_is_queued(connect: Connect, wrong: dict[str, object]) -> None:
    rows: dict[str, list[object]] = {"value": [b"v"] * PIECE_ROWS_MAX, "partition": [0] * PIECE_ROWS_MAX}
    for name, column in rows.items():
        column.append(wrong.get(name, column[0]))
    table = pa.table(rows)
    async with a_topic(connect, 2, max_message_bytes=4000) as client, client.producer() as producer:
        await producer.send("t", b"first", partition=1)  # the producer knows the topic now
        with pytest.raises((errors.UnknownPartition, errors.MessageTooLarge)):
            await producer.send_batch("t", table)
        with pytest.raises(errors.InvalidRecord, match="given twice"):
            await producer.send_batch("t", table, partition=1)
        await producer.flush()
        assert await values_of(client) == [b"first"]


async def test_a_data_frame_needs_its_library(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_topic(connect) as client:
        table = await client.read_arrow("t")
    for name, make in (("polars", ledgermq.to_polars), ("pandas", ledgermq.to_pandas)):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
        with pytest.raises(errors.InvalidConfig, match=f"pip install {name}"):
            make(table)
