"""Look-up by key and by id in a cluster: what is found is what a consumer would read, wherever it is stored."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

import ledgermq_ledger.parquet.files.columns
import ledgermq_ledger.view.find
from ledgermq.client.client import Client
from ledgermq.client.consuming.message import Message
from ledgermq.client.finding import Search
from ledgermq.client.messages.message_id import MessageId
from ledgermq.client.settings.partitioner import partition_of_key
from ledgermq.errors import (
    InvalidConfig,
    InvalidRequest,
    NotOwner,
    OffsetOutOfRange,
    SearchStopped,
    SubscribeNotAccepted,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of
from tests.broker.test_keyed_topics import AGES, KEYED, clean, client_of, put, restart
from tests.virtual_time import virtual, virtual_sources
from tests.waiting import until
from tests.worlds.consumed import read_messages


@asynccontextmanager
async def world() -> AsyncIterator[tuple[Cluster, Client]]:
    store = MemoryStore("", virtual_sources(1000))
    async with cluster_of("a:1", store=store, constants=AGES, bundles=2) as cluster, client_of(cluster) as client:
        yield cluster, client


def ids(messages: list[Message]) -> list[tuple[int, int]]:
    return [(message.partition, message.offset) for message in messages]


async def fill(client: Client, rng: random.Random, count: int, topic: str = "t") -> None:
    """Send batches of different sizes with few and with many keys."""
    async with client.producer() as producer:
        sent = 0
        while sent < count:
            for _ in range(rng.randint(1, 30)):
                key = rng.choice(["hot", f"k{rng.randrange(20)}", f"rare{rng.randrange(10**6)}", None])
                producer.send(topic, rng.randbytes(rng.randrange(60)), key=key, tag=rng.choice([None, "a", "b"]))
                sent += 1
            await producer.flush()


async def check_all(client: Client, topic: str = "t") -> None:
    """Compare look-ups of all keys with what a consumer reads."""
    stored = sorted(await read_messages(client, topic), key=lambda message: (message.partition, message.offset))
    assert stored, "the check sees nothing"
    partitions = len((await client.describe_topic(topic)).partitions)
    keys = sorted({message.key for message in stored if message.key is not None})
    for key in {b"hot", *random.Random(len(keys)).sample(keys, min(12, len(keys)))}:
        expected = [message for message in stored if message.key == key]
        search = client.find(topic, key=key, order="oldest", max=10_000)
        assert await search.all() == expected
        assert search.partitions == (partition_of_key(key, partitions),)
        assert not search.stopped
        newest = client.find(topic, key=key, max=3, partitions="all")
        last = [message for message in await newest.all() if message.partition == expected[-1].partition]
        assert last == expected[::-1][:3]
    assert await client.find(topic, key="absent", partitions="all").all() == []
    for message in random.Random(5).sample(stored, min(20, len(stored))):
        assert await client.find(id=str(message.id)).all() == [message]


async def take(search: Search, found: list[Message]) -> SearchStopped | None:
    """Add what a search returns to `found`; return the error that stopped it."""
    try:
        async for message in search:
            found.append(message)  # noqa: PERF401  what came before an error counts
    except SearchStopped as stopped:
        return stopped
    return None


@pytest.mark.parametrize("seed", range(2))
def test_what_is_found_is_what_consumers_read(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory, in segments that are no longer in memory, in Parquet with many row groups, and in all of them
    together.
    """
    monkeypatch.setattr(ledgermq_ledger.parquet.files.columns, "row_group_bytes_of", lambda file: 4000)
    monkeypatch.setattr(ledgermq_ledger.view.find, "PIECE_BYTES", 3000)

    @virtual
    async def scenario() -> None:
        rng = random.Random(seed)
        async with world() as (cluster, client):
            await client.create_topic("t", 2)
            await fill(client, rng, 150)
            await check_all(client)
            await restart(cluster)
            await check_all(client)
            await fill(client, rng, 60)
            await check_all(client)
            await clean(cluster)
            await check_all(client)
            await restart(cluster)
            await check_all(client)
            await fill(client, rng, 60)
            await restart(cluster)
            await fill(client, rng, 60)
            await check_all(client)

    scenario()


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_search_goes_on_where_a_bound_has_stopped_it(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgermq_ledger.parquet.files.columns, "row_group_bytes_of", lambda file: 4000)
    monkeypatch.setattr(ledgermq_ledger.view.find, "PIECE_BYTES", 500)

    @virtual
    async def scenario() -> None:
        async with world() as (cluster, client):
            await client.create_topic("t", 2)
            await fill(client, random.Random(7), 200)
            await clean(cluster)
            await restart(cluster)
            await fill(client, random.Random(8), 100)
            await restart(cluster)
            expected = await client.find("t", key="hot", partitions="all", order=order, max=10_000).all()
            assert len(expected) > 20
            with pytest.raises(SearchStopped) as early:
                await client.find("t", key="hot", partitions="all", order=order, max=10_000, bytes_max=700).all()
            more = await client.find("t", key="hot", order=order, max=10_000, **early.value.rest).all()
            assert [*early.value.found, *more] == expected
            for settings in ({"bytes_max": 700}, {"max": 7}):
                found: list[Message] = []
                rest: dict[str, object] = {"partitions": "all"}
                stops = 0
                while True:
                    search = client.find("t", key="hot", order=order, **{"max": 10_000, **settings, **rest})
                    stopped = await take(search, found)
                    assert stopped is None or "bytes_max" in stopped.message
                    if not search.stopped:
                        break
                    rest = search.rest if stopped is None else stopped.rest
                    stops += 1
                assert found == expected, settings
                assert stops > 3, settings

    scenario()


