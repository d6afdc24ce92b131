"""Filters of queue groups, in virtual time: members get what passes, the rest is finished, and one filter counts."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

import ledgermq
from ledgermq import errors
from ledgermq_broker.queues.state.filters import FILTER_S
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.queue_calls import GROUP, TOPIC, request_of
from tests.e2e.filtering import FILTERS, send
from tests.e2e.queued import values
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until


async def drained(client: ledgermq.Client, count: int, partitions: int = 1) -> None:
    """Wait until the group has finished everything."""

    async def is_done() -> bool:
        with suppress(errors.UnknownGroup):  # it has not begun
            described = await client.queues.describe(GROUP)
            return _is_done(described)
        return False

    def _is_done(described: ledgermq.QueueDescription) -> bool:
        return described.backlog == described.leased == 0 and sum(p.start for p in described.partitions) == count

    await until(is_done)


@pytest.mark.parametrize("text", FILTERS)
def test_members_get_what_passes_and_the_rest_is_finished(text: str) -> None:
    expected = [number for number in range(100) if FILTERS[text](number)]

    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic(TOPIC, 1)
            for first in range(0, 100, 20):
                await send(client, TOPIC, range(first, first + 20))
            got: list[int] = []
            async with (
                client.queue(TOPIC, group=GROUP, filter=text) as one,
                client.queue(TOPIC, group=GROUP, filter=f" {text} ") as two,
            ):
                for queue in (one, two) * 20:
                    messages = await queue.fetch(7, timeout=0.5)
                    got += values(messages)
                    assert {message.attempt for message in messages} <= {1}
                    for message in messages:
                        message.ack()
                await drained(client, 100)
                assert (sorted(got), one.filtered + two.filtered) == (expected, 100 - len(expected))

    life()


@in_cluster("a:1", "b:1")
async def test_what_was_left_out_stays_finished_and_what_passes_is_lost_by_no_takeover(cluster: Cluster) -> None:
    draw = random.Random(5)
    async with client_of(cluster) as client:
        await client.create_topic(TOPIC, 1)
        await send(client, TOPIC, range(200))
        async with client.queue(TOPIC, group=GROUP, filter="A", lease_s=5) as queue:
            finished: set[int] = set()
            while len(finished) < 50:
                for message in await queue.fetch(draw.randint(1, 9), timeout=2):
                    assert message.tag == "A"
                    if draw.random() < 0.7 and await message.ack():
                        finished.add(int(message.value or b""))
                if len(finished) > 20 and len(cluster.brokers) == 2:
                    await cluster.stop(await cluster.owner_of(TOPIC, 0), graceful=False)
                    await cluster.settled()
            assert finished == set(range(0, 200, 4))
        await drained(client, 200)


@in_cluster("a:1")
async def test_another_filter_is_refused_until_the_members_with_the_former_one_are_gone(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic(TOPIC, 1)
        await send(client, TOPIC, range(40))
        one = client.queue(TOPIC, group=GROUP, filter="A || B", lease_s=60)
        assert values(await one.fetch(9, timeout=3)) == [0, 1, 4, 5, 8]
        for other in ("A", "", "n > 5"):
            async with client.queue(TOPIC, group=GROUP, filter=other) as queue:
                with pytest.raises(errors.FilterConflict, match=r"workers has members with the filter 'A \|\| B'"):
                    await queue.fetch(timeout=3)
        async with client.queue(TOPIC, group="others", filter="A") as queue:
            assert len(await queue.fetch(50, timeout=3)) == 10, "another group has its own"
        async with client.queue(TOPIC, group=GROUP, filter="B || A") as queue:
            assert values(await queue.fetch(4, timeout=3)) == [9, 12], "the order of tags does not matter"
        await asyncio.sleep(FILTER_S + 1)
        async with client.queue(TOPIC, group=GROUP) as queue:
            with pytest.raises(errors.FilterConflict):  # messages are still leased
                await queue.fetch(timeout=3)
            await one.close()
            found = await queue.fetch(50, timeout=3)
            assert set(values(found)) >= {0, 1, 4, 5, 8}, "what was not finished comes again"
            assert not set(values(found)) & {2, 3, 6, 7}, "what the former filter left out is finished"


@in_cluster("a:1")
async def test_a_reset_ends_the_filter_and_hostile_texts_are_refused(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic(TOPIC, 1)
        await send(client, TOPIC, range(8))
        async with client.queue(TOPIC, group=GROUP, filter="A") as queue:
            assert values(await queue.fetch(timeout=3)) == [0, 4]
        await client.queues.delete(GROUP, TOPIC)
        async with client.queue(TOPIC, group=GROUP, filter="B") as queue:
            assert values(await queue.fetch(timeout=3)) == [1, 5]
        with pytest.raises(errors.InvalidRequest, match="at most 4096 characters"):
            await cluster.line("a:1").share_fetch(request_of(filter="x" * 4097))
        with pytest.raises(errors.InvalidConfig, match="cannot have a FUNCTION"):
            client.queue(TOPIC, group=GROUP, filter="FUNCTION('vip')")
        with pytest.raises(errors.InvalidFilter, match="at character 4"):
            client.queue(TOPIC, group=GROUP, filter="n >")


@in_cluster("a:1")
async def test_handlers_take_a_filter_too(cluster: Cluster) -> None:
    seen: list[int] = []
    async with client_of(cluster) as client:
        await client.create_topic(TOPIC, 1)
        await send(client, TOPIC, range(40))

        @client.queue_handler(TOPIC, group=GROUP, filter="C")
        async def handle(message: ledgermq.QueueMessage) -> None:
            seen.append(int(message.value or b""))

        running = asyncio.create_task(client.run_handlers())
        await drained(client, 40)
        running.cancel()
        assert sorted(seen) == list(range(2, 40, 4))
