"""Views of one client for several callers: nothing of one caller reaches another, whatever they do at one time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import Closed, DeadlineExceeded, InvalidConfig, Unauthenticated, Unauthorized
from ledgermq.protocol.naming.tokens import bearer
from ledgermq_broker.ports.in_process import InProcessConnector
from tests.broker.access import RULES, change, token
from tests.broker.cluster import Cluster, in_cluster
from tests.virtual_time import virtual_sources

ALLOWED = [
    f"allow user:{user} {operations} {user}-{name}"
    for user in ("alice", "bob")
    for operations, name in (("produce,consume", "topic"), ("transaction", "t"), ("group", "g"))
]


@asynccontextmanager
async def gateway(cluster: Cluster) -> AsyncIterator[ledgermq.Client]:
    """A client that itself may do everything; both callers may use topics of their own."""
    root = (await token(cluster, "root")).text
    connector = InProcessConnector(cluster.network, lambda address: bearer(root))
    settings = ClientSettings(timeout_s=30, attempt_timeout_s=5)
    sources = virtual_sources(next(cluster.client_seeds))
    async with ledgermq.Client(connector, list(cluster.brokers), settings, sources) as client:
        for user in ("alice", "bob"):
            await client.create_topic(f"{user}-topic", 2)
        await change(cluster, grant=ALLOWED)
        yield client


async def view_of(cluster: Cluster, client: ledgermq.Client, user: str) -> ledgermq.Client:
    return client.as_caller((await token(cluster, user)).text)


@in_cluster("a:1", "b:1", **RULES)
async def test_each_caller_has_the_rights_of_its_own_token(cluster: Cluster) -> None:
    async with gateway(cluster) as client:
        views = {user: await view_of(cluster, client, user) for user in ("alice", "bob")}
        assert {user: [each.name for each in await view.list_topics()] for user, view in views.items()} == {
            "alice": ["alice-topic"],
            "bob": ["bob-topic"],
        }
        assert len(await client.list_topics()) == 2, "the client's own rights stay"
        with pytest.raises(Unauthorized):
            await views["alice"].create_topic("more")
        with pytest.raises(Unauthenticated):
            await client.as_caller("anonymous").describe_topic("alice-topic")
        with pytest.raises(InvalidConfig, match="one word"):
            client.as_caller("two words")
        with pytest.raises(InvalidConfig, match="one word"):
            client.as_caller("")


@in_cluster("a:1", "b:1", **RULES)
async def test_records_of_two_callers_at_one_time_stay_apart(cluster: Cluster) -> None:
    """Over one stream, bob's record was stored in alice's topic: a stream keeps the credential of its opener."""

    async def use(user: str, other: str) -> None:
        view = await view_of(cluster, client, user)
        async with view.producer() as producer:
            for number in range(20):
                with pytest.raises(Unauthorized):
                    await producer.send(f"{other}-topic", f"by {user}")
                await producer.send(f"{user}-topic", f"by {user} {number}")
        async with view.transactions(f"{user}-t") as transactions, transactions.begin() as transaction:
            transaction.send(f"{user}-topic", f"by {user} in a transaction")
        async with view.consumer(f"{user}-topic", group=f"{user}-g") as consumer:
            assert {(await anext(consumer)).value[:6] for _ in range(21)} == {f"by {user}"[:6].encode()}
        with pytest.raises(Unauthorized):
            async with view.consumer(f"{other}-topic") as forbidden:
                await anext(forbidden)

    async with gateway(cluster) as client:
        await asyncio.gather(use("alice", "bob"), use("bob", "alice"))


@pytest.mark.parametrize("first", ["alice", "bob"])
@in_cluster("a:1", **RULES)
async def test_look_ups_at_one_time_answer_each_caller_by_itself(cluster: Cluster, first: str) -> None:
    async with gateway(cluster) as client:
        alice, bob = await view_of(cluster, client, "alice"), await view_of(cluster, client, "bob")
        order = (alice, bob) if first == "alice" else (bob, alice)
        asked = [asyncio.create_task(view.list_offsets("alice-topic")) for view in order]
        await asyncio.wait(asked)
        failed = [task.exception() for task in asked]
        assert [type(error) for error in failed] == [Unauthorized if v is bob else type(None) for v in order]
        with pytest.raises(Unauthorized):  # and what alice knows by now is not bob's
            await bob.list_offsets("alice-topic")


@in_cluster("a:1", **RULES)
async def test_a_caller_whose_token_ends_takes_no_other_with_it(cluster: Cluster) -> None:
    async with gateway(cluster) as client:
        drawn = await token(cluster, "alice")
        alice, bob = client.as_caller(drawn.text), await view_of(cluster, client, "bob")
        async with alice.producer(delivery_timeout_s=5) as hers, bob.producer() as his:
            await hers.send("alice-topic", b"1")
            await his.send("bob-topic", b"1")
            await client.access.revoke_token(drawn.token_id)
            with pytest.raises(DeadlineExceeded, match="was revoked"):
                await hers.send("alice-topic", b"2")
            for number in range(5):
                await his.send("bob-topic", str(number))
        assert len(await bob.list_topics()) == 1


@in_cluster("a:1", **RULES)
async def test_a_view_closes_what_it_made_and_no_connection(cluster: Cluster) -> None:
    async with gateway(cluster) as client:
        async with await view_of(cluster, client, "alice") as alice:
            producer = alice.producer(linger_ms=60_000)
            sent = producer.send("alice-topic", b"1")
        assert (await sent).offset == 0, "closing flushes"
        with pytest.raises(Closed):
            await alice.list_topics()
        bob = await view_of(cluster, client, "bob")
        late = bob.producer(linger_ms=60_000).send("bob-topic", b"2")
        assert len(await bob.list_topics()) == 1
    assert (await late).offset == 0, "the client closes its views first"
    assert bob.closed
    with pytest.raises(Closed):
        client.as_caller("x")
