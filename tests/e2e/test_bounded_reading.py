"""Read between two positions: ages, ends, tables; on brokers in virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import ledgermq
from ledgermq import errors
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import fill
from tests.e2e.test_client_takeover import client_of


async def offsets_of(consumer: ledgermq.Consumer) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    async for message in consumer:
        found.setdefault(message.partition, []).append(message.offset)
    return found


@in_cluster("a:1")
async def test_a_consumer_stops_at_its_end_though_producers_go_on(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 20)
        async with client.consumer("t", until_end=True) as consumer:
            assert not consumer.at_end
            await consumer.wait_ready()
            await fill(client, "t", 20)
            assert await offsets_of(consumer) == {0: list(range(10)), 1: list(range(10))}
            assert consumer.at_end
            assert await consumer.fetch() == []
            assert (await consumer.fetch_arrow()).num_rows == 0
            assert set(consumer.positions().values()) == {10}
            await consumer.seek(8)
            assert await offsets_of(consumer) == {0: [8, 9], 1: [8, 9]}
        async with client.consumer("t", start={0: 5}, end={0: 7}) as consumer:
            assert await offsets_of(consumer) == {0: [5, 6], 1: list(range(20))}
        async with client.consumer("t", start="latest", until_end=True) as consumer:
            assert await offsets_of(consumer) == {}
        for wrong in (
            {"end": "latest", "until_end": True},
            {"group": "g", "until_end": True},
            {"end": 5},
            {"start": "soon"},
        ):
            with pytest.raises(errors.InvalidConfig):
                client.consumer("t", **wrong)  # type: ignore[call-overload]


@in_cluster("a:1")
async def test_a_partition_that_is_not_read_is_refused_in_start_and_end(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        with pytest.raises(
            errors.UnknownPartition,
            match=r"start names partition 7 of topic 't'; this consumer reads partitions 0 to 1",
        ):
            await client.consumer("t", start={7: 0}).fetch()
        with pytest.raises(errors.UnknownPartition, match="end names partition 1"):
            await client.consumer("t", [0], end={1: 0}).fetch()


@in_cluster("a:1")
async def test_ages_count_back_from_now(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 3)
        await asyncio.sleep(3600)
        await fill(client, "t", 2)
        for start in ("30m", "0.5h", timedelta(minutes=30)):
            async with client.consumer("t", start=start, until_end=True) as consumer:
                assert await offsets_of(consumer) == {0: [3, 4]}
        async with client.consumer("t", start="7d", end="30m") as consumer:
            assert await offsets_of(consumer) == {0: [0, 1, 2]}
        async with client.consumer("t", group="g", start="30m") as member:
            assert [message.offset for message in await member.fetch()] == [3, 4]
            await member.seek("7d")
            assert [message.offset for message in await member.fetch(timeout=10)] == [0, 1, 2, 3, 4]


@in_cluster("a:1")
async def test_read_arrow_gives_one_table_of_bounded_size(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        assert (await client.read_arrow("t")).num_rows == 0
        await fill(client, "t", 20)
        table = await client.read_arrow("t", {0: 5}, {1: 3})
        assert sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)) == [
            *((0, offset) for offset in range(5, 10)),
            *((1, offset) for offset in range(3)),
        ]
        assert (await client.read_arrow("t", partitions=[1])).num_rows == 10
        with pytest.raises(errors.ResourceExhausted, match="more than 100 bytes"):
            await client.read_arrow("t", bytes_max=100)


@in_cluster("a:1")
async def test_topics_that_exist_durations_in_settings_and_names_that_are_nearly_right(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        made = await client.create_topic("orders", 2, {"retention.ms": "5d", "delete.retention.ms": timedelta(hours=1)})
        assert (made.settings["retention.ms"], made.settings["delete.retention.ms"]) == ("432000000", "3600000")
        again = await client.create_topic("orders", 7, if_not_exists=True)
        assert (again.topic_id, len(again.partitions)) == (made.topic_id, 2)
        assert (await client.create_topic("new", 1, if_not_exists=True)).name == "new"
        with pytest.raises(errors.TopicExists):
            await client.create_topic("orders", 2)
        altered = await client.alter_topic("orders", settings={"retention.ms": "1.5h"})
        assert altered.settings["retention.ms"] == "5400000"
        with pytest.raises(errors.InvalidConfig, match="or a duration: 604800000 or 7d"):
            await client.alter_topic("orders", settings={"retention.ms": "soon"})
        with pytest.raises(errors.UnknownTopic, match=r"topic 'ordres' does not exist; did you mean 'orders'\?"):
            await client.describe_topic("ordres")


@in_cluster("a:1")
async def test_a_reset_of_a_group_that_does_not_exist_says_so(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        with pytest.raises(errors.UnknownGroup):
            await client.groups.plan_reset("nosuch", "earliest")
        assert len(await client.groups.plan_reset("new", "earliest", ["t"])) == 1


@in_cluster("a:1")
async def test_a_delivery_that_is_not_done_says_so(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            delivery = producer.send("t", b"v")
            for look in (delivery.exception, delivery.result):
                with pytest.raises(asyncio.InvalidStateError, match="await the delivery"):
                    look()
            assert (await delivery).offset == 0
            assert delivery.exception() is None
