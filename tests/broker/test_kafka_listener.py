"""The port for Kafka clients: what a connection may take of the broker's time and memory, and when it opens."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
import uvloop

from ledgermq.errors import InvalidConfig
from ledgermq.sources import Sources
from ledgermq_broker.kafka import connection
from ledgermq_broker.kafka import listener as limits
from ledgermq_broker.kafka.listener import KafkaListener
from ledgermq_broker.kafka.opening import KafkaPort
from ledgermq_broker.kafka.page import page
from ledgermq_broker.kafka.parts import LINES_AT_ONCE, Parts
from ledgermq_broker.kafka.wire.frames import BUFFER_BYTES, request_frame
from ledgermq_broker.kafka.wire.generated import api_versions_request as v
from ledgermq_broker.kafka.wire.generated import metadata_request as m
from ledgermq_broker.kafka.wire.messages import API_VERSIONS, FETCH, METADATA, PRODUCE, written
from ledgermq_broker.ports.call_meter import CallMeter
from ledgermq_broker.ports.tls import CertificateFiles, Certificates, TlsMeter
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger.blocking import run_inline
from tests.broker.cluster import Cluster, cluster_of
from tests.broker.kafka_world import BATCH_MEMORY_MAX, KafkaCluster, fetch_request, in_kafka_cluster, produce_request
from tests.certificates import Authority
from tests.waiting import until

ROOT = Path(__file__).parents[2]
NAMED = m.MetadataRequestTopic(name="x" * 15_000)
HELLO = request_frame(API_VERSIONS, 3, 1, "test", written(v.ApiVersionsRequest(), 3))


class World:
    """A listener on a real port, in front of a broker in memory. Clients are bare sockets."""

    def __init__(self, cluster: Cluster, connections_max: int = 100) -> None:
        self.cluster = cluster
        self.listener = KafkaListener(connections_max)
        self.port = 0
        self.open: list[asyncio.StreamWriter] = []
        self.parts: Parts | None = None

    async def __aenter__(self) -> Self:
        broker = self.cluster.brokers["a:1"]
        self.port = await self.listener.listen("127.0.0.1", 0)
        brokers = KafkaCluster.brokers_of(self.cluster, "a:1")  # type: ignore[arg-type]
        self.parts = Parts(
            broker.door,
            brokers,
            broker.context.sources,
            run_inline,
            lambda: BATCH_MEMORY_MAX,
            lambda: broker.settings,
            CallMeter(),
        )
        await self.listener.serve(self.parts)
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self.open:
            writer.close()
        await asyncio.sleep(0.02)  # what was accepted is a connection by now
        await self.listener.stop()
        await asyncio.sleep(0.02)

    async def connect(self, *data: bytes, host: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(host, 0))
        self.open.append(writer)
        for piece in data:
            writer.write(piece)
        await writer.drain()
        return reader, writer

    @property
    def protocols(self) -> list[limits.KafkaProtocol]:
        return list(self.listener._open)


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 30) == b""
    except ConnectionError:
        return True


async def _hello(reader: asyncio.StreamReader) -> None:
    size = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), 30))[0]
    await reader.readexactly(size)


async def test_an_announced_length_takes_no_memory_and_has_thirty_seconds() -> None:
    """Connections that announce 100 MiB each, and send it slowly, would take the broker's memory."""
    async with cluster_of("a:1") as cluster, World(cluster) as world:
        reader, writer = await world.connect(HELLO)
        await _hello(reader)
        writer.write(struct.pack(">i", 100 * 1024 * 1024) + bytes(1000))
        [one] = world.protocols
        await until(lambda: one.held_bytes > 0)
        assert one._frames.held_bytes == BUFFER_BYTES
        now_s = asyncio.get_running_loop().time()
        one.check_time(now_s + 1)
        assert world.protocols == [one]
        one.check_time(now_s + limits.FRAME_S + 2)
        assert await _is_closed(reader)


def hold_at_most(monkeypatch: pytest.MonkeyPatch, bytes_max: int) -> None:
    monkeypatch.setattr(limits, "ARRIVING_BYTES_MAX", bytes_max - BATCH_MEMORY_MAX)
    monkeypatch.setattr(limits, "CHECK_S", 0)


async def test_of_unfinished_requests_the_largest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    hold_at_most(monkeypatch, 600_000)
    async with cluster_of("a:1") as cluster, World(cluster) as world:
        readers = []
        for size in (250_000, 400_000):
            reader, writer = await world.connect(HELLO)
            await _hello(reader)
            writer.write(struct.pack(">i", 1_000_000) + bytes(size))
            readers.append(reader)
            if size == 250_000:
                await until(lambda: any(one.held_bytes > 200_000 for one in world.protocols))
        assert await _is_closed(readers[1])
        assert len(world.protocols) == 1
        assert world.protocols[0].held_bytes > 200_000


