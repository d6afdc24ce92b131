"""Members of groups when two rare events coincide: no message is skipped, and no member stays that
should be gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

import ledgermq
from ledgermq import TopicPartition, errors
from ledgermq.offset_stores import MemoryOffsetStore
from ledgermq.offset_stores.contract import GivenPartition, OffsetEntry
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import committed, fill, take, take_messages
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until

AT = TopicPartition("t", 0)


class FailingStore(MemoryOffsetStore):
    """Refuses so many commits first."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def commit(self, group: str, entries: Sequence[OffsetEntry]) -> Mapping[TopicPartition, errors.LedgerMQError]:
        if self.failures:
            self.failures -= 1
            raise errors.Unavailable("not now")
        return await super().commit(group, entries)

    def stored(self) -> list[int | None]:
        return [row.offset for row in self._rows.values()]


@in_cluster("a:1")
async def test_a_start_that_could_not_be_committed_at_once_is_committed_later(cluster: Cluster) -> None:
    """Else the next owner applies "latest" anew, and skips what came between."""
    store = FailingStore(failures=1)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 5)
        first = client.consumer("t", group="g", start="latest", offset_store=store, commit_interval_ms=100)
        await first.wait_ready()
        await asyncio.sleep(1)
        assert store.stored() == [5]
        await first.close()
        await fill(client, "t", 1, name="between")
        async with client.consumer("t", group="g", start="latest", offset_store=store) as second:
            assert await take(second, 1) == [b"between0"]


@in_cluster("a:1")
async def test_a_start_is_committed_at_the_end_at_the_latest(cluster: Cluster) -> None:
    store = FailingStore(failures=1)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 5)
        async with client.consumer("t", group="g", start="latest", offset_store=store, commit="before") as first:
            await first.wait_ready()
        assert store.stored() == [5]


@in_cluster("a:1")
async def test_a_consumer_that_is_closed_while_it_begins_leaves_no_member_behind(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
    async with client_of(cluster) as client:
        consumer = client.consumer("t", group="g")
        waiting = asyncio.create_task(consumer.wait_ready())
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(errors.Closed, match="closed"):
            await waiting
        await asyncio.sleep(2)
        assert not consumer.member.begun
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "ledgermq group member"]


@in_cluster("a:1")
async def test_a_member_whose_coordinator_hangs_gives_its_partitions_up_when_the_session_is_over(
    cluster: Cluster,
) -> None:
    lost: list[float] = []
    now = asyncio.get_running_loop().time
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 5)
        consumer = client.consumer(
            "t", group="g", session_timeout_s=6, heartbeat_wait_s=1, on_lost=lambda _: lost.append(now())
        )
        await take(consumer, 5)
        answered: list[float] = []
        heartbeat = cluster.brokers["a:1"].service.group_heartbeat

        async def silent(request: object) -> None:
            await asyncio.Event().wait()

        answered.append(now())
        cluster.brokers["a:1"].service.group_heartbeat = silent  # type: ignore[method-assign, assignment]
        await until(lambda: bool(lost))
        assert lost[0] - answered[0] <= 7.5, "others may have them when the session is over"
        cluster.brokers["a:1"].service.group_heartbeat = heartbeat  # type: ignore[method-assign]
        await consumer.close()


@in_cluster("a:1")
async def test_what_was_handed_out_before_a_refused_message_can_still_be_stored(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 6)
        store, retry = MemoryOffsetStore(), ledgermq.Retry.in_order()
        async with client.consumer("t", group="g", commit="manual", offset_store=store, retry=retry) as consumer:
            messages = await take_messages(consumer, 6)
            assert messages[3].nack(delay=1)
            assert [entry.offset for entry in consumer.entries(messages[:3])] == [3]
            with pytest.raises(errors.StaleAssignment):
                consumer.entries(messages[3:])
            again = await take_messages(consumer, 3)
            assert [entry.offset for entry in consumer.entries(again)] == [6]


@in_cluster("a:1")
async def test_offsets_above_a_message_that_waits_are_not_taken(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 6)
        async with client.consumer("t", group="g", commit="manual", offset_store=MemoryOffsetStore()) as consumer:
            messages = await take_messages(consumer, 6)
            assert messages[3].nack(delay=1)
            assert [entry.offset for entry in consumer.entries(messages[:3])] == [3]
            with pytest.raises(errors.InvalidRequest, match="offset 3 was refused, and is not finished"):
                consumer.entries(messages[4:])
            assert [message.offset for message in await take_messages(consumer, 1)] == [3]
            assert [entry.offset for entry in consumer.entries(messages[4:])] == [6]


@in_cluster("a:1")
async def test_at_most_once_handlers_that_stop_handle_what_is_committed(cluster: Cluster) -> None:
    seen: list[int] = []
    stop = asyncio.Event()
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 20)

        @client.handler("t", group="g", commit="before")
        async def handle(message: ledgermq.GroupMessage) -> None:
            seen.append(message.offset)
            stop.set()
            await asyncio.sleep(0.1)

        await client.run_handlers(stop=stop)
        async with client.consumer("t", group="g") as rest:
            seen += [message.offset for message in await rest.fetch(timeout=5)]
    assert seen == list(range(20)), "the group commits only messages that it handles"


