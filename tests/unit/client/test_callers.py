"""Which credential goes over which line of gRPC, and which lines are shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

import ledgermq
from ledgermq.client.connection.connections import CallerConnector, Connections
from ledgermq.client.connection.grpc_connection import GrpcConnector
from ledgermq.client.settings.values import ClientSettings
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame, ProduceFrame
from ledgermq.protocol.methods import METHODS, Kind
from ledgermq.sources import Sources
from tests.waiting import until

Seen = tuple[str, str, str, str]
"""Method, authorization, client id, port of the caller."""


class Noting(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """A broker that notes who calls, and answers nothing of use."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        [method] = [each for each in METHODS if each.path == handler_call_details.method]

        def note(context: Any) -> None:
            sent = dict(context.invocation_metadata())
            port = context.peer().rpartition(":")[2]
            self.seen.append((method.name, sent.get("authorization", ""), sent.get("ledgermq-client-id", ""), port))

        async def unary(request: bytes, context: Any) -> bytes:
            note(context)
            return b""

        async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
            note(context)
            await asyncio.Event().wait()
            yield b""

        if method.kind is Kind.UNARY:
            return grpc.unary_unary_rpc_method_handler(unary)
        if method.kind is Kind.SERVER_STREAM:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.stream_stream_rpc_method_handler(stream)


@asynccontextmanager
async def noting_broker() -> AsyncIterator[tuple[Noting, Connections, str]]:
    server, handler = grpc.aio.server(), Noting()
    server.add_generic_rpc_handlers((handler,))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    connector = GrpcConnector(credential=lambda address: "Bearer own", client_id="gateway")
    connections = Connections(connector, [address], ClientSettings(), Sources())
    try:
        async with asyncio.timeout(30):
            yield handler, connections, address
    finally:
        await connections.close()
        await server.stop(0)


async def frames() -> AsyncIterator[ProduceFrame]:
    yield Frame(pb.ProduceHeader(), [])
    await asyncio.Event().wait()


async def test_each_call_carries_the_credential_of_its_caller() -> None:
    async with noting_broker() as (broker, connections, address):
        lines = [connections.at(address)]
        lines += [CallerConnector(connections, f"Bearer {name}").connect(address) for name in ("alice", "bob")]
        lines.append(lines[1].as_caller("Bearer carol"))
        for line in lines:
            await line.describe_cluster(pb.DescribeClusterRequest())
        streams: list[Any] = [
            stream for line in lines for stream in (line.produce(frames()), line.fetch(pb.FetchRequest()))
        ]
        pulls = [asyncio.create_task(anext(stream)) for stream in streams]
        await until(lambda: len(broker.seen) == 12)
        named = {name for _, _, name, _ in broker.seen}
        callers = [f"Bearer {name}" for name in ("own", "alice", "bob", "carol")]
        assert named == {"gateway"}
        assert sorted((method, who) for method, who, _, _ in broker.seen) == sorted(
            (method, who) for method in ("DescribeCluster", "Produce", "Fetch") for who in callers
        )
        ports = {(method, who): port for method, who, _, port in broker.seen}
        shared = {port for (method, who), port in ports.items() if method != "Fetch" or who == "Bearer own"}
        assert len(shared) == 1, "calls and streams of records share the client's line"
        apart = [ports["Fetch", who] for who in callers[1:]]
        assert len({*apart, *shared}) == 4, "each reader has a line of its own, which a broker may cut"
        assert [line.credential() for line in lines] == callers
        for pull in pulls:
            pull.cancel()
        await asyncio.wait(pulls)
        for stream in streams:
            await stream.aclose()


async def test_a_view_outlives_a_line_that_the_client_has_closed() -> None:
    """The client closes lines that were unused for long; the next call finds another one."""
    async with noting_broker() as (broker, connections, address):
        line = CallerConnector(connections, "Bearer alice").connect(address)
        await line.describe_cluster(pb.DescribeClusterRequest())
        await connections._open.pop(address).close()
        await line.describe_cluster(pb.DescribeClusterRequest())
        await line.close()
        await connections.at(address).describe_cluster(pb.DescribeClusterRequest())
        assert [who for _, who, _, _ in broker.seen] == ["Bearer alice", "Bearer alice", "Bearer own"]


def test_a_view_without_asyncio_ends_by_itself_and_with_its_client() -> None:
    with ledgermq.sync.connect("memory://a-view-without-asyncio") as client:
        client.create_topic("t", 1)
        with client.as_caller("alice") as alice:
            with alice.producer() as producer:
                producer.send("t", b"1").result(30)
            kept = alice.producer(linger_ms=60_000).send("t", b"2")
        assert kept.result(30).offset == 1
        assert alice.closed
        bob = client.as_caller("bob")
        late = bob.producer(linger_ms=60_000).send("t", b"3")
        assert client.list_topics()[0].name == "t", "the thread goes on after alice"
    assert late.result(30).offset == 2
    assert bob.closed
