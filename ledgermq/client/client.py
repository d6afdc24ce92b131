"""The client: holds one cluster's connections and topic metadata, and makes producers and
consumers. At the end it closes everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ledgermq.client.admin.access import Access
from ledgermq.client.admin.brokers.reports import Brokers
from ledgermq.client.admin.cluster import ClusterAdmin
from ledgermq.client.admin.quotas import Quotas
from ledgermq.client.admin.topic_admin import TopicAdmin, TopicNames
from ledgermq.client.admin.topics import Admin
from ledgermq.client.connection.connections import CallerConnector, Connections
from ledgermq.client.connection.routing import Routing
from ledgermq.client.connection.target import Embedding
from ledgermq.client.context import ClientContext
from ledgermq.client.cuts.admin import Cuts
from ledgermq.client.delayed import Delayed
from ledgermq.client.finding import (
    Finding,
)
from ledgermq.client.front.handling import Handling
from ledgermq.client.front.looking_up import LookingUp
from ledgermq.client.front.producers import MakingProducers
from ledgermq.client.groups.admin.group_admin import GroupAdmin
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.messages.broker_clock import BrokerClock
from ledgermq.client.offsets import Offsets
from ledgermq.client.operating.dead_letters import DeadLetterAdmin
from ledgermq.client.operating.tracing import Tracing
from ledgermq.client.operating.unresolved import UnresolvedAdmin
from ledgermq.client.producing.producer import Producer
from ledgermq.client.queues.admin import QueueAdmin
from ledgermq.client.queues.leases.leasing import QueueLeasing
from ledgermq.client.queues.queue import Queue
from ledgermq.client.requests import Requests
from ledgermq.client.schemas.admin import Schemas
from ledgermq.client.settings.values import (
    ClientSettings,
)
from ledgermq.client.tables.admin import TableAdmin
from ledgermq.errors import LedgerMQError
from ledgermq.protocol.api import Connector
from ledgermq.protocol.naming.tokens import bearer
from ledgermq.sources import Sources
from ledgermq.telemetry.switch import make_metrics, make_tracing

if TYPE_CHECKING:
    from ledgermq.telemetry.tracing import Tracing as Spans


class Client(MakingProducers, Handling, LookingUp, ClusterAdmin, TopicNames):
    """A connection to one cluster. Use it within one event loop.

    Use `async with`, or call `close()` at the end. Every call ends within `timeout_s`.
    """

    def __init__(
        self,
        connector: Connector,
        addresses: Sequence[str],
        settings: ClientSettings | None = None,
        sources: Sources | None = None,
        threads: Executor | None = None,
        embedding: Embedding | CallerConnector | None = None,
        *,
        owns_threads: bool = False,
        spans: Spans | None = None,
    ) -> None:
        self.settings = settings or ClientSettings()
        sources = sources or Sources()
        self._embedding = embedding
        self._own_threads = threads if owns_threads else None
        """Threads that end with this client."""
        connections = Connections(connector, addresses, self.settings, sources, threads, embedding)
        routing = Routing(connections, self.settings.metadata_age_s_max, self.settings.rack)
        offsets = Offsets(connections, routing)
        requests = Requests(lambda: context, lambda: admin, self.producer)
        if spans is None:
            spans = make_tracing(bool(self.settings.tracing), self.settings.tracing_parent, sources.now_us)
        metrics = make_metrics(bool(self.settings.metrics))
        context = ClientContext(connections, routing, offsets, sources, BrokerClock(sources), requests, spans, metrics)
        admin = Admin(context)
        Handling.__init__(self, context, admin, requests)
        ClusterAdmin.__init__(self, admin, Brokers(context))
        TopicNames.__init__(self, TopicAdmin(context, admin))
        self.groups = GroupAdmin(context)
        """Administration of consumer groups: list, describe, reset, delete."""
        self.access = Access(context)
        """Access rules and tokens: grant, revoke, list, test."""
        self.quotas = Quotas(context)
        """Quotas of principals and client ids: set, unset, list."""
        self._leasing = QueueLeasing(self._queue)
        self.queues = QueueAdmin(context, admin, self._leasing)
        """Queue groups: list, describe, reset, delete; lease messages and answer without a member."""
        self.schemas = Schemas(context)
        """Schemas of values: put, check, list, describe, delete."""
        self.tables = TableAdmin(context, admin)
        """Tables of topics, which other programs read: list, describe, rebuild, drop."""
        self.cuts = Cuts(context)
        """Instants of the whole cluster with names: take, list, show, keep, drop, files."""
        self.dead_letters = DeadLetterAdmin(context, admin, self.transactions, self.groups, self.queues)
        """Dead letters: list, redrive, drop."""
        self.unresolved = UnresolvedAdmin(context, admin, self.transactions)
        """Half messages whose producers never answered: list, publish, drop."""
        finding = Finding(context)
        tracing = Tracing(context, admin, finding, self.groups, self.queues, self.dead_letters)
        LookingUp.__init__(self, context, finding, Delayed(context, admin), tracing)

    def as_caller(self, token: str) -> Client:
        """Return a view of this client for another caller: every call carries `token`, and never the client's own.

            async with client.as_caller(token) as alice:
                await alice.describe_topic("orders")      # judged by alice's rights

        The view shares this client's connections and settings, and nothing else: producers, transactions, what is
        known about topics, and calls under way are its own. A consumer of a view has its own connections. Close it,
        which closes what it made and leaves the connections open; it ends with this client at the latest. "anonymous"
        is a token of no principal. The token of a view never changes: make a view for each. Raises InvalidConfig for a
        text that is no token.
        """
        self._forget_closed()
        connector = CallerConnector(self._connections, bearer(token))
        addresses, threads = self._connections.candidates(), self._connections.threads
        spans = self._context.tracing
        made = Client(connector, addresses, self.settings, self._sources, threads, connector, spans=spans)
        self._made.append(made)
        return made

    @property
    def closed(self) -> bool:
        return self._connections.closed

    async def close(self) -> None:
        """Flush the producers within their delivery timeout, then close everything.

        Raises the first error that a producer's `close` raises.
        """
        self._connections.home.check()
        async with AsyncExitStack() as stack:
            if self._own_threads is not None:
                stack.callback(self._own_threads.shutdown)
            if self._embedding is not None:
                stack.push_async_callback(self._embedding.close)
            stack.push_async_callback(self._connections.close)
            stack.push_async_callback(self._routing.close)
            stack.push_async_callback(self._leasing.close)
            made, self._made = self._made, []
            outcomes = await asyncio.gather(*(each.close() for each in made), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def abort(self) -> None:
        """Close at once; records that producers still hold fail.

        Members of groups commit finished messages, if they can, and leave; those of queues give unfinished
        messages back.
        """
        self._connections.home.check()
        for made in list(self._made):
            if isinstance(made, Producer | Client):
                await made.abort()
            elif isinstance(made, GroupConsumer | Queue):
                with suppress(LedgerMQError):
                    await made.close()
        await self.close()

    async def __aenter__(self) -> Self:
        if self._embedding is not None:
            try:
                await self._embedding.open()
            except BaseException:
                await self.close()
                raise
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await (self.close() if kind is None else self.abort())
