"""A transaction of one call, repeated whatever has become of the calls before: it is committed once. Virtual time."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions.coordinating.term import Coordinating
from ledgermq_broker.transactions.state.coordinating.producers import Identity
from ledgermq_broker.transactions.state.types import Kind
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.lost_answers import lose_the_answer
from tests.broker.transaction_calls import constants_of
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until

JSON = ledgermq.Serializer.json()
RECORDS: list[tuple[str, object]] = [("a", b"1"), ("b", ledgermq.Record(b"2", key=b"k")), ("a", b"3")]


async def topics(client: ledgermq.Client) -> None:
    for topic in ("a", "b"):
        await client.create_topic(topic, 2)


async def stored(client: ledgermq.Client) -> list[bytes]:
    """What readers see in both topics, when everything that is decided is complete."""

    async def is_complete() -> bool:
        found = await client.transactions.list(open_only=False)
        return all(each.complete for each in found.transactions)

    await until(is_complete)
    found: list[bytes] = []
    for topic in ("a", "b"):
        async with client.consumer(topic, until_end=True) as consumer:
            found += [message.value or b"" async for message in consumer]
    return sorted(found)


async def send(client: ledgermq.Client, name: str = "shop.order-17", **more: object) -> ledgermq.SentOnce:
    return await client.transactions.send_once(name, RECORDS, **more)  # type: ignore[arg-type]


@in_cluster("a:1", "b:1")
async def test_all_topics_get_their_records_once_however_often_it_is_repeated(cluster: Cluster) -> None:
    async with client_of(cluster) as one, client_of(cluster) as other:
        await topics(one)
        first = await send(one)
        assert (first.repeated, first.name) == (False, "shop.order-17:1:1")
        for client in (one, other, one):
            assert await send(client) == ledgermq.SentOnce(True)
        assert await stored(one) == [b"1", b"2", b"3"]
        assert not (await send(other, "shop.order-18")).repeated
        assert await stored(one) == [b"1", b"1", b"2", b"2", b"3", b"3"]


@in_cluster("a:1")
async def test_what_fails_leaves_nothing_and_may_be_repeated(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await topics(client)
        wrong = [("a", b"1"), ("b", b"x" * 2_000_000)]
        for _ in range(2):
            with pytest.raises(errors.MessageTooLarge):
                await client.transactions.send_once("shop.order-17", wrong)
        with pytest.raises(errors.UnknownTopic):
            await client.transactions.send_once("shop.order-17", [("a", b"1"), ("nothing", b"2")], auto_create=False)
        with pytest.raises(errors.InvalidRequest, match="at least one"):
            await client.transactions.send_once("shop.order-17", [])
        with pytest.raises(errors.InvalidRecord, match="id"):
            await client.transactions.send_once("shop.order-17", [("a", ledgermq.Record(b"1", id="x"))])
        with pytest.raises(errors.InvalidRequest, match="kept_ms"):
            await send(client, open_max=60, kept=10)
        assert await stored(client) == []
        assert not (await send(client)).repeated
        assert await stored(client) == [b"1", b"2", b"3"]


OTHERS: list[list[tuple[str, object]]] = [
    RECORDS[:1],
    [*RECORDS, ("b", b"4")],
    [("a", b"1"), ("b", ledgermq.Record(b"2", key=b"other")), ("a", b"3")],
    [("a", b"1"), ("b", ledgermq.Record(b"2", key=b"k", tag="eu")), ("a", b"3")],
    [("a", b"1"), ("b", ledgermq.Record(b"2", key=b"k", headers=[("h", None)])), ("a", b"3")],
    [("a", b"13"), ("b", ledgermq.Record(b"2", key=b"k")), ("a", b"")],
    [("a", b"1"), ("b", ledgermq.Record(None, key=b"k")), ("a", b"3")],
]


@in_cluster("a:1", "b:1")
async def test_an_id_that_has_committed_refuses_other_contents(cluster: Cluster) -> None:
    async with client_of(cluster) as one, client_of(cluster) as other:
        await topics(one)
        await send(one)
        for contents in OTHERS:
            with pytest.raises(errors.TransactionIdReused, match=r"shop\.order-17.*nothing of this call was written"):
                await other.transactions.send_once("shop.order-17", contents)
        assert (await send(other)).repeated, "a refused call changes nothing"
        assert await stored(one) == [b"1", b"2", b"3"]


@in_cluster("a:1")
async def test_equal_contents_in_other_words_are_a_repetition(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await topics(client)
        at = datetime(2025, 11, 30, tzinfo=UTC)
        forms = [
            ledgermq.Record("é", key="k", headers={"h": "1"}, timestamp=at, ttl=timedelta(minutes=1), partition=1),
            ledgermq.Record("é".encode(), b"k", (p for p in [("h", b"1")]), None, 1_764_460_800_000_000, 1, 60.0),
            ledgermq.Record(bytearray("é".encode()), b"k", [("h", memoryview(b"1"))], None, at, 1, 60),
        ]
        sent = [await client.transactions.send_once("shop.1", [("a", form)]) for form in forms]
        assert [each.repeated for each in sent] == [False, True, True]
        named = [await client.transactions.send_once("shop.2", [("a", {"n": 1})], serializer=JSON) for _ in range(2)]
        assert [each.repeated for each in named] == [False, True]
        with pytest.raises(errors.TransactionIdReused):
            await client.transactions.send_once("shop.2", [("a", {"n": 2})], serializer=JSON)


@in_cluster("a:1")
async def test_contents_that_are_not_known_are_not_compared(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a call of an earlier release, and as an earlier coordinator answers."""
    true = Coordinating.init

    async def without(self: Coordinating, request: pb.InitTransactionsRequest, kind: Kind) -> Identity:
        request.ClearField("content")
        return await true(self, request, kind)

    async with client_of(cluster) as client:
        await topics(client)
        with monkeypatch.context() as patch:
            patch.setattr(Coordinating, "init", without)
            assert not (await send(client, "shop.1")).repeated
            assert not (await send(client, "shop.2")).repeated
        assert (await client.transactions.send_once("shop.1", RECORDS[:1])).repeated
        await send(client, "shop.3")
        with monkeypatch.context() as patch:
            patch.setattr(Coordinating, "init", without)
            assert (await client.transactions.send_once("shop.3", RECORDS[:1])).repeated


