"""The server behind the tests' proxies leaves no connection open, however far one had come when it
ended.
"""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from tests.servers.cutting_proxy import cutting_proxy


@pytest.mark.parametrize("turns", range(8))
def test_a_connection_that_comes_at_the_end_is_closed(turns: int) -> None:
    """One that is not is a ResourceWarning, which fails the test."""

    async def end_with_a_connection() -> None:
        with socket.socket() as client:
            client.setblocking(False)
            async with cutting_proxy("http://127.0.0.1:9", seed=1) as proxy:
                host, _, port = proxy.address.partition(":")
                client.connect_ex((host, int(port)))
                for _ in range(turns):
                    await asyncio.sleep(0)

    asyncio.run(end_with_a_connection())
    gc.collect()
