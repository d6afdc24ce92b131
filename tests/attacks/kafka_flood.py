"""One hostile program against the port for Kafka clients: raw frames on many connections.

`python -m tests.attacks.kafka_flood KIND HOST:PORT SECONDS [TOKEN] [tls] [from=HOST]`; it says that it is warm, and
prints at its end how many requests were answered.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ledgermq_broker.kafka.wire.frames import FRAME_BYTES_MAX, request_frame
from ledgermq_broker.kafka.wire.generated import api_versions_request as v
from ledgermq_broker.kafka.wire.generated import fetch_request as f
from ledgermq_broker.kafka.wire.generated import join_group_request as j
from ledgermq_broker.kafka.wire.generated import metadata_request as m
from ledgermq_broker.kafka.wire.generated import produce_request as p
from ledgermq_broker.kafka.wire.generated import sasl_authenticate_request as sa
from ledgermq_broker.kafka.wire.generated import sasl_handshake_request as sh
from ledgermq_broker.kafka.wire.messages import (
    API_VERSIONS,
    FETCH,
    JOIN_GROUP,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Api,
    written,
)
from ledgermq_broker.kafka.wire.primitives import ELEMENTS_MAX
from tests.broker.kafka_world import batch_of

OWN = "mine-kafka"
"""A topic on which the attacker has rights."""
ENDED = (OSError, ssl.SSLError, asyncio.IncompleteReadError)


def frame(api: Api, version: int, request: Any) -> bytes:
    return request_frame(api, version, 1, "hostile", written(request, version))


def metadata(count: int) -> bytes:
    wanted = [m.MetadataRequestTopic(name=f"{OWN}{number or ''}") for number in range(count)]
    return frame(METADATA, 9, m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False))


def fetch(max_wait_ms: int) -> bytes:
    parts = [f.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2**24)]
    topics = [f.FetchTopic(topic=OWN, partitions=parts)]
    return frame(
        FETCH,
        11,
        f.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=2**24, session_epoch=-1, topics=topics),
    )


def produce(batches: int, value: bytes = b"x") -> bytes:
    batch = batch_of(value)
    data = [p.PartitionProduceData(index=0, records=batch) for _ in range(batches)]
    return frame(
        PRODUCE,
        9,
        p.ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[p.TopicProduceData(OWN, partition_data=data)]),
    )


class KafkaFlood:
    """`token`: "" for another wrong one on each connection. `tls`: whether the port speaks it. `own_host`: the address
    that it comes from; "" for any.
    """

    def __init__(self, address: str, seconds: float, token: str, *, tls: bool = False, own_host: str = "") -> None:
        self._tls = _unverified() if tls else None
        self._from = (own_host, 0) if own_host else None
        self._host, _, port = address.rpartition(":")
        self._port, self._token = int(port), token
        self._end_s = time.monotonic() + seconds
        self._number = 0
        self.answers = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls, local_addr=self._from)

    async def on_each(
        self, count: int, work: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        """Do something on so many connections, again and again."""

        async def again() -> None:
            while time.monotonic() < self._end_s:
                with suppress(*ENDED, TimeoutError):
                    reader, writer = await self.connect()
                    try:
                        async with asyncio.timeout(max(0.1, self._end_s - time.monotonic())):
                            await work(reader, writer)
                    finally:
                        writer.transport.abort()
                await asyncio.sleep(0.01)

        await asyncio.gather(*(again() for _ in range(count)))

    async def call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        self.answers += 1

    async def prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._number += 1
        token = self._token or f"wrong-{self._number}"
        await self.call(reader, writer, frame(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest("PLAIN")))
        said = sa.SaslAuthenticateRequest(f"\0user\0{token}".encode())
        await self.call(reader, writer, frame(SASL_AUTHENTICATE, 2, said))

    async def _repeated(self, count: int, data: bytes, pipelined: int = 1) -> None:
        async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.prove(reader, writer)
            while time.monotonic() < self._end_s:
                writer.write(data * (pipelined - 1))
                await self.call(reader, writer, data)
                for _ in range(pipelined - 1):
                    await self.call(reader, writer, b"")

        await self.on_each(count, work)

    async def requests(self) -> None:
        await self._repeated(300, metadata(1))

    async def pipelines(self) -> None:
        await self._repeated(20, frame(API_VERSIONS, 3, v.ApiVersionsRequest("a", "1")), 2000)

    async def lists(self) -> None:
        await self._repeated(4, metadata(ELEMENTS_MAX - 1))

    async def batches(self) -> None:
        await self._repeated(2, produce(4_000))

    async def joins(self) -> None:
        """Members that never come back, each of a new group, with metadata."""

        async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.prove(reader, writer)
            while time.monotonic() < self._end_s:
                self._number += 1
                protocols = [j.JoinGroupRequestProtocol("range", bytes(500_000))]
                joining = j.JoinGroupRequest(
                    f"{OWN}-{self._number}", 60_000, 60_000, "", None, "consumer", protocols, reason=None
                )
                await self.call(reader, writer, frame(JOIN_GROUP, 7, joining))

        await self.on_each(20, work)

    async def tokens(self) -> None:
        self._token = ""
        await self.on_each(500, self.prove)

    async def halves(self) -> None:
        """Whole requests of 8 MB behind one that waits, then half of a request of 100 MiB."""

        async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.prove(reader, writer)
            writer.write(fetch(30_000) + produce(1, bytes(8_000_000)))
            writer.write(struct.pack(">i", FRAME_BYTES_MAX) + bytes(FRAME_BYTES_MAX // 2))
            await writer.drain()
            await asyncio.sleep(60)

        await self.on_each(60, work)

    async def silent(self) -> None:
        """Readers that ask for answers of 16 MB, and take nothing."""

        async def fill(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.prove(reader, writer)
            for _ in range(30):
                await self.call(reader, writer, produce(1, bytes(900_000)))

        async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.prove(reader, writer)
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(fetch(0) * 16)
            await asyncio.sleep(60)

        reader, writer = await self.connect()
        await fill(reader, writer)
        writer.close()
        await self.on_each(100, work)

    async def garbage(self) -> None:
        async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.read()

        await self.on_each(200, work)


def _unverified() -> ssl.SSLContext:
    """It attacks a broker whose certificate it does not know."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


KINDS = ("requests", "pipelines", "lists", "batches", "joins", "tokens", "halves", "silent", "garbage")


def main() -> None:
    kind, address, seconds, *more = sys.argv[1:]
    [own_host] = [one.removeprefix("from=") for one in more if one.startswith("from=")] or [""]
    token = more[0] if more and more[0] != "tls" and "=" not in more[0] else ""
    flood = KafkaFlood(address, float(seconds), token, tls="tls" in more, own_host=own_host)
    print("warm", flush=True)
    assert kind in KINDS
    asyncio.run(getattr(flood, kind)())
    print(flood.answers, flush=True)


if __name__ == "__main__":
    main()
