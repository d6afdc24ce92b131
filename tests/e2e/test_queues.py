"""Queues through the client, in a cluster of brokers in this process and in virtual time."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from datetime import timedelta

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.client.groups.retry_topics import failures_of
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.queued import fill, values
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until


@in_cluster("a:1")
async def test_fetch_and_ack(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 10)
        async with client.queue("jobs", group="workers") as queue:
            messages = await queue.fetch(max_records=4, timeout=3)
            assert values(messages) == [0, 1, 2, 3]
            assert {message.attempt for message in messages} == {1}
            assert all([await message.ack() for message in messages])
            others = await queue.fetch(max_records=50, timeout=3)
            assert values(others) == [4, 5, 6, 7, 8, 9]
            for message in others:
                message.ack()
            await queue.flush()
            assert await queue.fetch(timeout=0.5) == []
            assert await others[0].ack(), "finished is finished"
            assert not await others[0].nack()
        described = await client.queues.describe("workers")
        assert (described.backlog, described.leased) == (0, 0)
        assert pickle.loads(pickle.dumps(messages[0])) == messages[0]
        assert type(pickle.loads(pickle.dumps(messages[0]))) is ledgermq.Message


@in_cluster("a:1")
async def test_a_late_acknowledgement_is_told_from_one_that_counts(cluster: Cluster) -> None:
    """Also if both are about the same message, and said together."""
    async with client_of(cluster) as client:
        await fill(client, 2)
        async with client.queue("jobs", group="workers", lease_s=1) as one:
            late = await one.fetch(timeout=3)
            await asyncio.sleep(2)
            (mine,) = await one.fetch(max_records=1, timeout=3)
            async with client.queue("jobs", group="workers") as two:
                (theirs,) = await two.fetch(max_records=1, timeout=3)
                assert (mine.offset, theirs.offset) == (0, 1)
                assert await theirs.ack()
                replies = [late[0].ack(), mine.ack(), late[1].ack(), mine.ack()]
                assert [await reply for reply in replies] == [False, True, False, True]


@in_cluster("a:1", "b:1")
async def test_members_share_partitions(cluster: Cluster) -> None:
    seen: Counter[int] = Counter()

    async def member(client: ledgermq.Client) -> None:
        async with client.queue("jobs", group="workers", iteration_records_max=5) as queue:
            async for message in queue:
                seen[int(message.value or b"")] += 1
                await asyncio.sleep(0.01)
                message.ack()

    async with client_of(cluster) as client:
        await fill(client, 300, partitions=3)
        members = [asyncio.create_task(member(client)) for _ in range(4)]
        await until(lambda: len(seen) == 300, 30)
        await asyncio.sleep(1)
        for task in members:
            task.cancel()
        await asyncio.wait(members)
        assert set(seen.values()) == {1}
        assert (await client.queues.describe("workers")).backlog == 0


@in_cluster("a:1")
async def test_a_message_that_is_given_back_comes_again_at_its_time(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 2)
        async with client.queue("jobs", group="workers") as queue:
            first, second = await queue.fetch()
            begun_s = asyncio.get_running_loop().time()
            assert await first.nack(delay=5)
            assert await second.ack()
            [again] = await queue.fetch(timeout=20)
            assert 5 <= asyncio.get_running_loop().time() - begun_s < 6
            assert (again.value, again.attempt) == (b"0", 2)
            with pytest.raises(errors.InvalidRequest, match="number"):
                again.nack(delay=float("inf"))
            with pytest.raises(errors.InvalidRequest, match="12 hours"):
                again.extend(timedelta(days=50))


@in_cluster("a:1")
async def test_a_message_goes_to_the_dead_letter_topic_after_its_last_attempt(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 3)
        async with client.queue("jobs", group="workers", attempts_max=3) as queue:
            for attempt in (1, 2, 3):
                for message in await queue.fetch(timeout=5):
                    if message.offset == 1:
                        assert message.attempt == attempt
                        assert await message.nack(error=f"failure {attempt}")
                    elif message.offset == 2:
                        assert await message.dead_letter("not wanted")
                    else:
                        message.ack()
            await queue.flush()
            assert queue.dead_lettered == 2
            assert await queue.fetch(timeout=1) == []
        async with client.consumer("workers.dlq", until_end=True) as consumer:
            dead = {message.value: failures_of(message.headers) async for message in consumer}
        assert dead.keys() == {b"1", b"2"}
        found = dead[b"1"]
        assert found is not None
        assert (found.group, found.origin.offset, found.attempts, found.error) == ("workers", 1, 3, "failure 3")


@in_cluster("a:1")
async def test_a_message_that_kills_its_members_is_buried_by_another(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 1)
        async with client.queue("jobs", group="workers", lease_s=1.0, attempts_max=2) as queue:
            for attempt in (1, 2):
                [message] = await queue.fetch(timeout=5)
                assert message.attempt == attempt
            assert await queue.fetch(timeout=5) == []
            await queue.flush()
            assert queue.dead_lettered == 1
        async with client.consumer("workers.dlq", until_end=True) as consumer:
            [found] = [message async for message in consumer]
        assert found.value == b"0"


@in_cluster("a:1")
async def test_without_dead_letters_a_message_is_dropped(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 1)
        async with client.queue("jobs", group="workers", attempts_max=1, dead_letters=False) as queue:
            [message] = await queue.fetch()
            assert await message.nack()
            assert await queue.fetch() == []
        assert (await client.queues.describe("workers")).backlog == 0
        with pytest.raises(errors.UnknownTopic):
            await client.describe_topic("workers.dlq")


@in_cluster("a:1")
async def test_a_dead_letter_topic_with_other_records_is_refused(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 1)
        await fill(client, 1, "workers.dlq")
        async with client.queue("jobs", group="workers", attempts_max=1) as queue:
            [message] = await queue.fetch()
            with pytest.raises(errors.InvalidConfig, match="did not put there"):
                await message.nack()
            assert await queue.fetch(timeout=20) == []
        assert (await client.queues.describe("workers")).backlog == 1, "the message is not lost"


@in_cluster("a:1")
async def test_what_a_closed_member_has_not_finished_comes_at_once(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 4)
        async with client.queue("jobs", group="workers") as queue:
            async for message in queue:
                assert await message.ack()
                break
            [_] = await queue.fetch(1)
        begun_s = asyncio.get_running_loop().time()
        async with client.queue("jobs", group="workers") as queue:
            found = await queue.fetch(timeout=10)
            assert asyncio.get_running_loop().time() - begun_s < 1
        assert [(m.offset, m.attempt) for m in found] == [(1, 2), (2, 1), (3, 1)]


@in_cluster("a:1")
async def test_messages_that_the_program_does_not_take_are_returned(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 10)
        async with (
            client.queue("jobs", group="workers", lease_s=8.0, iteration_records_max=10) as slow,
            client.queue("jobs", group="workers") as other,
        ):
            messages = aiter(slow)
            first = await anext(messages)
            found = await other.fetch(timeout=5)
            assert [(m.offset, m.attempt) for m in found] == [(offset, 1) for offset in range(1, 10)]
            assert await first.ack()


@in_cluster("a:1")
async def test_extend(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 1)
        async with client.queue("jobs", group="workers", lease_s=2.0) as queue:
            [message] = await queue.fetch()
            for _ in range(5):
                await asyncio.sleep(1.5)
                assert await message.extend()
            assert await message.ack()
            assert not await message.extend(), "it is finished"


@in_cluster("a:1", "b:1")
async def test_acknowledgements_survive_their_broker(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 20)
        async with client.queue("jobs", group="workers") as queue:
            messages = await queue.fetch()
            assert all([await message.ack() for message in messages[:10]])
            await cluster.stop(await cluster.owner_of("jobs", 0), graceful=False)
            replies = [message.ack() for message in messages[10:]]
            assert not any([await reply for reply in replies]), "their leases were of the former owner"
            again = await queue.fetch(timeout=30)
            assert values(again) == list(range(10, 20))
            assert all([await message.ack() for message in again])


@in_cluster("a:1")
async def test_where_a_group_begins_and_begins_again(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 3)
        async with client.queue("jobs", group="late", start="latest") as queue:
            assert await queue.fetch(timeout=1) == []
            await fill(client, 2)
            assert [m.offset for m in await queue.fetch(timeout=5)] == [3, 4]
            assert await client.queues.reset("late", "jobs", 2) == {ledgermq.TopicPartition("jobs", 0): 2}
            assert [(m.offset, m.attempt) for m in await queue.fetch(timeout=5)] == [(2, 1), (3, 1), (4, 1)]
        assert [each.group for each in await client.queues.list()] == ["late"]
        await client.queues.delete("late", "jobs")
        assert await client.queues.list() == []
        with pytest.raises(errors.UnknownGroup):
            await client.queues.describe("late")
        with pytest.raises(errors.OffsetOutOfRange):
            await client.queues.reset("late", "jobs", 99)


@in_cluster("a:1")
async def test_expired_messages_are_skipped(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("jobs", 1)
        async with client.producer() as producer:
            await producer.send("jobs", b"0", ttl=5)
            await producer.send("jobs", b"1")
        await asyncio.sleep(10)
        async with client.queue("jobs", group="workers") as queue:
            [message] = await queue.fetch()
            assert (message.value, queue.expired) == (b"1", 1)
            assert await message.ack()
        assert (await client.queues.describe("workers")).backlog == 0


@in_cluster("a:1")
async def test_what_is_refused(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        for wrong in ({"group": ""}, {"group": "g", "lease_s": 0.1}, {"group": "g", "start": "error"}):
            with pytest.raises(errors.LedgerMQError):
                client.queue("jobs", **wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidConfig, match="pattern"):
            client.queue("^jobs", group="g")
        with pytest.raises(errors.InvalidConfig, match="concurrency"):
            client.queue_handler("jobs", group="g", concurency=1)
        await fill(client, 1)
        async with client.queue("jobs", group="a group") as queue:
            with pytest.raises(errors.InvalidGroupName):
                await queue.fetch(timeout=20)
        async with client.queue("nothing", group="g") as queue:
            with pytest.raises(errors.UnknownTopic):
                await queue.fetch(timeout=20)
            with pytest.raises(errors.InvalidRequest, match="max_records"):
                await queue.fetch(0)
        with pytest.raises(errors.Closed, match="closed"):
            await queue.fetch()


@in_cluster("a:1")
async def test_settings_of_a_member(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("jobs", 1)
        async with client.producer(linger_ms=0) as producer:
            for number in range(4):
                await producer.send("jobs", bytes([number]) * 1000)
        async with client.queue("jobs", group="small", fetch_bytes_max=1500, client_id="mine") as queue:
            assert len(await queue.fetch(timeout=5)) == 2, (
                "fetch_bytes_max: at least one batch, and no more than needed"
            )
            [member] = (await client.queues.describe("small")).partitions[0].members
            assert member.member_id == queue.member_id
            assert member.member_id.startswith("mine-")
        async with client.queue("jobs", group="other", decoded_bytes_max=10) as queue:
            with pytest.raises(errors.MessageTooLarge):
                await queue.fetch(timeout=5)
        async with client.queue("jobs", group="late", request_timeout_s=5) as queue:
            await queue.fetch(1)
            await cluster.stop("a:1", graceful=False)
            begun_s = asyncio.get_running_loop().time()
            with pytest.raises(errors.Unavailable):
                await queue.fetch(timeout=60)
            assert 4 < asyncio.get_running_loop().time() - begun_s < 40
