"""How calls end in the gRPC server: what gRPC itself says is passed on to it, and is no bug of the
broker.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import tracemalloc
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest
from grpc._cython import cygrpc

from ledgermq.client.connection.grpc_connection import GrpcConnection
from ledgermq.errors import DeadlineExceeded, NotOwner
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import FetchFrame, Frame
from ledgermq.protocol.methods import DESCRIBE_TOPICS, METHODS, PRODUCE, Method
from ledgermq_broker.ports import grpc_server
from ledgermq_broker.ports.call_meter import CANCELLED, CallMeter
from ledgermq_broker.ports.grpc_server import Context, GrpcServer
from ledgermq_broker.ports.metered_call import MeteredCall
from ledgermq_broker.ports.standard_services import HealthCalls, reflection_handler
from tests.servers.cutting_proxy import NEVER, cutting_proxy


class Meter(CallMeter):
    def __init__(self) -> None:
        self.codes: list[str] = []

    def ended(self, method: str, code: str, seconds: float) -> None:
        self.codes.append(code)


class Service:
    async def produce(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            yield request


class Call:
    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


async def test_no_handler_gets_its_request_before_its_caller_is_admitted() -> None:
    """gRPC receives the whole request of a unary handler before it calls it: 34 MB of each stranger."""
    server, health = GrpcServer(10, Meter()), HealthCalls().handler()
    handlers: dict[str, Any] = {method.name: server._handler(method) for method in METHODS}
    standard = {
        "/grpc.health.v1.Health/Check": health,
        "/grpc.health.v1.Health/Watch": health,
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": reflection_handler(server._admit_reflection),
    }
    for path, handler in standard.items():
        handlers[path] = handler.service(cast(Any, SimpleNamespace(method=path, invocation_metadata=())))
    for name, handler in handlers.items():
        assert handler.request_streaming, name


async def of_a_stopped_server() -> AsyncIterator[bytes]:
    """As gRPC answers a handler that begins to read after the server has stopped."""
    raise cygrpc._ServerStoppedError("Server already stopped.")
    yield b""


async def test_a_stream_that_begins_to_read_when_the_server_has_stopped_is_no_bug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meter = Meter()
    server = GrpcServer(10, meter)
    await server.serve(cast(Any, Service()))
    handle = server._bidi_stream(PRODUCE)
    with caplog.at_level(logging.WARNING), pytest.raises(grpc.aio.BaseError, match="already stopped"):
        await handle(of_a_stopped_server(), cast(Context, Call()))
    assert meter.codes == [CANCELLED]
    assert not caplog.records


CLIENTS = 20


class Endless(Service):
    """Answers more than a connection takes."""

    async def fetch(self, request: object) -> AsyncIterator[FetchFrame]:
        while True:
            yield Frame(pb.FetchHeader(), [b"x" * 1_000_000])


async def test_a_client_that_goes_away_in_the_middle_of_an_answer_is_no_error_of_the_broker(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "_OPTIONS", (("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_timeout_ms", 500)))
    meter = Meter()
    server = GrpcServer(100, meter)
    port = await server.listen("127.0.0.1", 0)
    await server.serve(cast(Any, Endless()))
    with caplog.at_level(logging.INFO):
        async with cutting_proxy(f"http://127.0.0.1:{port}", 1, NEVER) as proxy:
            connections = [GrpcConnection(proxy.address) for _ in range(CLIENTS)]
            streams = [connection.fetch(pb.FetchRequest()) for connection in connections]
            for stream in streams:
                await anext(stream)
            proxy.cut_off()
            async with asyncio.timeout(60):
                while len(meter.codes) < CLIENTS:
                    await asyncio.sleep(0.02)
            for connection in connections:
                await connection.close()
        await server.stop(0)
    assert meter.codes == [CANCELLED] * CLIENTS
    assert not caplog.records


REFUSED, REQUEST_BYTES = 40, 1_000_000


class Uncalled(Service):
    async def describe_topics(self, request: object) -> None:
        raise AssertionError("refused before")


async def test_a_refused_request_is_freed_at_once() -> None:
    """Not when the garbage collector comes by: a flood of them took 236 MB."""
    server = GrpcServer(100, Meter())
    port = await server.listen("127.0.0.1", 0)
    await server.serve(cast(Any, Uncalled()))
    topics = ["x" * 40] * (REQUEST_BYTES // 42)
    data = pb.DescribeTopicsRequest(topics=topics).SerializeToString()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(DESCRIBE_TOPICS.path)
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(REFUSED):
                with pytest.raises(grpc.aio.AioRpcError, match="at most 10000"):
                    await call(data, timeout=60)
            kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gc.enable()
    assert kept < 5 * REQUEST_BYTES
    await server.stop(0)


class Refusing(Service):
    async def describe_topics(self, request: object) -> pb.DescribeTopicsResponse:
        raise NotOwner("another broker has it")

    async def describe_cluster(self, request: object) -> pb.DescribeClusterResponse:
        return pb.DescribeClusterResponse()

    async def fetch(self, request: object) -> AsyncIterator[FetchFrame]:
        yield Frame(pb.FetchHeader(), [b"x"])


async def test_a_request_that_comes_as_its_call_is_ended_for_it_is_no_error_of_the_broker(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that was stopped for a while: the request is there, and its time is over."""
    real = GrpcServer._request

    async def late(self: GrpcServer, method: Method, context: Context, metered: MeteredCall) -> object:
        request = await real(self, method, context, metered)
        grpc_server._end_slow_call(method, context)
        await asyncio.gather(*grpc_server._ending)
        return request

    monkeypatch.setattr(GrpcServer, "_request", late)
    server = GrpcServer(100, Meter())
    port = await server.listen("127.0.0.1", 0)
    await server.serve(cast(Any, Refusing()))
    with caplog.at_level(logging.INFO):
        connection = GrpcConnection(f"127.0.0.1:{port}")
        for call in (
            connection.describe_topics(pb.DescribeTopicsRequest()),
            connection.describe_cluster(pb.DescribeClusterRequest()),
            anext(connection.fetch(pb.FetchRequest())),
        ):
            with pytest.raises(DeadlineExceeded):
                await call
        await connection.close()
        await server.stop(0)
    assert not caplog.records
