"""Quotas in dollars at work in a cluster, in virtual time: who pays, who waits, and how much is spent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ledgermq.errors import InvalidRequest, QuotaExceeded, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.cluster.heartbeat import BUDGETS, Heartbeat, encode_heartbeat
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.features import ANNOUNCED
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.prices import HOURS_A_MONTH, PICO, S3_PRICES, Prices
from ledgermq_ledger.object_store.wrappers.payers import Payer
from tests.broker.access import RULES, change, token
from tests.broker.cluster import FAST_CONSTANTS, Cluster, fetch_of, frame_of, in_cluster
from tests.broker.kafka_world import KafkaCluster, batch_of
from tests.broker.quotas import KIB, errors_of, now_s
from tests.broker.test_costs import PUT, Billed, billed
from tests.broker.test_kafka_identity import topic
from tests.virtual_time import virtual_in, virtual_sources
from tests.waiting import until

MICRO = 10**6
HOUR_S = 3600.0


def puts_an_hour(puts: float) -> float:
    """Return dollars a month that pay this many PUTs in an hour."""
    return puts * PUT * HOURS_A_MONTH


class BilledKafka(KafkaCluster, Billed):
    """With clients of the Kafka protocol."""


@asynccontextmanager
async def billed_kafka() -> AsyncIterator[BilledKafka]:
    cluster = BilledKafka(MemoryStore("", virtual_sources(1000)), FAST_CONSTANTS, bundles=2)
    try:
        await cluster.start("a:1")
        await cluster.settled()
        yield cluster
    finally:
        await cluster.close()


async def set_budget(cluster: Cluster, principal: str, dollars: float) -> None:
    request = pb.ChangeQuotaRequest(principal=principal, set={"microdollars_month": round(dollars * MICRO)})
    await next(iter(cluster.brokers.values())).service.change_quota(request)


def costs_of(cluster: Billed, address: str = "a:1") -> StoreCosts:
    return next(each for each in cluster.counts[address] if isinstance(each, StoreCosts))


async def sent(line: object, topic: str = "t", size: int = KIB) -> pb.Error | None:
    """Send one batch, which is one segment if nothing else comes; return its refusal."""
    errors = errors_of(await line.produce_once(frame_of(topic, 0, b"x" * size)))  # type: ignore[attr-defined]
    return errors[0] if errors else None


@pytest.mark.slow
@billed("a:1", bundles=2)  # type: ignore[operator]
async def test_what_an_hour_pays_may_come_at_once_and_then_as_it_flows_back(cluster: Billed) -> None:
    await cluster.create("t", 1)
    line, before = cluster.line("a:1"), costs_of(cluster).total
    await set_budget(cluster, "anonymous", puts_an_hour(32.5))
    for _ in range(33):
        assert await sent(line) is None
    refused = await sent(line)
    assert refused is not None
    assert refused.limit == "dollars_month"
    error = error_from_proto(refused)
    assert isinstance(error, QuotaExceeded)
    assert "anonymous has reached its quota at this broker: dollars_month 0.118625;" in error.message
    passed, began_s = 33, now_s()
    while now_s() < began_s + HOUR_S / 4:
        if (refused := await sent(line)) is None:
            passed += 1
        else:
            await asyncio.sleep(refused.retry_after_ms / 1000)
    assert 32.5 * 1.25 - 2 <= passed <= 32.5 * 1.25 + 1, "an hour's was there, a quarter flows back, and one is owed"
    topic_id = cluster.brokers["a:1"].metadata.catalog.topics_by_name["t"].id
    own = costs_of(cluster).by_payer([topic_id])[Payer(topic_id)].total
    assert own == pytest.approx(passed * PUT * PICO)
    assert costs_of(cluster).total - before > own, "heartbeats and the like are paid by no principal"


@billed("a:1", bundles=2, **RULES)  # type: ignore[operator]
async def test_principals_in_one_segment_pay_by_their_bytes_and_only_one_has_to_wait(cluster: Billed) -> None:
    root = (await token(cluster, "root")).text
    await cluster.create("t", 1, root)
    await cluster.create("u", 1, root)
    await change(cluster, grant=["allow user:large produce t", "allow user:small produce u"])
    lines = {name: cluster.line("a:1", (await token(cluster, name)).text) for name in ("large", "small")}
    await set_budget(cluster, "*", puts_an_hour(2.5))
    rounds = {"large": 0, "small": 0}
    for _ in range(6):
        errors = await asyncio.gather(sent(lines["large"], "t", 30 * KIB), sent(lines["small"], "u", 10 * KIB))
        for name, error in zip(rounds, errors, strict=True):
            rounds[name] += error is None
    assert rounds == {"large": 4, "small": 6}, "3/4 and 1/4 of a PUT; the small one pays alone from the fifth on"
    assert await sent(lines["small"], "u") is not None


@billed("a:1", bundles=2, cache_bytes_max=0, **RULES)  # type: ignore[operator]
async def test_a_reader_whose_budget_is_spent_is_held_and_then_refused(cluster: Billed) -> None:
    root = (await token(cluster, "root")).text
    await cluster.create("t", 1, root)
    await change(cluster, grant=["allow user:reader consume t", "allow user:writer produce t"])
    writer, reader = [cluster.line("a:1", (await token(cluster, name)).text) for name in ("writer", "reader")]
    for _ in range(4):
        assert await sent(writer) is None
    await set_budget(cluster, "user:reader", S3_PRICES.of("get_range") * 3.5 * HOURS_A_MONTH)
    answer = await reader.fetch_once(fetch_of("t", 0))
    assert answer.payload_bytes > 4 * KIB
    with pytest.raises(QuotaExceeded) as refused:
        await reader.fetch_once(fetch_of("t", 0))
    assert refused.value.limit == "dollars_month"
    assert refused.value.retry_after_ms is not None
    assert refused.value.retry_after_ms <= 1000 * HOUR_S / 3.5
    assert await sent(writer) is None, "what one has spent binds no other"


@billed("a:1", bundles=2)  # type: ignore[operator]
async def test_a_client_that_connects_again_finds_its_budget_as_it_was(cluster: Billed) -> None:
    await cluster.create("t", 1)
    await set_budget(cluster, "anonymous", puts_an_hour(1.5))
    for number in range(2):
        assert await sent(cluster.line("a:1", client_id=f"c{number}")) is None
    cluster.brokers["a:1"].door._admitted.clear()  # every connection has ended, and was forgotten
    assert await sent(cluster.line("a:1", client_id="c3")) is not None


@billed("a:1", bundles=2)  # type: ignore[operator]
async def test_another_price_counts_for_what_comes_from_then_on(cluster: Billed) -> None:
    await cluster.create("t", 1)
    await set_budget(cluster, "anonymous", puts_an_hour(5.5))
    line, costs = cluster.line("a:1"), costs_of(cluster)
    for _ in range(2):
        assert await sent(line) is None
    costs.prices = Prices(write=2 * S3_PRICES.write)
    for _ in range(2):
        assert await sent(line) is None
    assert await sent(line) is not None, "two at 1, and two at 2"
    costs.prices = Prices()
    assert await sent(line) is not None, "what is owed stays owed"
    await asyncio.sleep(0.5 * HOUR_S / 5.5 + 1)
    for _ in range(20):
        assert await sent(line) is None, "what costs nothing is bound by no budget"
    with pytest.raises(InvalidRequest, match="no price"):
        await set_budget(cluster, "anonymous", 1)


@billed("a:1", "b:1", bundles=2)  # type: ignore[operator]
async def test_after_a_takeover_the_next_owner_counts_from_the_start(cluster: Billed) -> None:
    await cluster.create("t", 1)
    await set_budget(cluster, "anonymous", puts_an_hour(2.5))
    async with cluster.client() as client:
        for _ in range(3):
            async with client.producer() as producer:
                await producer.send("t", b"x")
        [owner] = [name for name, broker in cluster.brokers.items() if 1 in broker.ownership.opened]
        assert await sent(cluster.line(owner)) is not None
        [other] = set(cluster.brokers) - {owner}
        await cluster.stop(owner)
        await cluster.settled()
        for _ in range(3):
            async with client.producer() as producer:
                await producer.send("t", b"x")
        assert await sent(cluster.line(other)) is not None


@billed("a:1", bundles=2)  # type: ignore[operator]
async def test_budgets_are_shown_in_dollars_changed_and_dropped(cluster: Billed) -> None:
    await cluster.create("t", 1)
    async with cluster.client() as client:
        made = await client.quotas.set("anonymous", dollars_month=puts_an_hour(4), requests=500)
        assert made.dollars_month == pytest.approx(0.0146)
        assert await sent(cluster.line("a:1")) is None
        [use] = await client.quotas.describe("anonymous")
        assert use.limits["dollars_month"] == made.dollars_month
        assert use.used["dollars_month"] == pytest.approx(PUT, abs=2 / MICRO)
        left = await client.quotas.unset("anonymous", "", "dollars_month")
        assert left is not None
        assert (left.dollars_month, left.requests) == (None, 500)
        assert await client.quotas.unset("anonymous") is None
        for _ in range(10):
            assert await sent(cluster.line("a:1")) is None


@billed("a:1", bundles=2)  # type: ignore[operator]
async def test_a_budget_that_cannot_be_is_refused_and_changes_nothing(cluster: Billed) -> None:
    async with cluster.client() as client:
        for wrong in (0, -1, 1e-7, 1e10, float("nan"), float("inf"), float("-inf")):
            with pytest.raises(InvalidRequest, match="dollars_month must be"):
                await client.quotas.set("anonymous", dollars_month=wrong)
        for client_id in ("nightly", "*"):
            with pytest.raises(InvalidRequest, match="not of one client id"):
                await client.quotas.set("anonymous", client_id, dollars_month=1)
        assert await client.quotas.list() == []
        made = await client.quotas.set("anonymous", dollars_month=1e9)
        assert made.dollars_month == 1e9
        assert (await client.quotas.set("anonymous", dollars_month=0.000001)).dollars_month == 0.000001


@in_cluster("a:1")
async def test_where_requests_cost_nothing_a_budget_is_refused_and_others_are_set(cluster: Cluster) -> None:
    async with cluster.client() as client:
        with pytest.raises(InvalidRequest, match="price_put_dollars"):
            await client.quotas.set("anonymous", dollars_month=1, requests=100)
        assert await client.quotas.list() == []
        assert (await client.quotas.set("anonymous", requests=100)).dollars_month is None
        assert await client.quotas.unset("anonymous", "", "dollars_month") is not None


@billed("a:1", bundles=2)  # type: ignore[operator]
async def test_no_budget_is_stored_beside_a_broker_that_would_ignore_it(cluster: Billed) -> None:
    old = Heartbeat("old", "old:1", 1, "s", features=tuple(each for each in ANNOUNCED if each != BUDGETS))
    cluster.network.listen(old.address, cluster.brokers["a:1"].service)  # it lives
    await cluster.store.put(keys.broker("old"), encode_heartbeat(old))
    await until(lambda: bool(cluster.brokers["a:1"].membership.lacking(BUDGETS)))
    with pytest.raises(Unavailable, match="quotas in dollars need every broker"):
        await set_budget(cluster, "anonymous", 1)
    others = pb.ChangeQuotaRequest(principal="anonymous", set={"requests": 100})
    assert (await cluster.brokers["a:1"].service.change_quota(others)).quota.limits["requests"] == 100


@virtual_in(billed_kafka, "cluster")
async def test_producers_of_the_kafka_protocol_wait_for_ten_seconds_and_then_may_try_again(
    cluster: BilledKafka,
) -> None:
    await topic(cluster, "t")
    await set_budget(cluster, "anonymous", puts_an_hour(3.5))
    client = cluster.connect("a:1")
    for _ in range(4):
        assert (await client.produce("t", 0, batch_of(b"x" * 1000))).error_code == Code.NONE
    began_s = now_s()
    assert (await client.produce("t", 0, batch_of(b"x" * 1000))).error_code == Code.NOT_ENOUGH_REPLICAS
    assert now_s() - began_s < 11
    await asyncio.sleep(0.5 * HOUR_S / 3.5 + 1)
    assert (await client.produce("t", 0, batch_of(b"x" * 1000))).error_code == Code.NONE
