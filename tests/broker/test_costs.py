"""What requests to the store cost, by topic and principal, as clients get it from brokers. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import Unauthorized, UnknownTopic
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.prices import PICO, S3_PRICES
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore
from tests.broker.access import RULES, change, token
from tests.broker.cluster import Cluster, cluster_of, fetch_of, frame_of
from tests.stores.counting import CountingMeter
from tests.virtual_time import virtual_in, virtual_sources

PUT = S3_PRICES.of("put")


class Billed(Cluster):
    """Each broker counts what its requests cost at the prices of S3."""

    def view_of_store(self, address: str) -> ObjectStore:
        costs, self.meter = StoreCosts(S3_PRICES), CountingMeter()
        self.counts[address] = [costs]
        return MeteredStore(MeteredStore(super().view_of_store(address), costs), self.meter)


def billed(*addresses: str, **settings: object) -> object:
    def world() -> object:
        return cluster_of(*addresses, store=MemoryStore("", virtual_sources(1000)), kind=Billed, **settings)

    return virtual_in(world, "cluster")  # type: ignore[arg-type]


@billed("a:1", bundles=2)  # type: ignore[operator]
async def test_topics_in_one_segment_pay_for_it_by_their_bytes(cluster: Billed) -> None:
    await cluster.create("large", 1)
    await cluster.create("small", 1)
    line = cluster.line("a:1")
    frames = [frame_of("large", 0, b"x" * 60_000), frame_of("small", 0, b"y" * 20_000)]
    await asyncio.gather(*(line.produce_once(frame) for frame in frames))
    async with cluster.client() as client:
        found = await client.describe_costs()
        only = await client.describe_costs("small")
        with pytest.raises(UnknownTopic):
            await client.describe_costs("none")

    by_topic = {cost.topic: cost for cost in found.costs}
    large, small = by_topic["large"], by_topic["small"]
    assert large.write_dollars + small.write_dollars == pytest.approx(PUT, abs=1 / PICO), "one PUT for both"
    sizes = [frame.payload_bytes for frame in frames]
    assert large.write_dollars / small.write_dollars == pytest.approx(sizes[0] / sizes[1], rel=1e-3)
    assert sum(cost.dollars for cost in found.costs) == pytest.approx(found.dollars, abs=len(found.costs) / PICO)
    assert by_topic["(cluster)"].dollars > 0
    kept = {each.topic: each for each in found.kept}
    assert kept["large"].size_bytes == sizes[0]
    assert kept["large"].dollars_month == pytest.approx(S3_PRICES.storage(sizes[0]))
    assert [cost.topic for cost in only.costs] == ["small"]
    assert [each.topic for each in only.kept] == ["small"]


@billed("a:1", bundles=2)  # type: ignore[operator]
async def test_what_is_counted_is_what_the_store_was_asked_for(cluster: Billed) -> None:
    await cluster.create("t", 1)
    for _ in range(5):
        await cluster.produce("t", 0, b"x" * 1000)
    costs = next(each for each in cluster.counts["a:1"] if isinstance(each, StoreCosts))
    expected = sum(S3_PRICES.picodollars(name) * count for name, count in cluster.meter.by_operation().items())
    assert costs.total == expected
    assert sum(spent.total for spent in costs.by_payer([]).values()) == expected


@billed("a:1", bundles=2, cache_bytes_max=0, **RULES)  # type: ignore[operator]
async def test_principals_pay_for_what_they_write_and_read(cluster: Billed) -> None:
    await cluster.create("t", 1, (await token(cluster, "root")).text)
    writer, reader = [(await token(cluster, user)).text for user in ("writer", "reader")]
    await change(cluster, grant=["allow user:writer produce t", "allow user:reader consume t"])
    for _ in range(2):
        answer = await cluster.line("a:1", writer).produce_once(frame_of("t", 0, b"x" * 1000))
        assert not answer.results[0].HasField("error")
    await cluster.line("a:1", reader).fetch_once(fetch_of("t", 0))
    async with cluster.client((await token(cluster, "root")).text) as client:
        found = {(cost.topic, cost.principal): cost for cost in (await client.describe_costs()).costs}
    assert found["t", "user:writer"].write_dollars == pytest.approx(2 * PUT)
    assert found["t", "user:writer"].read_dollars == 0
    assert found["t", "user:reader"].write_dollars == 0
    assert found["t", "user:reader"].read_dollars == pytest.approx(2 * S3_PRICES.of("get_range")), "two segments"
    async with cluster.client(reader) as client:
        with pytest.raises(Unauthorized):
            await client.describe_costs()


@billed("a:1", "b:1", bundles=5)  # type: ignore[operator]
async def test_costs_of_all_brokers_are_summed_up_and_a_removed_topic_stays_in_the_sum(cluster: Billed) -> None:
    await cluster.create("t", 8)
    for partition in range(8):
        await cluster.produce("t", partition, b"x" * 1000)
    async with cluster.client() as client:
        found = await client.describe_costs("t")
        assert found.brokers == 2
        [cost] = found.costs
        assert cost.write_dollars == pytest.approx(8 * PUT)
        await client.delete_topic("t")
        await asyncio.sleep(60)
        after = await client.describe_costs()
    assert "t" not in {each.topic for each in after.costs}
    gone = next(each for each in after.costs if each.topic == "(other)")
    assert gone.write_dollars >= cost.write_dollars - 1 / PICO
    assert after.dollars > found.dollars
