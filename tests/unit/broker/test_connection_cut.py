"""One connection is broken, found by its peer's address; all others stay."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest

from ledgermq_broker.admission import connection_cut
from ledgermq_broker.admission.connection_cut import OPEN_FILES, ConnectionCut, cut_connections
from tests.virtual_time import virtual
from tests.waiting import until


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_the_connection_of_this_peer_is_broken_and_no_other(host: str) -> None:
    ended: dict[int, asyncio.Event] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        event = ended[writer.get_extra_info("peername")[1]] = asyncio.Event()
        await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        event.set()

    try:
        server = await asyncio.start_server(serve, host, 0)
    except OSError:
        pytest.skip(f"{host} is no address of this machine")
    async with server:
        port = server.sockets[0].getsockname()[1]
        clients = [await asyncio.open_connection(host, port) for _ in range(3)]
        ports = [writer.get_extra_info("sockname")[1] for _, writer in clients]
        while len(ended) < 3:
            await asyncio.sleep(0.01)
        peer = f"ipv6:%5B{host.replace(':', '%3A')}%5D:{ports[1]}" if ":" in host else f"ipv4:{host}:{ports[1]}"
        files = len(os.listdir(OPEN_FILES))
        assert cut_connections([peer, "ipv4:127.0.0.1:1"]) == 1
        assert len(os.listdir(OPEN_FILES)) == files, "it keeps no file open"
        async with asyncio.timeout(30):
            await ended[ports[1]].wait()
            assert await clients[1][0].read() == b""
        assert not ended[ports[0]].is_set()
        assert not ended[ports[2]].is_set()
        for _, writer in clients:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(30):
            await asyncio.gather(*(event.wait() for event in ended.values()))


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "unix:/run/it", "ipv4:127.0.0.1", ""])
async def test_a_peer_without_a_connection_is_none(peer: str) -> None:
    assert cut_connections([peer]) == 0


@virtual
async def test_those_of_one_turn_of_the_loop_are_broken_in_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[set[str]] = []
    monkeypatch.setattr(connection_cut, "cut_connections", lambda peers: searches.append(set(peers)) or len(peers))
    found = ConnectionCut()
    for peer in ("a", "b", "a"):
        found.cut(peer)
    await asyncio.sleep(0)
    assert searches == [{"a", "b"}]
    found.cut("c")
    await asyncio.sleep(0)
    found.cut("d")
    assert searches == [{"a", "b"}], "searches have a pause between them"
    await until(lambda: len(searches) > 1)
    assert searches[1] == {"c", "d"}
