"""Topics with levels of priority, through clients of a whole cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

import ledgermq
from ledgermq.client.consuming.fetching.lanes import Lanes
from ledgermq.client.consuming.fetching.prefetch import DecodeAhead
from ledgermq.client.consuming.reading import FetchedRun, Reading
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import InvalidConfig, InvalidRecord
from ledgermq.protocol.methods import FETCH, Method
from ledgermq_broker.ports.in_process import InProcessConnection
from tests.broker.cluster import Cluster, in_cluster

LEVELS = {"priority.levels": "3"}


def level_of(message: ledgermq.Message) -> int:
    return message.partition % 3


async def fill(client: ledgermq.Client, each: int, **settings: Any) -> None:
    await client.create_topic("t", 6, settings=LEVELS)
    async with client.producer(**settings) as producer:
        for priority in range(3):
            for number in range(each):
                producer.send("t", b"%d-%d" % (priority, number), priority=priority)
            await producer.flush()


@pytest.mark.parametrize("keyless", ["sticky", "round_robin", "random"])
@in_cluster("a:1", "b:1")
async def test_a_priority_chooses_among_the_partitions_of_its_level(cluster: Cluster, keyless: str) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 7, settings=LEVELS)
        async with client.producer(partitioner=keyless, batch_bytes_max=2000) as producer:
            sent = []
            for number in range(300):
                key = b"%d" % number if number % 2 else None
                sent.append((producer.send("t", b"v" * 100, key=key, priority=number % 3), number % 3))
            none = [producer.send("t", b"v" * 100) for _ in range(50)]
            await producer.flush()
            used: dict[int, set[int]] = {level: set() for level in range(3)}
            for delivery, level in sent:
                result = await delivery
                assert result.partition % 3 == level
                used[level].add(result.partition)
            assert {(await delivery).partition % 3 for delivery in none} == {0}
            assert used == {0: {0, 3, 6}, 1: {1, 4}, 2: {2, 5}}
            one, two = [await producer.send("t", b"v", key=b"k", priority=2) for _ in range(2)]
            assert one.partition == two.partition
            many = await producer.send_many("t", [ledgermq.Record(b"v", priority=1)] * 20)
            assert {(await delivery).partition % 3 for delivery in many} == {1}


@in_cluster("a:1")
async def test_levels_are_read_by_their_weights_and_none_is_left_out(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 4000, batch_bytes_max=1 << 20)
        async with client.consumer("t", start="earliest", until_end=True) as consumer:
            await asyncio.sleep(5)  # batches of all levels are fetched ahead
            read = [message async for message in consumer]
        assert len(read) == 12_000
        first = Counter(level_of(message) for message in read[:3500])
        assert 1.8 < first[2] / first[1] < 2.2
        assert 1.8 < first[1] / first[0] < 2.2
        for partition in range(6):
            offsets = [message.offset for message in read if message.partition == partition]
            assert offsets == list(range(len(offsets))), "a partition is read in its order, all of it"


@in_cluster("a:1")
async def test_a_message_of_a_high_level_overtakes_a_backlog(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 0)
        async with client.producer(batch_bytes_max=1 << 20) as producer:
            await producer.send_many("t", [b"bulk" * 25] * 20_000)
            await producer.flush()
        async with client.consumer("t", start="earliest", prefetch_bytes_max=1 << 20) as consumer:
            assert len(await consumer.fetch(1000, timeout=30)) == 1000
            async with client.producer() as producer:
                await producer.send("t", b"urgent", priority=2)
            await asyncio.sleep(2)
            found = [message.value for message in await consumer.fetch(200, timeout=30)]
            assert b"urgent" in found[:65], "at most one piece is before it"


@in_cluster("a:1")
async def test_members_of_a_group_commit_and_go_on_between_levels(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 600)
        seen: list[bytes] = []
        for _ in range(3):
            async with client.consumer("t", group="g", start="earliest", commit="manual") as consumer:
                for _ in range(7):
                    for message in await consumer.fetch(73, timeout=10):
                        seen.append(message.value)
                        message.ack()
                await consumer.commit()
        assert len(set(seen)) == len(seen) == 3 * 7 * 73


@in_cluster("a:1")
async def test_arrow_filters_seeks_and_pauses_work_between_pieces(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 3, settings=LEVELS)
        async with client.producer(batch_bytes_max=1 << 20) as producer:
            for number in range(1000):
                for priority in range(3):
                    producer.send("t", b"%d" % number, priority=priority, tag="a" if number % 5 else "b")
            await producer.flush()
        async with client.consumer("t", start="earliest", filter="b", until_end=True) as consumer:
            assert Counter([level_of(message) async for message in consumer]) == {0: 200, 1: 200, 2: 200}
        async with client.consumer("t", start="earliest") as consumer:
            table = await consumer.fetch_arrow(100, timeout=10)
            assert table.num_rows == 100
            await consumer.fetch(50, timeout=10)
            await consumer.seek(990, partition=0)
            places = {partition: consumer.position(partition) for partition in range(3)}
            left: list[ledgermq.Message] = []
            while found := await consumer.fetch(500, timeout=3):
                left += found
            for partition in range(3):
                offsets = [message.offset for message in left if message.partition == partition]
                assert offsets == list(range(places[partition], 1000))
        async with client.consumer("t", group="g", start="earliest") as member:
            await member.fetch(100, timeout=10)
            member.pause([high := ledgermq.TopicPartition("t", 2)])
            rest = [message for _ in range(10) for message in await member.fetch(50, timeout=10)]
            assert {message.partition for message in rest} == {0, 1}
            member.resume([high])
            await asyncio.sleep(2)  # it is fetched again
            rest = [message for _ in range(10) for message in await member.fetch(50, timeout=10)]
            assert {message.partition for message in rest} == {0, 1, 2}


@in_cluster("a:1")
async def test_transactions_and_delays_keep_the_priority(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 0)
        async with client.producer() as producer, client.transactions("id") as transactions:
            await producer.send("t", b"later", priority=2, delay=5)
            async with transactions.begin() as transaction:
                transaction.send("t", b"staged", priority=1)
        await asyncio.sleep(10)
        async with client.consumer("t", start="earliest", until_end=True) as consumer:
            found = {message.value: message async for message in consumer}
        assert {value: level_of(message) for value, message in found.items()} == {b"later": 2, b"staged": 1}
        assert {value: message.priority for value, message in found.items()} == {b"later": 2, b"staged": 1}
        async with client.producer() as producer:  # sent on with its headers, to topics with and without levels
            await client.create_topic("few", 2, settings={"priority.levels": "2"})
            await client.create_topic("none", 1)
            for topic, level in (("few", 1), ("none", 0)):
                again = await producer.send(topic, b"x", headers=found[b"later"].headers)
                assert again.partition == level


@in_cluster("a:1")
async def test_queue_groups_lease_by_weights_too(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 400)
        given: list[ledgermq.Message] = []
        async with client.queue("t", group="workers") as queue:
            while len(given) < 1200:
                for message in await queue.fetch(10, timeout=10):
                    given.append(message)
                    message.ack()
        first = Counter(level_of(message) for message in given[:420])
        assert 1.8 < first[2] / first[1] < 2.2
        assert 1.8 < first[1] / first[0] < 2.2
        assert len({(message.partition, message.offset) for message in given}) == 1200


@in_cluster("a:1")
async def test_an_urgent_job_overtakes_a_backlog(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 0)
        async with client.producer() as producer:
            await producer.send_many("t", [b"bulk"] * 5000)
        async with client.queue("t", group="workers") as queue, client.producer() as producer:
            for message in await queue.fetch(10, timeout=10):
                message.ack()
            await producer.send("t", b"urgent", priority=2)
            await asyncio.sleep(1)
            found = [message for _ in range(4) for message in await queue.fetch(10, timeout=10)]
            assert b"urgent" in [message.value for message in found]


@in_cluster("a:1")
async def test_what_is_wrong_is_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await fill(client, 0)
        await client.create_topic("plain", 2)
        async with client.producer() as producer:
            for arguments, why in (
                ({"priority": 3}, r"priority 3 is too high: topic t has the levels 0 to 2"),
                ({"priority": -1}, "a whole number from 0 to 9"),
                ({"priority": 1, "partition": 1}, "leave out the partition"),
                ({"priority": 1, "headers": {"ledgermq.priority": b"1"}}, "both a priority and the header"),
            ):
                with pytest.raises(InvalidRecord, match=why):
                    await producer.send("t", b"v", **arguments)  # type: ignore[arg-type]
            with pytest.raises(InvalidRecord, match=r"topic plain has no levels of priority: set priority.levels"):
                await producer.send("plain", b"v", priority=0)
            assert (await producer.send("t", b"v", partition=2)).partition == 2
        with pytest.raises(InvalidConfig, match=r"priority.levels=3 needs as many partitions at least"):
            await client.create_topic("small", 2, settings=LEVELS)
        with pytest.raises(InvalidConfig, match="needs as many partitions"):
            await client.alter_topic("plain", settings=LEVELS)
        await client.alter_topic("plain", partitions=3, settings=LEVELS)
        with pytest.raises(InvalidConfig, match=r"cannot have priority.levels"):
            await client.create_topic("keyed", 3, settings=LEVELS | {"cleanup.policy": "compact"})


@pytest.mark.parametrize(("levels", "members"), [(2, 1), (2, 3), (3, 1), (3, 2)])
@in_cluster("a:1", "b:1")
async def test_queue_groups_keep_the_weights_with_several_owners(cluster: Cluster, levels: int, members: int) -> None:
    """Each broker owns partitions of one level only where there are two."""
    async with cluster.client() as client:
        await client.create_topic("t", 2 * levels, settings={"priority.levels": str(levels)})
        assert {await cluster.owner_of("t", number) for number in range(2 * levels)} == {"a:1", "b:1"}
        async with client.producer() as producer:
            for level in range(levels):
                await producer.send_many("t", [ledgermq.Record(b"v", priority=level) for _ in range(1500)])
        given: list[int] = []

        async def work(queue: ledgermq.Queue) -> None:
            while len(given) < 900:
                for message in await queue.fetch(10, timeout=10):
                    given.append(message.partition % levels)
                    message.ack()
                    await asyncio.sleep(0.01)

        queues = [client.queue("t", group="workers") for _ in range(members)]
        await asyncio.gather(*map(work, queues))
        for queue in queues:
            await queue.close()
        counts = Counter(given[:900])
        for level in range(levels - 1):
            assert 1.8 < counts[level + 1] / counts[level] < 2.2, counts


@in_cluster("a:1", "b:1")
async def test_a_level_without_messages_delays_no_other(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 4, settings={"priority.levels": "2"})
        async with client.producer() as producer, client.queue("t", group="workers") as queue:
            await producer.send_many("t", [ledgermq.Record(b"urgent", priority=1) for _ in range(20)])
            await producer.send_many("t", [b"bulk"] * 500)
            begun, found = asyncio.get_running_loop().time(), 0
            while found < 520:
                for message in await queue.fetch(10, timeout=10):
                    found += 1
                    message.ack()
            assert asyncio.get_running_loop().time() - begun < 5
            waiting = asyncio.create_task(queue.fetch(10, timeout=20))
            await asyncio.sleep(5)
            await producer.send("t", b"urgent", priority=1)
            assert [message.value for message in await waiting] == [b"urgent"]
            await producer.send_many("t", [b"bulk"] * 3)
            assert len(await queue.fetch(10, timeout=0.5)) > 0


@in_cluster("a:1")
async def test_rows_of_a_table_go_to_the_levels_of_their_headers(cluster: Cluster) -> None:
    """So what was read with its headers keeps its level when it is sent on."""
    async with cluster.client() as client:
        await client.create_topic("t", 6, settings=LEVELS)
        await client.create_topic("next", 4, settings={"priority.levels": "2"})
        priorities = [None, b"1", b"2", b"9", b"x", b"2"]
        rows = {
            "value": [b"%d" % number for number in range(6)],
            "headers": [None if p is None else [{"key": "ledgermq.priority", "value": p}] for p in priorities],
        }
        async with client.producer() as producer:
            await (await producer.send_batch("t", pa.table(rows)))
        async with client.consumer("t", start="earliest", until_end=True) as consumer:
            found = {message.value: message.partition % 3 async for message in consumer}
        assert found == {b"0": 0, b"1": 1, b"2": 2, b"3": 2, b"4": 0, b"5": 2}
        async with client.consumer("t", until_end=True) as consumer, client.producer() as producer:
            sent = 0
            while sent < 6:
                table = await consumer.fetch_arrow(timeout=10)
                await (await producer.send_batch("next", table.select(["value", "headers"])))
                sent += table.num_rows
        async with client.consumer("next", until_end=True) as consumer:
            found = {message.value: message.partition % 2 async for message in consumer}
        assert found == {b"0": 0, b"1": 1, b"2": 1, b"3": 1, b"4": 0, b"5": 1}


@pytest.mark.parametrize("late_s", [0.5, 30.0])
def test_a_consumer_that_has_just_started_waits_a_moment_for_the_answers_about_high_levels(
    monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """Another broker than that of the backlog may answer late; but only so late."""

    @in_cluster("a:1", "b:1")
    async def scenario(cluster: Cluster) -> None:
        async with cluster.client() as client:
            await fill(client, 2000, batch_bytes_max=1 << 20)
            owners = {await cluster.owner_of("t", partition) for partition in (2, 5)}
            stream = InProcessConnection.stream

            async def slow(self: InProcessConnection, method: Method, request: Any) -> AsyncIterator[Any]:
                wanted = {part.partition % 3 for part in request.partitions} if method is FETCH else set()
                if wanted == {2} and self.address in owners:
                    await asyncio.sleep(late_s)
                async for answer in stream(self, method, request):
                    yield answer

            monkeypatch.setattr(InProcessConnection, "stream", slow)
            begun_s = asyncio.get_running_loop().time()
            async with client.consumer("t", start="earliest") as consumer:
                levels = Counter(level_of(message) for message in await consumer.fetch(700, timeout=20))
                took_s = asyncio.get_running_loop().time() - begun_s
                if late_s < 1:
                    assert took_s < late_s + 0.1
                    assert levels[2] > levels[1] > levels[0] > 0
                else:
                    assert took_s < 1.1
                    assert levels[2] == 0
                assert await consumer.fetch(1, timeout=0.01)

    scenario()


@in_cluster("a:1")
async def test_a_first_fetch_with_little_time_gets_what_is_there(cluster: Cluster) -> None:
    lanes = Lanes(1 << 20, DecodeAhead(None, 1 << 20))
    lanes.expect({0, 1})
    low = FetchedRun(Reading(TopicPartition("t", 0), 1, 0, cluster.client()._connections.backoff()), 0, 0, 1, 0, b"")
    lanes.lane(0, 2).add(low)
    assert lanes.head() is None
    answered = lanes.lane(1, 2).opens()
    assert lanes.head() is None
    assert lanes.wait_no_longer()
    assert lanes.head() is low
    assert not lanes.wait_no_longer()
    answered()
