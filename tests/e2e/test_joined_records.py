"""Most records join the open batch of their partition by a short way. What is stored is what the way with all
checks gives, whatever a record has, and whatever the topic asks for.
"""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ledgermq
from ledgermq import Spill, errors
from ledgermq.client.settings.partitioner import partition_of_key
from ledgermq.client.transactions.transaction import Transaction
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import fill
from tests.e2e.own_network import OwnNetwork
from tests.e2e.spilling import cut_off, emptied, state_of
from tests.e2e.test_client_takeover import client_of
from tests.e2e.test_transactional_handlers import Inline, running, until_copied

HEADERS: list[Any] = [
    None,
    {},
    {"trace": b"1"},
    [("a", "text"), ("a", None), ("größe", b"\xff")],
    {"ledgermq.priority": "1"},
    {"ledgermq.message-id": "same"},
]
PARTITIONS = 4


def drawn(count: int, seed: int, *, keyed: bool) -> list[dict[str, Any]]:
    """Return arguments of `send`; each value says which one it is. `keyed`: each record has a key, or a partition."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        text = f"{number:04}" + "x" * draw.choice([0, 0, 40, 400])
        given: dict[str, Any] = {"value": draw.choice([text, text.encode(), bytearray(text.encode())])}
        if keyed:
            given["key"] = draw.choice([f"k{draw.randrange(9)}", b"k%d" % draw.randrange(9), b"", "é" * 40])
        if draw.random() < 0.2:
            given["partition"] = draw.randrange(PARTITIONS)
        if keyed and draw.random() < 0.1:
            given["value"] = None
        if draw.random() < 0.4:
            given["headers"] = draw.choice(HEADERS)
        if draw.random() < 0.3:
            given["tag"] = draw.choice(["A", "ÄÖ", ""])
        if draw.random() < 0.1:
            given["ttl"] = 60
        found.append(given)
    return found


async def stored(client: ledgermq.Client, topic: str) -> list[list[tuple[Any, ...]]]:
    """Return the records of each partition."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(PARTITIONS)]
    async with client.consumer(topic, start="earliest", until_end=True) as consumer:
        async for message in consumer:
            headers = [(name, value) for name, value in message.headers if name != "ledgermq.expires-ms"]
            found[message.partition].append((message.key, message.value, headers, message.tag))
    return found


@pytest.mark.parametrize(
    "settings",
    [{}, {"priority.levels": "2"}, {"dedup.window.ms": "1000000"}, {"max.message.bytes": "2000"}],
    ids=["plain", "levels", "ids", "small"],
)
@pytest.mark.parametrize("many", [False, True], ids=["send", "send_many"])
@pytest.mark.parametrize("batch_bytes_max", [500, 1_000_000])
def test_both_ways_store_the_same(settings: dict[str, str], many: bool, batch_bytes_max: int) -> None:
    records = drawn(300, 7, keyed=True)

    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            results: list[list[Any]] = []
            for name, on_delivery in (("short", None), ("long", lambda result: None)):
                await client.create_topic(name, PARTITIONS, settings=settings)
                async with client.producer(on_delivery=on_delivery, batch_bytes_max=batch_bytes_max) as producer:
                    await producer.send(name, b"first", partition=0)  # the topic is known from now on
                    if many:
                        sent = list(await producer.send_many(name, [ledgermq.Record(**given) for given in records]))
                    else:
                        sent = [producer.send(name, **given) for given in records]
                    has_short_way = name == "short" and ("max.message.bytes" not in settings or batch_bytes_max == 500)
                    assert bool(producer._keyed) == (has_short_way and settings.keys() <= {"max.message.bytes"})
                    results.append(
                        [(each.partition, each.offset, each.duplicate) for each in [await one for one in sent]]
                    )
            assert results[0] == results[1]
            assert any(is_duplicate for _, _, is_duplicate in results[0]) == ("dedup.window.ms" in settings)
            assert await stored(client, "short") == await stored(client, "long")

    life()


@pytest.mark.parametrize("seed", range(3))
def test_records_without_a_key_keep_what_they_have(seed: int) -> None:
    """Where they go is drawn, so their contents and their order are compared with what was sent."""
    records = drawn(300, seed, keyed=False)

    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", PARTITIONS)
            async with client.producer(batch_bytes_max=800) as producer:
                await producer.send("t", b"first")
                results = [await sent for sent in [producer.send("t", **given) for given in records]]
            found = await stored(client, "t")
            for given, result in zip(records, results, strict=True):
                key, value, headers, tag = found[result.partition][result.offset]
                wanted = given["value"].encode() if isinstance(given["value"], str) else bytes(given["value"])
                assert (key, value, tag) == (None, wanted, given.get("tag"))
                pairs = given.get("headers") or ()
                pairs = list(pairs.items() if isinstance(pairs, dict) else pairs)
                assert headers == [(name, data.encode() if isinstance(data, str) else data) for name, data in pairs]
                assert given.get("partition", result.partition) == result.partition

    life()


