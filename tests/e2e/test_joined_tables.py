"""Small tables of several `send_batch` calls travel in one batch while they wait. What is stored, and what each call
returns, is what it would be if each travelled alone.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pyarrow as pa
import pytest

from ledgermq import errors
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.test_future_timestamps import HOUR_US, now_us
from tests.e2e.test_client_takeover import client_of
from tests.e2e.test_joined_records import PARTITIONS, stored

IDS = pa.map_(pa.string(), pa.binary())


def table(first: int, rows: int, **columns: Any) -> pa.Table:
    return pa.table({"value": [b"%05d" % number for number in range(first, first + rows)], **columns})


def rows_of(found: list[list[tuple[Any, ...]]], results: list[Any]) -> list[int]:
    """Return the numbers of the rows that a call stored, by its results."""
    return [
        int(found[each.partition][offset][1])
        for each in results
        for offset in range(each.base_offset, each.base_offset + each.record_count)
    ]


@pytest.mark.parametrize("batch_bytes_max", [300, 2_000, 1_000_000])
@pytest.mark.parametrize("settings", [{}, {"batch_by": "tag"}, {"partitioner": "round_robin"}], ids=str)
@pytest.mark.parametrize("keyed", [False, True])
def test_each_call_is_told_where_its_own_rows_are(batch_bytes_max: int, settings: Any, keyed: bool) -> None:
    draw = random.Random(batch_bytes_max)

    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", PARTITIONS)
            async with client.producer(batch_bytes_max=batch_bytes_max, **settings) as producer:
                calls, number = [], 0
                for _ in range(120):
                    rows = draw.choice([1, 1, 3, 20])
                    columns: dict[str, Any] = {}
                    if keyed:
                        columns["key"] = [draw.choice([b"a", b"b", b"c", None]) for _ in range(rows)]
                    if settings:
                        columns["tag"] = [draw.choice(["x", "y"]) for _ in range(rows)]
                    partition = draw.choice([None, 0, 1])
                    made = table(number, rows, **columns)
                    calls.append((number, rows, partition, await producer.send_batch("t", made, partition=partition)))
                    if draw.random() < 0.1:
                        producer.send("t", b"%05d" % (number + rows), partition=0)
                        rows += 1
                    number += rows
                results = [(first, count, partition, await sent) for first, count, partition, sent in calls]
            found = await stored(client, "t")
            for first, count, partition, result in results:
                assert sorted(rows_of(found, result)) == list(range(first, first + count))
                assert partition is None or {each.partition for each in result} == {partition}
            for rows_there in found if not settings else ():
                assert [int(row[1]) for row in rows_there] == sorted(int(row[1]) for row in rows_there)
            assert sum(map(len, found)) == number

    life()


@in_cluster("a:1")
async def test_small_tables_that_wait_become_few_batches(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", PARTITIONS)
        async with client.producer() as producer:
            await producer.send("t", b"first")
            sent = [producer.send_batch("t", table(number, 1), partition=0) for number in range(200)]
            assert len(list(producer._batches())) == 1
            assert producer.buffered_bytes > 0
            deliveries = [await call for call in sent]
            offsets = [result.base_offset for delivery in deliveries for result in await delivery]
            assert offsets == list(range(offsets[0], offsets[0] + 200))
            assert producer.buffered_bytes == 0


@in_cluster("a:1")
async def test_a_table_that_is_refused_takes_no_other_with_it(cluster: Cluster) -> None:
    async with client_of(cluster) as client, client.producer() as producer:
        await client.create_topic("t", 1)
        await producer.send("t", b"00000")
        future = pa.array([now_us() + 2 * HOUR_US], pa.timestamp("us", "UTC"))
        before = producer.send_batch("t", table(1, 2))
        wrong = producer.send_batch("t", table(90, 1, timestamp=future))
        after = producer.send_batch("t", table(3, 2))
        assert [each.record_count for each in await (await before)] == [2]
        with pytest.raises(errors.InvalidRecord, match="ahead"):
            await (await wrong)
        assert [each.record_count for each in await (await after)] == [2]
        [found] = [rows for rows in await stored_of_one(client) if rows]
        assert found == [0, 1, 2, 3, 4]


@in_cluster("a:1")
async def test_rows_without_a_key_take_no_other_call_of_a_keyed_topic_with_them(cluster: Cluster) -> None:
    async with client_of(cluster) as client, client.producer() as producer:
        await client.create_topic("t", 1, settings={"cleanup.policy": "compact"})
        await producer.send("t", b"00000", key=b"0")
        before = producer.send_batch("t", table(1, 2, key=[b"1", b"2"]))
        wrong = producer.send_batch("t", table(90, 2, key=[b"90", None]), partition=0)
        after = producer.send_batch("t", table(3, 2, key=[b"3", b"4"]))
        assert [each.record_count for each in await (await before)] == [2]
        with pytest.raises(errors.InvalidRecord, match="keyed"):
            await (await wrong)
        assert [each.record_count for each in await (await after)] == [2]


async def stored_of_one(client: Any) -> list[list[int]]:
    async with client.consumer("t", start="earliest", until_end=True) as consumer:
        return [[int(message.value) async for message in consumer]]


@in_cluster("a:1")
async def test_a_table_with_a_time_of_its_own_travels_apart(cluster: Cluster) -> None:
    async with client_of(cluster) as client, client.producer() as producer:
        await client.create_topic("t", 1)
        await producer.send("t", b"first")
        timeouts = [9, 9, 1, None]
        calls = [producer.send_batch("t", table(number, 1), timeout=each) for number, each in enumerate(timeouts)]
        assert [batch.record_count for batch in producer._batches()] == [2, 1, 1]
        offsets = [(await (await call))[0].base_offset for call in calls]
        assert offsets == [1, 2, 3, 4]


@in_cluster("a:1")
async def test_rows_whose_ids_are_known_are_left_out_of_their_own_call(cluster: Cluster) -> None:
    def with_ids(first: int, ids: list[str]) -> pa.Table:
        headers = pa.array([[("ledgermq.message-id", each.encode())] for each in ids], IDS)
        return table(first, len(ids), headers=headers)

    async with client_of(cluster) as client:
        await client.create_topic("t", PARTITIONS, settings={"dedup.window.ms": "1000000"})
        async with client.producer() as producer:
            await producer.send("t", b"00099", partition=0)
            calls = [
                producer.send_batch("t", with_ids(first, ids), partition=0)
                for first, ids in ((0, ["a", "b"]), (2, ["b", "c"]), (4, ["a"]), (5, ["d", "c", "e"]))
            ]
            results = [await (await call) for call in calls]
        found = await stored(client, "t")
        kept = [rows_of(found, result) if result[0].record_count else [] for result in results]
        wanted = [int(row[1]) for row in found[0]][1:]
        assert [each for rows in kept for each in rows] == wanted


@in_cluster("a:1")
async def test_tables_of_a_transaction_join_too(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", PARTITIONS)
        async with client.transactions("mover") as transactions, transactions.begin() as transaction:
            calls = [await transaction.send_batch("t", table(3 * number, 3), partition=1) for number in range(50)]
            results = [await call for call in calls]
            assert {(each.base_offset, each.record_count) for result in results for each in result} == {(None, 3)}
        async with client.consumer("t", start="earliest") as consumer:
            found = [int((await anext(consumer)).value) for _ in range(150)]
        assert found == list(range(150))


@in_cluster("a:1")
async def test_a_table_has_its_whole_time_though_an_earlier_one_waits(cluster: Cluster) -> None:
    """The broker is away for longer than the earlier one has time."""
    async with client_of(cluster) as client, client.producer(delivery_timeout_s=60) as producer:
        await client.create_topic("t", 1)
        await producer.send("t", b"first")
        await cluster.stop("a:1", graceful=False)
        calls = []
        for number in range(2):  # the attempt of the first one fails, the second one waits behind it
            calls.append(await producer.send_batch("t", table(number, 1)))
            await asyncio.sleep(1)
        await asyncio.sleep(50)
        late = await producer.send_batch("t", table(2, 1))
        for call in calls:
            with pytest.raises((errors.DeadlineExceeded, errors.OutcomeUnknown)):
                await call
        await cluster.start("a:1")
        assert [each.record_count for each in await late] == [1]
        assert producer.buffered_bytes == 0
