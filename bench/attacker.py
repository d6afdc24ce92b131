"""One hostile program: `python -m bench.attacker KIND HOST:PORT --token TOKEN --admin HOST:PORT --seconds 10`.

It needs no SDK: raw HTTP/2 and raw gRPC. It says that it is warm, begins, and ends after the time.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import grpc
import grpc.aio
import pyarrow as pa

from bench.load import WARM
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import GRPC_OPTIONS, MESSAGE_BYTES_MAX
from ledgermq.protocol.methods import DESCRIBE_TOPICS, FETCH, LIST_OFFSETS, PRODUCE, PRODUCE_ONCE
from tests.attacks.raw_http2 import DATA, PING, RawHttp2, frame

OWN = "mine"
"""What the topics begin with on which the attacker has rights."""
OWN_TOPIC = f"{OWN}-kafka"
"""One that is there, of one partition."""
WOKEN_STREAMS = 900
"""Nearly as many as a principal may have that is alone."""
OPTIONS = (*GRPC_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
"""Each channel has a connection of its own."""


class Attacker:
    def __init__(self, address: str, token: str, admin: str, seconds: float) -> None:
        self._address, self._token, self._admin = address, token, admin
        self._end_s = time.monotonic() + seconds

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token}"),)

    def _line(self) -> RawHttp2:
        host, _, port = self._address.rpartition(":")
        return RawHttp2(host, int(port))

    def _goes_on(self) -> bool:
        return time.monotonic() < self._end_s

    def _wait(self) -> None:
        time.sleep(max(0.0, self._end_s - time.monotonic()))

    def _repeat(self, some: Callable[[RawHttp2], bytes]) -> None:
        """Send it again and again, by a new connection whenever one is broken."""
        while self._goes_on():
            with suppress(OSError):
                line = self._line()
                while self._goes_on() and line.send(some(line)):
                    pass
                line.close()

    async def _in_a_row(self, path: str, data: bytes, at_once: int, metadata: tuple[tuple[str, str], ...]) -> None:
        async with grpc.aio.insecure_channel(self._address, options=OPTIONS) as channel:
            call = channel.unary_unary(path)

            async def one() -> None:
                while self._goes_on():
                    with suppress(grpc.aio.AioRpcError):
                        await call(data, metadata=metadata, timeout=30)

            await asyncio.gather(*(one() for _ in range(at_once)))

    async def _held(self, path: str, data: bytes, count: int, metadata: tuple[tuple[str, str], ...]) -> None:
        async with grpc.aio.insecure_channel(self._address, options=OPTIONS) as channel:
            call = channel.unary_stream(path)
            while self._goes_on():
                streams = [call(data, metadata=metadata) for _ in range(count)]
                await asyncio.sleep(2)
                for stream in streams:
                    stream.cancel()

    def watches(self) -> None:
        asyncio.run(self._held("/grpc.health.v1.Health/Watch", b"", 2500, ()))

    def headers(self) -> None:
        self._repeat(lambda line: b"".join(line.headers(LIST_OFFSETS.path) for _ in range(100)))

    def resets(self) -> None:
        self._repeat(
            lambda line: b"".join(line.headers(LIST_OFFSETS.path) + line.reset(line.stream) for _ in range(100))
        )

    def refused(self) -> None:
        asyncio.run(self._in_a_row(LIST_OFFSETS.path, b"", 100, ()))

    def halves(self) -> None:
        lines = []
        while self._goes_on() and len(lines) < 60:
            line = self._line()
            lines.append(line)
            line.send(line.headers(LIST_OFFSETS.path, self._metadata))
            line.send(frame(DATA, 0, 1, b"\0" + MESSAGE_BYTES_MAX.to_bytes(4, "big")))
            line.read_frames(0.05)
            line.send_data(1, MESSAGE_BYTES_MAX - 1, 2.0)
        self._wait()

    def lists(self) -> None:
        names = pb.DescribeTopicsRequest(topics=[f"x{number}" for number in range(100_000)]).SerializeToString()
        asyncio.run(self._in_a_row(DESCRIBE_TOPICS.path, names, 2, self._metadata))

    def admin(self) -> None:
        host, _, port = self._admin.rpartition(":")
        lines = []
        for _ in range(1200):
            with suppress(OSError):
                line = socket.create_connection((host, int(port)), timeout=5)
                line.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
                lines.append(line)
        self._wait()

    def ids(self) -> None:
        """Fill the table of ids of messages, by the SDK."""
        asyncio.run(self._ids())

    async def _ids(self) -> None:
        import ledgermq

        async with ledgermq.connect(self._address, token=self._token) as client:
            with suppress(ledgermq.LedgerMQError):
                await client.create_topic(f"{OWN}-ids", 1, settings={"dedup.window.ms": "604800000"})
            async with client.producer() as producer:
                number = 0
                while self._goes_on():
                    ids = pa.array([f"{number + each}" for each in range(10_000)])
                    number += 10_000
                    rows = pa.record_batch({"value": ids.cast(pa.binary()), "id": ids})
                    with suppress(ledgermq.LedgerMQError, ValueError):
                        await (await producer.send_batch(f"{OWN}-ids", rows))

    def streams(self) -> None:
        request = pb.FetchRequest(partitions=[pb.FetchPartition(topic=OWN_TOPIC)]).SerializeToString()
        asyncio.run(self._held(FETCH.path, request, 2500, self._metadata))

    def woken(self) -> None:
        """Fetch streams that all wake at each of its own appends."""
        asyncio.run(self._woken())

    async def _woken(self) -> None:
        from tests.broker.cluster import frame_of

        request = pb.FetchRequest(partitions=[pb.FetchPartition(topic=OWN_TOPIC)]).SerializeToString()
        data = PRODUCE_ONCE.encode_request(frame_of(OWN_TOPIC, 0, b"x"))
        async with AsyncExitStack() as stack:
            channels = [
                await stack.enter_async_context(grpc.aio.insecure_channel(self._address, options=OPTIONS))
                for _ in range(5)
            ]
            streams = [
                channels[number % 4].unary_stream(FETCH.path)(request, metadata=self._metadata)
                for number in range(WOKEN_STREAMS)
            ]
            reading = [asyncio.create_task(_read(stream)) for stream in streams]
            await asyncio.sleep(2)
            append = channels[4].unary_unary(PRODUCE_ONCE.path)
            while self._goes_on():
                with suppress(grpc.aio.AioRpcError):
                    await append(data, metadata=self._metadata, timeout=30)
            for each in (*streams, *reading):
                each.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    def calls(self) -> None:
        """Complete calls that are allowed, on a number of connections."""
        request = pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic=OWN_TOPIC, latest=True)])
        data = request.SerializeToString()

        async def all_() -> None:
            await asyncio.gather(*(self._in_a_row(LIST_OFFSETS.path, data, 100, self._metadata) for _ in range(5)))

        asyncio.run(all_())

    def frames(self) -> None:
        """Small batches on streams, as many as these take."""
        asyncio.run(self._frames())

    async def _frames(self) -> None:
        from tests.broker.cluster import frame_of

        data = PRODUCE.encode_request(frame_of(OWN_TOPIC, 0, b"x"))

        async def one(channel: grpc.aio.Channel) -> None:
            while self._goes_on():
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    stream = channel.stream_stream(PRODUCE.path)(metadata=self._metadata)
                    reading = asyncio.create_task(_read(stream))
                    while self._goes_on():
                        await stream.write(data)
                    stream.cancel()
                    await reading

        async with grpc.aio.insecure_channel(self._address, options=OPTIONS) as channel:
            await asyncio.gather(*(one(channel) for _ in range(50)))

    def pings(self) -> None:
        self._repeat(lambda line: frame(PING, 0, 0, bytes(8)) * 1000)


async def _read(
    stream: grpc.aio.StreamStreamCall[bytes, bytes] | grpc.aio.UnaryStreamCall[bytes, bytes],
) -> None:
    with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        async for _ in stream:
            pass


KINDS = (
    "watches",
    "headers",
    "resets",
    "refused",
    "halves",
    "lists",
    "admin",
    "ids",
    "streams",
    "woken",
    "pings",
    "calls",
    "frames",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("address")
    parser.add_argument("--token", default="")
    parser.add_argument("--admin", default="")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    attacker = Attacker(given.address, given.token, given.admin, given.seconds)
    print(WARM, flush=True)
    getattr(attacker, given.kind)()


if __name__ == "__main__":
    main()
