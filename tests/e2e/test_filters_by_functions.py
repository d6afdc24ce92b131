"""Filters by functions of brokers, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

import ledgermq
from ledgermq import errors
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.metrics.owner_metrics import OwnerMetrics
from ledgermq_broker.paths.fetching import fetch_path
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.inline_functions import InlineFunctions
from tests.e2e.expiring import read, values
from tests.e2e.filtering import is_committed, noted_fetches, send
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until

fetched = pytest.fixture(noted_fetches)


def number_of(message: ledgermq.FilterMessage) -> int:
    return int(message.value or b"")


def third(message: ledgermq.FilterMessage) -> bool:
    return number_of(message) % 3 == 0


def picky(message: ledgermq.FilterMessage) -> bool:
    """Raises for each seventh."""
    return 7 // (number_of(message) % 7) > 2


FUNCTIONS: dict[str, Callable[[ledgermq.FilterMessage], object]] = {
    "third": third,
    "picky": picky,
    "none": lambda message: False,
    "header": lambda message: message.headers.get("n"),
}
KEPT: dict[str, Callable[[int], bool]] = {
    "FUNCTION('third')": lambda number: number % 3 == 0,
    "FUNCTION('third') AND n > 50": lambda number: number % 3 == 0 and number % 5 > 0 and number > 50,
    "FUNCTION('header') AND TAGS = 'A'": lambda number: number % 5 > 0 and number % 4 == 0,
    "FUNCTION('picky')": lambda number: number % 7 in (1, 2),
    "FUNCTION('none')": lambda number: False,
}


async def start_with_functions(cluster: Cluster, *addresses: str) -> None:
    for address in addresses:
        cluster.functions[address] = InlineFunctions(FUNCTIONS)
        await cluster.start(address)
    await cluster.settled()


@pytest.mark.parametrize("text", KEPT)
@pytest.mark.parametrize("batch_bytes_max", [1, 100, 1_000_000])
def test_what_a_function_keeps_is_what_it_keeps_of_everything(text: str, batch_bytes_max: int) -> None:
    expected = [number for number in range(100) if KEPT[text](number)]

    @in_cluster()
    async def life(cluster: Cluster) -> None:
        await start_with_functions(cluster, "a:1")
        async with client_of(cluster) as client:
            await client.create_topic("t", 1)
            await send(client, "t", range(100), batch_bytes_max=batch_bytes_max)
            assert await read(client, "t", filter=text) == expected
            for count in (1, 7, 1000):
                async with client.consumer("t", until_end=True, filter=text, start={0: 3}) as consumer:
                    got: list[ledgermq.Message] = []
                    await consumer.wait_ready()
                    while not consumer.at_end:
                        got += await consumer.fetch(count, timeout=100)
                    assert values(got) == [message.offset for message in got]
                    assert values(got) == [number for number in expected if number >= 3]
                    assert (consumer.position(0), consumer.filtered) == (100, 97 - len(got))
                    assert consumer.filter_counts.failed >= 13 * ("picky" in text)

    life()


@in_cluster()
async def test_a_group_with_a_function_commits_past_all_it_leaves_out_also_after_a_takeover(cluster: Cluster) -> None:
    await start_with_functions(cluster, "a:1", "b:1")
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        settings = {"group": "g", "filter": "FUNCTION('third')", "commit_interval_ms": 100}
        async with client.consumer("t", **settings) as consumer:  # type: ignore[call-overload]
            await send(client, "t", range(100), batch_bytes_max=50)
            got = [values([await anext(consumer)])[0] for _ in range(34)]
            assert got == list(range(0, 100, 3))
            assert await consumer.fetch(timeout=1) == []
            await until(lambda: is_committed(cluster, 100))
            await cluster.stop(await cluster.owner_of("t", 0), graceful=False)
            await cluster.settled()
            await send(client, "t", range(100, 140), batch_bytes_max=50)
            assert [values([await anext(consumer)])[0] for _ in range(13)] == list(range(102, 140, 3))
            assert await consumer.fetch(timeout=1) == []
            await until(lambda: is_committed(cluster, 140))
            assert (await consumer.lag())[ledgermq.TopicPartition("t", 0)].messages == 0


@in_cluster()
async def test_a_function_that_keeps_nothing_sends_nothing(cluster: Cluster, fetched: list[int]) -> None:
    owners = cluster.metrics["a:1"] = OwnerMetrics(CollectorRegistry())
    await start_with_functions(cluster, "a:1")
    async with client_of(cluster) as client:
        topic = await client.create_topic("t", 1)
        await send(client, "t", range(100), batch_bytes_max=100)
        fetched.clear()
        async with client.consumer("t", until_end=True, filter="FUNCTION('none')") as consumer:
            assert [message async for message in consumer] == []
            assert (consumer.position(0), consumer.filter_counts.by_brokers) == (100, 100)
        assert fetched == []
        totals = owners.topics.of(topic.topic_id)
        assert (totals.records_left_out, totals.bytes_left_out, totals.batches_left_out) == (
            totals.records_in,
            totals.bytes_in,
            totals.batches_in,
        )


@in_cluster("a:1")
async def test_a_broker_without_the_function_says_so_and_one_that_knows_no_functions_delivers_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(10))
        async with client.consumer("t", until_end=True, filter="FUNCTION('third')") as consumer:
            with pytest.raises(errors.UnknownFunction, match="no filter function 'third', it has none: its operator"):
                await consumer.fetch(timeout=100)
        given = fetch_path._cursors

        def older(request: pb.FetchRequest, *, is_stream: bool = False) -> list[fetch_path.Cursor]:
            """Those of an earlier release, which drops the field."""
            for wanted in request.partitions:
                wanted.ClearField("function")
            return given(request, is_stream=is_stream)

        monkeypatch.setattr(fetch_path, "_cursors", older)
        async with client.consumer("t", filter="FUNCTION('third')", request_timeout_s=3) as consumer:
            with pytest.raises(errors.Unavailable, match="of a release that runs no filter functions"):
                await consumer.fetch(timeout=100)
            assert consumer.position(0) == 0


@in_cluster()
async def test_a_call_that_is_no_stream_is_refused(cluster: Cluster) -> None:
    await start_with_functions(cluster, "a:1")
    await cluster.create("t", 1)
    request = pb.FetchRequest(partitions=[pb.FetchPartition(topic="t", function="third")])
    with pytest.raises(errors.InvalidRequest, match="streams only"):
        await cluster.line("a:1").fetch_once(request)
