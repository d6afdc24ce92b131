"""Parse the target that a program gives: addresses of brokers, or the root URL of a cluster that
it joins with an embedded broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import entry_points
from typing import Protocol, cast

from ledgermq.errors import InvalidConfig
from ledgermq.protocol.api import Connector

EMBEDDED_GROUP = "ledgermq.embedded"


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

    Raises InvalidConfig when the server packages are not installed, and the errors of starting the
    broker.
    """
    for entry in entry_points(group=EMBEDDED_GROUP):
        try:
            opened = cast(Callable[..., Awaitable[Embedded]], entry.load())
        except ImportError as error:
            raise InvalidConfig(f'{url} needs an embedded broker: pip install "ledgermq[broker]" ({error})') from error
        return await opened(url, must_exist=must_exist)
    raise InvalidConfig(f'{url} needs an embedded broker: pip install "ledgermq[broker]"')
