"""Filters on brokers in virtual time: every kind of consumer gets exactly what passes, and positions, commits
and lags go past the rest.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

import ledgermq
from ledgermq import Retry, errors
from ledgermq.client.consuming.prefetch import Prefetch
from ledgermq.client.consuming.reading import FetchedRun
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.metrics.owner_metrics import OwnerMetrics
from ledgermq_broker.paths import fetch_path, received_batches
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.inline_functions import InlineFunctions
from tests.e2e.group_clients import committed, drop
from tests.e2e.test_client_takeover import client_of
from tests.e2e.test_expiry import read, running, values
from tests.waiting import until

TAGS = ["A", "B", "C", None]


async def send(client: ledgermq.Client, topic: str, numbers: range, partitions: int = 1, **settings: int) -> None:
    """Records with their number as value and as header `n`; each fourth has tag A, B, C and none."""
    async with client.producer(**settings) as producer:
        for number in numbers:
            headers = {"n": str(number)} if number % 5 else None
            tag = TAGS[number % 4]
            producer.send(topic, f"{number}", partition=number % partitions, tag=tag, headers=headers)
        await producer.flush()


FILTERS: dict[str, Callable[[int], bool]] = {
    "A": lambda number: number % 4 == 0,
    "A || C": lambda number: number % 4 in (0, 2),
    "n > 50 AND NOT n BETWEEN 60 AND 70": lambda n: n % 5 > 0 and n > 50 and not 60 <= n <= 70,
    "n IS NULL OR TAGS IS NULL": lambda number: number % 5 == 0 or number % 4 == 3,
    "none": lambda number: False,
    "*": lambda number: True,
}


# -- consumers without a group


@pytest.mark.parametrize("text", FILTERS)
def test_a_consumer_gets_what_passes_however_it_reads(text: str) -> None:
    expected = [number for number in range(100) if FILTERS[text](number)]

    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", 1)
            for first in range(0, 100, 20):
                await send(client, "t", range(first, first + 20))
            await send(client, "t", range(100, 100), batch_bytes_max=1)
            assert await read(client, "t", filter=text) == expected
            table = await client.read_arrow("t", filter=text)
            assert table.column("value").to_pylist() == [b"%d" % number for number in expected]
            assert table.column("offset").to_pylist() == expected
            for count in (1, 7, 1000):
                async with client.consumer("t", until_end=True, filter=text) as consumer:
                    got: list[ledgermq.Message] = []
                    await consumer.wait_ready()
                    while not consumer.at_end:
                        got += await consumer.fetch(count, timeout=100)
                    assert values(got) == [message.offset for message in got] == expected
                    assert (consumer.position(0), consumer.filtered) == (100, 100 - len(expected))

    life()


@in_cluster("a:1")
async def test_reading_ends_at_once_where_nothing_passes(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(50))
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        async with client.consumer("t", until_end=True, filter="none") as consumer:
            assert await consumer.fetch(timeout=1000) == []
            assert consumer.at_end
        assert loop.time() - begin_s < 30
        async with client.consumer("t", start="latest", filter="A") as consumer:
            await consumer.wait_ready()
            waiting = asyncio.create_task(anext(consumer))
            await send(client, "t", range(1, 8))
            assert values([await waiting]) == [4]
            begin_s = loop.time()
            assert await consumer.fetch(timeout=2) == []
            assert consumer.position(0) == 57
            assert loop.time() - begin_s < 10


@in_cluster("a:1")
async def test_a_seek_into_what_was_filtered_reads_on_from_there(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(40))
        async with client.consumer("t", filter="A", end="latest") as consumer:
            assert values(await consumer.fetch(3)) == [0, 4, 8]
            assert consumer.position(0) == 9
            await consumer.seek(17, 0)
            assert values(await consumer.fetch(2)) == [20, 24]
            await consumer.seek("earliest")
            assert values([message async for message in consumer]) == list(range(0, 40, 4))


@in_cluster("a:1")
async def test_what_is_filtered_does_not_expire_and_what_expires_is_not_filtered(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            for number in range(20):
                producer.send("t", f"{number}", tag=TAGS[number % 4], ttl=10 if number < 10 else None)
        await asyncio.sleep(11)
        async with client.consumer("t", until_end=True, filter="A || B") as consumer:
            assert values([message async for message in consumer]) == [12, 13, 16, 17]
            assert (consumer.expired, consumer.filtered, consumer.position(0)) == (6, 10, 20)


@in_cluster("a:1")
async def test_a_filter_that_leaves_out_everything_keeps_nothing_else_from_running(cluster: Cluster) -> None:
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(batch_bytes_max=2000) as producer:
            for _ in range(2000):
                producer.send("t", bytes(100), tag="B")
        async with client.consumer("t", until_end=True, filter="TAGS = 'A'") as consumer:  # the broker sends all
            await consumer.wait_ready()
            while consumer._reader._prefetch.held_bytes < 100_000:
                await asyncio.sleep(0.01)
            batches = len(consumer._reader._prefetch.runs)
            working = asyncio.create_task(other_work())
            assert [message async for message in consumer] == []
            working.cancel()
            assert turns >= batches > 50


# -- the broker leaves out


async def send_in_batches(client: ledgermq.Client, topic: str, tags: list[str | None]) -> None:
    """A batch of ten records for each tag."""
    async with client.producer() as producer:
        for tag in tags:
            for _ in range(10):
                producer.send(topic, bytes(100), tag=tag)
            await producer.flush()


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of batches that come from brokers; empty it before each consumer."""
    offsets: list[int] = []
    add = Prefetch.add

    def counted(self: Prefetch, run: FetchedRun) -> None:
        offsets.append(run.base_offset)
        add(self, run)

    monkeypatch.setattr(Prefetch, "add", counted)
    return offsets


