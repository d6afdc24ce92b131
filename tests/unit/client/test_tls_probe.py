"""One more handshake tells why TLS fails, whatever becomes of the connection and of the caller."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from ledgermq.client.connection.tls_probe import why_refused
from ledgermq.client.settings.tls import Tls

TURNS = 8
"""Turns of the loop in which a probe of a broker on this machine has certainly ended."""
STANDSTILL_S = 0.2
"""Until the connection has ended, if it was asked for."""
SETTINGS = bytes.fromhex("000000040000000000")
"""The first frame of HTTP/2, which a broker without TLS sends at once."""

RUN = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, None]], None]
Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(SETTINGS)
    await reader.read(1)
    writer.close()


async def _serving(accept: Accept) -> tuple[asyncio.Server, str]:
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


class _Ending:
    """Accepts connections in a thread, and ends each at once, also while the loop stands still."""

    def __init__(self) -> None:
        self._line = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._line.getsockname()[1]}"
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                self._line.accept()[0].close()
                self.ended.set()

    def close(self) -> None:
        self._line.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._line.close()


@RUN
def test_a_caller_that_is_cancelled_in_any_turn_leaves_no_trace(run: Run) -> None:
    """The process stood still: the connection is made and has ended before the loop sees either."""

    async def main() -> None:
        traces: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: traces.append(context))
        server = _Ending()
        for before, behind in itertools.product(range(TURNS), repeat=2):
            server.ended.clear()
            probe = asyncio.create_task(why_refused(server.address, None))
            for _ in range(before):
                await asyncio.sleep(0)
            if before > 1:
                server.ended.wait(STANDSTILL_S)
            for _ in range(behind):
                await asyncio.sleep(0)
            probe.cancel()
            await asyncio.wait([probe])
        for _ in range(TURNS):
            await asyncio.sleep(0)
        server.close()
        gc.collect()
        assert traces == []

    run(main())


@RUN
def test_a_broker_that_speaks_before_the_handshake_is_known_to_speak_no_tls(run: Run) -> None:
    async def main() -> None:
        server, address = await _serving(_speak)
        async with server:
            for _ in range(TURNS):
                why = await why_refused(address, Tls())
                assert why is not None
                assert "does not speak TLS" in why
                assert await why_refused(address, None) is None

    run(main())


@RUN
def test_a_broker_that_ends_the_connection_says_nothing_about_tls(run: Run) -> None:
    async def main() -> None:
        server, address = await _serving(_reset)
        async with server:
            for _ in range(TURNS):
                assert await why_refused(address, None) is None
                assert await why_refused(address, Tls()) is None

    run(main())
