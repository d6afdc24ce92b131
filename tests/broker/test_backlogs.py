"""Backlog quotas of topics by their policies: producers wait, are refused, or the oldest records go."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import BacklogQuotaExceeded, DeadlineExceeded, InvalidConfig, ResourceExhausted
from ledgermq_broker.backlogs.counts import BacklogCounts
from ledgermq_broker.backlogs.quotas import CHECK_S, HOLD_MS
from tests.broker.backlogs import KIB, SOON_S, fill, quota, refusal
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import Outsider


class Counted(BacklogCounts):
    def __init__(self) -> None:
        self.refusals: list[tuple[str, str]] = []
        self.evictions = 0

    def refused(self, topic: str, policy: str) -> None:
        self.refusals.append((topic, policy))

    def evicted(self, topic: str, records: int) -> None:
        self.evictions += records


@in_cluster("a:1", "b:1")
async def test_producers_wait_until_the_slowest_group_has_caught_up(cluster: Cluster) -> None:
    await cluster.create("t", 1, **quota())
    slow, fast = Outsider(cluster, "slow"), Outsider(cluster, "fast")
    await slow.commit(("t", 0, 0))
    await fill(cluster)
    await fast.commit(("t", 0, 12))
    await asyncio.sleep(SOON_S)
    error = await refusal(cluster)
    assert error is not None
    assert (error.code, error.retry_after_ms) == (ResourceExhausted.code, HOLD_MS)
    assert "topic 't' partition 0: group 'slow' is" in error.message
    assert "more than backlog.quota.bytes=10240" in error.message
    async with cluster.client() as client, client.producer() as producer:
        sending = asyncio.ensure_future(producer.send("t", b"waits"))
        await asyncio.sleep(20)
        assert not sending.done(), "it is held, not refused"
        await slow.commit(("t", 0, 8))
        await asyncio.wait_for(sending, SOON_S)
    assert (await cluster.read_all("t", 0))[-1] == b"waits"


@in_cluster("a:1")
async def test_a_held_producer_gets_the_reason_when_its_time_is_over(cluster: Cluster) -> None:
    await cluster.create("t", 1, **quota())
    await Outsider(cluster, "g").commit(("t", 0, 0))
    await fill(cluster)
    await asyncio.sleep(SOON_S)
    async with cluster.client() as client, client.producer(delivery_timeout_s=10) as producer:
        with pytest.raises(DeadlineExceeded, match="group 'g' is"):
            await producer.send("t", b"too late")


@in_cluster("a:1")
async def test_producers_are_refused_at_once_where_the_policy_says_so(cluster: Cluster) -> None:
    cluster.counts["b:1"] = [counts := Counted()]
    await cluster.start("b:1")
    await cluster.stop("a:1")
    await cluster.settled()
    await cluster.create("t", 1, **quota("producer_exception"))
    group = Outsider(cluster, "g")
    await group.commit(("t", 0, 0))
    await fill(cluster)
    await asyncio.sleep(SOON_S)
    async with cluster.client() as client, client.producer() as producer:
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(BacklogQuotaExceeded, match="group 'g' is"):
            await producer.send("t", b"refused")
        assert asyncio.get_running_loop().time() - began_s < 1
        assert counts.refusals == [("t", "producer_exception")]
        await group.commit(("t", 0, 12))
        await asyncio.sleep(SOON_S)
        await producer.send("t", b"taken")
        async with client.transactions("x") as transactions:
            await group.commit(("t", 0, 12))
            await fill(cluster)
            await asyncio.sleep(SOON_S)
            with pytest.raises(BacklogQuotaExceeded):
                async with transactions.begin() as transaction:
                    await transaction.send("t", b"staged batches count, too")


@in_cluster("a:1")
async def test_the_oldest_records_go_where_the_policy_says_so(cluster: Cluster) -> None:
    cluster.counts["b:1"] = [counts := Counted()]
    await cluster.start("b:1")
    await cluster.stop("a:1")
    await cluster.settled()
    await cluster.create("t", 1, **quota("consumer_backlog_eviction"))
    group = Outsider(cluster, "g")
    await group.commit(("t", 0, 0))
    await fill(cluster, 30)
    await asyncio.sleep(SOON_S)
    assert await refusal(cluster) is None, "producers notice nothing"
    async with cluster.client() as client:
        start = (await client.list_offsets("t", "earliest"))[0]
        assert 18 <= start <= 25
        assert counts.evictions == start
        async with client.consumer("t", start="earliest") as consumer:
            assert (await anext(consumer)).value.split()[0] == b"%d" % start
        async with client.consumer("t", group="g", start="earliest") as consumer:
            assert (await anext(consumer)).value.split()[0] == b"%d" % start, "the slow group goes on with what is left"
        await asyncio.sleep(10 * SOON_S)
        assert (await client.list_offsets("t", "earliest"))[0] == start, "what is left is within the quota"


@in_cluster("a:1")
async def test_a_legal_hold_wins_over_eviction(cluster: Cluster) -> None:
    await cluster.create("t", 1, legal_hold="true", **quota("consumer_backlog_eviction"))
    await Outsider(cluster, "g").commit(("t", 0, 0))
    await fill(cluster, 30)
    await asyncio.sleep(SOON_S)
    assert len(await cluster.read_all("t", 0)) == 30


@in_cluster("a:1")
async def test_age_counts_likewise(cluster: Cluster) -> None:
    await cluster.create("t", 1, **quota("producer_exception", bytes_max=None, ms_max=60_000))
    group = Outsider(cluster, "g")
    async with cluster.client() as client, client.producer() as producer:
        await producer.send("t", b"0")
        await group.commit(("t", 0, 0))
        await asyncio.sleep(40)
        await producer.send("t", b"1")
        await asyncio.sleep(20 + SOON_S)
        with pytest.raises(BacklogQuotaExceeded, match=r"ms behind, more than backlog.quota.ms=60000"):
            await producer.send("t", b"2")
        await group.commit(("t", 0, 1))
        await asyncio.sleep(SOON_S)
        await producer.send("t", b"2")
        await group.commit(("t", 0, 3))
        await asyncio.sleep(300)
        await producer.send("t", b"an empty backlog has no age")


@in_cluster("a:1")
async def test_the_oldest_records_go_by_age(cluster: Cluster) -> None:
    await cluster.create("t", 1, **quota("consumer_backlog_eviction", bytes_max=None, ms_max=60_000))
    async with cluster.client() as client, client.producer() as producer:
        await producer.send("t", b"0")
        await Outsider(cluster, "g").commit(("t", 0, 0))
        for number in range(1, 10):
            await asyncio.sleep(10)
            await producer.send("t", b"%d" % number)
        await asyncio.sleep(CHECK_S + 1)
        start = (await client.list_offsets("t", "earliest"))[0]
        assert 3 <= start <= 5, "records of the last minute stay"


@in_cluster("a:1", "b:1")
async def test_the_next_owner_goes_on_and_a_new_quota_counts_soon(cluster: Cluster) -> None:
    await cluster.create("t", 1, **quota("producer_exception"))
    await Outsider(cluster, "g").commit(("t", 0, 0))
    await fill(cluster)
    await asyncio.sleep(SOON_S)
    assert await refusal(cluster) is not None
    await cluster.stop(await cluster.owner_of("t", 0))
    await cluster.settled()
    await asyncio.sleep(SOON_S)
    assert await refusal(cluster) is not None
    async with cluster.client() as client:
        await client.alter_topic("t", settings={"backlog.quota.bytes": 100 * KIB})
        await asyncio.sleep(SOON_S)
        assert await refusal(cluster) is None
        await client.alter_topic("t", settings={"backlog.quota.bytes": KIB})
        await asyncio.sleep(SOON_S)
        assert await refusal(cluster) is not None
        await client.alter_topic("t", unset=["backlog.quota.bytes", "backlog.quota.policy"])
        assert await refusal(cluster) is None, "at once"
        with pytest.raises(InvalidConfig, match="keeps the latest one of each key"):
            await client.create_topic(
                "k",
                settings={"cleanup.policy": "compact", "backlog.quota.policy": "consumer_backlog_eviction"},
            )
