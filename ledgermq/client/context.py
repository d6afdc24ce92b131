"""Parts that one client's objects share: how to reach the cluster, and the injected sources.

`Client` makes it once, and passes it to all that it makes: producers, consumers, members of groups,
administration.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ledgermq.client.connection.connections import Connections
from ledgermq.client.connection.routing import Routing
from ledgermq.client.messages.broker_clock import BrokerClock
from ledgermq.client.messages.record import Headers
from ledgermq.client.offsets import Offsets
from ledgermq.sources import Sources

if TYPE_CHECKING:
    from ledgermq.telemetry.client_metrics import ClientMetrics
    from ledgermq.telemetry.tracing import Tracing


class Replier(Protocol):
    """Sends replies to messages that are requests."""

    def reply(self, message: Any, value: Any, headers: Headers | None) -> Awaitable[Any]:
        """Raises InvalidRequest if the message is no request."""
        ...


class Made(Protocol):
    """What a client has made, and closes at its end."""

    @property
    def closed(self) -> bool: ...

    def close(self) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class ClientContext:
    """`connections`: to brokers, and calls that any broker may answer. `routing`: topics,
    partitions and their owners. `offsets`: look-ups of offsets at those owners. `sources`: wall
    clock, randomness, ids. `clock`: the brokers' time. `replier`: of the client's messages. `tracing`: None while the
    client does not trace. `metrics`: None while it does not measure.
    """

    connections: Connections
    routing: Routing
    offsets: Offsets
    sources: Sources
    clock: BrokerClock
    replier: Replier
    tracing: Tracing | None = None
    metrics: ClientMetrics | None = None