@pytest.mark.parametrize("many", [False, True], ids=["send", "send_many"])
def test_headers_that_can_be_read_once_come_along_where_a_batch_ends(many: bool) -> None:
    wanted = [("a", b"1"), ("b", None)]

    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", PARTITIONS)
            async with client.producer(batch_bytes_max=500) as producer:
                await producer.send("t", b"first", key=b"k")
                given: list[dict[str, Any]] = [
                    {"value": bytes(90), "key": b"k", "headers": iter(wanted)} for _ in range(40)
                ]
                if many:
                    sent = list(await producer.send_many("t", [ledgermq.Record(**each) for each in given]))
                else:
                    sent = [producer.send("t", **each) for each in given]
                for each in sent:
                    await each
            [found] = [rows for rows in await stored(client, "t") if rows]
            assert [row[2] for row in found] == [[], *[wanted] * 40]

    life()


def test_interceptors_may_read_headers_that_can_be_read_once() -> None:
    wanted, seen = [("a", b"1"), ("b", None)], list[Any]()

    def look(record: ledgermq.Outgoing) -> ledgermq.Outgoing:
        seen.append(list(record.headers or ()))
        return record

    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", PARTITIONS)
            async with client.producer(interceptors=[look, look]) as producer:
                await producer.send("t", b"v", partition=0, headers=iter(wanted))
                await producer.send("t", b"v", partition=0)
            assert await stored(client, "t") == [[(None, b"v", wanted, None), (None, b"v", [], None)], [], [], []]
        assert seen == [wanted, wanted, [], []]

    life()


@pytest.mark.parametrize("has_batch", [False, True], ids=["the long way", "the short way"])
def test_send_many_of_large_texts_encodes_no_more_than_there_is_room_for(has_batch: bool) -> None:
    texts = ["x" * 1_000_000] * 100

    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", 1)
            settings: dict[str, Any] = {} if has_batch else {"on_delivery": lambda result: None}
            async with client.producer(buffer_bytes_max=4_000_000, **settings) as producer:
                await producer.send("t", b"first")
                if has_batch:
                    producer.send("t", b"it opens a batch")
                tracemalloc.start()
                adding = producer.send_many("t", texts)
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert peak < 20_000_000
                assert len(await adding) == len(texts)

    life()


def test_rows_of_one_partition_do_not_keep_those_of_the_others() -> None:
    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", 32)
            async with client.producer() as producer:
                await producer.send("t", b"first")
                rows = pa.table({"key": [b"%d" % n for n in range(2_000)], "value": [bytes(500)] * 2_000})
                adding = producer.send_batch("t", rows)
                kept = [rows.get_total_buffer_size() for batch in producer._batches() for rows in batch._arrow]
                assert len(kept) == 32
                assert sum(kept) < 2 * producer.buffered_bytes
                await (await adding)

    life()


def test_a_wrong_record_on_the_short_way_fails_alone() -> None:
    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", PARTITIONS)
            async with client.producer() as producer:
                await producer.send("t", b"0", key=b"k")
                held = producer.buffered_bytes
                wrong: list[dict[str, Any]] = [
                    {"value": b"v", "key": 1},
                    {"value": 1, "key": b"k"},
                    {"value": "\ud800", "key": b"k"},
                    {"value": b"v", "key": "\ud800"},
                    {"value": b"v", "headers": {1: b""}},
                    {"value": b"v", "headers": {"\ud800": b""}},
                    {"value": b"v", "headers": [("a",)]},
                    {"value": b"v", "headers": {"a": 1}, "key": b"k"},
                    {"value": b"v", "tag": 1},
                    {"value": b"v", "tag": "\ud800", "key": b"k"},
                ]
                for given in wrong:
                    with pytest.raises(errors.InvalidRecord):
                        producer.send("t", **given)
                with pytest.raises(errors.UnknownPartition):
                    producer.send("t", b"v", partition=PARTITIONS)
                with pytest.raises(errors.MessageTooLarge):
                    producer.send("t", bytes(100_000_000), key=b"k")
                assert producer.buffered_bytes == held == 0
                sent = [producer.send("t", b"%d" % number, key=b"k") for number in range(1, 4)]
                assert [(await each).offset for each in sent] == [1, 2, 3]

    life()


