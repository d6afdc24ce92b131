"""Records that expect where their partition ends, from the SDK to the store."""

from __future__ import annotations

import asyncio

import pytest

import ledgermq
from ledgermq.errors import ConditionFailed, InvalidRecord
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from tests.broker.cluster import Cluster, in_cluster


async def values_of(client: ledgermq.Client, topic: str = "t") -> list[bytes | None]:
    async with client.consumer(topic, until_end=True) as consumer:
        return [message.value async for message in consumer]


@in_cluster("a:1", "b:1")
async def test_a_record_is_stored_where_it_expects_the_end_and_refused_elsewhere(cluster: Cluster) -> None:
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("t", 2)
        assert (await producer.send("t", b"1", partition=0, expect_end=0)).offset == 0
        for wrong in (0, 5):
            with pytest.raises(ConditionFailed) as refused:
                await producer.send("t", b"no", partition=0, expect_end=wrong)
            assert refused.value.end == 1
        assert (await producer.send("t", b"2", partition=0, expect_end=1)).offset == 1
        assert (await producer.send("t", b"3", partition=0)).offset == 2
        sent = [producer.send("t", b"%d" % n, partition=0, expect_end=n - 1) for n in range(4, 12)]
        assert [(await each).offset for each in sent] == list(range(3, 11))
        assert await values_of(client) == [b"%d" % n for n in range(1, 12)]


@in_cluster("a:1")
async def test_a_failure_does_not_touch_the_records_around_it(cluster: Cluster) -> None:
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("t", 1)
        sent = [
            producer.send("t", b"a", partition=0),
            producer.send("t", b"b", partition=0, expect_end=7),
            producer.send("t", b"c", partition=0),
            producer.send("t", b"d", partition=0, expect_end=2),
        ]
        results = await asyncio.gather(*sent, return_exceptions=True)
        assert isinstance(results[1], ConditionFailed)
        assert [each.offset for each in (results[0], *results[2:])] == [0, 1, 2]  # type: ignore[union-attr]
        assert await values_of(client) == [b"a", b"c", b"d"]


@in_cluster("a:1", "b:1")
async def test_of_many_that_count_up_together_none_is_lost(cluster: Cluster) -> None:
    """Compare and append: each program adds one to the last number that it has read."""

    async def count(times: int) -> None:
        async with cluster.client() as client, client.producer() as producer:
            end = 0
            for _ in range(times):
                while True:
                    try:
                        end = (await producer.send("t", b"%d" % end, partition=0, expect_end=end)).offset + 1
                        break
                    except ConditionFailed as error:
                        end = error.end

    async with cluster.client() as client:
        await client.create_topic("t", 1)
        await asyncio.gather(*(count(5) for _ in range(4)))
        assert await values_of(client) == [b"%d" % n for n in range(20)]


@in_cluster("a:1")
async def test_what_cannot_expect_an_end_is_refused_at_once(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            for wrong in ({}, {"partition": 0, "expect_end": -1}, {"partition": 0, "expect_end": True}):
                with pytest.raises(InvalidRecord):
                    producer.send("t", b"x", **{"expect_end": 0, **wrong})
            with pytest.raises(InvalidRecord, match="delayed"):
                producer.send("t", b"x", partition=0, expect_end=0, delay=5)
        for settings in ({"acks": "received", "idempotent": False}, {"idempotent": False}):
            async with client.producer(**settings) as producer:  # type: ignore[arg-type]
                with pytest.raises(InvalidRecord, match="acks=durable"):
                    producer.send("t", b"x", partition=0, expect_end=0)
        assert await values_of(client) == []


@in_cluster("a:1")
async def test_a_batch_without_a_sequence_or_with_the_old_schema_takes_no_condition(cluster: Cluster) -> None:
    """Earlier releases refuse schema 2, which a condition needs: they would pass over it."""
    await cluster.create("t", 1)
    line = cluster.line("a:1")
    known = pb.ProducerSession(id=bytes(16))
    for session, schema, code in ((None, 2, "INVALID_REQUEST"), (known, 1, "CORRUPT_FRAME")):
        batch = pb.ProduceBatch(topic="t", length=1, record_count=1, schema=schema, producer=session, expect_end=0)
        answer = await line.produce_once(Frame(pb.ProduceHeader(acks=pb.DURABLE, batches=[batch]), [b"x"]))
        assert answer.results[0].error.code == code, answer
