"""Requests of Kafka clients begin in turns of principals, or of hosts, and share the memory of what they hold. In
virtual time, judged by the order of answers.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ledgermq.runtime.ports.turns import Turns
from ledgermq_broker.kafka.parts import FREE_PER_S
from ledgermq_broker.kafka.wire.generated import metadata_request as m
from ledgermq_broker.kafka.wire.messages import METADATA
from tests.broker.kafka_world import KafkaClient, KafkaCluster, batch_of, in_kafka_cluster

HOSTILE, VICTIM = "10.0.0.66", "10.0.0.7"
FLOOD = 300


def names(count: int) -> m.MetadataRequest:
    """A request of so many elements, of some four bytes each."""
    wanted = [m.MetadataRequestTopic(name=f"x{number}") for number in range(count)]
    return m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)


def ask(client: KafkaClient, count: int = 1) -> asyncio.Task[Any]:
    return asyncio.create_task(client.call(METADATA, 9, names(count)))


@in_kafka_cluster("a:1")
async def test_a_request_waits_for_one_request_of_each_other_host(cluster: KafkaCluster) -> None:
    order: list[str] = []

    async def noted(client: KafkaClient, who: str) -> None:
        await ask(client)
        order.append(who)

    lines = [cluster.connect("a:1", HOSTILE) for _ in range(FLOOD)]
    victim = cluster.connect("a:1", VICTIM)
    await asyncio.sleep(0)
    flood = [asyncio.create_task(noted(line, "hostile")) for line in lines]
    for _ in range(100):
        if cluster.turns.waiting:
            break
        await asyncio.sleep(0)
    assert cluster.turns.waiting > FLOOD // 2
    cluster.turns._free[f"host {VICTIM}"] = FREE_PER_S  # it has begun as many as do not wait
    begun = len(order) + FLOOD - cluster.turns.waiting
    await noted(victim, "victim")
    assert order.index("victim") <= begun + 20, "some that begin later are answered earlier"
    await asyncio.gather(*flood)
    assert len(order) == FLOOD + 1
    assert (cluster.turns.waiting, cluster.turns.under_way) == (0, 0)


@in_kafka_cluster("a:1")
async def test_what_requests_hold_in_memory_is_shared(cluster: KafkaCluster) -> None:
    """Of all connections together: 50,000 elements a request were a bound of each request alone."""
    turns = cluster.turns = Turns(10_000, 8)
    silent = [cluster.connect("a:1", HOSTILE) for _ in range(20)]
    for line in silent:
        line.takes.clear()
    held = [ask(line, 1000) for line in silent]
    await asyncio.sleep(5)
    assert 3000 <= turns.under_way <= 5000, "one host has half at most"
    assert turns.waiting == 20 - turns.under_way // 1000
    victim = cluster.connect("a:1", VICTIM)
    assert len((await ask(victim, 500)).topics) == 500, "there is room for others"
    await silent[0].close()  # what a connection holds ends with it
    await asyncio.sleep(1)
    assert turns.waiting == 20 - 1 - turns.under_way // 1000
    for line in silent[1:]:
        line.takes.set()
    await asyncio.gather(*held[1:])
    held[0].cancel()
    assert (turns.under_way, turns.waiting) == (0, 0)


@in_kafka_cluster("a:1")
async def test_a_fetch_that_waits_holds_no_turn(cluster: KafkaCluster) -> None:
    await cluster.create("t", 1)
    lines = [cluster.connect("a:1") for _ in range(FLOOD)]
    polls = [asyncio.create_task(line.fetch("t", 0, 0, max_wait_ms=30_000)) for line in lines]
    await asyncio.sleep(1)
    begun_s = asyncio.get_running_loop().time()
    assert await ask(cluster.connect("a:1"))
    assert asyncio.get_running_loop().time() - begun_s < 0.1
    await cluster.connect("a:1").produce("t", 0, batch_of(b"x"))
    assert all(part.records for part in await asyncio.gather(*polls))


@in_kafka_cluster("a:1")
async def test_pipelined_requests_keep_their_order(cluster: KafkaCluster) -> None:
    await cluster.create("t", 1)
    others = [ask(cluster.connect("a:1", HOSTILE)) for _ in range(FLOOD)]
    client = cluster.connect("a:1", VICTIM)
    sent = [asyncio.create_task(client.produce("t", 0, batch_of(b"%d" % number))) for number in range(20)]
    answers = await asyncio.gather(*sent)
    assert [answer.base_offset for answer in answers] == list(range(20))
    await asyncio.gather(*others)
