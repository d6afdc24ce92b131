"""The SDK against real brokers, in this process and over gRPC: sent records are read, and each
error is raised to its caller.
"""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import ledgermq
from ledgermq import errors
from ledgermq.buffers import Buffer
from ledgermq.client.settings.partitioner import partition_of_key
from ledgermq.protocol.batches.batch_header import BatchInfo
from ledgermq_broker.paths import received_batches
from tests.e2e.two_ways import Connect, a_topic, connect_two_ways, values_of

connect = pytest.fixture(params=["in_process", "grpc"])(connect_two_ways)


# -- what goes in comes out
# ----------------------------------------------------------------------------------------------


async def test_a_message_is_what_was_sent(connect: Connect) -> None:
    moment = datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)
    async with a_topic(connect) as client, client.producer() as producer:
        result = await producer.send(
            "t", b"value", key="key", headers={"a": b"1", "b": None}, tag="blue", timestamp=moment
        )
        assert result == ("t", partition_of_key(b"key", 2), 0, result.timestamp_us, None)
        assert result.timestamp == moment
        async with client.consumer("t") as consumer:
            message = await anext(consumer)
        assert message == (
            "t",
            result.partition,
            0,
            b"key",
            b"value",
            (("a", b"1"), ("b", None)),
            result.timestamp_us,
            "blue",
        )
        assert message.timestamp == moment


async def test_the_order_of_a_key_is_the_order_of_sending(connect: Connect) -> None:
    async with a_topic(connect, 4) as client:
        async with client.producer(batch_bytes_max=500) as producer:
            for number in range(2000):
                producer.send("t", str(number), key=f"k{number % 7}")
        read: dict[bytes | None, list[int]] = {}
        async with client.consumer("t") as consumer:
            for _ in range(2000):
                message = await anext(consumer)
                assert message.value is not None
                read.setdefault(message.key, []).append(int(message.value))
        assert read == {f"k{k}".encode(): list(range(k, 2000, 7)) for k in range(7)}


@pytest.mark.parametrize(
    "settings", [{"compression": "none"}, {"compression": "zstd"}, {"acks": "received"}, {"idempotent": False}]
)
async def test_every_way_of_producing_stores_the_records(connect: Connect, settings: dict[str, object]) -> None:
    async with a_topic(connect, 1) as client:
        async with client.producer(**settings) as producer:
            results = await asyncio.gather(*(producer.send("t", b"%d" % number) for number in range(100)))
        assert [result.offset for result in results] == ([-1] * 100 if "acks" in settings else list(range(100)))
        async with client.consumer("t") as consumer, asyncio.timeout(20):
            assert [(await anext(consumer)).value for _ in range(100)] == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