@virtual
async def test_the_time_of_a_search_is_bounded() -> None:
    async with world() as (cluster, client):
        await client.create_topic("t", 1)
        await put(client, ("a", "1"))
        search = client.find("t", key="a", timeout=3, start=0, end=1)
        cluster.views["a:1"].pause()
        begun_s = asyncio.get_running_loop().time()
        with pytest.raises(SearchStopped, match="timeout") as stopped:
            await search.all()
        assert asyncio.get_running_loop().time() - begun_s < 5
        assert stopped.value.rest == {"partitions": [0], "start": {0: 0}, "end": {0: 1}}
        cluster.views["a:1"].resume()
        assert len(await client.find("t", key="a", **stopped.value.rest).all()) == 1


@virtual
async def test_a_range_of_offsets_times_and_ages() -> None:
    async with world() as (_, client):
        await client.create_topic("t", 1)
        for n in range(6):
            await put(client, ("a", str(n)))
            await asyncio.sleep(10)
        stored = await read_messages(client)

        async def values(**where: object) -> list[bytes]:
            return [message.value for message in await client.find("t", key="a", order="oldest", **where).all()]

        assert await values(start=2, end=4) == [b"2", b"3"]
        assert await values(start={0: 4}) == [b"4", b"5"]
        assert await values(start=stored[1].timestamp, end=stored[3].timestamp) == [b"1", b"2"]
        assert await values(start="25s") == [b"4", b"5"]
        assert await values(end=timedelta(seconds=25)) == [b"0", b"1", b"2", b"3"]
        assert await values(end="earliest") == []
        assert await values(start=99) == []


