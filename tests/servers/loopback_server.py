"""A server of this process on a free port of the loopback, for proxies that tests put between a
client and the real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ledgermq.runtime.tasks import end

LINE_BYTES_MAX = 1 << 20


@asynccontextmanager
async def serving(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """Its endpoint, http://host:port.

    `serve` handles one connection; those under way are cancelled at the end.
    """
    running: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def handle() -> None:
            await serve(reader, writer)

        task = asyncio.create_task(handle())
        running.add(task)
        task.add_done_callback(lambda _: writer.transport.abort())  # it may end before it begins
        task.add_done_callback(running.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=LINE_BYTES_MAX)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for listening in server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await (
            _a_few_turns()
        )  # what was accepted a moment ago comes to `connected`; a server that is closed before leaves it open forever
        server.close()
        await end(*running)
        await _a_few_turns()  # and is closed


async def _a_few_turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