async def test_a_connection_without_a_request_has_ten_seconds_and_small_frames() -> None:
    async with cluster_of("a:1") as cluster, World(cluster) as world:
        silent, _ = await world.connect()
        await until(lambda: len(world.protocols) == 1)
        [one] = world.protocols
        one.check_time(asyncio.get_running_loop().time() + limits.FIRST_REQUEST_S + 1)
        assert await _is_closed(silent)
        large, _ = await world.connect(struct.pack(">i", limits.UNPROVEN_FRAME_BYTES_MAX + 1))
        assert await _is_closed(large)
        half, _ = await world.connect(HELLO[:10])
        served, _ = await world.connect(HELLO)
        await _hello(served)
        for other in world.protocols:
            other.check_time(asyncio.get_running_loop().time() + limits.FIRST_REQUEST_S + 1)
        assert await _is_closed(half)
        assert len(world.protocols) == 1


async def test_of_connections_that_ask_nothing_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NEW_MAX", 3)
    async with cluster_of("a:1") as cluster, World(cluster) as world:
        served, _ = await world.connect(HELLO)
        await _hello(served)
        idle = [(await world.connect())[0] for _ in range(5)]
        assert await _is_closed(idle[0])
        assert await _is_closed(idle[1])
        await until(lambda: len(world.protocols) == 4)


async def test_connections_are_bounded() -> None:
    """`kafka_connections_max`. A host may have as many as are free; newcomers were refused, so the first had all."""
    async with cluster_of("a:1") as cluster, World(cluster, connections_max=6) as world:
        readers = []
        for _ in range(3):
            reader, _ = await world.connect(HELLO)
            await _hello(reader)
            readers.append(reader)
        newer, _ = await world.connect(HELLO)
        await _hello(newer)
        assert await _is_closed(readers[0]), "the idlest of the same host"
        assert len(world.protocols) == 3
        for host in ("127.0.0.2", "127.0.0.3"):
            reader, _ = await world.connect(HELLO, host=host)
            await _hello(reader)
        assert len(world.protocols) == 5
        for one in world.protocols:
            assert one._connection is not None
            one._connection.at_work += 1
        refused, _ = await world.connect(HELLO)
        assert await _is_closed(refused), "all of its host are at work"


async def test_whole_requests_that_wait_count_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a request that takes its time, each connection could hold one of 100 MiB, which nothing counted."""
    hold_at_most(monkeypatch, 2_000_000)
    slow = request_frame(FETCH, 12, 2, "test", written(fetch_request({}, max_wait_ms=30_000), 12))
    large = request_frame(PRODUCE, 9, 3, "test", written(produce_request("t", 0, bytes(700_000)), 9))
    async with cluster_of("a:1") as cluster, World(cluster) as world:
        victim, line = await world.connect(HELLO, host="127.0.0.2")
        await _hello(victim)
        line.write(slow + large)
        await until(lambda: sum(one.held_bytes for one in world.protocols) > 700_000)
        hostile = []
        for _ in range(10):
            reader, writer = await world.connect(HELLO)
            await _hello(reader)
            writer.write(slow + large)
            hostile.append(reader)
        closed = await asyncio.gather(*(_is_closed(reader) for reader in hostile[:-1]))
        assert sum(closed) >= 8
        assert 700_000 < sum(one.held_bytes for one in world.protocols) <= 2_000_000
        assert "127.0.0.2" in [one.host for one in world.protocols], "it holds less than the other host"


async def test_a_connection_is_not_read_on_while_it_holds_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HELD_BYTES_MAX", 100_000)
    async with cluster_of("a:1") as cluster, World(cluster) as world:
        reader, writer = await world.connect(HELLO)
        await _hello(reader)
        slow = request_frame(FETCH, 12, 2, "test", written(fetch_request({}, max_wait_ms=500), 12))
        padded = request_frame(METADATA, 0, 3, "test", written(m.MetadataRequest(topics=[NAMED] * 10), 0))
        writer.write(slow + padded + HELLO * 3)
        [one] = world.protocols
        await until(lambda: one._is_paused)
        for _ in range(5):
            await _hello(reader)  # all are answered: it was read on
        await until(lambda: one.held_bytes == 0)


async def test_connections_that_end_write_a_bounded_log() -> None:
    """Each had its line: strangers filled the disk."""
    async with cluster_of("a:1") as cluster, World(cluster) as world:
        for _ in range(200):
            _, writer = await world.connect(b"GET / HTTP/1.1\r\n\r\n")
            writer.close()
        assert world.parts is not None
        endings = world.parts.endings
        await until(lambda: endings.ended >= 200)
        assert endings.lines < LINES_AT_ONCE + 60


async def test_an_idle_connection_is_closed_and_one_with_a_request_is_not() -> None:
    async with cluster_of("a:1") as cluster, World(cluster) as world:
        reader, _ = await world.connect(HELLO)
        await _hello(reader)
        [one] = world.protocols
        assert one._connection is not None
        one._connection.at_work += 1
        now_s = asyncio.get_running_loop().time()
        one.check_time(now_s + limits.IDLE_S + 1)
        assert world.protocols == [one]
        one._connection.at_work -= 1
        one.check_time(now_s + limits.IDLE_S + 1)
        assert await _is_closed(reader)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", struct.pack(">i", 8) + b"\xff" * 8]
)
async def test_what_is_no_request_ends_the_connection(data: bytes) -> None:
    async with cluster_of("a:1") as cluster, World(cluster) as world:
        reader, _ = await world.connect(data)
        assert await _is_closed(reader)


async def test_an_advertised_address_has_a_host_and_a_port() -> None:
    with pytest.raises(InvalidConfig, match="kafka_advertised_address"):
        await KafkaPort.open(load_settings(kafka_port=0, kafka_advertised_address="host:0"))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_tls_begins_with_what_came_while_the_loop_was_behind(
    run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path
) -> None:
    """The client's hello is there when the connection is accepted. uvloop reads it before any task can run."""

    async def greet() -> None:
        authority = Authority(tmp_path)
        files = authority.issue("broker")
        async with cluster_of("a:1") as cluster, World(cluster) as world:
            certificates = Certificates(CertificateFiles(str(files.cert), str(files.key), None), Sources(), TlsMeter())
            world.listener.tls = certificates.http_context(asks_clients=False)
            trusting = ssl.create_default_context(cafile=str(authority.ca))
            taken, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = trusting.wrap_bio(taken, sent, server_hostname="localhost")
            with socket.create_connection(("127.0.0.1", world.port)) as line:
                with suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                line.sendall(sent.read())  # the loop has not turned since it began to listen
                line.setblocking(False)
                loop, is_done = asyncio.get_running_loop(), False
                while not is_done:
                    taken.write(await asyncio.wait_for(loop.sock_recv(line, 65536), 30))
                    with suppress(ssl.SSLWantReadError):
                        client.do_handshake()
                        is_done = True
                    await loop.sock_sendall(line, sent.read())
                client.write(HELLO)
                await loop.sock_sendall(line, sent.read())
                answer = b""
                while not answer:
                    taken.write(await asyncio.wait_for(loop.sock_recv(line, 65536), 30))
                    with suppress(ssl.SSLWantReadError):
                        answer = client.read()
                assert answer[4:8] == struct.pack(">i", 1)

    run(greet())


