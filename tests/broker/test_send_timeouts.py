"""The timeout of one call of `send`, `send_many` and `send_batch`: the record counts as failed within it, whatever
happens to brokers and to the event loop, and other records do not notice.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import ledgermq
from ledgermq.errors import (
    DeadlineExceeded,
    InvalidRecord,
    LedgerMQError,
    OutcomeUnknown,
    TransactionAborted,
)
from tests.broker.cluster import Cluster, in_cluster
from tests.virtual_time import VirtualLoop

in_one = in_cluster("a:1", heartbeat_interval_ms=2000, holding_ms=12_000)


async def failure_of(delivery: ledgermq.Delivery, within_s: float) -> LedgerMQError:
    """Return the error of a record, which has to come at that time, and not much later."""
    begun_s = asyncio.get_running_loop().time()
    with pytest.raises(LedgerMQError) as caught:
        await delivery
    took_s = asyncio.get_running_loop().time() - begun_s
    assert 0.85 * within_s <= took_s <= within_s + 0.02
    return caught.value


async def values_in(cluster: Cluster, partition: int = 0) -> list[bytes]:
    return await cluster.read_all("t", partition)


@in_one
async def test_a_record_that_was_never_sent_has_surely_failed(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with cluster.client() as client, client.producer() as producer:
        await producer.send("t", "first", timeout=5)
        await cluster.stop("a:1", graceful=False)
        kept = producer.send("t", "kept")
        await asyncio.sleep(1)  # its attempt has failed, and the producer looks for another owner
        late = producer.send("t", "late", timeout=1)
        later = producer.send("t", "kept, too")
        assert type(await failure_of(late, 1)) is DeadlineExceeded
        await asyncio.sleep(20)
        await cluster.start("a:1")
        assert [(await each).offset for each in (kept, later)] == [1, 2]
        assert await values_in(cluster) == [b"first", b"kept", b"kept, too"]
        assert producer.buffered_bytes == 0


@in_one
async def test_a_record_without_an_answer_may_be_stored_and_others_are_once(cluster: Cluster) -> None:
    """The broker stands still with requests on their way; behind them are records that were not sent."""
    await cluster.create("t", 1)
    async with cluster.client() as client, client.producer(linger_ms=0) as producer:
        await producer.send("t", "first")
        cluster.views["a:1"].pause()
        deliveries = []
        for number in range(8):
            deliveries.append(producer.send("t", f"plain {number}"))
            deliveries.append(producer.send("t", f"timed {number}", timeout=2))
            await asyncio.sleep(0.01)
        timed = deliveries[1::2]
        kinds = [type(await failure_of(timed[0], 1.92)), *[type(await failure_of(each, 0.01)) for each in timed[1:]]]
        assert kinds == sorted(kinds, key=[OutcomeUnknown, DeadlineExceeded].index), "the first of them were sent"
        assert set(kinds) == {OutcomeUnknown, DeadlineExceeded}
        assert producer.unanswered_records == 8
        cluster.views["a:1"].resume()
        plain = [(await each).offset for each in deliveries[::2]]
        values = await values_in(cluster)
        assert [values[offset or 0] for offset in plain] == [f"plain {number}".encode() for number in range(8)]
        assert len(set(values)) == len(values), "nothing is stored twice"
        certain = [f"timed {number}".encode() for number, kind in enumerate(kinds) if kind is DeadlineExceeded]
        assert not {*certain} & {*values}
        await producer.flush()
        assert producer.buffered_bytes == 0


@in_one
async def test_nothing_is_sent_again_for_a_record_whose_time_is_over(cluster: Cluster) -> None:
    """It was on the line when the broker died: it is unknown, and does not come minutes later."""
    await cluster.create("t", 1)
    async with cluster.client() as client, client.producer() as producer:
        await producer.send("t", "first")
        cluster.views["a:1"].pause()
        late = producer.send("t", "late", timeout=3)
        await asyncio.sleep(1)
        await cluster.stop("a:1", graceful=False)
        assert type(await failure_of(late, 2)) is OutcomeUnknown
        await cluster.start("a:1")
        await producer.send("t", "next")
        assert [value for value in await values_in(cluster) if value != b"late"] == [b"first", b"next"]


@in_cluster("a:1", "b:1")
async def test_a_takeover_within_the_time_is_no_failure(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with cluster.client() as client, client.producer() as producer:
        await producer.send("t", "before", timeout=timedelta(seconds=30))
        await cluster.stop(await cluster.owner_of("t", 0), graceful=False)
        await producer.send("t", "during", timeout=60)
        await producer.send("t", "after")
        assert await values_in(cluster) == [b"before", b"during", b"after"]


@in_cluster("a:1", "b:1")
async def test_a_takeover_that_takes_longer_fails_the_record_and_no_other(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with cluster.client() as client, client.producer() as producer:
        await producer.send("t", "before")
        cluster.views[await cluster.owner_of("t", 0)].pause()
        plain = [producer.send("t", "plain")]
        await asyncio.sleep(0.1)
        late = producer.send("t", "late", timeout=1)
        await asyncio.sleep(0.1)
        plain.append(producer.send("t", "plain, too"))
        assert type(await failure_of(late, 0.9)) is OutcomeUnknown
        for delivery in plain:
            await delivery
        async with client.consumer("t", start="earliest", until_end=True) as consumer:
            values = [message.value async for message in consumer]
        assert [value for value in values if value != b"late"] == [b"before", b"plain", b"plain, too"]
        assert values.count(b"late") <= 1


@pytest.mark.parametrize("is_away", [True, False])
@in_one
async def test_the_time_also_counts_while_the_topic_is_not_known(cluster: Cluster, is_away: bool) -> None:
    await cluster.create("t", 1)
    async with cluster.client() as client, client.producer() as producer:
        called = []
        if is_away:
            await cluster.stop("a:1", graceful=False)
        plain = producer.send("t", "plain")
        rows = await producer.send_batch("t", pa.table({"value": ["row"]}), timeout=1)
        late = producer.send("t", "late", timeout=1, on_delivery=called.append)
        if is_away:
            assert type(await failure_of(late, 1)) is DeadlineExceeded
            with pytest.raises(DeadlineExceeded):
                await rows
            await asyncio.sleep(0)
            assert [type(each.error) for each in called] == [DeadlineExceeded]
            await cluster.start("a:1")
        else:
            assert ((await late).offset, [result.offset for result in called]) == (2, [2])
        assert (await plain).offset == 0
        assert await values_in(cluster) == ([b"plain"] if is_away else [b"plain", b"row", b"late"])
        assert producer.buffered_bytes == 0
        with pytest.raises(DeadlineExceeded, match="not sent in time"):
            await producer.send("t2", "late", timeout=0)


@in_one
async def test_the_wait_for_room_counts(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    clock_s = asyncio.get_running_loop().time
    async with cluster.client() as client, client.producer(buffer_bytes_max=2000) as producer:
        await producer.send("t", "first")
        cluster.views["a:1"].pause()
        filling = producer.send_many("t", [b"x" * 100] * 20)

        async def one_by_one() -> Any:
            yield b"y" * 500

        for call in (
            lambda: producer.send_many("t", [b"y" * 500] * 10, timeout=2),
            lambda: producer.send_many("t", iter([b"y" * 500]), timeout=2),
            lambda: producer.send_many("t", one_by_one(), timeout=2),
            lambda: producer.send_batch("t", pa.table({"value": [b"y" * 500]}), timeout=2),
        ):
            begun_s = clock_s()
            with pytest.raises(DeadlineExceeded):
                await call()
            assert clock_s() - begun_s < 2.02
        cluster.views["a:1"].resume()
        await (await filling)
        assert b"y" * 500 not in await values_in(cluster)


@in_one
async def test_wait_for_room_ends_in_time(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    clock_s = asyncio.get_running_loop().time
    async with cluster.client() as client, client.producer(buffer_bytes_max=1000) as producer:
        await producer.send("t", "first")
        cluster.views["a:1"].pause()
        large = producer.send("t", b"x" * 2000)
        begun_s = clock_s()
        with pytest.raises(DeadlineExceeded, match="no room"):
            await producer.wait_for_room(timeout=2)
        assert clock_s() - begun_s < 2.02
        cluster.views["a:1"].resume()
        await producer.wait_for_room(timeout=60)
        assert (await large).offset == 1


@in_one
async def test_a_program_that_blocks_its_loop_gets_the_answers_that_came_meanwhile(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with cluster.client() as client, client.producer() as producer:
        await producer.send("t", "first")
        sent = producer.send("t", "sent", timeout=1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert producer._dispatcher._streams["a:1"].oldest() is not None
        loop._selector.now_s += 5  # type: ignore[attr-defined]
        assert (await sent).offset == 1
        unsent = producer.send("t", "unsent", timeout=1)
        loop._selector.now_s += 5  # type: ignore[attr-defined]
        with pytest.raises(DeadlineExceeded):
            await unsent
        assert await values_in(cluster) == [b"first", b"sent"]


@in_one
async def test_records_with_a_time_do_not_wait_for_a_long_linger(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with cluster.client() as client, client.producer(linger_ms=60_000) as producer:
        begun_s = asyncio.get_running_loop().time()
        assert (await producer.send("t", "x", timeout=1)).offset == 0
        assert asyncio.get_running_loop().time() - begun_s < 0.6


@in_one
async def test_records_of_about_the_same_time_travel_together(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with cluster.client() as client, client.producer() as producer:
        await producer.send("t", "first")
        await cluster.stop("a:1", graceful=False)
        await asyncio.sleep(1)
        for _ in range(100):
            producer.send("t", "x", timeout=10)
            await asyncio.sleep(0.01)
        assert len(producer._batches()) <= 3
        assert await producer.drain() != []


REFUSED = [-1, -0.001, math.nan, True, "5", b"5", -math.inf, timedelta(seconds=-1), [1]]


@pytest.mark.parametrize("given", REFUSED, ids=repr)
@in_one
async def test_what_is_no_time_is_refused_and_loses_nothing(cluster: Cluster, given: Any) -> None:
    await cluster.create("t", 1)
    async with cluster.client() as client, client.producer() as producer:
        calls: list[Callable[[], object]] = [
            lambda: producer.send("t", "x", timeout=given),
            lambda: producer.send_many("t", ["x"], timeout=given),
            lambda: producer.send_batch("t", pa.table({"value": ["x"]}), timeout=given),
        ]
        for call in calls:
            with pytest.raises(InvalidRecord, match="timeout must be"):
                call()
        assert (await producer.send("t", "y")).offset == 0


@pytest.mark.parametrize("given", [1e300, math.inf, 10**400, timedelta.max, 10**9])
@in_one
async def test_a_huge_time_is_the_delivery_timeout(cluster: Cluster, given: Any) -> None:
    await cluster.create("t", 1)
    async with cluster.client() as client, client.producer(delivery_timeout_s=7) as producer:
        assert (await producer.send("t", "x", timeout=given)).offset == 0
        await cluster.stop("a:1", graceful=False)
        await asyncio.sleep(1)
        assert isinstance(
            await failure_of(producer.send("t", "y", timeout=given), 7), DeadlineExceeded | OutcomeUnknown
        )
        await cluster.start("a:1")


@in_one
async def test_no_time_at_all_is_a_failure_without_an_attempt(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with cluster.client() as client, client.producer() as producer:
        await producer.send("t", "first")
        assert type(await failure_of(producer.send("t", "never", timeout=0), 0)) is DeadlineExceeded
        many = await producer.send_many("t", [b"never"] * 3, timeout=0)
        assert [type(await failure_of(each, 0)) for each in many] == [DeadlineExceeded] * 3
        await producer.send("t", "next")
        assert await values_in(cluster) == [b"first", b"next"]


async def _too_late(cluster: Cluster, begun: ledgermq.Transaction) -> None:
    async with begun as transaction:
        await transaction.send("t", "staged", timeout=30)
        cluster.views["a:1"].pause()
        late = transaction.send("t", "late", timeout=2)
        assert isinstance(await failure_of(late, 2), OutcomeUnknown | TransactionAborted)
        cluster.views["a:1"].resume()


@in_one
async def test_a_transaction_whose_record_is_late_aborts(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with cluster.client() as client, client.transactions("one") as transactions:
        with pytest.raises(LedgerMQError):
            await _too_late(cluster, transactions.begin())
        async with transactions.begin() as transaction:
            await transaction.send_batch("t", pa.table({"value": ["row"]}), timeout=30)
            await transaction.send_many("t", ["whole"], timeout=30)
    async with cluster.client() as client, client.consumer("t", start="earliest") as consumer:
        assert [message.value for message in await consumer.fetch(2, timeout=60)] == [b"row", b"whole"]


@pytest.mark.parametrize("settings", [{"acks": "received"}, {"idempotent": False}, {"batch_by": "tag"}], ids=repr)
@in_one
async def test_it_holds_for_every_kind_of_producer(cluster: Cluster, settings: dict[str, Any]) -> None:
    await cluster.create("t", 1)
    async with cluster.client() as client, client.producer(raise_on_error=False, **settings) as producer:
        await producer.send("t", "first", tag="a")
        await cluster.stop("a:1", graceful=False)
        kept = producer.send("t", "kept", tag="a")
        await asyncio.sleep(1)
        late = [producer.send("t", "late", tag=tag, timeout=1) for tag in ("a", "b")]
        late.append(producer.send("t", "late", delay=5, timeout=1))
        assert [type((await each).error) for each in late] == [DeadlineExceeded] * 3
        await cluster.start("a:1")
        assert (await kept).success
        assert (await values_in(cluster))[-2:] == [b"first", b"kept"]


@in_one
async def test_a_producer_with_a_local_file_takes_none(cluster: Cluster, tmp_path: Any) -> None:
    await cluster.create("t", 1)
    spill = ledgermq.Spill(tmp_path / "spill")
    async with cluster.client() as client, client.producer(spill=spill) as producer:
        with pytest.raises(InvalidRecord, match="spill takes no timeout"):
            producer.send("t", "x", timeout=1)
        assert (await producer.send("t", "x")).success