async def test_the_topic_s_compression_wins(connect: Connect, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = []
    walk = received_batches.walk_batch

    def seen(data: Buffer, *, decoded_bytes_max: int) -> BatchInfo:
        stored.append(walk(data, decoded_bytes_max=decoded_bytes_max))
        return stored[-1]

    monkeypatch.setattr(received_batches, "walk_batch", seen)
    others = "zstd" if codec == "none" else "none"
    async with a_topic(connect, 1, compression_type=codec) as client, client.producer(compression=others) as producer:
        await producer.send("t", b"x" * 10_000)
        assert await values_of(client) == [b"x" * 10_000]
    assert [info.codec for info in stored] == [codec]


async def test_many_records_wait_for_room(connect: Connect) -> None:
    async with a_topic(connect, 2) as client:
        async with client.producer(buffer_bytes_max=50_000) as producer:
            held = 0

            def records() -> object:
                nonlocal held
                for number in range(3000):
                    held = max(held, producer.buffered_bytes)
                    yield ledgermq.Record(b"x" * 100, key=b"%d" % number)

            deliveries = await producer.send_many("t", records())  # type: ignore[arg-type]
            assert len(deliveries) == 3000
        assert held <= 50_000
        assert len(await values_of(client)) == 3000


@pytest.mark.parametrize("every_keyed", [0, 700])
async def test_each_of_many_values_is_where_its_delivery_says(connect: Connect, every_keyed: int) -> None:
    """Values join batches many at a time: over the ends of batches, and with a buffer that holds a
    tenth of them.
    """
    records: list[bytes | ledgermq.Record] = [b"%d " % n + b"x" * (n * 37 % 300) for n in range(3000)]
    for n in range(0, len(records), every_keyed or len(records) + 1):
        records[n] = ledgermq.Record(records[n], key=b"k") if every_keyed else b""
    async with a_topic(connect, 2) as client:
        async with client.producer(batch_bytes_max=7000, buffer_bytes_max=100_000) as producer:
            deliveries = await producer.send_many("t", records)
            assert producer.buffered_bytes <= 100_000
            places = [await delivery for delivery in deliveries]
        assert producer.buffered_bytes == 0
        stored = {}
        async with client.consumer("t") as consumer:
            while len(stored) < len(records):
                stored |= {(m.partition, m.offset): m.value for m in await consumer.fetch(timeout=10)}
    assert len(deliveries) == len(records)
    for place, record in zip(places, records, strict=True):
        value = record.value if isinstance(record, ledgermq.Record) else record
        assert stored[place.partition, place.offset] == value


async def test_a_full_buffer_fails_fast_if_so_set(connect: Connect) -> None:
    async with a_topic(connect, 1) as client, client.producer(buffer_bytes_max=2000, when_full="fail") as producer:
        accepted = []
        with pytest.raises(errors.ResourceExhausted):
            accepted += [producer.send("t", b"x" * 500) for _ in range(10)]
        with pytest.raises(errors.ResourceExhausted):
            await producer.send_many("t", [b"x" * 500] * 10)
        await producer.flush()
        await producer.send("t", b"again")
        assert (await values_of(client))[-1] == b"again"


async def test_a_partitioner_of_one_s_own(connect: Connect) -> None:
    async with (
        a_topic(connect, 3) as client,
        client.producer(partitioner=lambda record, count: int(record.value) % count) as producer,
    ):
        assert (await producer.send("t", b"5", key=b"k")).partition == 2
        assert (await producer.send("t", "4")).partition == 1
        batch = pa.RecordBatch.from_pydict({"value": ["3", "5", "8"], "tag": ["a", None, "b"]})
        results = await (await producer.send_batch("t", batch))
        assert sorted((result.partition, result.record_count) for result in results) == [(0, 1), (2, 2)]


async def test_a_partitioner_gets_the_whole_record(connect: Connect) -> None:
    seen: list[ledgermq.Outgoing] = []

    def first(record: ledgermq.Outgoing, count: int) -> int:
        seen.append(record)
        return 0

    async with a_topic(connect, 3) as client, client.producer(partitioner=first) as producer:
        await producer.send("t", "v", "k", headers={"h": "1"}, tag="T", timestamp=5)
        columns = {"value": ["v"], "key": ["k"], "headers": [[("h", b"1")]], "tag": ["T"], "timestamp": [5]}
        types = {"headers": pa.map_(pa.string(), pa.binary()), "timestamp": pa.timestamp("us", "UTC")}
        arrays = {name: pa.array(given, types.get(name)) for name, given in columns.items()}
        await (await producer.send_batch("t", pa.record_batch(arrays)))
        assert seen == [("t", b"v", b"k", [("h", b"1")], "T", 5, None, None)] * 2
        async with client.producer(partitioner=lambda record, count: count) as wrong:
            with pytest.raises(errors.UnknownPartition):
                await wrong.send("t", b"v")


async def test_records_without_a_key_go_round_or_anywhere(connect: Connect) -> None:
    async with a_topic(connect, 3) as client:
        async with client.producer(partitioner="round_robin") as producer:
            sent = [producer.send("t", b"v") for _ in range(9)]
            chosen = [(await delivery).partition for delivery in sent]
            assert all((after - before) % 3 == 1 for before, after in itertools.pairwise(chosen))
            keyed = {(await producer.send("t", b"v", key=b"k")).partition for _ in range(5)}
            assert keyed == {partition_of_key(b"k", 3)}
            batch = pa.RecordBatch.from_pydict({"value": [b"a"] * 6})
            results = await (await producer.send_batch("t", batch))
            assert [result.record_count for result in results] == [2, 2, 2]
        async with client.producer(partitioner="random") as producer:
            many = await producer.send_many("t", [b"v"] * 100)
            assert {(await delivery).partition for delivery in many} == {0, 1, 2}
        with pytest.raises(errors.InvalidConfig, match="sticky, round_robin, random or a function"):
            client.producer(partitioner="sticki")


# -- where reading begins
# ------------------------------------------------------------------------------------------------


async def test_reading_begins_where_it_is_told(connect: Connect) -> None:
    async with a_topic(connect, 1) as client, client.producer() as producer:
        start = datetime(2024, 1, 1, tzinfo=UTC)
        for day in range(5):
            await producer.send("t", b"%d" % day, timestamp=start + timedelta(days=day))
        assert await values_of(client) == [b"0", b"1", b"2", b"3", b"4"]
        assert await values_of(client, start={0: 3}) == [b"3", b"4"]
        assert await values_of(client, start=start + timedelta(days=1, hours=1)) == [b"2", b"3", b"4"]
        assert await values_of(client, start=start + timedelta(days=9)) == []
        async with client.consumer("t", start="latest") as consumer:
            await consumer.wait_ready()
            await producer.send("t", b"new")
            assert (await anext(consumer)).value == b"new"


async def test_seek_goes_anywhere(connect: Connect) -> None:
    async with a_topic(connect, 2) as client, client.producer() as producer:
        for number in range(10):
            await producer.send("t", b"%d" % number, partition=number % 2)
        async with client.consumer("t") as consumer:
            first = [await anext(consumer) for _ in range(3)]
            assert consumer.position(first[0].partition) > 0
            await consumer.seek("earliest")
            assert set(consumer.positions().values()) == {0}
            await consumer.seek(4, partition=1)
            await consumer.seek("latest", partition=0)
            assert [message.value for message in await consumer.fetch(timeout=5)] == [b"9"]
            assert await consumer.fetch(timeout=0.1) == []
            assert consumer.positions() == await consumer.end_offsets() == {("t", 0): 5, ("t", 1): 5}


async def test_two_topics_are_read_by_one_consumer(connect: Connect) -> None:
    async with a_topic(connect, 1) as client, client.producer() as producer:
        await client.create_topic("u", 1)
        await asyncio.gather(producer.send("t", b"1"), producer.send("u", b"2"))
        async with client.consumer(["t", "u"], start={("u", 0): 0}) as consumer:
            assert {(m.topic, m.value) for m in [await anext(consumer), await anext(consumer)]} == {
                ("t", b"1"),
                ("u", b"2"),
            }


async def test_added_partitions_are_read(connect: Connect) -> None:
    async with (
        connect(metadata_age_s_max=0.2) as client,
        client.producer() as producer,
        client.consumer("t") as consumer,
    ):
        await client.create_topic("t", 1)
        await producer.send("t", b"old")
        assert (await anext(consumer)).value == b"old"
        await client.alter_topic("t", partitions=3)
        await producer.send("t", b"new", partition=2)
        async with asyncio.timeout(20):
            assert (await anext(consumer)).value == b"new"


# -- what is wrong
# -------------------------------------------------------------------------------------------------------


async def test_a_bad_record_fails_alone(connect: Connect) -> None:
    async with a_topic(connect, 1, max_message_bytes=1000), connect() as client, client.producer() as producer:
        # Nothing is known of the topic yet: these are told where they are awaited.
        early = [producer.send("t", b"a"), producer.send("t", b"x" * 2000), producer.send("t", b"b", partition=9)]
        assert (await early[0]).offset == 0
        with pytest.raises(errors.MessageTooLarge):
            await early[1]
        with pytest.raises(errors.UnknownPartition):
            await early[2]
        with pytest.raises(errors.MessageTooLarge):
            producer.send("t", b"x" * 2000)
        with pytest.raises(errors.UnknownPartition):
            producer.send("t", b"b", partition=9)
        with pytest.raises(errors.InvalidRecord):
            producer.send("t", 5)  # type: ignore[arg-type]
        assert (await producer.send("t", b"c")).offset == 1
        assert await values_of(client) == [b"a", b"c"]


async def test_a_topic_that_accepts_nothing_says_so(connect: Connect) -> None:
    async with a_topic(connect, 1, accept_publish=False, accept_subscribe=False) as client:
        with pytest.raises(errors.PublishNotAccepted):
            await client.producer().send("t", b"v")
        with pytest.raises(errors.SubscribeNotAccepted):
            await client.consumer("t").fetch(timeout=10)
        await client.alter_topic("t", unset=["accept.publish", "accept.subscribe"])
        async with client.producer() as producer:
            await producer.send("t", b"v")
        assert await values_of(client) == [b"v"]


async def test_an_error_that_was_not_awaited_comes_up_at_the_next_flush(connect: Connect) -> None:
    async with a_topic(connect, 1, accept_publish=False) as client:
        producer = client.producer()
        producer.send("t", b"lost")
        with pytest.raises(errors.PublishNotAccepted):
            await producer.flush()
        await producer.flush()
        producer.send("t", b"lost")
        with pytest.raises(errors.PublishNotAccepted):
            await producer.close()
        with pytest.raises(errors.Closed):
            producer.send("t", b"after the end")


async def test_offsets_out_of_range(connect: Connect) -> None:
    async with a_topic(connect, 1) as client, client.producer() as producer:
        await producer.send("t", b"0")
        with pytest.raises(errors.OffsetOutOfRange, match="t/0, offset 99"):
            await client.consumer("t", start={0: 99}).fetch(timeout=10)
        reset = client.consumer("t", start={0: 99}, auto_offset_reset="earliest")
        assert [message.value for message in await reset.fetch(timeout=10)] == [b"0"]


async def test_a_deleted_and_recreated_topic_shows_nothing_old(connect: Connect) -> None:
    async with a_topic(connect, 1) as client, client.producer() as producer:
        await producer.send("t", b"old")
        await client.delete_topic("t", now=True)
        with pytest.raises((errors.UnknownTopic, errors.TopicBeingDeleted)):
            await client.describe_topic("t")
        async with asyncio.timeout(60):
            while True:
                try:
                    await client.create_topic("t", 1)
                except errors.TopicBeingDeleted:
                    await asyncio.sleep(0.1)
                else:
                    break
        async with connect() as other, other.producer() as fresh:
            assert (await fresh.send("t", b"new")).offset == 0
            assert await values_of(other) == [b"new"]


async def test_administration(connect: Connect) -> None:
    async with a_topic(connect, 3, retention_ms=5000) as client:
        (listed,) = await client.list_topics()
        described = await client.describe_topic("t")
        assert listed.name == described.name == "t"
        assert (len(described.partitions), described.settings) == (3, {"retention.ms": "5000"})
        assert all(partition.owner and partition.bundle for partition in described.partitions)
        with pytest.raises(errors.TopicExists):
            await client.create_topic("t")
        with pytest.raises(errors.InvalidTopicName):
            await client.create_topic("../etc")
        with pytest.raises(errors.InvalidConfig):
            await client.create_topic("u", settings={"retention": 5})
        with pytest.raises(errors.UnknownTopic):
            await client.alter_topic("nope", 5)
        with pytest.raises(errors.UnknownTopic):
            await client.delete_topic("nope")
        assert await client.list_offsets("t") == {0: 0, 1: 0, 2: 0}
        cluster = await client.describe_cluster()
        assert cluster.cluster_id
        assert cluster.controller
        assert [bundle.bundle for bundle in cluster.bundles] == [0, 1, 2, 3, 4]
