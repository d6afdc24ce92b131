"""A connection that is closed while calls are under way: they end with an error, not as if their tasks
were cancelled.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from ledgermq.client.connection.grpc_connection import GrpcConnection
from ledgermq.errors import Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb

SECONDS_MAX = 20.0


class Silent(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """A broker that takes calls and never answers."""

    def __init__(self) -> None:
        self.called = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def handle(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
            self.called.set()
            await asyncio.Event().wait()
            yield b""

        return grpc.stream_stream_rpc_method_handler(handle)


@asynccontextmanager
async def silent_broker() -> AsyncIterator[tuple[Silent, GrpcConnection]]:
    server, handler = grpc.aio.server(), Silent()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    connection = GrpcConnection(f"127.0.0.1:{port}")
    try:
        async with asyncio.timeout(SECONDS_MAX):
            yield handler, connection
    finally:
        await connection.close()
        await server.stop(0)


async def unary(connection: GrpcConnection) -> None:
    await connection.describe_cluster(pb.DescribeClusterRequest())


async def stream(connection: GrpcConnection) -> None:
    async for _ in connection.fetch(pb.FetchRequest()):
        pass


Call = Callable[[GrpcConnection], Coroutine[Any, Any, None]]


@pytest.mark.parametrize("call", [unary, stream])
async def test_a_call_on_a_connection_that_is_closed_meanwhile_is_unavailable(call: Call) -> None:
    async with silent_broker() as (broker, connection):
        calling = asyncio.create_task(call(connection))
        await broker.called.wait()
        await connection.close()
        with pytest.raises(Unavailable, match="is closed"):
            await calling
        with pytest.raises(Unavailable, match="is closed"):
            await call(connection)


@pytest.mark.parametrize("call", [unary, stream])
async def test_a_task_that_is_cancelled_ends_by_that(call: Call) -> None:
    async with silent_broker() as (broker, connection):
        calling = asyncio.create_task(call(connection))
        await broker.called.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await call(connection)


async def test_a_stream_that_was_cancelled_does_not_keep_its_connection_open() -> None:
    """Whoever cancelled it may keep the error: here the task does, and a garbage collector that never runs."""
    async with silent_broker() as (broker, connection):
        calling = asyncio.create_task(stream(connection))
        await broker.called.wait()
        watching = asyncio.create_task(connection.wait_lost())
        while connection._watch is None or connection._channel.get_state() is not grpc.ChannelConnectivity.READY:
            await asyncio.sleep(0)
        gc.disable()
        try:
            for task in (calling, watching):
                task.cancel()
            await asyncio.wait((calling, watching))
            assert connection._watch is not None
            assert not connection._watch.done(), "the channel has its connection"
            await connection.close()
            assert connection._watch.done(), "gRPC says that the channel has ended"
        finally:
            gc.enable()
