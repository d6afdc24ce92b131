"""Pages of several partitions by a filter that hides much of them."""

from __future__ import annotations

import random
from typing import Any

from tests.broker.cluster import Cluster, cluster_of
from tests.virtual_time import run_virtual

BEGIN_US = 1_700_000_000_000_000


def test_a_record_behind_many_that_do_not_pass_keeps_its_place_in_time() -> None:
    """Its partition has more than one page looks at before it: until then pages are empty, and go on."""

    async def values() -> list[Any]:
        async with cluster_of("a:1") as cluster:
            await fill(cluster)
            found, start = [], None
            async with cluster.client() as client:
                for _ in range(60):
                    page = await client.read("t", start=start, records_max=10, bytes_max=20_000, filter="yes")
                    found += [message.value for message in page.messages]
                    start = page.next
                    if page.at_end:
                        return found
            raise AssertionError("the pages do not come to an end")

    assert run_virtual(values) == [b"far", *(b"near%d" % number for number in range(5))]


async def fill(cluster: Cluster) -> None:
    """Partition 0 hides much and has the oldest record that passes then; partition 1 has all others."""
    noise = random.Random(1)
    hidden = [(noise.randbytes(20_000), "no", BEGIN_US + number) for number in range(60)]
    first = [(b"far", "yes", BEGIN_US + 1000)]
    others = [(b"near%d" % number, "yes", BEGIN_US + 10_000_000 + number) for number in range(5)]
    async with cluster.client() as client:
        await client.create_topic("t", 2)
        async with client.producer() as producer:
            for partition, records in ((0, [*hidden, *first]), (1, others)):
                for value, tag, at_us in records:
                    producer.send("t", value, tag=tag, partition=partition, timestamp=at_us)
                    await producer.flush()
