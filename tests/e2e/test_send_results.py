"""What a producer says of each record: results that carry their error, and functions that get them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable

import pytest

import ledgermq
import ledgermq.sync
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.values import settings_from
from ledgermq.errors import Closed, InvalidConfig, InvalidRecord, MessageTooLarge, UnknownPartition, UnknownTopic
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.test_client_takeover import client_of

LARGE = bytes(2 * 1024 * 1024)


def kinds(results: list[ledgermq.SendResult]) -> list[type | None]:
    return [None if result.success else type(result.error) for result in results]


def bad_partitioner(record: ledgermq.Outgoing, count: int) -> int:
    if record.tag == "bad":
        raise ValueError("no such tag")
    return 0


@in_cluster("a:1")
async def test_every_record_has_a_result_and_none_raises(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2, settings={"max.message.bytes": 1024 * 1024})
        for _ in range(2):  # before the topic's partitions are known, and after
            reported: list[ledgermq.SendResult] = []
            settings = {"raise_on_error": False, "auto_create": False, "partitioner": bad_partitioner}
            async with client.producer(on_delivery=reported.append, **settings) as producer:
                sent = [
                    producer.send("t", b"v"),
                    producer.send("t", 5),
                    producer.send("t", LARGE),
                    producer.send("t", b"v", partition=7),
                    producer.send("t", b"v", tag="bad"),
                    producer.send("nowhere", b"v"),
                    producer.send("t", b"v", delay=-1e9),
                    producer.send("t", b"v", key="k"),
                ]
                expected = [None, InvalidRecord, MessageTooLarge, UnknownPartition, InvalidConfig, UnknownTopic]
                results = [await delivery for delivery in sent]
                assert kinds(results) == [*expected, InvalidRecord, None]
                copies = pickle.loads(pickle.dumps(results))
                assert copies == results
                assert kinds(copies) == kinds(results)
                assert [result.topic for result in results] == ["t"] * 5 + ["nowhere"] + ["t"] * 2
                for result in results:
                    assert (result.offset is None) == (not result.success)
                many = await producer.send_many("t", [b"v", LARGE, 5, b"v"])
                assert kinds([await delivery for delivery in many]) == [None, MessageTooLarge, InvalidRecord, None]
                await producer.flush()
                assert sorted(map(repr, reported)) == sorted(
                    map(repr, [*results, *(delivery.result() for delivery in many)])
                )
            with pytest.raises(Closed, match="closed"):
                producer.send("t", 5)
        async with client.consumer("t", until_end=True) as consumer:
            assert len([message async for message in consumer]) == 8


@in_cluster("a:1")
async def test_on_delivery_gets_what_fails_later_and_flush_does_not_raise_it_again(cluster: Cluster) -> None:
    reported: list[ledgermq.SendResult] = []

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(on_delivery=reported.append, delivery_timeout_s=5, auto_create=False) as producer:
            producer.send("nowhere", b"v")
            await producer.send("t", b"v")
            await producer.flush()
            with pytest.raises(InvalidRecord):
                producer.send("t", 5)
            await cluster.stop("a:1", graceful=False)
            producer.send("t", b"late")
            await producer.flush()
        stored = [result for result in reported if result.success]
        assert [(result.topic, result.partition, result.offset) for result in stored] == [("t", 0, 0)]
        failed = {result.topic: result for result in reported if not result.success}
        assert isinstance(failed["nowhere"].error, UnknownTopic)
        assert failed["nowhere"].partition == -1
        assert failed["t"].error is not None
        assert (failed["t"].partition, failed["t"].offset) == (0, None)
        assert len(reported) == 3


@in_cluster("a:1")
async def test_an_error_of_on_delivery_stops_nothing(cluster: Cluster) -> None:
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context["exception"]))

    def fail(result: ledgermq.SendResult) -> None:
        raise ZeroDivisionError

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(on_delivery=fail) as producer:
            assert [(await producer.send("t", b"v")).offset for _ in range(3)] == [0, 1, 2]
    assert [type(error) for error in logged] == [ZeroDivisionError] * 3


@in_cluster("a:1")
async def test_what_ends_with_an_error_refuses_to_hide_it(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        makes: list[Callable[[], object]] = [
            lambda: client.transactions("t", raise_on_error=False),
            lambda: client.transactions.two_phase(raise_on_error=False),
            lambda: client.half_messages("g", check=lambda message: "unknown", raise_on_error=False),
            lambda: client.resumed_producer({}, raise_on_error=False),
        ]
        for make in makes:
            with pytest.raises(InvalidConfig, match="leave out raise_on_error"):
                make()


def test_the_synchronous_client_has_results_too() -> None:
    reported: list[ledgermq.SendResult] = []
    with ledgermq.sync.connect("memory://results") as client:
        client.create_topic("t", 1)
        for when_full in ("wait", "fail"):
            with client.producer(
                raise_on_error=False, on_delivery=reported.append, when_full=when_full, partitioner=bad_partitioner
            ) as producer:
                sent = [
                    producer.send("t", b"v"),
                    producer.send("t", 5),
                    producer.send("t", b"v", tag="bad"),
                    producer.send("t", b"v", partition=7),
                ]
                expected = [None, InvalidRecord, InvalidConfig, UnknownPartition]
                assert kinds([delivery.result() for delivery in sent]) == expected
        with client.producer(on_delivery=reported.append) as producer, pytest.raises(InvalidRecord):
            producer.send("t", 5)
    assert len(reported) == 8


def test_a_result_of_a_stored_record_says_so() -> None:
    assert ledgermq.SendResult("t", 0, 5, 7).success
    assert settings_from(ProducerSettings, {}).raise_on_error


async def test_a_record_for_a_topic_that_was_created_again_is_refused_for_certain() -> None:
    """The producer has sent to the former topic; its record is not stored in the new one, and it says so."""
    target = "memory://created-again"
    async with ledgermq.connect(target) as client, ledgermq.connect(target) as other, client.producer() as producer:
        await client.create_topic("t", 1)
        await producer.send("t", b"old")
        await other.delete_topic("t", now=True)
        await other.create_topic("t", 1)
        with pytest.raises(UnknownTopic):
            await producer.send("t", b"lost")
        await producer.send("t", b"new")
        async with other.consumer("t", until_end=True) as consumer:
            assert [message.value async for message in consumer] == [b"new"]