async def test_tls_has_the_time_of_a_first_request_and_counts_as_a_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("broker")
    tls = Certificates(CertificateFiles(str(files.cert), str(files.key), None), Sources(), TlsMeter())
    async with cluster_of("a:1") as cluster, World(cluster) as world:
        world.listener.tls = tls.http_context(asks_clients=False)
        silent, _ = await world.connect(b"\x16\x03\x01")
        hostile, _ = await world.connect(HELLO)
        assert await _is_closed(hostile)
        await until(lambda: len(world.protocols) == 1)
        world.protocols[0].check_time(asyncio.get_running_loop().time() + limits.FIRST_REQUEST_S + 1)
        assert await _is_closed(silent)
        await until(lambda: not world.protocols)
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port, ssl=trusting)
        world.open.append(writer)
        for _ in range(3):
            writer.write(HELLO)
            await _hello(reader)
        assert len(world.protocols) == 1
        writer.close()
        await until(lambda: not world.protocols)


async def test_the_port_is_where_it_was_set() -> None:
    """`kafka_port`, `kafka_host`, `kafka_advertised_address`."""
    port = await KafkaPort.open(load_settings(kafka_port=0, kafka_host="127.0.0.1"))
    host, number = port.address.split(":")
    assert (host, int(number) > 0) == ("127.0.0.1", True)
    with pytest.raises(InvalidConfig, match="cannot listen on"):
        await KafkaPort.open(load_settings(kafka_port=int(number)))
    await port.stop()
    named = await KafkaPort.open(load_settings(kafka_port=0, kafka_advertised_address="kafka.example:9092"))
    assert named.address == "kafka.example:9092"
    await named.stop()


async def test_the_port_needs_the_compiled_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeError("the compiled codec is not installed")

    monkeypatch.setattr("ledgermq_broker.kafka.opening.check_compiled", missing)
    with pytest.raises(InvalidConfig, match="compiled codec"):
        await KafkaPort.open(load_settings(kafka_port=0))


def test_the_page_is_made_from_the_table() -> None:
    assert (ROOT / "docs/kafka.md").read_text() == page(), "make pages"


@in_kafka_cluster("a:1", "b:1", kafka=("a:1",))
async def test_a_broker_out_of_reach_is_an_alarm(cluster: KafkaCluster) -> None:
    from ledgermq_broker.kafka.opening import _out_of_reach

    assert _out_of_reach(cluster.brokers_of("a:1")) == [
        "clients of the Kafka protocol do not reach the partitions of b:1: set kafka_port there, too"
    ]
