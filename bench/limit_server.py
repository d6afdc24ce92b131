"""A gRPC server that does nothing, in a process of its own: `python -m bench.limit_server [ROOT]` prints its port, and
ends when its standard input closes. With a root it also puts what it is sent there.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager

import grpc

from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq.runtime.process.server_process import loop_factory
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.root.open import open_store

METHOD, READ, ECHO, PUT = "/empty/Call", "/empty/Read", "/empty/Echo", "/empty/Put"
MESSAGE_BYTES = 1024 * 1024


@contextmanager
def served(root: str = "") -> Iterator[tuple[int, int]]:
    """Run the server; yield its port and its process id."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.limit_server", *([root] if root else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline()), server.pid
        finally:
            server.stdin.close()


async def serve(root: str) -> None:
    async with AsyncExitStack() as stack:
        sources = Sources()
        store = await stack.enter_async_context(await open_store(root, sources=sources)) if root else None
        await _serve(store, sources)


async def _serve(store: ObjectStore | None, sources: Sources) -> None:
    async def answer(_: bytes, __: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return b""

    async def read(asked: AsyncIterator[bytes], _: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        message = bytes(MESSAGE_BYTES)
        async for count in asked:
            for _number in range(int(count)):
                yield message

    async def echo(given: AsyncIterator[bytes], _: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        async for message in given:
            yield message

    async def put(data: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        assert store is not None
        await store.put_if_absent(f"bench/{sources.new_id().hex()}", [data])
        return b""

    server = grpc.aio.server(options=GRPC_OPTIONS)
    service = METHOD.strip("/").split("/")[0]
    handlers = {
        METHOD: grpc.unary_unary_rpc_method_handler(answer),
        PUT: grpc.unary_unary_rpc_method_handler(put),
        READ: grpc.stream_stream_rpc_method_handler(read),
        ECHO: grpc.stream_stream_rpc_method_handler(echo),
    }
    by_name = {method.rpartition("/")[2]: handler for method, handler in handlers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, by_name),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(*sys.argv[1:2] or [""]))
