"""Quotas at work in a cluster, in virtual time: what is refused, held back or let through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

import ledgermq
from ledgermq.errors import ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ProduceFrame
from ledgermq.protocol.methods import METHODS
from ledgermq_broker.access.state.usage import TokenBucket, Usage, Usages
from ledgermq_broker.access.wrappers.authorized import GUARDS
from ledgermq_broker.access.wrappers.throttled import HELD_S_MAX, NEVER_REFUSED
from tests.broker.access import RULES, call, change, token
from tests.broker.cluster import Cluster, fetch_of, frame_of, in_cluster, read_all, values_of
from tests.broker.quotas import KIB, Counted, errors_of, now_s, set_quota
from tests.waiting import until


@in_cluster("a:1")
async def test_batches_above_the_quota_are_refused_with_the_time_to_come_back(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    line, frame = cluster.line("a:1"), frame_of("t", 0, b"x" * 8 * KIB)
    await set_quota(cluster, "anonymous", bytes_in=2 * frame.payload_bytes)
    for _ in range(2):
        assert not errors_of(await line.produce_once(frame))
    [error] = errors_of(await line.produce_once(frame))
    assert error.code == ResourceExhausted.code
    assert "bytes_in" in error.message
    assert "anonymous" in error.message
    await line.produce_once(frame_of("t", 0, b"y"))  # costs nothing: it is refused
    await asyncio.sleep(error.retry_after_ms / 1000)
    assert not errors_of(await line.produce_once(frame))
    [error] = errors_of(await line.produce_once(frame))
    assert 400 <= error.retry_after_ms <= 600, "the frame took twice the share of half a second"


@in_cluster("a:1")
async def test_answers_of_a_produce_stream_keep_their_order(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    size = frame_of("t", 0, b"0").payload_bytes
    await set_quota(cluster, "anonymous", bytes_in=2 * size)

    async def frames() -> AsyncIterator[ProduceFrame]:
        for number in range(6):
            yield frame_of("t", 0, str(number).encode())
            if number == 3:
                await asyncio.sleep(1.0)

    answers = [answer async for answer in cluster.line("a:1").produce(frames())]
    codes = [[error.code for error in errors_of(answer)] for answer in answers]
    assert codes == [[], [], ["RESOURCE_EXHAUSTED"], ["RESOURCE_EXHAUSTED"], [], []]
    assert await read_all(cluster.brokers["a:1"].service, "t", 0) == [b"0", b"1", b"4", b"5"]


@in_cluster("a:1", "b:1")
async def test_a_producer_waits_and_loses_nothing_and_keeps_the_order(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await set_quota(cluster, "anonymous", "slow", bytes_in=4 * KIB)
    began_s = now_s()
    async with cluster.client(client_id="slow") as client, client.producer(linger_ms=0) as producer:
        for number in range(200):
            await producer.send("t", b"%d " % number + b"x" * 100)
    took_s = now_s() - began_s
    assert 200 * 100 / (4 * KIB) - 3 < took_s < 60
    found = await cluster.read_all("t", 0)
    assert [int(value.split()[0]) for value in found] == list(range(200))


@in_cluster("a:1")
async def test_a_reader_is_held_back_and_gets_everything(cluster: Cluster) -> None:
    """Its stream gets signs of life meanwhile, so that it is not taken for dead, and goes on where it was."""
    cluster.counts["b:1"] = [counts := Counted()]
    await cluster.start("b:1")
    await cluster.stop("a:1")
    await cluster.settled()
    await cluster.create("t", 2)
    for number in range(40):
        await cluster.produce("t", number % 2, b"%d " % number + bytes(KIB))
    await set_quota(cluster, "anonymous", "slow", bytes_out=2 * KIB)
    began_s = now_s()
    async with (
        cluster.client(client_id="slow") as client,
        client.consumer("t", start="earliest", fetch_bytes_max=4 * KIB) as consumer,
    ):
        got = [int((await anext(consumer)).value.split()[0]) for _ in range(40)]
    assert sorted(got) == list(range(40)), "each once"
    for partition in (0, 1):
        assert [number for number in got if number % 2 == partition] == list(range(partition, 40, 2))
    least_s = 40 / 2 - 8
    assert now_s() - began_s > least_s
    assert counts.held_s > least_s
    assert not counts.refusals


@in_cluster("a:1")
async def test_a_held_stream_sends_signs_and_occupies_no_memory(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    for _ in range(3):
        await cluster.produce("t", 0, bytes(8 * KIB))
    await set_quota(cluster, "anonymous", bytes_out=KIB)
    async with aclosing(cluster.line("a:1").fetch(fetch_of("t", 0, max_bytes=1))) as frames:  # type: ignore[type-var]
        first = await anext(frames)
        assert len(values_of(first)) == 1
        del first
        began_s = now_s()
        sign = await anext(frames)
        assert not sign.header.partitions
        assert 2.5 < now_s() - began_s < 3.5
        assert cluster.brokers["a:1"].context.answers.taken == 0
        while not (found := await anext(frames)).header.partitions:
            pass
        assert found.header.partitions[0].batches[0].base_offset == 1
        assert 5 < now_s() - began_s < 10


@in_cluster("a:1")
async def test_streams_that_are_opened_again_and_again_get_no_more(cluster: Cluster) -> None:
    """The first answer of a stream waits as all others do."""
    await cluster.create("t", 1)
    await cluster.produce("t", 0, bytes(8 * KIB))
    await set_quota(cluster, "anonymous", bytes_out=4 * KIB)
    began_s, received = now_s(), 0
    for _ in range(10):
        async with aclosing(cluster.line("a:1").fetch(fetch_of("t", 0))) as frames:  # type: ignore[type-var]
            while not (frame := await anext(frames)).payload_bytes:
                pass
            received += frame.payload_bytes
    assert received > 80 * KIB
    assert received <= 4 * KIB * (now_s() - began_s + 1) + 9 * KIB


@in_cluster("a:1")
async def test_a_single_fetch_is_held_for_a_moment_and_then_refused(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, bytes(8 * KIB))
    await set_quota(cluster, "anonymous", bytes_out=6 * KIB)
    line = cluster.line("a:1")
    assert len(values_of(await line.fetch_once(fetch_of("t", 0)))) == 1
    began_s = now_s()
    assert len(values_of(await line.fetch_once(fetch_of("t", 0)))) == 1
    assert 0.3 < now_s() - began_s < HELD_S_MAX
    await set_quota(cluster, "anonymous", bytes_out=KIB)
    began_s = now_s()
    with pytest.raises(ResourceExhausted) as refused:
        await line.fetch_once(fetch_of("t", 0))
    assert now_s() == began_s
    assert refused.value.retry_after_ms is not None
    assert refused.value.retry_after_ms > 1000 * HELD_S_MAX


@in_cluster("a:1")
async def test_calls_above_the_quota_are_refused_but_not_those_that_free_something(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await set_quota(cluster, "anonymous", requests=2)
    line = cluster.line("a:1")
    for _ in range(2):
        await line.describe_cluster(pb.DescribeClusterRequest())
    with pytest.raises(ResourceExhausted) as refused:
        await line.describe_cluster(pb.DescribeClusterRequest())
    assert refused.value.retry_after_ms
    for method in METHODS:
        if method.attribute in NEVER_REFUSED:
            answer = await call(line, method, getattr(pb, f"{method.name}Request")())
            assert not isinstance(answer, ResourceExhausted), method.name
    async with aclosing(line.fetch(fetch_of("t", 0))) as fetching:  # type: ignore[type-var]
        with pytest.raises(ResourceExhausted):
            await anext(fetching)
    [error] = errors_of(await line.produce_once(frame_of("t", 0, b"x")))
    assert error.code == ResourceExhausted.code


def test_what_is_never_refused_are_methods() -> None:
    assert GUARDS.keys() >= NEVER_REFUSED


@in_cluster("a:1")
async def test_the_client_waits_where_calls_are_refused(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await set_quota(cluster, "anonymous", requests=2)
    async with cluster.client() as client:
        began_s = now_s()
        for _ in range(20):
            await client.describe_topic("t")
        assert 8 < now_s() - began_s < 20


@in_cluster("a:1", **RULES)
async def test_two_principals_one_floods_the_other_keeps_its_share(cluster: Cluster) -> None:
    await _flood_beside_a_calm_one(cluster)


def _one_for_all(self: Usages, principal: str, client_id: str | None = None) -> Usage:
    """One bucket, whoever calls."""
    key = ("all", None)
    found = self._usages.get(key)
    if found is None:
        found = self._usages[key] = Usage("all")
    return found


MUTANTS = {
    "nothing-is-taken": (TokenBucket, "take", lambda self, amount, now_s: None),
    "one-bucket-for-all": (Usages, "usage", _one_for_all),
    "debts-are-forgiven": (TokenBucket, "take", lambda self, amount, now_s: setattr(self, "_level", 0.0)),
}


@pytest.mark.parametrize("name", MUTANTS)
@in_cluster("a:1", **RULES)
async def test_a_broken_quota_is_noticed(cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises((AssertionError, ExceptionGroup)) as noticed:
        await _flood_beside_a_calm_one(cluster)
    found = noticed.value
    assert isinstance(found, AssertionError) or found.subgroup(AssertionError) is not None


async def _flood_beside_a_calm_one(cluster: Cluster) -> None:
    """The flood is bounded to its quota. The calm one sends just below its own all the time: nothing of it is
    refused or late.
    """
    cluster.counts["b:1"] = [counts := Counted()]
    await cluster.start("b:1")
    await cluster.stop("a:1")
    await cluster.settled()
    root = (await token(cluster, "root")).text
    for name in ("calm", "wild"):
        await cluster.create(name, 1, root)
        await change(cluster, grant=[f"allow user:{name} produce {name}"])
    per_s = 64 * KIB
    await set_quota(cluster, "*", bytes_in=per_s)
    seconds, stored, slowest_s = 8, {"calm": 0, "wild": 0}, 0.0
    until_s = now_s() + seconds
    frames = {name: frame_of(name, 0, bytes(4 * KIB)) for name in stored}

    async def flood(line: Any) -> None:
        while now_s() < until_s:
            answer = await line.produce_once(frames["wild"])
            if not errors_of(answer):
                stored["wild"] += frames["wild"].payload_bytes
            await asyncio.sleep(0.02)  # it does not wait as long as it should

    async def calm(line: Any) -> None:
        nonlocal slowest_s
        pause_s = frames["calm"].payload_bytes / (0.95 * per_s)
        while (began_s := now_s()) < until_s:
            assert not errors_of(await line.produce_once(frames["calm"]))
            stored["calm"] += frames["calm"].payload_bytes
            slowest_s = max(slowest_s, now_s() - began_s)
            await asyncio.sleep(max(0.0, began_s + pause_s - now_s()))

    wild = [cluster.line("b:1", (await token(cluster, "wild")).text) for _ in range(8)]
    async with asyncio.TaskGroup() as group:
        group.create_task(calm(cluster.line("b:1", (await token(cluster, "calm")).text)))
        for line in wild:
            group.create_task(flood(line))
    assert stored["calm"] > 0.9 * 0.95 * per_s * seconds
    assert stored["wild"] <= per_s * (seconds + 1) + 8 * frames["wild"].payload_bytes
    assert slowest_s < 0.5
    assert {principal for principal, _ in counts.refusals} == {"user:wild"}


@in_cluster("a:1")
async def test_a_transaction_above_the_limit_waits_until_another_one_ends(cluster: Cluster) -> None:
    """Those that are open go on; what ended counts no longer, whoever ended it."""
    await cluster.create("t", 1)
    await set_quota(cluster, "anonymous", open_transactions=2)
    async with (
        cluster.client() as client,
        client.transactions("one") as first,
        client.transactions("two") as second,
        client.transactions("three") as third,
        second.begin() as inner,
    ):
        await inner.send("t", b"two")
        await inner.flush()
        outer = first.begin()
        async with outer:
            await outer.send("t", b"one")
            await outer.flush()
            waiting = asyncio.create_task(_send_in(third, b"three"))
            await asyncio.sleep(3)
            assert not waiting.done()
            await inner.send("t", b"two again")
            await inner.flush()
        await waiting
    await until(lambda: _holds(cluster, {b"one", b"three", b"two", b"two again"}))


async def _holds(cluster: Cluster, values: set[bytes]) -> bool:
    return set(await cluster.read_all("t", 0)) == values


async def _send_in(transactions: ledgermq.Transactions, value: bytes) -> None:
    async with transactions.begin() as transaction:
        await transaction.send("t", value)


@in_cluster("a:1")
async def test_short_transactions_one_after_the_other_stay_below_the_limit(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await set_quota(cluster, "anonymous", open_transactions=1)
    began_s = now_s()
    async with cluster.client() as client, client.transactions("one") as transactions:
        for number in range(20):
            await _send_in(transactions, b"%d" % number)
    assert now_s() - began_s < 15
    await until(lambda: _holds(cluster, {b"%d" % number for number in range(20)}))
