"""Lines that lead nowhere without a word, as behind a firewall that has forgotten them: both sides notice by pings,
and clients go on over a new line.

The settings of gRPC are a tenth of those in force, so that a test takes two seconds and not twenty. A setting that
is missing takes gRPC's own value, a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

import ledgermq
from ledgermq.client.connection import grpc_connection
from ledgermq.client.connection.grpc_connection import GrpcConnection
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq_broker.ports import grpc_server
from ledgermq_broker.ports.call_meter import CallMeter
from ledgermq_broker.ports.grpc_server import GrpcServer
from tests.e2e.test_spill_kills import broker_behind_a_proxy
from tests.servers.cutting_proxy import NEVER, cutting_proxy

PROMISED_S = 20.0
"""The time that docs promise; the tests have it in full, for slow machines."""
PINGS = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")


def sooner(options: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    return tuple((name, value // 10 if name in PINGS else value) for name, value in options)


def test_a_silent_peer_is_gone_in_time() -> None:
    for chosen in (dict(GRPC_OPTIONS), dict(grpc_server._OPTIONS)):
        assert chosen["grpc.http2.ping_timeout_ms"] == chosen["grpc.keepalive_timeout_ms"]
    assert sum(dict(GRPC_OPTIONS)[name] for name in PINGS[:2]) < PROMISED_S * 1000


async def test_clients_go_on_over_a_new_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connection, "GRPC_OPTIONS", sooner(GRPC_OPTIONS))
    async with broker_behind_a_proxy(tmp_path / "root") as (proxy, _), ledgermq.connect(proxy.address) as client:
        await client.create_topic("t", 1)
        async with (
            client.producer() as producer,
            client.consumer("t", start="earliest") as consumer,
            client.consumer("t", group="g", start="earliest") as member,
        ):
            await producer.send("t", b"1")
            assert [(await anext(consumer)).value, (await anext(member)).value] == [b"1", b"1"]
            proxy.swallow()
            async with asyncio.timeout(PROMISED_S):
                assert (await producer.send("t", b"2")).offset == 1
                assert [(await anext(consumer)).value, (await anext(member)).value] == [b"2", b"2"]


class Ended(CallMeter):
    def __init__(self) -> None:
        self.ended_now = asyncio.Event()

    def ended(self, method: str, code: str, seconds: float) -> None:
        self.ended_now.set()


class Silent:
    async def fetch(self, request: object) -> AsyncIterator[object]:
        await asyncio.Event().wait()
        yield request


async def test_a_broker_ends_the_calls_of_a_client_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "_OPTIONS", sooner(grpc_server._OPTIONS))
    without_pings = tuple(option for option in GRPC_OPTIONS if option[0] not in PINGS)
    monkeypatch.setattr(grpc_connection, "GRPC_OPTIONS", without_pings)  # or its end would end the call, too
    meter = Ended()
    server = GrpcServer(10, meter)
    port = await server.listen("127.0.0.1", 0)
    await server.serve(Silent())  # type: ignore[arg-type]
    async with cutting_proxy(f"http://127.0.0.1:{port}", 1, NEVER) as proxy:
        connection = GrpcConnection(proxy.address)
        async with aclosing(connection.fetch(pb.FetchRequest())) as stream:  # type: ignore[type-var]
            reading = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(1)
            assert not meter.ended_now.is_set()
            proxy.swallow()
            async with asyncio.timeout(PROMISED_S):
                await meter.ended_now.wait()
            reading.cancel()
            await asyncio.wait([reading])
        await connection.close()
    await server.stop(0)
