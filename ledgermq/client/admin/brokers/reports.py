"""What brokers say of themselves: what each one is and has, who is connected to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from ledgermq.client.context import ClientContext
from ledgermq.errors import LedgerMQError, Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.runtime.tasks import all_of

CALLS_AT_ONCE = 16
PAGE = 1_000
CONNECTIONS_MAX = 10_000
"""Connections that one list holds, at most."""
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """What a broker says of itself. `bundles`: those that it owns. `load`: of these, in bytes produced and fetched in a
    second. `memory_bytes`: of its process, None if it does not say. `numbers`: these and others, by names that end in
    their unit. `settings`: in force, secrets as stars. `trouble`: why it has not answered, "" if it has; then the
    rest is what others know of it.
    """

    id: str
    address: str
    alive: bool
    draining: bool
    version: str = ""
    started: datetime | None = None
    bundles: tuple[int, ...] = ()
    load: int = 0
    memory_bytes: int | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class ConnectionDescription:
    """One caller on one connection to a broker. `address`: of the other end, which is a gateway's for callers over
    HTTP. `client`: name and version of its library, as it says itself. `since`, `last`: its first and its last
    call. `calls_now`: those under way. `produces`, `reads`: names of topics in its calls, the first 20.
    """

    broker: str
    id: str
    address: str
    principal: str
    client_id: str
    client: str
    since: datetime
    last: datetime
    calls: int
    calls_now: int
    produces: tuple[str, ...]
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicCost:
    """What requests for a topic have cost since the brokers started, in dollars.

    `topic`: a name; `(cluster)`: requests for no topic, such as heartbeats; `(other)`: removed topics. `principal`: who
    wrote or read; "": callers without a name, and the cluster's own work on the topic. `write_dollars`: PUT and LIST.
    `read_dollars`: GET and HEAD.
    """

    topic: str
    principal: str
    write_dollars: float
    read_dollars: float

    @property
    def dollars(self) -> float:
        return self.write_dollars + self.read_dollars


@dataclass(frozen=True, slots=True)
class KeptCost:
    """What a topic keeps, and what that costs in a month. `partitions_unknown`: those that could not be measured now,
    because they are on their way to another broker, say.
    """

    topic: str
    size_bytes: int
    dollars_month: float
    partitions_unknown: int = 0


class Brokers:
    """Asks each broker of a cluster."""

    def __init__(self, context: ClientContext) -> None:
        self._connections = context.connections

    def deadline(self) -> float:
        return self._connections.deadline()

    async def alive(self, deadline: float) -> list[pb.BrokerInfo]:
        """Return the brokers that are alive, in the order of their ids. Raises Unavailable, Unauthenticated."""
        return [info for info in await self._known(deadline) if info.alive]

    async def _known(self, deadline: float) -> list[pb.BrokerInfo]:
        found = await self._connections.ask(lambda at: at.describe_cluster(pb.DescribeClusterRequest()), deadline)
        return list(found.brokers)

    async def each(self, deadline: float, ask: Callable[[Connection], Awaitable[A]]) -> list[A]:
        """Return the answers of all brokers that are alive, in the order of their ids. Raises what one raises."""

        async def one(info: pb.BrokerInfo) -> A:
            return await self._connections.ask_at(info.address, ask, deadline)

        return await all_of(map(one, await self.alive(deadline)), CALLS_AT_ONCE)

    async def describe(self) -> list[BrokerReport]:
        deadline = self._connections.deadline()
        return await all_of((self._described(info, deadline) for info in await self._known(deadline)), CALLS_AT_ONCE)

    async def _described(self, info: pb.BrokerInfo, deadline: float) -> BrokerReport:
        known = BrokerReport(info.id, info.address, info.alive, info.draining)
        if not info.alive:
            return known
        request = pb.DescribeBrokerRequest()
        try:
            found = await self._connections.ask_at(info.address, lambda at: at.describe_broker(request), deadline)
        except Unauthorized:
            raise
        except LedgerMQError as error:  # an older release, or it does not answer: the others do
            return BrokerReport(info.id, info.address, info.alive, info.draining, trouble=error.message)
        numbers = dict(found.numbers)
        return BrokerReport(
            found.id,
            info.address,
            True,
            found.draining,
            found.version,
            _time(found.started_ms),
            tuple(found.bundles),
            round(numbers.get("load_bytes_per_s", 0.0)),
            None if "memory_bytes" not in numbers else round(numbers["memory_bytes"]),
            numbers,
            dict(found.settings),
        )

    async def connections(self) -> list[ConnectionDescription]:
        deadline = self._connections.deadline()
        alive = await self.alive(deadline)
        found = await all_of((self._connected(info.address, deadline) for info in alive), CALLS_AT_ONCE)
        every = [each for part in found for each in part]
        return sorted(every, key=lambda each: (each.principal, each.address, each.broker))[:CONNECTIONS_MAX]

    async def _connected(self, broker: str, deadline: float) -> list[ConnectionDescription]:
        found: list[ConnectionDescription] = []
        after, more = "", True
        while more and len(found) < CONNECTIONS_MAX:
            request = pb.ListConnectionsRequest(after=after, limit=PAGE)
            answer = await self._connections.ask_at(
                broker,
                lambda at, request=request: at.list_connections(request),  # type: ignore[misc]
                deadline,
            )
            found += (_connection(broker, info) for info in answer.connections)
            more = answer.more and bool(answer.connections)
            after = answer.connections[-1].id if answer.connections else ""
        return found


def _connection(broker: str, info: pb.ConnectionInfo) -> ConnectionDescription:
    return ConnectionDescription(
        broker,
        info.id,
        info.address,
        info.principal,
        info.client_id,
        info.client,
        _time(info.since_ms),
        _time(info.last_ms),
        info.calls,
        info.calls_now,
        tuple(info.produces),
        tuple(info.reads),
    )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
