"""Breaks one TCP connection of this process, found by its peer's address.

gRPC's asyncio server has no call for it: a handler that ends leaves its answer in line until the peer takes it, and an abort goes behind
that answer. What a peer that reads nothing makes a broker hold comes back only when its connection ends.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from urllib.parse import unquote

_OPEN_FILES = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


def cut_connection(peer: str) -> bool:
    """`peer`: as gRPC names it ("ipv4:10.0.0.7:52114", "ipv6:%5B::1%5D:52114"). False: there is no such connection.

    The descriptor is duplicated before its peer is looked at: another connection may use its number a moment later.
    """
    address = _address_of(peer)
    if address is None:
        return False
    for name in os.listdir(_OPEN_FILES):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and _plain(*found.getpeername()[:2]) == address:
                found.shutdown(socket.SHUT_RDWR)
                return True
    return False


def _address_of(peer: str) -> tuple[str, int] | None:
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    return _plain(host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") and port.isdigit() else None


def _plain(host: str, port: int) -> tuple[str, int]:
    """A socket for both families names IPv4 peers as ::ffff:10.0.0.7."""
    return host.partition("%")[0].removeprefix("::ffff:"), port