@in_cluster("a:1", "b:1")
async def test_at_most_once_handlers_skip_nothing_when_members_come(cluster: Cluster) -> None:
    seen: list[tuple[int, int]] = []
    async with client_of(cluster) as client, client_of(cluster) as other:
        await client.create_topic("t", 2)
        await fill(client, "t", 60)

        async def handle(message: ledgermq.GroupMessage) -> None:
            seen.append((message.partition, message.offset))
            await asyncio.sleep(0.2)

        for each in (client, other):
            each.handler("t", group="g", commit="before")(handle)
        first = asyncio.create_task(client.run_handlers())
        await until(lambda: len(seen) > 3)
        second = asyncio.create_task(other.run_handlers())
        await asyncio.sleep(30)
        for task in (first, second):
            task.cancel()
        await asyncio.wait([first, second])
        assert sorted(seen) == [(partition, offset) for partition in range(2) for offset in range(30)]


@in_cluster("a:1")
async def test_a_program_that_stops_asking_is_handed_nothing_while_it_leaves(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 5)
        consumer = client.consumer("t", group="g", max_poll_interval_s=5, revoke_wait_s=1)
        assert len(await consumer.fetch(1)) == 1
        service = cluster.brokers["a:1"].service
        heartbeat = service.group_heartbeat
        left = asyncio.Event()

        async def slow_to_answer(request: pb.GroupHeartbeatRequest) -> object:
            answer = await heartbeat(request)
            if request.step == pb.LEAVE:
                left.set()
                await asyncio.sleep(2)
            return answer

        service.group_heartbeat = slow_to_answer  # type: ignore[method-assign, assignment]
        await until(left.is_set)
        assert await consumer.fetch(timeout=1) == [], "another member has the partition by now"
        service.group_heartbeat = heartbeat  # type: ignore[method-assign]
        assert len(await take(consumer, 5)) == 5
        await consumer.close()


@in_cluster("a:1")
async def test_commits_of_a_broadcast_count_after_a_topic_was_unknown_for_a_moment(cluster: Cluster) -> None:
    store = MemoryOffsetStore()
    async with client_of(cluster, metadata_age_s_max=2.0) as client:
        await client.create_topic("t", 1)
        async with client.consumer(
            "t", group="g", broadcast=True, offset_store=store, commit_interval_ms=100
        ) as consumer:
            await fill(client, "t", 3)
            await take(consumer, 3)
            assert await consumer.fetch(timeout=0.5) == []
            held = consumer.member.holdings.held
            given = [holding.given for holding in held.values()]
            consumer.member.holdings.apply([])  # the coordinator did not know the topic for a moment
            await until(lambda: not held)
            await until(lambda: bool(held) and consumer.member.holdings.loaded)
            assert [holding.given.epoch > given[0].epoch for holding in held.values()] == [True]
            await fill(client, "t", 1, name="more")
            await take(consumer, 1)
            await consumer.fetch(timeout=1)
            rows = [row.offset for row in store._rows.values()]
            assert rows == [4]


@in_cluster("a:1")
async def test_a_broadcast_reads_on_when_the_clock_went_back(cluster: Cluster) -> None:
    store = MemoryOffsetStore()
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 3)
        async with client.consumer("t", group="g", broadcast=True, offset_store=store, commit_interval_ms=100) as first:
            await take(first, 3)
            later = [
                GivenPartition(h.partition, h.given.topic_id, h.given.epoch + 3_600_000_000)
                for h in first.member.holdings.readable
            ]
        await store.load("g", later)
        async with client.consumer(
            "t", group="g", broadcast=True, offset_store=store, commit_interval_ms=100
        ) as second:
            assert len(await take(second, 3)) == 3
            assert await second.fetch(timeout=1) == []
            assert await second.committed() == {AT: 3}


@in_cluster("a:1")
async def test_where_the_program_chose_to_begin_is_kept_even_if_it_is_0(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 3)
        async with client.consumer("t", group="g", start="error") as first:
            with pytest.raises(errors.OffsetOutOfRange):
                await first.fetch(timeout=5)
            await first.seek("earliest")
        assert await committed(cluster, "g", "t") == {0: 0}
        async with client.consumer("t", group="g", start="error") as second:
            assert len(await take(second, 3)) == 3


@pytest.mark.parametrize("metadata", ["\ud800", 3])
def test_metadata_that_is_no_text_is_refused_with_a_typed_error(metadata: object) -> None:
    @in_cluster("a:1")
    async def scenario(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", 1)
            await fill(client, "t", 1)
            async with client.consumer("t", group="g", commit="manual") as consumer:
                messages = await consumer.fetch(timeout=10)
                with pytest.raises(errors.InvalidRequest, match="metadata"):
                    await consumer.commit(messages, metadata=metadata)  # type: ignore[arg-type]

    scenario()
