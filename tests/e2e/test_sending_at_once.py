"""`send`, `send_many` and `send_batch` queue at once, in the order of their calls, whether or not they are
awaited: nothing that was given to a producer is lost without an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import pyarrow as pa
import pytest

import ledgermq
from ledgermq import errors
from ledgermq.client.producing.buffering import queuing, send_buffer
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until

SMALL = {"buffer_bytes_max": 20_000, "batch_bytes_max": 4_000}
"""A buffer with room for some hundred records."""
COUNT = 5_000


def values(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


async def stored(client: ledgermq.Client, topic: str = "t") -> list[bytes]:
    async with client.consumer(topic, until_end=True) as consumer:
        return [message.value async for message in consumer]


@in_cluster("a:1")
async def test_what_is_not_awaited_is_stored_in_the_order_of_the_calls(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(**SMALL) as producer:
            given = values(0, COUNT)
            producer.send_many("t", given)
            given.clear()  # the program goes on with its list
            producer.send_batch("t", pa.table({"value": values(COUNT, 2 * COUNT)}))
            producer.send_many("t", iter(values(2 * COUNT, 3 * COUNT)))
            assert producer.unanswered_records >= COUNT, "what waits for room is counted"
            producer.send_many("t", (ledgermq.Record(value, key=b"k") for value in values(3 * COUNT, 3 * COUNT + 10)))
        assert await stored(client) == values(0, 3 * COUNT + 10)


@in_cluster("a:1")
async def test_a_record_comes_behind_the_calls_before_it_or_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(**SMALL) as producer:
            producer.send_many("t", values(0, COUNT))
            producer.send("t", b"behind")
            await producer.flush()
            assert await stored(client) == [*values(0, COUNT), b"behind"]
        monkeypatch.setattr(send_buffer, "WAITING_BYTES_MAX", 1)
        async with client.producer(**SMALL) as producer:
            await client.create_topic("u", 1)
            queuing_ = producer.send_many("u", values(0, COUNT))
            with pytest.raises(errors.ResourceExhausted, match="await that call first"):
                producer.send("u", b"too early")
            assert len(await queuing_) == COUNT
            producer.send("u", b"behind")
        assert await stored(client, "u") == [*values(0, COUNT), b"behind"]


@in_cluster("a:1")
async def test_an_awaited_call_lets_others_send_meanwhile(cluster: Cluster) -> None:
    """As before there were calls that nothing awaits."""
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(**SMALL) as producer:
            awaited = asyncio.create_task(producer.send_many("t", values(0, COUNT)))
            await asyncio.sleep(0)
            producer.send("t", b"between")
            assert not awaited.done()
            deliveries = await awaited
            results = await deliveries
            assert [result.offset for result in results] == sorted(result.offset for result in results)
            assert len(results) == COUNT
        found = await stored(client)
        assert found.index(b"between") < COUNT
        assert sorted(found) == sorted([*values(0, COUNT), b"between"])


WAYS: list[Callable[[Awaitable[ledgermq.Deliveries]], Awaitable[object]]] = [
    lambda call: call,
    asyncio.create_task,  # type: ignore[list-item]
    asyncio.gather,
    lambda call: asyncio.wait_for(call, 60),
]


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("count", [3, COUNT])
@in_cluster("a:1")
async def test_every_way_to_await_a_coroutine_works(cluster: Cluster, way: int, count: int) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(**SMALL) as producer:
            await WAYS[way](producer.send_many("t", values(0, count)))
            results = await (await producer.send_batch("t", pa.table({"value": values(count, 2 * count)})))
            assert sum(result.record_count for result in results) == count
        assert await stored(client) == values(0, 2 * count)


@in_cluster("a:1")
async def test_a_caller_that_is_cancelled_queues_no_more_and_one_that_forgot_does(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(**SMALL) as producer:
            task = asyncio.create_task(producer.send_many("t", values(0, COUNT)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await producer.flush()
            found = await stored(client)
            assert 0 < len(found) < COUNT
            assert found == values(0, len(found)), "those before stay queued"
            with pytest.raises(TimeoutError):  # a record that is queued is not taken back
                async with asyncio.timeout(0):
                    await producer.send("t", b"late")
        assert (await stored(client))[-1] == b"late"


@in_cluster("a:1")
async def test_errors_are_raised_where_the_call_is_awaited_or_else_by_flush_and_close(cluster: Cluster) -> None:
    def broken() -> Iterator[bytes]:
        yield from values(0, COUNT)
        raise ZeroDivisionError

    wrong = [*values(0, COUNT), 7]
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        for records, error in (
            (wrong, errors.InvalidRecord),
            (broken(), ZeroDivisionError),
            ([7], errors.InvalidRecord),
        ):
            async with client.producer(**SMALL) as producer:
                call = producer.send_many("t", records)
                with pytest.raises(error):
                    await call
                await producer.flush()
        with pytest.raises(errors.InvalidRecord):
            async with client.producer(**SMALL) as producer:
                producer.send_many("t", wrong)
        producer = client.producer(**SMALL)
        producer.send_many("t", broken())
        producer.send_batch("t", pa.table({"valeu": [b"v"]}))
        with pytest.raises(ZeroDivisionError):
            await producer.flush()
        producer.send_batch("t", pa.table({"valeu": [b"v"]}))
        with pytest.raises(errors.InvalidRecord):
            await producer.close()
        with pytest.raises(errors.Closed, match="closed"):
            producer.send_many("t", [b"v"])
        assert len(await stored(client)) == 4 * COUNT, "records before the refused one stay"


@in_cluster("a:1")
async def test_with_raise_on_error_false_each_record_has_a_result(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(**SMALL, raise_on_error=False) as producer:
            results = await (await producer.send_many("t", [*values(0, COUNT), 7, b"v"]))
            assert [at for at, result in enumerate(results) if not result.success] == [COUNT]
            producer.send_many("t", [*values(0, COUNT), 7, b"v"])
        assert len(await stored(client)) == 2 * (COUNT + 1)


@in_cluster("a:1")
async def test_an_asynchronous_iterator_is_read_as_there_is_room(cluster: Cluster) -> None:
    read = 0

    async def source(count: int) -> AsyncIterator[bytes]:
        nonlocal read
        for value in values(0, count):
            read += 1
            if read % 100 == 0:
                await asyncio.sleep(0.001)
            yield value

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(**SMALL) as producer:
            producer.send_many("t", source(COUNT))
            producer.send("t", b"first")  # it does not wait for records that the program has not made yet
            await until(lambda: read > 100)
            assert producer.buffered_bytes <= SMALL["buffer_bytes_max"]
            assert producer.unanswered_records < COUNT
        found = await stored(client)
        assert found[0] == b"first"
        assert found[1:] == values(0, COUNT)
        async with client.producer(**SMALL) as producer:
            assert len(await (await producer.send_many("t", source(10)))) == 10


@in_cluster("a:1")
async def test_a_generator_may_send_itself(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        for topic in ("t", "log"):
            await client.create_topic(topic, 1)
        async with client.producer(**SMALL) as producer:

            def records() -> Iterator[bytes]:
                for value in values(0, COUNT):
                    if len(value) == 1:
                        producer.send("log", value)
                    yield value

            producer.send_many("t", records())
            producer.send("t", b"behind")
        assert await stored(client) == [*values(0, COUNT), b"behind"]
        assert await stored(client, "log") == values(0, 10)


@pytest.mark.parametrize("settings", [{}, {"access_mode": "exclusive", "name": "p"}])
@in_cluster("a:1")
async def test_drain_stores_what_waits_and_takes_nothing_new(cluster: Cluster, settings: dict[str, str]) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        producer = client.producer(**SMALL, **settings)
        producer.send_many("t", values(0, COUNT))
        draining = asyncio.create_task(producer.drain())
        await asyncio.sleep(0)
        with pytest.raises(errors.Closed, match="drained"):
            producer.send_many("t", [b"v"])
        with pytest.raises(errors.Closed, match="drained"):
            producer.send("t", b"v")
        assert await draining == []
        await producer.close()
        assert await stored(client) == values(0, COUNT)


@in_cluster("a:1")
async def test_abort_ends_what_waits_and_a_close_in_time_says_what_is_left(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        producer = client.producer(**SMALL)
        producer.send_many("t", values(0, COUNT))
        await producer.abort()
        assert len(await stored(client)) < COUNT
        producer = client.producer(**SMALL)
        producer.send_many("t", values(0, COUNT))
        with pytest.raises(errors.DeadlineExceeded, match="further records wait for room"):
            await producer.close(0)
        assert not [task for task in asyncio.all_tasks() if "wait for room" in task.get_name()]


async def cancelled_within() -> AsyncIterator[bytes]:
    """Yield one value; then what the program awaits is cancelled, and not the program."""
    yield b"first"
    other = asyncio.ensure_future(asyncio.sleep(60))
    other.cancel()
    await other


@in_cluster("a:1")
async def test_an_iterator_that_raises_cancelled_error_has_failed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            call = producer.send_many("t", cancelled_within())
            with pytest.raises(RuntimeError, match="iterator of the records raised CancelledError"):
                await call
            producer.send_many("t", cancelled_within())
            with pytest.raises(RuntimeError, match="iterator of the records raised CancelledError"):
                await producer.flush()
        async with client.transactions("app") as transactions:
            with pytest.raises(RuntimeError, match="iterator of the records raised CancelledError"):
                async with transactions.begin() as transaction:
                    transaction.send_many("t", cancelled_within())
            assert transaction.state == "aborted", "it would lack what the iterator had still to give"


@in_cluster("a:1")
async def test_a_transaction_commits_what_was_not_awaited_or_nothing(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.transactions("app", **SMALL) as transactions:
            async with transactions.begin() as transaction:
                transaction.send_many("t", values(0, COUNT))
                transaction.send_batch("t", pa.table({"value": [b"batch"]}))
            await until(partial(_count_is, client, COUNT + 1))
            with pytest.raises(errors.InvalidRecord):
                async with transactions.begin() as transaction:
                    transaction.send_many("t", [b"dropped", 7])
            assert transaction.state == "aborted"
            async with transactions.begin() as transaction:
                transaction.send_many("t", values(0, COUNT))
                await transaction.abort()
            async with transactions.begin() as transaction:
                await transaction.send("t", b"last")
            await until(partial(_count_is, client, COUNT + 2))
        assert await stored(client) == [*values(0, COUNT), b"batch", b"last"]


async def _count_is(client: ledgermq.Client, count: int) -> bool:
    return (await client.list_offsets("t"))[0] == count


@in_cluster("a:1")
async def test_calls_that_are_not_awaited_are_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queuing, "UNAWAITED_MAX", 3)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(**SMALL) as producer:
            for first in range(3):
                producer.send_many("t", values(first * COUNT, (first + 1) * COUNT))
            with pytest.raises(errors.ResourceExhausted, match="await some of them"):
                producer.send_many("t", [b"v"])
        assert await stored(client) == values(0, 3 * COUNT)