@in_cluster("a:1", "b:1")
async def test_batches_without_a_rare_tag_are_not_sent(cluster: Cluster, fetched: list[int]) -> None:
    """Those in memory, and those that a new owner reads from segments."""
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        tags = ["rare" if number % 50 == 20 else random.Random(number).choice(TAGS) for number in range(200)]
        await send_in_batches(client, "t", tags)
        rare = [offset for number in (20, 70, 120, 170) for offset in range(10 * number, 10 * number + 10)]
        for _ in range(2):
            fetched.clear()
            async with client.consumer("t", until_end=True, filter="rare || other") as consumer:
                assert [message.offset async for message in consumer] == rare
                assert (consumer.position(0), consumer.filtered) == (2000, 1960)
            assert fetched == [200, 700, 1200, 1700]
            fetched.clear()
            async with client.consumer("t", until_end=True, filter="TAGS = 'rare'") as consumer:
                assert [message.offset async for message in consumer] == rare
            assert len(fetched) > 50, "conditions are judged by the client alone"
            if len(cluster.brokers) == 2:
                await cluster.stop("a:1", graceful=False)
                await cluster.settled()


@in_cluster("a:1")
async def test_a_group_whose_tag_never_comes_commits_the_end_again_and_again(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.consumer("t", group="g", filter="rare", commit_interval_ms=100) as consumer:
            waiting = asyncio.create_task(anext(consumer))
            for times in range(1, 4):
                await send_in_batches(client, "t", ["A", None] * 10)
                await until(lambda: _is_committed(cluster, 200 * times))  # noqa: B023
                assert (await consumer.lag())[ledgermq.TopicPartition("t", 0)].messages == 0
            assert consumer.filtered == 600
            await send_in_batches(client, "t", ["A", "rare"])
            assert (await waiting).offset == 610
            assert [message.offset for message in await consumer.fetch()] == list(range(611, 620))


@in_cluster("a:1")
async def test_a_broker_that_does_not_leave_out_is_read_alike(
    cluster: Cluster, fetched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier release: it ignores what it does not know, and stores batches without summary."""
    monkeypatch.setattr(received_batches, "summary_of", lambda tags: 0)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send_in_batches(client, "t", ["A", "B"] * 10)
        async with client.consumer("t", until_end=True, filter="A") as consumer:
            assert len([message async for message in consumer]) == 100
            assert consumer.filtered == 100
        assert fetched == list(range(0, 200, 10))


# -- groups


@in_cluster("a:1")
@pytest.mark.parametrize("commit", ["auto", "acked", "manual", "before"])
async def test_a_group_commits_past_what_is_filtered(cluster: Cluster, commit: str) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(1, 100))  # begins and ends with messages that do not pass
        settings = {"commit": commit, "commit_interval_ms": 100, "filter": "A"}
        async with client.consumer("t", group="g", **settings) as consumer:
            got: list[ledgermq.GroupMessage] = []
            while len(got) < 24:
                got += await consumer.fetch(10)
            assert values(got) == list(range(4, 100, 4))
            assert consumer.position(0) == 99, "past the last three"
            assert (await consumer.lag())[ledgermq.TopicPartition("t", 0)].messages == 0
            if commit in ("acked", "manual"):
                for message in got[:-1]:
                    message.ack()
                assert await consumer.commit() == {ledgermq.TopicPartition("t", 0): 95}
                got[-1].ack()
            if commit == "manual":
                await consumer.commit()
            assert await consumer.fetch(timeout=1) == []
            await until(lambda: _is_committed(cluster, 99))
            await send(client, "t", range(101, 104))
            assert await consumer.fetch(timeout=5) == []
            if commit == "manual":
                await consumer.commit()
            await until(lambda: _is_committed(cluster, 102))
            assert consumer.filtered == 78


async def _is_committed(cluster: Cluster, offset: int) -> bool:
    return await committed(cluster, "g", "t") == {0: offset}


@in_cluster("a:1")
async def test_refused_messages_and_rewinds_come_again_between_what_is_filtered(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(40))
        async with client.consumer("t", group="g", commit="acked", filter="A", commit_interval_ms=100) as consumer:
            got = await consumer.fetch(10)
            assert values(got) == list(range(0, 40, 4))
            got[2].nack()
            for message in [*got[:2], *got[3:8]]:
                message.ack()
            [again] = await consumer.fetch()
            assert again.offset == 8
            await until(lambda: _is_committed(cluster, 8))
            again.ack()
            await until(lambda: _is_committed(cluster, 32))
            consumer.rewind()
            rest = await consumer.fetch()
            assert values(rest) == [32, 36]
            for message in rest:
                message.ack()
            await until(lambda: _is_committed(cluster, 40))


@in_cluster("a:1")
async def test_members_with_different_filters_are_refused(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        first = client.consumer("t", group="g", filter="B||A")
        await first.wait_ready()
        async with client.consumer("t", group="g", filter="A || B") as second:
            await second.wait_ready()
        for other in ("A", "a = 1", "", "*"):
            consumer = client.consumer("t", group="g", filter=other)
            with pytest.raises(errors.FilterConflict, match="or use another group"):
                await consumer.wait_ready()
            await consumer.close()
        found = await client.groups.describe("g")
        assert {member.filter for member in found.members} == {"A || B"}
        late = client.consumer("t", group="g", filter="A")
        with pytest.raises(errors.FilterConflict):
            await late.fetch()
        await first.close()
        await late.wait_ready()  # the next call tries again
        await late.close()
        async with client.consumer("t", group="g", broadcast=True, filter="C") as alone:
            await alone.wait_ready()  # nobody shares its partitions


@pytest.mark.parametrize("seed", range(5))
def test_members_that_come_and_go_get_each_message_that_passes(seed: int) -> None:
    """Kills of members and of the broker that owns what they read: each message that passes is handed out, no
    other ever is, and the group ends with everything committed.
    """
    draw = random.Random(seed)
    text = draw.choice([each for each in FILTERS if each not in ("none", "*")])
    expected = {number for number in range(400) if FILTERS[text](number)}

    @in_cluster("a:1", "b:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", 4)
            got: set[int] = set()
            names = itertools.count()

            async def member(lives: int) -> None:
                for life in range(lives):
                    settings = {"commit_interval_ms": 200, "session_timeout_s": 3, "instance_id": ""}
                    consumer = client.consumer("t", group="g", filter=text, **settings)
                    until_s = asyncio.get_running_loop().time() + draw.uniform(2, 8)
                    while asyncio.get_running_loop().time() < until_s or life == lives - 1:
                        if life == lives - 1 and await _all_committed(cluster, client):
                            break
                        try:
                            got.update(values(await consumer.fetch(draw.randrange(1, 30), timeout=0.5)))
                        except errors.RetriableError:
                            await asyncio.sleep(0.2)
                    await (drop(consumer) if draw.random() < 0.5 and life < lives - 1 else consumer.close())
                    next(names)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(3):
                    tasks.create_task(member(3))
                for first in range(0, 400, 50):
                    await send(client, "t", range(first, first + 50), 4)
                    await asyncio.sleep(draw.uniform(0, 2))
                    if first == 200:
                        await cluster.stop(draw.choice(["a:1", "b:1"]), graceful=draw.random() < 0.5)
            assert got == expected
            assert sum((await committed(cluster, "g", "t")).values()) == 400

    life()


async def _all_committed(cluster: Cluster, client: ledgermq.Client) -> bool:
    return sum((await committed(cluster, "g", "t")).values()) == 400


# -- handlers


@in_cluster("a:1")
@pytest.mark.parametrize("transactional", [False, True])
async def test_handlers_are_called_with_what_passes(cluster: Cluster, transactional: bool) -> None:
    called: list[int] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(1, 100))
        settings = {"transactional": True, "transactional_id": "x"} if transactional else {"commit_interval_ms": 100}

        @client.handler("t", group="g", filter="A", **settings)
        async def handle(message: ledgermq.GroupMessage) -> None:
            called.extend(values([message]))

        async with running(client):
            await until(lambda: _is_committed(cluster, 99))
            assert called == list(range(4, 100, 4))
            await send(client, "t", range(1, 4))
            await until(lambda: _is_committed(cluster, 102))
        assert handle.handled == 24


@in_cluster("a:1")
async def test_copies_in_the_retry_topic_need_not_pass_again(cluster: Cluster) -> None:
    """A group whose filter has changed still gets what it has accepted once."""
    called: list[tuple[int, int]] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(8))

        @client.handler(
            "t", group="g", filter="A", retry=Retry.levels(5, [20]), ordered_by=None, commit_interval_ms=100
        )
        async def first(message: ledgermq.GroupMessage) -> None:
            raise ZeroDivisionError

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run_handlers(first, stop=stop))
            await until(lambda: first.retried == 2)
            stop.set()

        @client.handler(
            "t", group="g", filter="B", retry=Retry.levels(5, [20]), ordered_by=None, commit_interval_ms=100
        )
        async def second(message: ledgermq.GroupMessage) -> None:
            called.append((*values([message]), message.attempt))

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run_handlers(second, stop=stop))
            await send(client, "t", range(8, 12))
            await until(lambda: len(called) == 3)
            await asyncio.sleep(60)
            stop.set()
        assert sorted(called) == [(0, 2), (4, 2), (9, 1)]


@in_cluster("a:1")
async def test_expired_messages_that_pass_become_dead_letters_and_no_others(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        retry = Retry.levels(3, [1], expired="dead_letter")

        @client.handler("t", group="g", filter="A || B", ordered_by=None, retry=retry, commit_interval_ms=100)
        async def handle(message: ledgermq.GroupMessage) -> None:
            raise AssertionError("they have expired")

        async with client.producer() as producer:
            for number in range(20):
                producer.send("t", f"{number}", tag=TAGS[number % 4], ttl=timedelta(seconds=1))
        await asyncio.sleep(2)
        async with running(client):
            await until(lambda: handle.dead_lettered == 10)
            await until(lambda: _is_committed(cluster, 20))
        assert sorted(await read(client, "g.dlq")) == [number for number in range(20) if number % 4 < 2]


# -- functions of the broker


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
            await until(lambda: _is_committed(cluster, 100))
            await cluster.stop(await cluster.owner_of("t", 0), graceful=False)
            await cluster.settled()
            await send(client, "t", range(100, 140), batch_bytes_max=50)
            assert [values([await anext(consumer)])[0] for _ in range(13)] == list(range(102, 140, 3))
            assert await consumer.fetch(timeout=1) == []
            await until(lambda: _is_committed(cluster, 140))
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

        def older(request: pb.FetchRequest, *, is_stream: bool = False) -> list[fetch_path._Cursor]:
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
