"""Break TCP connections of this process, found by their peers' addresses.

gRPC's asyncio server has no call for that: a handler that ends leaves its answer in line until the
peer takes it, and an abort queues behind that answer. Memory held for a peer that reads nothing is
freed only when its connection ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote

from ledgermq_broker.logs import get_logger

OPEN_FILES = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"

REST_S_PER_FILE = 0.0002
"""Pause after a search, some twenty times its length: those who flood may connect again at once."""
CONNECTIONS_SHOWN_MAX = 20

log = get_logger(__name__)


class ConnectionCut:
    """Use it within one event loop.

    Connections cut in one turn of the loop are broken together, because each search looks at every
    open file. `why`: what the log says about them.
    """

    def __init__(self, why: str = "connections of readers that take nothing were broken, for others wait") -> None:
        self._why = why
        self._peers: set[str] = set()
        self._rests_until_s = 0.0

    def cut(self, peer: str) -> None:
        if not self._peers:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._rests_until_s:
                loop.call_soon(self._cut_all)
            else:
                loop.call_at(self._rests_until_s, self._cut_all)
        self._peers.add(peer)

    def _cut_all(self) -> None:
        peers, self._peers = self._peers, set()
        broken = cut_connections(peers)
        log.info(self._why, connections=sorted(peers)[:CONNECTIONS_SHOWN_MAX], asked=len(peers), broken=broken)
        self._rests_until_s = asyncio.get_running_loop().time() + REST_S_PER_FILE * len(os.listdir(OPEN_FILES))


def cut_connections(peers: Collection[str]) -> int:
    """Break the connections to `peers`, as gRPC names them ("ipv4:10.0.0.7:52114",
    "ipv6:%5B::1%5D:52114"); return how many were broken.

    A descriptor is duplicated before its peer is read, because another connection may reuse its
    number a moment later.
    """
    wanted = {address for peer in peers if (address := address_of(peer)) is not None}
    broken = 0
    for name in os.listdir(OPEN_FILES) if wanted else ():
        with suppress(OSError), duplicate(int(name)) as copy:
            if not stat.S_ISSOCK(os.fstat(copy).st_mode):
                continue
            found = socket.socket(fileno=copy)
            try:
                if (
                    found.family in (socket.AF_INET, socket.AF_INET6)
                    and plain_address(*found.getpeername()[:2]) in wanted
                ):
                    found.shutdown(socket.SHUT_RDWR)
                    broken += 1
            finally:
                found.detach()
    return broken


@contextmanager
def duplicate(number: int) -> Iterator[int]:
    copy = os.dup(number)
    try:
        yield copy
    finally:
        os.close(copy)


def address_of(peer: str) -> tuple[str, int] | None:
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    return plain_address(host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") and port.isdigit() else None


def plain_address(host: str, port: int) -> tuple[str, int]:
    """Return the plain address: a socket for both families names IPv4 peers as ::ffff:10.0.0.7."""
    return host.partition("%")[0].removeprefix("::ffff:"), port
