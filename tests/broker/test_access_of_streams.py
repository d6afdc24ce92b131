"""Streams under rules: they lose what was forbidden meanwhile, and are those of the present principal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import Unauthenticated, Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import FetchFrame
from ledgermq.protocol.naming.tokens import bearer
from ledgermq_broker.access.permissions import Permissions
from ledgermq_broker.access.state.rules import Principal
from ledgermq_broker.access.wrappers.authorized import AuthorizedService
from ledgermq_broker.ports.in_process import InProcessConnector
from tests.broker.access import RULES, change, client_with, cluster_values, token
from tests.broker.cluster import Cluster, fetch_of, frame_of, in_cluster, values_of
from tests.virtual_time import virtual_sources
from tests.waiting import until


@in_cluster("a:1", **RULES)
async def test_a_fetch_stream_loses_the_partition_that_was_forbidden_and_keeps_the_other(cluster: Cluster) -> None:
    root = (await token(cluster, "root")).text
    for name in ("one", "two"):
        await cluster.create(name, 1, root)
    [first, _] = await change(cluster, grant=["allow user:bob consume one", "allow user:bob consume two"])
    line = cluster.line("a:1", (await token(cluster, "bob")).text)
    request = pb.FetchRequest(partitions=[*fetch_of("one", 0).partitions, *fetch_of("two", 0).partitions])
    writer = cluster.line("a:1", root)
    await writer.produce_once(frame_of("one", 0, b"a"))
    await writer.produce_once(frame_of("two", 0, b"b"))
    seen: list[bytes] = []
    refused: list[str] = []

    async def read() -> None:
        async with aclosing(line.fetch(request)) as frames:  # type: ignore[type-var]
            async for frame in frames:
                seen.extend(values_of(frame))
                refused.extend(part.topic for part in frame.header.partitions if part.HasField("error"))

    task = asyncio.create_task(read())
    await until(lambda: len(seen) == 2)
    await change(cluster, revoke=[first])
    await writer.produce_once(frame_of("one", 0, b"hidden"))
    await until(lambda: refused == ["one"])
    await writer.produce_once(frame_of("two", 0, b"c"))
    await until(lambda: len(seen) == 3)
    assert sorted(seen) == [b"a", b"b", b"c"]
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


@in_cluster("a:1", **RULES)
async def test_a_stream_ends_with_its_token(cluster: Cluster) -> None:
    root = (await token(cluster, "root")).text
    await cluster.create("t", 1, root)
    await change(cluster, grant=["allow * consume t"])
    for revoke in (True, False):
        bob = await token(cluster, "bob", expires_ms=0 if revoke else cluster.now_ms() + 2000)
        frames = cluster.line("a:1", bob.text).fetch(fetch_of("t", 0))
        await anext(frames)
        if revoke:
            await cluster.line("a:1", root).revoke_token(pb.RevokeTokenRequest(token_id=bob.token_id))
        else:
            await asyncio.sleep(3)
        await cluster.line("a:1", root).produce_once(frame_of("t", 0, b"hidden"))
        with pytest.raises(Unauthenticated, match="revoked" if revoke else "expired"):
            await anext(frames)


@in_cluster("a:1", **RULES)
async def test_streams_are_those_of_the_present_principal(cluster: Cluster) -> None:
    """A token file is replaced by the token of another principal while a program sends and reads."""
    async with client_with(cluster, (await token(cluster, "root")).text) as root:
        await root.create_topic("t", 1)
        await root.access.grant("user:alice", "produce,consume", "t")
        present = [(await token(cluster, "alice")).text]
        connector = InProcessConnector(cluster.network, lambda address: bearer(present[-1]))
        settings, sources = ClientSettings(timeout_s=30, attempt_timeout_s=5), virtual_sources(4712)
        async with (
            ledgermq.Client(connector, list(cluster.brokers), settings, sources) as client,
            client.producer(delivery_timeout_s=20) as producer,
            client.consumer("t", request_timeout_s=5) as consumer,
        ):
            for number in range(3):
                await producer.send("t", b"%d" % number)
                assert (await anext(consumer)).value == b"%d" % number
            present.append((await token(cluster, "bob")).text)
            with pytest.raises(Unauthorized):
                await producer.send("t", b"bob's")
            async with root.producer() as others:
                await others.send("t", b"3")
            async with root.producer() as others:
                with pytest.raises(Unauthorized):
                    await _read_on(consumer, others)
            present.append(present[0])
            assert (await producer.send("t", b"alice's")).offset > 3
        values = await cluster_values(cluster, (await token(cluster, "root")).text, "t")
        assert b"bob's" not in values


async def _read_on(consumer: ledgermq.Consumer, others: ledgermq.Producer) -> None:
    """Read what others send: an answer may have been on its way."""
    for _ in range(10):
        await anext(consumer)
        await others.send("t", b"secret")


class _AskedFor:
    """A broker's service that notes which fetches reach it."""

    def __init__(self, service: BrokerApi) -> None:
        self._service = service
        self.fetches: list[pb.FetchRequest] = []

    def fetch(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        self.fetches.append(request)
        return self._service.fetch(request)


@in_cluster("a:1", **RULES)
async def test_a_stream_gets_no_locations_once_another_topic_is_denied(cluster: Cluster) -> None:
    """Segments hold records of all topics, so a stream that was opened by one who may read everything does
    not go on to show where they are.
    """
    root = (await token(cluster, "root")).text
    for name in ("orders", "secret"):
        await cluster.create(name, 1, root)
    await change(cluster, grant=["allow user:bob consume *"])
    broker = cluster.brokers["a:1"]
    inner = _AskedFor(broker.service)
    bob = Permissions(Principal("user:bob"), broker.rules, broker.context.sources)
    frames = AuthorizedService(lambda: inner, bob).fetch(fetch_of("orders", 0, direct=True))  # type: ignore[arg-type]
    await anext(frames)
    await change(cluster, grant=["deny user:bob consume secret"])
    await cluster.line("a:1", root).produce_once(frame_of("orders", 0, b"mine"))
    assert values_of(await anext(frames)) == [b"mine"]
    assert [asked.direct for asked in inner.fetches] == [True, False]
    await frames.aclose()  # type: ignore[attr-defined]


@in_cluster("a:1", **RULES)
async def test_only_the_receiver_holds_an_answer(cluster: Cluster) -> None:
    """Bytes of answers are counted until they are sent, so nothing in front of gRPC keeps them for longer."""
    root = (await token(cluster, "root")).text
    await cluster.create("t", 1, root)
    await change(cluster, grant=["allow user:bob consume t"])
    admitted = await cluster.brokers["a:1"].door.admit(bearer((await token(cluster, "bob")).text))
    frames = admitted.api.fetch(fetch_of("t", 0))
    frame = await anext(frames)
    assert sys.getrefcount(frame) == 2, "the variable here, and the argument"
    await frames.aclose()  # type: ignore[attr-defined]
