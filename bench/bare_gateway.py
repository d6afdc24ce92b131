"""An HTTP server that does only what no gateway could do without, in a separate process: a floor for the rows G.

    python -m bench.bare_gateway answers               reads a body, and answers
    python -m bench.bare_gateway sends BROKER TOPIC    sends what it is posted by the SDK, and answers when it is stored
    python -m bench.bare_gateway passes BROKER TOPIC   fetches the first megabyte of partition 0 by a bare gRPC call for
                                                       each request, and passes the bytes on, not decoded

It has no routes, rules, turns, limits or log. It prints its port, and ends when its standard input closes.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import grpc
import msgspec
import pyarrow as pa
from aiohttp import web

import ledgermq
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq.protocol.methods import FETCH_ONCE
from ledgermq.runtime.process.server_process import loop_factory

ANSWERS, SENDS, PASSES = "answers", "sends", "passes"
ARROW = "application/vnd.apache.arrow.stream"
PAGE_BYTES = 1_000_000
PIECE_BYTES = 256 * 1024
ANSWER = b'{"results":[{"partition":3,"offset":4711}]}'
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Record(msgspec.Struct):
    value: str


class _Body(msgspec.Struct):
    records: list[_Record]


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, int]]:
    """Run the server; yield its URL and its process id."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.bare_gateway", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}", server.pid
        finally:
            server.kill()  # its connections are open


async def serve(kind: str, broker: str = "", topic: str = "") -> None:
    async with AsyncExitStack() as stack:
        if kind == ANSWERS:
            handler: Handler = _answer
        elif kind == SENDS:
            client = await stack.enter_async_context(ledgermq.connect(broker))
            handler = _sending(await stack.enter_async_context(client.producer()), topic)
        else:
            channel = grpc.aio.insecure_channel(broker, options=GRPC_OPTIONS)
            handler = _passing(await stack.enter_async_context(channel), topic)
        server = web.Server(handler, handler_cancellation=True, access_log=None, auto_decompress=False)
        listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, backlog=1024)
        print(listening.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        listening.close()
        await server.shutdown(1.0)


async def _answer(request: web.BaseRequest) -> web.StreamResponse:
    await request.read()
    return web.Response(body=ANSWER, content_type="application/json")


def _sending(producer: ledgermq.Producer, topic: str) -> Handler:
    decoder = msgspec.json.Decoder(_Body)

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        if request.content_type == ARROW:
            with pa.ipc.open_stream(body) as rows:
                runs = await (await producer.send_batch(topic, rows.read_all()))
            found = [{"partition": each.partition, "offset": each.base_offset} for each in runs]
            return web.Response(body=msgspec.json.encode({"runs": found}), content_type="application/json")
        if request.content_type == "application/json":
            records = [record.value.encode() for record in decoder.decode(body).records]
            stored = await (await producer.send_many(topic, records))
        else:
            stored = [await producer.send(topic, body)]
        places = [{"partition": each.partition, "offset": each.offset} for each in stored]
        return web.Response(body=msgspec.json.encode({"results": places}), content_type="application/json")

    return handler


def _passing(channel: grpc.aio.Channel, topic: str) -> Handler:
    wanted = pb.FetchRequest(partitions=[pb.FetchPartition(topic=topic)], max_bytes=PAGE_BYTES)
    question, call = wanted.SerializeToString(), channel.unary_unary(FETCH_ONCE.path, None, None)

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        body = memoryview(await call(question))
        response = web.StreamResponse()
        response.content_length = len(body)
        await response.prepare(request)
        for begin in range(0, len(body), PIECE_BYTES):
            await response.write(body[begin : begin + PIECE_BYTES])
        await response.write_eof()
        return response

    return handler


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(*sys.argv[1:]))