@pytest.mark.parametrize("method", ["init", "end"])
@pytest.mark.parametrize("is_stored", [False, True])
@in_cluster("a:1", "b:1")
async def test_an_answer_that_is_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, method: str, is_stored: bool
) -> None:
    async with client_of(cluster) as client:
        await topics(client)
        lose_the_answer(monkeypatch, Coordinating, method, stored=is_stored)
        assert not (await send(client)).repeated
        assert (await send(client)).repeated
        assert await stored(client) == [b"1", b"2", b"3"]


@in_cluster("a:1")
async def test_two_at_a_time_commit_once(cluster: Cluster) -> None:
    async with client_of(cluster) as one, client_of(cluster) as other:
        await topics(one)
        results = await asyncio.gather(*(send(client) for client in (one, other) * 3), return_exceptions=True)
        assert all(isinstance(each, ledgermq.SentOnce | errors.TransactionError) for each in results), results
        await send(one)
        assert await stored(one) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("seed", range(6))
def test_attempts_that_are_cut_anywhere_while_owners_die(seed: int) -> None:
    rng = random.Random(seed)

    @in_cluster("a:1", "b:1", "c:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as reader:
            await topics(reader)
            for number in range(4):
                while True:
                    async with client_of(cluster, timeout_s=20.0) as client:
                        attempt = asyncio.create_task(send(client, f"shop.{number}"))
                        await asyncio.sleep(rng.choice((0.001, 0.005, 0.02, 0.1, 0.5)))
                        if rng.random() < 0.6:
                            attempt.cancel()
                        await asyncio.wait([attempt])
                    if not attempt.cancelled() and attempt.exception() is None:
                        break
                with pytest.raises(errors.TransactionIdReused):
                    await reader.transactions.send_once(f"shop.{number}", RECORDS[1:])
                if number == 1:
                    await cluster.stop(await cluster.owner_of("a", 0), graceful=False)
            assert await stored(reader) == sorted([b"1", b"2", b"3"] * 4)

    life()


@in_cluster("a:1", constants=constants_of(expiry_look_ms=1_000))
async def test_an_id_is_known_for_the_time_that_was_asked_for(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await topics(client)
        await send(client, open_max=10, kept=30)
        async with client.transactions("billing") as transactions, transactions.begin() as transaction:
            transaction.send("a", b"4")
        await asyncio.sleep(20)
        assert (await send(client, open_max=10, kept=30)).repeated, "and that was a use"
        await asyncio.sleep(20)
        assert (await send(client, open_max=10, kept=30)).repeated

        async def names() -> list[str]:
            found = await client.transactions.list(open_only=False)
            return [each.transactional_id for each in found.transactions]

        await asyncio.sleep(60)
        assert await names() == ["billing"], "other ids are kept as long as before"
        assert not (await send(client, open_max=10, kept=30)).repeated
