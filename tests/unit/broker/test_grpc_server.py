"""How calls end in the gRPC server: what gRPC itself says is passed on to it, and is no bug of the broker."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc.aio
import pytest
from grpc._cython import cygrpc

from ledgermq.protocol.methods import PRODUCE
from stateless_broker.call_meter import CANCELLED, CallMeter
from stateless_broker.grpc_server import Context, GrpcServer


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


async def of_a_stopped_server() -> AsyncIterator[bytes]:
    """As gRPC answers a handler that begins to read after the server has stopped."""
    raise cygrpc._ServerStoppedError("Server already stopped.")
    yield b""


async def test_a_stream_that_begins_to_read_when_the_server_has_stopped_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter()
    server = GrpcServer(10, meter)
    await server.serve(cast(Any, Service()))
    handle = server._bidi_stream(PRODUCE)
    with caplog.at_level(logging.WARNING), pytest.raises(grpc.aio.BaseError, match="already stopped"):
        async for _ in handle(of_a_stopped_server(), cast(Context, Call())):
            pass
    assert meter.codes == [CANCELLED]
    assert not caplog.records
