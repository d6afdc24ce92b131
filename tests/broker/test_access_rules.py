"""Rules at work in a cluster: what a caller may do by them, and what it is told where it may not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

import ledgermq
from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    ResourceExhausted,
    Unauthenticated,
    Unauthorized,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.tokens import draw_token
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.paths.find_path import FindPath
from ledgermq_ledger.topics.topic import Topic
from tests.broker.access import RULES, TOKENS, change, client_with, cluster_values, token
from tests.broker.cluster import Cluster, fetch_of, frame_of, in_cluster
from tests.waiting import until


@in_cluster("a:1", "b:1", "c:1", **RULES)
async def test_a_client_works_with_the_rules_that_it_has(cluster: Cluster) -> None:
    """Produce, consume in a group, transactions and timed messages, over three brokers that need each
    other's internal calls for it.
    """
    async with client_with(cluster, (await token(cluster, "root")).text) as root:
        await root.create_topic("orders", 4)
        await root.create_topic("secret", 4)
        await root.access.grant("user:shop", "produce,consume", "orders")
        await root.access.grant("user:shop", "group", "billing")
        await root.access.grant("user:shop", "transaction", "pay-*")
    async with client_with(cluster, (await token(cluster, "shop")).text) as client:
        assert [topic.name for topic in await client.list_topics()] == ["orders"]
        async with client.producer() as producer:
            for number in range(40):
                await producer.send("orders", str(number), key=str(number))
        async with client.consumer("orders", group="billing", start="earliest") as consumer:
            got = [await anext(consumer) for _ in range(40)]
            assert {message.value for message in got} == {str(number).encode() for number in range(40)}
        async with client.transactions("pay-1") as transactions, transactions.begin() as transaction:
            await transaction.send("orders", b"paid")
        await until(lambda: _has(client, "orders", b"paid"))
        with pytest.raises(Unauthorized):
            await client.describe_topic("secret")
        with pytest.raises(Unauthorized):
            await client.create_topic("mine")
        async with client.producer() as producer:
            with pytest.raises(Unauthorized):
                await producer.send("secret", b"x")
            await producer.send("orders", b"the producer goes on")


@in_cluster("a:1", "b:1", **RULES)
async def test_queues_ask_for_the_group_and_for_each_topic(cluster: Cluster) -> None:
    async with client_with(cluster, (await token(cluster, "root")).text) as root:
        for name in ("orders", "secret"):
            await root.create_topic(name, 1)
        async with root.producer() as producer:
            await producer.send("orders", b"1")
            await producer.send("secret", b"2")
        await root.access.grant("user:shop", "consume,describe", "orders")
        await root.access.grant("user:shop", "describe", "secret")
        await root.access.grant("user:shop", "group", "hands")
        async with (
            root.queue("secret", group="others") as others,
            client_with(cluster, (await token(cluster, "shop")).text) as client,
        ):
            [theirs] = await others.fetch(timeout=5)
            async with client.queue("orders", group="hands") as queue:
                [message] = await queue.fetch(timeout=5)
                assert message.value == b"1"
                assert await message.ack()
            async with client.queue("secret", group="hands") as queue:
                with pytest.raises(Unauthorized):
                    await queue.fetch(timeout=5)
            async with client.queue("orders", group="others") as queue:
                with pytest.raises(Unauthorized):
                    await queue.fetch(timeout=5)
            assert [found.group for found in await client.queues.list()] == ["hands"]
            with pytest.raises(Unauthorized):
                await client.queues.reset("others", "secret", 0)
            assert await theirs.ack(), "its lease has not ended"


async def _has(client: ledgermq.Client, topic: str, value: bytes) -> bool:
    async with client.consumer(topic, start="earliest", until_end=True) as consumer:
        return value in [message.value async for message in consumer]


@in_cluster("a:1", **RULES)
async def test_an_unknown_caller_is_told_from_a_forbidden_one(cluster: Cluster) -> None:
    root, bob = (await token(cluster, "root")).text, (await token(cluster, "bob")).text
    await cluster.create("t", 1, root)
    late = await token(cluster, "late", expires_ms=cluster.now_ms() + 1000)
    await asyncio.sleep(2)
    for given in ("", "lmq_wrong", late.text, "a.b.c"):
        with pytest.raises(Unauthenticated):
            await cluster.line("a:1", given).list_rules(pb.ListRulesRequest())
    with pytest.raises(Unauthenticated):
        await cluster.line("a:1", credential="Basic Ym9iOmJvYg==").list_rules(pb.ListRulesRequest())
    with pytest.raises(Unauthorized) as forbidden:
        await cluster.line("a:1", bob).list_rules(pb.ListRulesRequest())
    assert type(forbidden.value) is Unauthorized


@in_cluster("a:1", **RULES)
async def test_batches_of_one_frame_are_judged_one_by_one(cluster: Cluster) -> None:
    root = (await token(cluster, "root")).text
    for name in ("one", "two"):
        await cluster.create(name, 1, root)
    await change(cluster, grant=["allow user:bob produce two"])
    frames = [frame_of("one", 0, b"refused"), frame_of("two", 0, b"stored")]
    both = replace(frames[0], payload=[*frames[0].payload, *frames[1].payload])
    both.header.batches.extend(frames[1].header.batches)
    line = cluster.line("a:1", (await token(cluster, "bob")).text)

    async def requests() -> AsyncIterator[object]:
        for frame in (both, frame_of("one", 0, b"refused"), frame_of("two", 0, b"stored, too")):
            yield frame

    async with aclosing(line.produce(requests())) as answers:  # type: ignore[arg-type,type-var]
        codes = [[result.error.code for result in answer.results] async for answer in answers]
    assert codes == [["UNAUTHORIZED", ""], ["UNAUTHORIZED"], [""]]
    assert await cluster_values(cluster, root, "two") == [b"stored", b"stored, too"]
    assert await cluster_values(cluster, root, "one") == []


@in_cluster("a:1", **RULES)
async def test_the_unknown_and_the_forbidden_look_alike(cluster: Cluster) -> None:
    root = (await token(cluster, "root")).text
    await cluster.create("orders", 1, root)
    bob = cluster.line("a:1", (await token(cluster, "bob")).text)
    await change(cluster, grant=["allow user:bob consume order"])

    async def text(method: str, name: str) -> str:
        request = {"fetch_once": fetch_of(name, 0), "delete_topic": pb.DeleteTopicRequest(name=name)}[method]
        try:
            answer = await getattr(bob, method)(request)
        except LedgerMQError as error:
            return error.message.replace(name, "NAME")
        return str(error_from_proto(answer.header.partitions[0].error).message).replace(name, "NAME")

    for method in ("fetch_once", "delete_topic"):
        assert await text(method, "orders") == await text(method, "absent")
    with pytest.raises(UnknownTopic) as hinted:  # "did you mean 'orders'" would tell that orders exists
        raise error_from_proto((await bob.fetch_once(fetch_of("order", 0))).header.partitions[0].error)
    assert "orders" not in hinted.value.message


@in_cluster("a:1", **RULES)
async def test_a_commit_acts_on_the_topic_that_was_judged(cluster: Cluster) -> None:
    root = (await token(cluster, "root")).text
    ids = {name: (await cluster.create(name, 1, root)).topic_id for name in ("orders", "secret")}
    await change(
        cluster,
        grant=["allow user:bob consume *", "deny user:bob consume secret", "allow user:bob group g"],
    )
    line = cluster.line("a:1", (await token(cluster, "bob")).text)
    for name in ("", "orders"):
        commit = pb.OffsetCommit(topic=name, topic_id=ids["secret"], partition=0, counter=1, offset=0)
        committed = await line.commit_offsets(pb.CommitOffsetsRequest(group="g", commits=[commit]))
        reset = pb.OffsetReset(topic=name, topic_id=ids["secret"], partition=0, offset=0)
        changed = await line.reset_offsets(pb.ResetOffsetsRequest(group="g", resets=[reset]))
        assert [committed.results[0].error.code, changed.results[0].error.code] == ["UNKNOWN_TOPIC"] * 2, name


@in_cluster("a:1", **RULES)
async def test_look_ups_of_one_principal_leave_room_for_those_of_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is under way stands still here; the other look-ups are whole ones."""
    going_on, began = asyncio.Event(), asyncio.Event()
    search = FindPath._search

    async def slowly(self: FindPath, owner: BundleOwner, topic: Topic, *rest: Any) -> Any:
        if not began.is_set():
            began.set()
            await going_on.wait()
        return await search(self, owner, topic, *rest)

    monkeypatch.setattr(FindPath, "_search", slowly)
    async with client_with(cluster, (await token(cluster, "root")).text) as root:
        await root.create_topic("slow", 1)
        async with root.producer() as producer:
            await producer.send("slow", b"value", key=b"key")
    await change(cluster, grant=["allow * describe,consume *"])
    ann, again, bob = [cluster.line("a:1", (await token(cluster, user)).text) for user in ("ann", "ann", "bob")]
    request = pb.FindMessagesRequest(topic="slow", partition=0, key=b"key", end=1, max_messages=1)
    first = asyncio.create_task(ann.find_messages(request))
    await began.wait()
    with pytest.raises(ResourceExhausted, match="user:ann has a look-up under way at this broker") as refused:
        await again.find_messages(request)
    assert refused.value.retry_after_ms
    found = await bob.find_messages(request)
    assert [message.offset for message in found.messages] == [0]
    going_on.set()
    assert [message.offset for message in (await first).messages] == [0]
    assert (await again.find_messages(request)).messages
    began.clear()
    going_on.clear()
    left = asyncio.create_task(ann.find_messages(request))
    await began.wait()
    left.cancel()
    await asyncio.wait({left})
    assert (await again.find_messages(request)).messages, "a caller that went away does not hold the turn"


@in_cluster("a:1", **RULES)
async def test_a_token_that_exists_is_not_given_to_another_user(cluster: Cluster) -> None:
    """An attempt of the same call may be repeated; a token never speaks for two users."""
    service = next(iter(cluster.brokers.values())).service
    drawn = draw_token(TOKENS)
    fields: dict[str, Any] = {"token_id": drawn.token_id, "hash": drawn.hash, "user": "ann", "groups": ["team"]}
    for _ in range(2):
        await service.create_token(pb.CreateTokenRequest(**fields))
    later_ms = cluster.now_ms() + 10_000
    for other in ({"user": "cat"}, {"groups": ["staff"]}, {"expires_ms": later_ms}, {"hash": bytes(32)}):
        with pytest.raises(InvalidRequest, match="there is another token with the id"):
            await service.create_token(pb.CreateTokenRequest(**(fields | other)))
    listed = await service.list_tokens(pb.ListTokensRequest())
    assert [(found.user, list(found.groups)) for found in listed.tokens if found.token_id == drawn.token_id] == [
        ("ann", ["team"])
    ]
