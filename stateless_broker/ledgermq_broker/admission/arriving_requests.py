"""Bound the bytes of requests that are on their way: sent by callers, but not received as whole messages.

gRPC keeps the pieces of a message until it is whole, 33 MB for each stream at most, and its Python server
has no bound for all together. The kernel counts what each connection has brought (TCP_INFO, Linux).
What was brought and not received, less what frames and acknowledgements of windows need, is on its way.

    above `STALE_BYTES_MAX`    connections of which no message has come for `STALE_S` are broken, that with
                               the most first
    above `BYTES_MAX`          so are connections of the sharer that has the most: a principal, or a
                               connection where rules are not enforced

A look at all connections costs some 10 us for each open file. So there is one only after the process has
grown by `GROWTH_BYTES`, and after a pause; also every `STALE_S` while more than `STALE_BYTES_MAX` are on
their way. Where the kernel does not count, nothing is bounded here.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ledgermq_broker.admission.connection_cut import OPEN_FILES, address_of, duplicate, plain_address

LOOK_S = 0.05
GROWTH_BYTES = 32 * 1024 * 1024
STALE_BYTES_MAX = 256 * 1024 * 1024
BYTES_MAX = 768 * 1024 * 1024
STALE_S = 5.0
CALL_BYTES = 1024
"""Headers of a call, about."""
MEMORY_FILE = "/proc/self/statm"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
IS_COUNTED = os.path.exists(MEMORY_FILE) and hasattr(socket, "TCP_INFO")
KEPT_MIN = 1000
"""Connections that are kept without a look which of them are gone."""

_COUNTERS = struct.Struct("=QQ")
_COUNTERS_AT = 120
"""Where struct tcp_info has tcpi_bytes_acked and tcpi_bytes_received (linux/tcp.h)."""

Address = tuple[str, int]
Counts = dict[Address, tuple[int, int]]
"""By the address of the peer: bytes that it has acknowledged, and bytes that came from it."""


@dataclass(slots=True)
class Arriving:
    """One connection. `on_way`: bytes at the last look. `reads`: requests that are waited for."""

    sharer: str = ""
    reads: int = 0
    calls: int = 0
    received: int = 0
    """Bytes of whole messages and, about, of headers, since the last look."""
    received_s: float = 0.0
    acked: int = 0
    brought: int = 0
    on_way: int = 0

    def message(self, size: int, now_s: float) -> None:
        self.received += size + size // 100 + 64
        self.received_s = now_s

    def look(self, acked: int, brought: int) -> None:
        """Compute what is on its way. Acknowledging windows costs up to a fiftieth of what is sent."""
        allowed = self.received + CALL_BYTES * self.calls + (acked - self.acked) // 50
        left = self.on_way + brought - self.brought - allowed
        self.on_way = max(0, left) if self.reads else 0
        self.received, self.calls, self.acked, self.brought = 0, 0, acked, brought


class ArrivingRequests:
    """`cut(peer)` breaks a connection; peers are named as gRPC does."""

    def __init__(self, cut: Callable[[str], None]) -> None:
        self._cut = cut
        self._connections: dict[str, Arriving] = {}
        self._looked_at_bytes = 0
        self._kept_max = KEPT_MIN
        self._on_way = 0

    @contextmanager
    def reading(self, peer: str, sharer: str) -> Iterator[Arriving]:
        """Yield the connection, to note the messages of a call that are received inside."""
        found = self._connections.get(peer)
        if found is None:
            found = self._connections[peer] = Arriving(received_s=asyncio.get_running_loop().time())
        found.sharer = sharer
        found.calls += 1
        found.reads += 1
        try:
            yield found
        finally:
            found.reads -= 1

    async def watch(self) -> None:
        """Look whenever the process has grown; ends by cancellation."""
        if not IS_COUNTED:
            return
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        while True:
            files = 0
            try:
                memory = _memory_bytes()
            except OSError:  # the process has no file left for it now
                await asyncio.sleep(LOOK_S)
                continue
            has_grown = memory >= self._looked_at_bytes + GROWTH_BYTES
            may_be_stale = self._on_way > STALE_BYTES_MAX and loop.time() - looked_s > STALE_S
            if has_grown or may_be_stale or len(self._connections) > self._kept_max:
                looked_s = loop.time()
                with suppress(OSError):
                    counts, files = counts_of_connections()
                    self.judge(counts, loop.time())
                self._kept_max = 2 * len(self._connections) + KEPT_MIN
            self._looked_at_bytes = memory if files else min(memory, self._looked_at_bytes)
            await asyncio.sleep(max(LOOK_S, 5 * files * 1e-5))

    def judge(self, counts: Counts, now_s: float) -> list[str]:
        """Compute what is on its way, break connections if that is too much, and return them."""
        self._take(counts)
        broken: list[str] = []
        ways = sorted(self._connections.items(), key=lambda item: -item[1].on_way)
        total = sum(one.on_way for _, one in ways)
        for peer, one in ways:
            if total > STALE_BYTES_MAX and one.on_way and now_s - one.received_s > STALE_S:
                total -= self._break(peer, broken)
        while total > BYTES_MAX:
            shares: Counter[str] = Counter()
            for one in self._connections.values():
                shares[one.sharer] += one.on_way
            most = shares.most_common(1)[0][0]
            of_most = {peer: one.on_way for peer, one in self._connections.items() if one.sharer == most}
            total -= self._break(max(of_most, key=of_most.__getitem__), broken)
        self._on_way = total
        return broken

    def _take(self, counts: Counts) -> None:
        """Take the numbers of connections that exist, and forget others that have no call."""
        for peer, one in list(self._connections.items()):
            address = address_of(peer)
            found = None if address is None else counts.get(address)
            if found is not None:
                one.look(*found)
            elif not one.reads:
                del self._connections[peer]

    def _break(self, peer: str, broken: list[str]) -> int:
        one = self._connections[peer]
        freed, one.on_way = one.on_way, 0
        broken.append(peer)
        self._cut(peer)
        return freed


def counts_of_connections() -> tuple[Counts, int]:
    """Return the counters of the TCP connections of this process, and the number of its open files."""
    found: Counts = {}
    names = os.listdir(OPEN_FILES)
    for name in names:
        with suppress(OSError), duplicate(int(name)) as copy:
            if not stat.S_ISSOCK(os.fstat(copy).st_mode):
                continue
            line = socket.socket(fileno=copy)
            try:
                if line.family in (socket.AF_INET, socket.AF_INET6) and line.type == socket.SOCK_STREAM:
                    info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS_AT + _COUNTERS.size)
                    if len(info) == _COUNTERS_AT + _COUNTERS.size:
                        acked, brought = _COUNTERS.unpack_from(info, _COUNTERS_AT)
                        found[plain_address(*line.getpeername()[:2])] = (acked, brought)
            finally:
                line.detach()
    return found, len(names)


def _memory_bytes() -> int:
    with open(MEMORY_FILE, "rb") as file:
        return int(file.read().split()[1]) * PAGE_BYTES
