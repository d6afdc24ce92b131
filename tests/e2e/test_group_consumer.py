"""Members of groups on brokers in virtual time: who reads what, what is committed when, and what comes again."""

from __future__ import annotations

import asyncio

import ledgermq
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.test_client_takeover import client_of


@in_cluster("a:1", "b:1")
async def test_a_member_reads_all_and_the_next_goes_on_behind_it(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 4)
        producer = client.producer()
        await asyncio.gather(*(producer.send("t", b"%d" % number) for number in range(100)))
        seen: list[bytes | None] = []
        async with client.consumer("t", group="g") as consumer:
            while len(seen) < 100:
                seen += [message.value for message in await consumer.fetch(7)]
            assert await consumer.fetch(timeout=0.5) == []
            assert sorted(seen) == sorted(b"%d" % number for number in range(100))
            assert await consumer.lag() == {partition: ledgermq.Lag(0, 0.0) for partition in consumer.assignment}
        await producer.send("t", b"more")
        async with client.consumer("t", group="g") as consumer:
            assert (await anext(consumer)).value == b"more"
