"""Recorded calls, sent again over TLS on new connections: by strangers, by other principals, to other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import ledgermq
from ledgermq.client.connection.grpc_connection import GrpcConnector
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import ProduceFrame
from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq.protocol.methods import PRODUCE_ONCE
from ledgermq.protocol.naming.tokens import bearer
from tests.attacks.cluster import OPTIONS, SLOW_S, _prepared
from tests.attacks.test_identities import values
from tests.broker.cluster import frame_of
from tests.certificates import Authority, Pair
from tests.e2e.processes import BrokerProcess, BrokerProcesses

pytestmark = pytest.mark.slow

SCHEME = "LedgerMQ-Broker "
METADATA = "/ledgermq.v1.Broker/Fetch"
SECRETS = (b"orders", b"victim")
"""In the records of `__metadata`, which brokers fetch from each other."""
REFUSED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


@dataclass
class Recorded:
    """A call: its method, what proved its caller, and its first request."""

    method: str
    credential: str
    request: bytes


@dataclass
class Relay(grpc.GenericRpcHandler):
    """Passes all calls on to a broker, and records them: what an insider at an end of TLS could do."""

    authority: Authority
    target: str = ""
    calls: list[Recorded] = field(default_factory=list)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = details.method

        async def relay(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            metadata = tuple(
                (name, value)
                for name, value in context.invocation_metadata()
                if not name.startswith((":", "grpc-")) and name != "user-agent"
            )

            async def seen() -> AsyncIterator[bytes]:
                async for request in requests:
                    if not recorded.request:
                        recorded.request = request
                    yield request

            recorded = Recorded(method, dict(metadata).get("authorization", ""), b"")
            self.calls.append(recorded)
            async with secured(self.authority, self.target) as channel:
                try:
                    async for answer in channel.stream_stream(method)(seen(), metadata=metadata):
                        yield answer
                except grpc.aio.AioRpcError as error:
                    await context.abort(error.code(), str(error.details()), error.trailing_metadata() or ())

        return grpc.stream_stream_rpc_method_handler(relay)

    @asynccontextmanager
    async def running(self, pair: Pair) -> AsyncIterator[str]:
        """Yield its address."""
        server = grpc.aio.server(handlers=[self])
        proof = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())])
        port = server.add_secure_port("127.0.0.1:0", proof)
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)


@asynccontextmanager
async def secured(authority: Authority, address: str) -> AsyncIterator[grpc.aio.Channel]:
    """A new connection."""
    options = (*GRPC_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.secure_channel(
        address, grpc.ssl_channel_credentials(authority.ca.read_bytes()), options=options
    ) as channel:
        yield channel


@dataclass
class Cluster:
    """Two brokers with TLS and rules; calls of other brokers reach `second` through `relay`."""

    authority: Authority
    relay: Relay
    relay_address: str
    first: BrokerProcess
    second: BrokerProcess
    tokens: dict[str, str]

    def client(self, who: str) -> ledgermq.Client:
        return ledgermq.connect(
            f"{self.first.address},{self.second.address}",
            token=self.tokens[who],
            tls=self.authority.tls(),
            timeout_s=SLOW_S,
        )

    async def replay(self, at: BrokerProcess, call: Recorded, credential: str) -> tuple[grpc.StatusCode, bytes]:
        """Send a recorded request on a new connection with this credential; return how the call ended, and its
        first answer.
        """
        metadata = (("authorization", credential),) if credential else ()
        async with secured(self.authority, at.address) as channel:
            sent = channel.stream_stream(call.method)(iter([call.request]), metadata=metadata, timeout=SLOW_S)
            try:
                answer = await sent.read()
            except grpc.aio.AioRpcError as error:
                return error.code(), b""
            sent.cancel()
        return grpc.StatusCode.OK, answer if isinstance(answer, bytes) else b""


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    authority = Authority(folder)
    pair, root_url = authority.issue("broker"), (folder / "root").as_uri()
    tls = (f"--tls-cert-file={pair.cert}", f"--tls-key-file={pair.key}", f"--tls-ca-file={authority.ca}")
    tokens = await _prepared(root_url)
    relay = Relay(authority)
    with BrokerProcesses(folder, root_url, (*OPTIONS, *tls)) as processes:
        async with relay.running(pair) as address:
            second = await asyncio.to_thread(processes.start, "--peer-address", address)
            relay.target = second.address
            first = await asyncio.to_thread(processes.start)
            yield Cluster(authority, relay, address, first, second, tokens)


async def test_what_a_broker_sent_to_another_one_serves_no_one_else(tmp_path: Path) -> None:
    async with cluster(tmp_path) as at, at.client("root") as root:
        async with asyncio.timeout(SLOW_S):
            while not (
                taken := [each for each in at.relay.calls if each.credential.startswith(SCHEME) and each.request]
            ):
                await root.access.grant("user:shop", "produce", "orders")
                await asyncio.sleep(0.2)
        for call in {each.method: each for each in taken}.values():
            assert (await at.replay(at.second, call, ""))[0] in REFUSED, call.method
            for who in ("nobody", "mallory"):
                _, answer = await at.replay(at.second, call, bearer(at.tokens[who]))
                assert not any(name in answer for name in SECRETS), (call.method, who, answer)
            code, _ = await at.replay(at.first, call, call.credential)
            assert code in REFUSED, "it is for another broker"
            body, _, signature = call.credential.removeprefix(SCHEME).partition(".")
            changed = f"{SCHEME}{body[:-2]}{'AA' if body[-2:] != 'AA' else 'BB'}.{signature}"
            assert (await at.replay(at.second, call, changed))[0] in REFUSED
        assert METADATA in {call.method for call in taken}, "the second broker is asked for metadata"
        assert not any(token in "".join(call.credential for call in taken) for token in at.tokens.values())


async def test_what_a_client_sent_serves_no_one_else(tmp_path: Path) -> None:
    """The bytes of the connection, the request without its credential, and with those of other principals: one of
    them may write to the topic itself.
    """
    async with cluster(tmp_path) as at, at.client("root") as root, at.client("victim") as victim:
        at.tokens["shop"] = (await root.access.create_token("shop")).token
        await root.access.grant("user:shop", "produce,consume", "orders")
        async with victim.producer() as producer:
            await producer.send("orders", b"before", partition=0)
            owner = await owner_of(at, victim)
            plain, frame, sent = await tapped_calls(at, owner)
            stored_once = [b"before", b"plain", b"victim"]
            assert list((await values(victim, "orders")).values()) == stored_once
            await again(owner, sent)
            assert list((await values(victim, "orders")).values()) == stored_once, "bytes of TLS count once"
            for each in (plain, frame):
                call = Recorded(PRODUCE_ONCE.path, "", PRODUCE_ONCE.encode_request(each))
                assert (await at.replay(owner, call, ""))[0] in REFUSED
                for who in ("nobody", "mallory"):
                    await at.replay(owner, call, bearer(at.tokens[who]))
            assert list((await values(victim, "orders")).values()) == stored_once, "they have no right to write"
            await at.replay(owner, call, bearer(at.tokens["shop"]))
            stored = await producer.send("orders", b"after", partition=0)
            found = await values(victim, "orders")
            assert found[stored.offset] == b"after"
            assert list(found.values()).count(b"victim") == 1, "no one else repeats a record in its owner's name"


async def owner_of(at: Cluster, client: ledgermq.Client) -> BrokerProcess:
    described = await client.describe_topic("orders")
    return at.first if described.partitions[0].owner == at.first.address else at.second


async def tapped_calls(at: Cluster, broker: BrokerProcess) -> tuple[ProduceFrame, ProduceFrame, bytes]:
    """Store two records as the victim: without a producer, and as one. Return both frames, and the bytes of the
    connection.
    """
    plain = frame_of("orders", 0, b"plain")
    async with tapped_line(at, broker) as (line, sent):
        [found] = (await line.produce_once(plain)).results
        assert not found.error.code
        wanted = pb.OpenProducerRequest(partitions=[pb.TopicPartition(topic="orders", partition=0)])
        [opened] = (await line.open_producer(wanted)).partitions
        session = pb.ProducerSession(id=b"p" * 16, epoch=0, sequence=0, opened_slot=opened.opened_slot)
        framed = frame_of("orders", 0, b"victim", session=session)
        [found] = (await line.produce_once(framed)).results
        assert not found.error.code
        return plain, framed, bytes(sent)


@asynccontextmanager
async def tapped_line(at: Cluster, broker: BrokerProcess) -> AsyncIterator[tuple[Connection, bytearray]]:
    """Yield a line of the victim, and the bytes that it has sent on its connection."""
    sent = bytearray()
    host, _, port = broker.address.rpartition(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
        while data := await reader.read(65536):
            kept += data
            writer.write(data)
        writer.close()

    async def tap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, far_writer, sent), copy(far_reader, writer, bytearray()))

    server = await asyncio.start_server(tap, "127.0.0.1", 0)
    proof = bearer(at.tokens["victim"])
    connector = GrpcConnector(request_timeout_s=SLOW_S, tls=at.authority.tls(), credential=lambda _: proof)
    line = connector.connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield line, sent
    finally:
        await line.close()
        server.close()


async def again(broker: BrokerProcess, sent: bytes) -> None:
    """Send the bytes of a connection on a new one, until the broker ends it."""
    host, _, port = broker.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    try:
        async with asyncio.timeout(SLOW_S):
            while await reader.read(65536):
                pass
    except ConnectionError:
        pass
    writer.close()