def test_the_short_way_ends_with_the_topic_and_follows_new_partitions() -> None:
    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", 1)
            async with client.producer() as producer:
                assert (await producer.send("t", b"0", key=b"k")).partition == 0
                await client.alter_topic("t", partitions=64)
                await client.describe_topic("t")
                spread = {(await producer.send("t", b"v", key=b"%d" % number)).partition for number in range(200)}
                assert len(spread) > 32
                await client.delete_topic("t")
                await client.create_topic("t", 2)
                results = [await producer.send("t", b"again", key=b"%d" % number) for number in range(20)]
                assert {result.partition for result in results} == {0, 1}

    life()


def test_arrow_rows_go_where_single_records_go() -> None:
    draw = random.Random(3)
    keys = [draw.choice([b"", b"a", b"b%d" % draw.randrange(40)]) for _ in range(500)]
    values = [b"%d" % number for number in range(500)]

    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            for name in ("rows", "single", "mixed"):
                await client.create_topic(name, PARTITIONS)
            async with client.producer() as producer:
                await (await producer.send_batch("rows", pa.table({"key": keys, "value": values})))
                await (await producer.send_batch("rows", pa.table({"key": [b"a"], "value": [b"last"]})))
                await (
                    await producer.send_many(
                        "single", [ledgermq.Record(*each) for each in zip(values, keys, strict=True)]
                    )
                )
                await producer.send("single", b"last", key=b"a")
                some = [key if number % 3 else None for number, key in enumerate(keys)]
                await (await producer.send_batch("mixed", pa.table({"key": some, "value": values})))
            assert await stored(client, "rows") == await stored(client, "single")
            found = await stored(client, "mixed")
            [without] = {number for number, rows in enumerate(found) if any(key is None for key, *_ in rows)}
            assert without in range(PARTITIONS), "records without a key stay together"
            for number, rows in enumerate(found):
                assert all(key is None or partition_of_key(key, PARTITIONS) == number for key, *_ in rows)
                assert [int(row[1]) for row in rows] == sorted(int(row[1]) for row in rows)
            assert sum(map(len, found)) == 500

    life()


@in_cluster("a:1")
async def test_the_spill_begins_when_records_that_join_open_batches_fill_the_buffer(
    cluster: Cluster, tmp_path: Path
) -> None:
    own = OwnNetwork(cluster)
    async with own.client() as client:
        await client.create_topic("t", 2)
        async with client.producer(
            spill=Spill(tmp_path / "t.spill"), buffer_bytes_max=100_000, delivery_timeout_s=1000
        ) as producer:
            await producer.send("t", b"0", key=b"k")
            await cut_off(own)
            producer.send("t", b"1", key=b"k")
            await asyncio.sleep(1)
            producer.send("t", b"2", key=b"k")
            await asyncio.sleep(0.1)
            assert not producer._wake.is_set()
            for _ in range(200):
                producer.send("t", bytes(500), key=b"k")
            assert producer._wake.is_set(), "it does not wait for the next look at brokers"
            await asyncio.sleep(0.1)
            assert state_of(producer).records == 202
            own.heal()
            await emptied(producer)


@in_cluster("a:1")
async def test_what_is_sent_instead_is_whole_in_the_next_attempt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, refused, aborted = Transaction.commit, list[int](), list[int]()

    async def aborts_once(transaction: Transaction, timeout_s: float | None = None) -> None:
        if refused and not aborted:
            aborted.append(1)
            await transaction.abort()
            raise errors.TransactionAborted("its time was over")
        await commit(transaction, timeout_s)

    def to_dead(message: ledgermq.GroupMessage, error: Exception, attempt: int) -> ledgermq.Outgoing:
        refused.append(attempt)
        return ledgermq.Outgoing("dead", message.value, headers=iter([("why", b"too large")]))

    monkeypatch.setattr(Transaction, "commit", aborts_once)
    async with client_of(cluster) as client:
        for name in ("in", "out", "dead"):
            await client.create_topic(name, 1, {"max.message.bytes": 2000} if name == "out" else {})
        await fill(client, "in", 1)

        @client.handler("in", group="g", transactional=True, on_failure=to_dead, retry_ms_first=10, executor=Inline())
        def copy(message: ledgermq.GroupMessage) -> ledgermq.Outgoing:
            return ledgermq.Outgoing("out", b"x" * 4000)

        async with running(client):
            await until_copied(cluster, "dead", 1, 1)
        async with client.consumer("dead", start="earliest", until_end=True) as consumer:
            assert [message.headers async for message in consumer] == [(("why", b"too large"),)]
    assert (refused, aborted) == ([1], [1])
