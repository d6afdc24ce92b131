"""Parse the target that a program gives: addresses of brokers, or the root URL of a cluster that
it joins with an embedded broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import entry_points
from typing import Protocol, cast

from ledgermq.errors import Closed, InvalidConfig
from ledgermq.protocol.api import Connection, Connector
from ledgermq.runtime.process.missing_modules import what_to_do
from ledgermq.runtime.shared_start import SharedStart

EMBEDDED_GROUP = "ledgermq.embedded"
INSTALL = 'pip install "ledgermq[broker]"'


class Embedded(Protocol):
    """A broker inside this process."""

    @property
    def connector(self) -> Connector: ...

    @property
    def addresses(self) -> Sequence[str]: ...

    def close(self) -> Awaitable[None]: ...


def is_root_url(target: str) -> bool:
    """Return whether a target is the URL of a root. Raises InvalidConfig if it is no text."""
    if not isinstance(target, str):
        raise InvalidConfig(f"a target is text: host:port[,host:port] or a root URL, not {target!r}")
    return "://" in target


def parse_addresses(target: str) -> list[str]:
    """Parse a target. Raises InvalidConfig."""
    addresses = [part.strip() for part in target.split(",") if part.strip()]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if (
            not colon
            or not host
            or not port.isdecimal()
            or not 0 < int(port) < 65536
            or any(c.isspace() or c in "/@" for c in host)
        ):
            raise InvalidConfig(
                f"{address!r} is not a broker address; use host:port, or a root URL like file:///data/cluster"
            )
    if not addresses:
        raise InvalidConfig("no target given; use host:port[,host:port] or a root URL like file:///data/cluster")
    return addresses


async def open_embedded(url: str, *, must_exist: bool) -> Embedded:
    """Start an embedded broker. `must_exist`: do not create a cluster if the root holds none.

    Raises InvalidConfig when the server packages cannot be imported, and the errors of starting the
    broker.
    """
    for entry in entry_points(group=EMBEDDED_GROUP):
        try:
            opened = cast(Callable[..., Awaitable[Embedded]], entry.load())
        except (ImportError, AttributeError) as error:
            raise InvalidConfig(f"{url} needs an embedded broker: {what_to_do(error, INSTALL)}") from error
        return await opened(url, must_exist=must_exist)
    raise InvalidConfig(f"{url} needs an embedded broker: {INSTALL}")


class Embedding:
    """An embedded broker that is started when it is first needed, and the connector to it."""

    def __init__(self, url: str, *, must_exist: bool) -> None:
        self._url = url
        self._must_exist = must_exist
        self._opening = SharedStart(self._open)
        self._embedded: Embedded | None = None
        self._closed = False

    async def open(self) -> Sequence[str]:
        """Start the broker, unless it runs, and return its addresses. Raises the errors of starting one, Closed."""
        if self._closed:
            raise Closed("the client is closed: make another one with ledgermq.connect")
        await self._opening.wait()
        return self._running().addresses

    async def _open(self) -> None:
        self._embedded = await open_embedded(self._url, must_exist=self._must_exist)

    def _running(self) -> Embedded:
        assert self._embedded is not None, "it is started before the first connection"
        return self._embedded

    def connect(self, address: str) -> Connection:
        return self._running().connector.connect(address)

    def proving(self, credential: Callable[[str], str]) -> Connector:
        """See `Connector.proving`."""
        return self._running().connector.proving(credential)

    async def close(self) -> None:
        """Stop the broker."""
        self._closed = True
        await self._opening.close()
        embedded, self._embedded = self._embedded, None
        if embedded is not None:
            await embedded.close()