@virtual
async def test_a_keyed_topic_has_the_latest_message_of_a_key() -> None:
    async with world() as (cluster, client):
        await client.create_topic("t", 1, KEYED)
        await put(client, ("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("c", None), ("d", "5"), ("e", "6"))
        await clean(cluster)
        await restart(cluster)
        await put(client, ("a", "7"), ("f", "8"))
        for order in ("newest", "oldest"):
            found = {
                key: [message.offset for message in await client.find("t", key=key, order=order).all()]
                for key in "abcdefx"
            }
            newest_first = order == "newest"
            assert found == {
                "a": [7, 2] if newest_first else [2, 7],
                "b": [1],
                "c": [4],
                "d": [5],
                "e": [6],
                "f": [8],
                "x": [],
            }
        [tombstone] = await client.find("t", key="c").all()
        assert tombstone.value is None
        described = await client.describe_message("t:0:4")
        assert described.segment is None
        assert described.parquet_file is not None
        with pytest.raises(OffsetOutOfRange, match="was cleaned"):
            await client.describe_message("t:0:0")


@virtual
async def test_transactions_expired_messages_and_deleted_ones() -> None:
    async with world() as (_, client):
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            await producer.send("t", "short", key="a", ttl=1)
        async with client.transactions("id") as transactions:
            async with transactions.begin() as transaction:
                transaction.send("t", "committed", key="a")
            aborted = transactions.begin()
            await aborted.start()
            aborted.send("t", "aborted", key="a")
            await aborted.flush()
            await aborted.abort()
            async with transactions.begin() as transaction:
                transaction.send("t", "open", key="a")
                await transaction.flush()
                await asyncio.sleep(5)
                assert [message.value for message in await client.find("t", key="a").all()] == [b"committed", b"short"]
        await asyncio.sleep(5)  # it becomes visible shortly after the commit
        assert [message.value for message in await client.find("t", key="a", max=1).all()] == [b"open"]
        await client.delete_records("t", 1)
        assert len(await client.find("t", key="a").all()) == 2
        with pytest.raises(OffsetOutOfRange):
            await client.find(id="t:0:0").all()


@virtual
async def test_where_a_message_is_stored() -> None:
    async with world() as (cluster, client):
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            result = await producer.send("t", "coffee", key="table-7", headers={"a": b"b"}, tag="drinks")
        assert result.message_id == MessageId("t", 0, 0)
        assert str(result.message_id) == "t:0:0"
        fresh = await client.describe_message(result.message_id)
        assert fresh.message.id == result.message_id
        assert (fresh.message.value, fresh.message.tag) == (b"coffee", "drinks")
        assert (fresh.parquet_file, fresh.compacted_at) == (None, None)
        assert fresh.segment is not None
        assert await cluster.store.get(fresh.segment)
        assert fresh.stored_by is not None
        assert fresh.stored_by.producer_id is not None
        assert (fresh.stored_by.broker, fresh.stored_by.base_offset, fresh.stored_by.record_count) == (
            next(iter(cluster.brokers.values())).broker_id,
            0,
            1,
        )
        assert fresh.stored_at is not None
        assert fresh.message.timestamp is not None
        assert abs(fresh.stored_at - fresh.message.timestamp) < timedelta(seconds=5)
        await clean(cluster)
        await restart(cluster)
        later = await client.describe_message(result.message_id)
        assert later.message == fresh.message
        assert later.parquet_file is not None
        assert await cluster.store.get(later.parquet_file)
        assert later.compacted_at is not None


@virtual
async def test_bad_calls_are_typed_errors() -> None:
    async with world() as (_, client):
        await client.create_topic("t", 2)
        for text in ("", "t", "t:0", "t:x:1", "t:0:-1", "t:0:1:2x", "a b:0:1", f"t:0:{2**63}", 7):
            with pytest.raises(InvalidRequest, match="is not the id of a message"):
                client.find(id=text)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="a key or an id"):
            client.find("t")
        with pytest.raises(InvalidRequest, match="a key or an id"):
            client.find("t", key="a", id="t:0:0")
        with pytest.raises(InvalidRequest, match="is of topic"):
            client.find("u", id="t:0:0")
        with pytest.raises(InvalidRequest, match="needs the topic"):
            client.find(key="a")
        for settings in ({"max": 0}, {"order": "random"}, {"bytes_max": 0}, {"timeout": 0}):
            with pytest.raises(InvalidConfig):
                client.find("t", key="a", **settings)  # type: ignore[arg-type]
        with pytest.raises(UnknownPartition):
            await client.find("t", key="a", partitions=[2]).all()
        with pytest.raises(InvalidConfig):
            await client.find("t", key="a", partitions="some").all()
        with pytest.raises(InvalidConfig):
            await client.find("t", key="a", partitions="all", start=3).all()
        with pytest.raises(UnknownTopic):
            await client.find("absent", key="a").all()
        with pytest.raises(UnknownPartition):
            await client.find(id="t:2:0").all()
        with pytest.raises(OffsetOutOfRange, match="ends at offset 0"):
            await client.find(id="t:1:0").all()
        await put(client, ("a", "1"))
        await client.alter_topic("t", settings={"accept.subscribe": False})
        with pytest.raises(SubscribeNotAccepted):
            await client.find("t", key="a").all()


@pytest.mark.parametrize("by", [{"key": b"new"}, {"offset": 1}])
def test_a_former_owner_never_says_that_nothing_is_there(by: dict[str, Any]) -> None:
    @virtual
    async def scenario() -> None:
        async with world() as (cluster, client):
            await cluster.start("b:1")
            await client.create_topic("t", 1)
            await put(client, ("a", "1"))
            zombie = await cluster.owner_of("t", 0)
            cluster.views[zombie].pause()
            heir = "b:1" if zombie == "a:1" else "a:1"
            cluster.network.stop_listening(zombie)
            cluster.brokers[heir].ownership.report_lost(cluster.brokers[zombie].broker_id, refused=True)
            await until(lambda: heir in cluster.serving("t", 0))
            await put(client, ("new", "2"))
            assert zombie in cluster.serving("t", 0), "it has not noticed"
            cluster.views[zombie].resume()
            with pytest.raises(NotOwner):
                await cluster.brokers[zombie].service.find_messages(pb.FindMessagesRequest(topic="t", **by))

    scenario()


@virtual
async def test_few_look_ups_at_a_time_and_each_gets_its_answer() -> None:
    async with world() as (_, client):
        await client.create_topic("t", 1)
        await fill(client, random.Random(1), 60)
        found = await asyncio.gather(*(client.find("t", key="hot").all() for _ in range(30)))
        assert len({tuple(ids(each)) for each in found}) == 1
        assert found[0]
