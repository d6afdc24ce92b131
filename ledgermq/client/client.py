"""The client: holds one cluster's connections and topic metadata, and makes producers and
consumers. At the end it closes everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack, overload

import pyarrow as pa

from ledgermq.client.admin.access import Access
from ledgermq.client.admin.cluster import ClusterAdmin
from ledgermq.client.admin.quotas import Quotas
from ledgermq.client.admin.topic_admin import TopicAdmin, TopicNames
from ledgermq.client.admin.topics import Admin
from ledgermq.client.connection.connections import CallerConnector, Connections
from ledgermq.client.connection.routing import Routing
from ledgermq.client.connection.target import Embedding
from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import TABLE_SCHEMA, Message, MessageDescription
from ledgermq.client.consuming.start import Start
from ledgermq.client.context import ClientContext, Made
from ledgermq.client.delayed import Delayed, DelayedList, RecallOutcome
from ledgermq.client.finding import (
    BYTES_MAX,
    MAX,
    TIMEOUT_S,
    Finding,
    GivenKey,
    Order,
    Partitions,
    Place,
    Search,
    id_of,
)
from ledgermq.client.groups.admin.group_admin import GroupAdmin
from ledgermq.client.groups.assignment import GivenRule, Topics, check_rule, subscription_of, topics_of
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.handlers.calls import HandlerCalls
from ledgermq.client.groups.handlers.handler import BatchFunction, Handler, HandlerFunction, handler_settings
from ledgermq.client.groups.handlers.local_store import LocalStore
from ledgermq.client.groups.handlers.recovery import Recovery
from ledgermq.client.groups.handlers.retry import Levels, MetaQ, check_consumer_retry, check_levels
from ledgermq.client.groups.handlers.runner import HandlerRunner
from ledgermq.client.groups.holdings import LettingGo
from ledgermq.client.groups.moves import MovePolicy
from ledgermq.client.groups.refusals import Refusals
from ledgermq.client.groups.retry_creation import RetryTopics
from ledgermq.client.messages.broker_clock import BrokerClock
from ledgermq.client.messages.descriptions import (
    PartitionHolder,
    TopicPartition,
)
from ledgermq.client.messages.expiry import Expiry
from ledgermq.client.messages.message_id import MessageId
from ledgermq.client.messages.record import Bytes, Headers
from ledgermq.client.offsets import At, Offsets
from ledgermq.client.operating.dead_letters import DeadLetterAdmin
from ledgermq.client.operating.tracing import MessageTrace, Tracing
from ledgermq.client.operating.unresolved import UnresolvedAdmin
from ledgermq.client.paging.pages import BYTES_MAX as PAGE_BYTES_MAX
from ledgermq.client.paging.pages import Page, PageOrder, Pages
from ledgermq.client.producing.delivery import Delivery
from ledgermq.client.producing.exclusive import find_holders
from ledgermq.client.producing.producer import Producer
from ledgermq.client.producing.publishing import Producing
from ledgermq.client.producing.sessions import Session, open_sessions
from ledgermq.client.queues.admin import QueueAdmin
from ledgermq.client.queues.dead_letters import DeadLetters
from ledgermq.client.queues.queue import Queue
from ledgermq.client.queues.runner import (
    QueueBatchFunction,
    QueueFunction,
    QueueHandler,
    QueueRunner,
    queue_handler_settings,
)
from ledgermq.client.requests import Requests
from ledgermq.client.setting_types import (
    ConsumerOptions,
    HandlerOptions,
    MemberOptions,
    ProducerOptions,
    QueueHandlerOptions,
    QueueOptions,
    TableOptions,
)
from ledgermq.client.settings.serializers import B, V
from ledgermq.client.settings.values import (
    ClientSettings,
    ConsumerSettings,
    GroupSettings,
    ProducerSettings,
    QueueSettings,
    TableSettings,
    settings_from,
)
from ledgermq.client.tables.table import Table
from ledgermq.client.transactions.checks import Check
from ledgermq.client.transactions.half_messages import HalfMessages
from ledgermq.client.transactions.handling import TransactionalRunner
from ledgermq.client.transactions.moving import TransactionalMoves, moving_id
from ledgermq.client.transactions.transactions import TransactionClient, Transactions
from ledgermq.client.transactions.two_phase import TwoPhase
from ledgermq.errors import InvalidConfig, LedgerMQError, ResourceExhausted
from ledgermq.protocol.api import Connector
from ledgermq.protocol.tokens import bearer
from ledgermq.runtime.stop_signals import stop_signals
from ledgermq.runtime.tasks import first_of
from ledgermq.sources import Sources

READ_BYTES_MAX = 2**30


class Client(ClusterAdmin, TopicNames):
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
    ) -> None:
        self.settings = settings or ClientSettings()
        self._sources = sources or Sources()
        self._embedding = embedding
        self._own_threads = threads if owns_threads else None
        """Threads that end with this client."""
        self._connections = Connections(connector, addresses, self.settings, self._sources, threads, embedding)
        self._routing = Routing(self._connections, self.settings.metadata_age_s_max)
        self._offsets = Offsets(self._connections, self._routing)
        clock = BrokerClock(self._sources)
        self._requests = Requests(lambda: self._context, lambda: self._admin, self.producer)
        self._context = ClientContext(
            self._connections, self._routing, self._offsets, self._sources, clock, self._requests
        )
        ClusterAdmin.__init__(self, Admin(self._context))
        TopicNames.__init__(self, TopicAdmin(self._context, self._admin))
        self._delayed = Delayed(self._context, self._admin)
        self._finding = Finding(self._context)
        self.groups = GroupAdmin(self._context)
        """Administration of consumer groups: list, describe, reset, delete."""
        self.access = Access(self._context)
        """Access rules and tokens: grant, revoke, list, test."""
        self.quotas = Quotas(self._context)
        """Quotas of principals and client ids: set, unset, list."""
        self.queues = QueueAdmin(self._context, self._admin)
        """Administration of queue groups: list, describe, reset, delete."""
        self._handlers: list[Handler | QueueHandler] = []
        self.transactions = TransactionClient(self._context, self._keep)
        """Transactions: records of any topics, and offsets of groups, all or nothing."""
        self.dead_letters = DeadLetterAdmin(self._context, self._admin, self.transactions, self.groups, self.queues)
        """Dead letters: list, redrive, drop."""
        self.unresolved = UnresolvedAdmin(self._context, self._admin, self.transactions)
        """Half messages whose producers never answered: list, publish, drop."""
        self._tracing = Tracing(self._context, self._admin, self._finding, self.groups, self.queues, self.dead_letters)
        self._made: list[Made] = [self._requests]

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
        made = Client(connector, addresses, self.settings, self._sources, threads, connector)
        self._made.append(made)
        return made

    @property
    def closed(self) -> bool:
        return self._connections.closed

    async def holders(self, topic: str) -> list[PartitionHolder]:
        """Return the partitions of a topic that exclusive producers have for themselves, in ascending order. Raises
        UnknownTopic, Unauthorized (it needs the right to produce), Unavailable.
        """
        return await find_holders(self._context, topic)

    def find(
        self,
        topic: str | None = None,
        *,
        key: GivenKey | None = None,
        id: str | MessageId | None = None,  # noqa: A002  the name of the field
        start: Place = "earliest",
        end: Place = "latest",
        max: int = MAX,  # noqa: A002  the name of the field
        partitions: Partitions = "key",
        order: Order = "newest",
        bytes_max: int = BYTES_MAX,
        timeout: float = TIMEOUT_S,
    ) -> Search:
        """Look messages up: by `key`, or one by its `id`. Iterate over the result, or await its `all()`.

            async for message in client.find("orders", key="table-7", start="1d"):
                ...

        By key it searches from `start` up to, without, `end`: offsets, times, ages, or a dict with an offset
        for each partition; the newest message comes first, or with order="oldest" the oldest. `partitions`:
        "key" searches the one that the default partitioner of producers gives to the key; "all", or numbers,
        search others too, one partition after the other. After `max` messages the iteration ends, and
        `Search.rest` says how to go on. When `timeout` seconds have passed, or brokers have read `bytes_max`
        bytes, it raises SearchStopped, whose `rest` says the same.

        Messages whose time to live is over, and tombstones, are found, too. By id the one message comes, or
        OffsetOutOfRange is raised if it is not stored, or no longer. Raises InvalidRequest, InvalidConfig.
        """
        return self._finding.search(topic, key, id, start, end, max, partitions, order, bytes_max, timeout)

    async def describe_message(self, message_id: str | MessageId) -> MessageDescription:
        """Return a message, and in which objects it is stored, when and by whom.

        Raises InvalidRequest (not an id), OffsetOutOfRange (not stored, or no longer), UnknownTopic,
        UnknownPartition, Unauthorized, Unavailable.
        """
        return await self._finding.describe(id_of(message_id))

    async def trace(
        self,
        message_id: str | MessageId,
        *,
        timeout: float = TIMEOUT_S,  # noqa: ASYNC109  as Consumer.fetch
        on_progress: Callable[[str], object] | None = None,
    ) -> MessageTrace:
        """Return where a message went: which groups have read it, and its copies in retry and dead-letter topics.

        `timeout`: for the search of one of these topics; `MessageTrace.unfinished` names what was not searched to its
        end. `on_progress` is called with what is asked next. Raises as `describe_message` does.
        """
        return await self._tracing.trace(id_of(message_id), timeout, on_progress or (lambda what: None))

    async def recall(self, handle: str) -> RecallOutcome:
        """Take back a delayed message, by the `handle` of its `SendResult`.

        Returns RecallOutcome.RECALLED if it is never delivered, TOO_LATE if it is delivered or surely
        will be, FORGOTTEN if it was due so long ago that its outcome is no longer known. A repeated call
        returns RECALLED again. Raises InvalidRequest (not a handle), UnknownTopic and TopicBeingDeleted
        (the message is dropped when it is due), ResourceExhausted, Unavailable.
        """
        return await self._delayed.recall(handle)

    async def list_delayed(
        self, topic: str | None = None, partition: int | None = None, *, messages_max: int = 100
    ) -> DelayedList:
        """Return the delayed messages that come next, and what waits in the bundles.

        `topic`, `partition`: only messages of this topic, or partition; `bundles` still counts all
        topics. `messages_max`: at most 10,000; 0: only what waits in the bundles. The list is a look at the
        present: messages may be delivered meanwhile. `unanswered` names bundles that do not answer.
        Raises UnknownTopic, UnknownPartition, InvalidRequest; Unavailable if no bundle answers.
        """
        return await self._delayed.list(topic, partition, messages_max)

    def producer(self, **settings: Unpack[ProducerOptions]) -> Producer:
        """Return a producer. Settings: the fields of `ProducerSettings`. Raises InvalidConfig."""
        self._forget_closed()
        producer = Producer(self._context, settings_from(ProducerSettings, settings))
        self._made.append(producer)
        return producer

    async def request(
        self,
        topic: str,
        value: Any,
        key: Bytes | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        partition: int | None = None,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109  as Consumer.fetch
    ) -> Message[bytes]:
        """Send a message, and return the first reply to it.

        A program that consumes `topic` replies with `await message.reply(value)`. The request expires after
        `timeout` seconds (1800 at most), so no program begins with it later. Replies go through the topic
        `ledgermq.replies`, which the first request of a cluster creates.

        Raises NoReply after `timeout`: the request may be handled nevertheless. Raises Unavailable if replies cannot be
        read, and what `Producer.send` and its delivery raise.
        """
        return await self._requests.request(topic, value, key, headers, tag, partition, timeout)

    def reply(self, message: Message, value: Any, headers: Headers | None = None) -> Delivery:
        """Reply to a request, like `message.reply`. Raises InvalidRequest if the message is no request."""
        return self._requests.reply(message, value, headers)

    async def open_sessions(
        self, producer_id: bytes, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Session]:
        """Return the sessions of a producer with this identity (16 bytes). Store them before its
        first batch is sent; a process that resumes the producer calls this again.

        Raises UnknownTopic, UnknownPartition, Unavailable.
        """
        return await open_sessions(self._context, producer_id, partitions, self._connections.deadline())

    def resumed_producer(
        self,
        sessions: Mapping[TopicPartition, Session],
        **settings: Unpack[ProducerOptions],
    ) -> Producer:
        """Return a producer that resumes these sessions, through `send_encoded` only; see
        `producing.sessions`.

        Raises InvalidConfig.
        """
        self._forget_closed()
        parsed = settings_from(ProducerSettings, settings).strict_for("a resumed producer")
        producer = Producer(self._context, parsed, Producing(parsed, sessions))
        self._made.append(producer)
        return producer

    @overload
    def consumer(
        self,
        topics: str | Iterable[str],
        partitions: Iterable[int] | None = None,
        start: Start = "earliest",
        group: None = None,
        *,
        end: Start | None = None,
        until_end: bool = False,
        **settings: Unpack[ConsumerOptions[V]],
    ) -> Consumer[V]: ...

    @overload
    def consumer(
        self,
        topics: Topics,
        partitions: None = None,
        start: GivenRule = "earliest",
        *,
        group: str,
        **settings: Unpack[MemberOptions[V]],
    ) -> GroupConsumer[V]: ...

    def consumer(
        self,
        topics: Topics,
        partitions: Iterable[int] | None = None,
        start: Start | GivenRule = "earliest",
        group: str | None = None,
        *,
        end: Start | None = None,
        until_end: bool = False,
        **settings: Any,
    ) -> Consumer | GroupConsumer:
        """Return a consumer of topics: a standalone one, or with `group` a member of a consumer
        group.

        Without a group it reads the given partitions (all, if None) of one or more topics, and the
        program keeps its positions. Settings: the fields of `ConsumerSettings`. `start`:
        "earliest", "latest", a datetime with time zone (first record at or after it), an age
        ("15m", "7d", a timedelta), or {partition: offset}; with several topics {(topic, partition):
        offset}. Partitions that `start` does not name begin at the earliest offset. If it names a
        partition that is not read, the first call raises UnknownPartition. `end` accepts the same
        values: only records before it are returned, and the iteration ends there. It is resolved
        when reading begins; partitions that it does not name end where they end at that time.
        `until_end=True` stands for end="latest".

        With a group it reads the partitions that the group assigns to this member. Settings: the
        fields of `GroupSettings`. `topics` may be a pattern (`re.compile(…)`, or text that begins
        with ^). `start` says where to begin in a partition for which the group has committed
        nothing, or whose committed offset no longer exists: "earliest", "latest", a datetime, an
        age, or "error". `auto_offset_reset`, if given, decides the second case. Raises
        InvalidConfig, InvalidGroupName.
        """
        self._forget_closed()
        made: Consumer | GroupConsumer
        if group is None:
            if until_end and end is not None:
                raise InvalidConfig("until_end=True stands for end='latest': give only one of them")
            made = self._plain_consumer(topics, partitions, start, "latest" if until_end else end, settings)
        else:
            if until_end or end is not None:
                raise InvalidConfig(
                    "a member of a group never stops at an end; leave out either group, or end and until_end"
                )
            if partitions is not None:
                raise InvalidConfig("a group assigns the partitions itself; leave out either partitions or group")
            made = self._group_consumer(topics, start, group, settings)
        self._made.append(made)
        return made

    def queue(
        self,
        topics: str | Iterable[str],
        *,
        group: str,
        start: Start = "earliest",
        **settings: Unpack[QueueOptions[V]],
    ) -> Queue[V]:
        """Return a member of a queue group, in which any number of members share each partition.

            async with client.queue("jobs", group="workers") as queue:
                for message in await queue.fetch(max_records=50, timeout=3):
                    work(message)
                    message.ack()

        Every message is leased to one member, and comes again until one acknowledges it; there is no order.
        `start`: where a new group begins: "earliest", "latest", a datetime with time zone, or an age. Settings:
        the fields of `QueueSettings`. Raises InvalidConfig, InvalidGroupName.
        """
        self._forget_closed()
        made = self._queue(topics, group, start, settings_from(QueueSettings, settings))
        self._made.append(made)
        return made

    def _queue(self, topics: str | Iterable[str], group: str, start: Start, settings: QueueSettings) -> Queue:
        names, pattern = topics_of(topics)
        if pattern:
            raise InvalidConfig("a queue group reads topics by their names, not by a pattern")
        rule = check_rule(start, self._connections.now())
        if rule == "error":
            raise InvalidConfig("start of a queue must be 'earliest', 'latest', a datetime or an age, not 'error'")
        subscription = subscription_of(group, topics, rule)
        dead_letters = None
        if settings.dead_letters:
            of_group = RetryTopics(self._context, self._admin, subscription, retries=False)
            dead_letters = DeadLetters(self._context, subscription.group, of_group)
        return Queue(self._context, names, subscription.group, rule, settings, dead_letters)

    async def read(
        self,
        topic: str,
        partitions: int | Iterable[int] | None = None,
        start: Start | None = None,
        *,
        order: PageOrder = "oldest",
        records_max: int = 100,
        bytes_max: int = PAGE_BYTES_MAX,
        wait: float = 0.0,
        filter: str = "",  # noqa: A002  the name of the setting
    ) -> Page:
        """Return a bounded page of records of a topic, oldest or newest first; pass its `next` as `start` of the
        following one.

        `start` as in `consumer`: where the page begins going up, "earliest" if None; with order="newest", below which
        it goes down, "latest" if None. `partitions`: at most 256; all, if None. Their records are merged by timestamp.
        After `records_max` records (10,000 at most) or `bytes_max` bytes of keys and values the page ends; it has one
        record at least, if there is one. `wait`: with order="oldest", so many seconds for a first record. `filter`: as
        in `consumer`; a page may be empty then although more follow, see `Page.at_end`. Expired records come, too.

        Raises OffsetOutOfRange, InvalidRequest, InvalidConfig, InvalidFilter, UnknownTopic, UnknownPartition,
        Unauthorized, DataDamaged, CorruptFrame, Unavailable.
        """
        pages = Pages(self._context)
        return await pages.read(topic, partitions, start, order, records_max, bytes_max, float(wait), filter)

    async def read_arrow(
        self,
        topic: str,
        start: Start = "earliest",
        end: Start = "latest",
        partitions: Iterable[int] | None = None,
        *,
        bytes_max: int = READ_BYTES_MAX,
        **settings: Unpack[ConsumerOptions],
    ) -> pa.Table:
        """Return the records from `start` up to `end` (both as in `consumer`) as one table in
        memory, with the columns of `Consumer.fetch_arrow`.

        Raises ResourceExhausted once the table has more than `bytes_max` bytes. While the table is
        read, `prefetch_bytes_max` and one decoded batch are needed in addition. Raises Unavailable
        when no broker has served a partition for `request_timeout_s`. Settings: as in `consumer`.
        """
        tables = []
        size = 0
        async with self.consumer(topic, partitions, start, end=end, **settings) as consumer:
            await consumer.wait_ready()
            while not consumer.at_end:
                tables.append(await consumer.fetch_arrow())
                size += tables[-1].nbytes
                if size > bytes_max:
                    raise ResourceExhausted(
                        f"topic {topic!r} has more than {bytes_max} bytes from {start!r} to {end!r}: read a part of it,"
                        " raise bytes_max, or read it piece by piece from consumer(…, end=…).fetch_arrow()"
                    )
        return pa.concat_tables([TABLE_SCHEMA.empty_table(), *tables])

    def _plain_consumer(
        self,
        topics: Topics,
        partitions: Iterable[int] | None,
        start: Start,
        end: Start | None,
        settings: Mapping[str, Any],
    ) -> Consumer:
        names, pattern = topics_of(topics)
        if pattern:
            raise InvalidConfig("only a group can read topics by a pattern: use client.consumer(…, group=…)")
        chosen = None if partitions is None else list(partitions)
        parsed = settings_from(ConsumerSettings, settings)
        return Consumer(self._context, names, chosen, start, end, parsed)

    def _group_consumer(
        self,
        topics: Topics,
        start: object,
        group: str,
        settings: Mapping[str, Any],
        letting_go: LettingGo = lambda partitions: None,
        handler: Handler | None = None,
    ) -> GroupConsumer:
        settings = dict(settings)
        retry = check_consumer_retry(settings.pop("retry", None)) if handler is None else handler.settings.policy
        rule = check_rule(start, self._connections.now())
        parsed = settings_from(GroupSettings, settings)
        if parsed.broadcast and topics_of(topics)[1]:
            raise InvalidConfig("a broadcast cannot read topics by a pattern; name the topics")
        reset = parsed.auto_offset_reset if "auto_offset_reset" in settings else rule
        out_of_range: At | None = None if reset == "error" else reset
        subscription = subscription_of(group, topics, rule)
        held = parsed.failed_held_max, parsed.failed_held_bytes_max
        if not isinstance(retry, Levels):
            wait_s = None if retry is None else lambda attempt: retry.wait_s(attempt, self._sources.random)
            refusals = Refusals(*held, in_order=wait_s)
            return GroupConsumer(self._context, subscription, out_of_range, parsed, letting_go, refusals)
        check_levels(retry, parsed)
        expiry = Expiry(self._routing.ttl_of, self._sources.now_us)
        keeps_expired = retry.expired == "dead_letter"
        policy = MovePolicy(group, retry, self._sources, *held, expiry, keeps_expired=keeps_expired)
        topics_of_group = RetryTopics(self._context, self._admin, subscription)

        def moved(retried: int, dead: int) -> None:
            if handler is not None:
                handler.retried += retried
                handler.dead_lettered += dead

        moving = TransactionalMoves(
            moving_id(group, parsed.instance_id or self._sources.new_id().hex()),
            policy,
            self.transactions,
            self._sources,
            topics_of_group.create,
            moved,
        )
        return GroupConsumer(
            self._context,
            topics_of_group.subscription,
            out_of_range,
            parsed,
            letting_go,
            Refusals(*held, moves=policy),
            moving,
        )

    def handler(
        self,
        topics: Topics,
        *,
        group: str,
        **settings: Unpack[HandlerOptions[V]],
    ) -> Callable[[HandlerFunction[V] | BatchFunction[V]], Handler[V]]:
        """Declare a function that handles the messages of a group; `run_handlers` runs it.

            @client.handler("orders", group="billing", concurrency=8, ordered_by="key")
            async def bill(message): ...

        A message whose call succeeds is acknowledged. A message whose call fails is handled again
        after a wait, and messages ordered behind it wait; `retry` (see `ledgermq.Retry`) says how
        often, and what happens then. Functions that are not asynchronous run in `executor`.
        Settings: the fields of `HandlerSettings`, and of `GroupSettings` with `start`.

            @client.handler("orders", group="billing", transactional=True, transactional_id="billing-7")
            async def bill(message):
                return ledgermq.Outgoing("invoices", invoice(message), key=message.key)

            @client.handler("orders", group="archive", batch=True, batch_records_max=500)
            async def store(messages): ...

        With batch=True the function gets lists of messages that follow each other in one partition.

        With transactional=True, what the function returns is sent, and the message acknowledged, in
        one transaction: None, an `Outgoing`, or several of them (a list, a generator, an
        asynchronous generator). Several messages share a transaction. Raises InvalidConfig,
        InvalidGroupName.
        """
        parsed = handler_settings(topics, group, settings)

        def declare(function: HandlerFunction[V] | BatchFunction[V]) -> Handler[V]:
            handler = Handler(function, parsed)
            self._handlers.append(handler)
            return handler

        return declare

    def queue_handler(
        self,
        topics: str | Iterable[str],
        *,
        group: str,
        **settings: Unpack[QueueHandlerOptions[V]],
    ) -> Callable[[QueueFunction[V] | QueueBatchFunction[V]], QueueHandler[V]]:
        """Declare a function that handles the messages of a queue group; `run_handlers` runs it.

            @client.queue_handler("jobs", group="workers", concurrency=8)
            async def work(message): ...

        A message whose call succeeds is acknowledged. One whose call fails comes again after a wait, at any
        member; after its last attempt it goes to the dead-letter topic. Leases are renewed while a call runs.
        Settings: the fields of `QueueHandlerSettings`, and of `QueueSettings` with `start`. Raises
        InvalidConfig, InvalidGroupName.
        """
        parsed = queue_handler_settings(topics, group, settings)

        def declare(function: QueueFunction[V] | QueueBatchFunction[V]) -> QueueHandler[V]:
            handler = QueueHandler(function, parsed)
            self._handlers.append(handler)
            return handler

        return declare

    @property
    def handlers(self) -> tuple[Handler | QueueHandler, ...]:
        """The declared handlers, in the order of their declaration."""
        return tuple(self._handlers)

    async def run_handlers(
        self,
        *handlers: Handler | QueueHandler,
        stop: asyncio.Event | None = None,
        drain_timeout_s: float = 30.0,
        stop_on_sigterm: bool = True,
    ) -> None:
        """Run the given handlers, or all declared ones, until cancelled, until `stop` is set, or until
        SIGTERM.

        When `stop` is set, no further call begins. Running calls are finished (within
        `drain_timeout_s`; then DeadlineExceeded) and committed. In the main thread, SIGTERM sets `stop`,
        unless the program has a handler of SIGTERM, or `stop_on_sigterm` is False; a second SIGTERM
        ends the process at once. Raises errors that do not pass with
        time: InvalidGroupName, StaticIdInUse, DataDamaged, …; TransactionFenced if another process
        uses the transactional id of a handler; UsedElsewhere if one uses its retry store; with
        `then="stop"`, the error that the handler raised.
        """
        chosen = handlers or self.handlers
        if not chosen:
            raise InvalidConfig("no handler is declared; declare one with @client.handler(topic, group=…)")
        ending = stop or asyncio.Event()
        runners = [self._runner_of(handler) for handler in chosen]
        loop = asyncio.get_running_loop()
        signals = stop_signals.stopping(partial(loop.call_soon_threadsafe, ending.set))
        try:
            with signals if stop_on_sigterm else nullcontext():
                async with asyncio.TaskGroup() as tasks:
                    for runner in runners:
                        tasks.create_task(runner.run(ending, drain_timeout_s))
        except BaseExceptionGroup as failures:
            raise first_of(failures) from failures

    def _runner_of(self, handler: Handler | QueueHandler) -> HandlerRunner | TransactionalRunner | QueueRunner:
        if isinstance(handler, QueueHandler):
            own = dict(handler.settings.queue)
            start = own.pop("start", "earliest")
            queue = self.queue(handler.settings.topics, group=handler.settings.group, start=start, **own)
            return QueueRunner(handler, queue, self._sources)
        make_consumer = partial(self._consumer_of, handler)
        if handler.settings.transactional:
            return TransactionalRunner(handler, make_consumer, self.transactions, self._sources)
        calls = HandlerCalls(handler)
        return HandlerRunner(calls, make_consumer, self._sources, self._recovery_of(calls))

    def _recovery_of(self, calls: HandlerCalls) -> Recovery | None:
        policy = calls.handler.settings.policy
        if not isinstance(policy, MetaQ):
            return None
        in_thread = self._connections.threads is not None
        store = LocalStore(policy.store, policy.messages_max, policy.bytes_max, self._sources, in_thread=in_thread)
        return Recovery(policy, calls, store, self._cluster_id, self._connections.backoff(), self._requests)

    async def _cluster_id(self) -> str:
        return (await self._admin.describe_cluster()).cluster_id

    def _consumer_of(self, handler: Handler, letting_go: LettingGo) -> GroupConsumer:
        self._forget_closed()
        commit = "manual" if handler.settings.transactional else "acked"
        settings = {"commit": commit, **handler.settings.consumer}
        start = settings.pop("start", "earliest")
        made = self._group_consumer(
            handler.settings.topics, start, handler.settings.group, settings, letting_go, handler
        )

        def expired(count: int) -> None:
            handler.expired += count

        made.member.handing_out.on_expired = expired
        self._made.append(made)
        return made

    def table(self, topic: str, **settings: Unpack[TableOptions[B]]) -> Table[B]:
        """Return a live key → value view of a keyed topic (cleanup.policy=compact), held in
        memory.

            async with client.table("prices") as table:    # it has read everything up to now
                table.get("EUR")

        Settings: the fields of `TableSettings`. Raises InvalidConfig.
        """
        self._forget_closed()
        parsed = settings_from(TableSettings, settings)
        made: Table[B] = Table(
            lambda: Consumer(self._context, [topic], None, "earliest", None, parsed),
            topic,
            parsed.table_bytes_max,
        )
        self._made.append(made)
        return made

    def half_messages(
        self,
        group: str,
        *,
        check: Check,
        concurrency: int = 16,
        **settings: Unpack[ProducerOptions],
    ) -> HalfMessages:
        """Return the half messages of a check group: stored before a transaction of the program's own,
        visible if that commits.

            async with client.half_messages("orders-checkers", check=on_check) as half:
                message = await half.send("orders", value, key=key)      # durable, invisible
                ...                                                      # the local transaction
                await message.commit()                                   # or rollback()

        `check(message)` returns the outcome of the message's local transaction: "commit", "rollback" or
        "unknown", or an awaitable of one of these. The cluster has it called, in any program of the
        group, for a message that was not ended. An exception counts as "unknown". It runs on the event
        loop; run a blocking query in a thread. `concurrency`: so many messages are sent at a time, and
        so many checks run at a time. Settings: the fields of `ProducerSettings`, without `acks` and
        `idempotent`. Raises InvalidConfig.
        """
        for name in ("acks", "idempotent"):
            if name in settings:
                raise InvalidConfig(f"a half message is stored durably, once: leave out {name}")
        parsed = settings_from(ProducerSettings, settings).strict_for("a half message")
        made = HalfMessages(self._context, group, check, concurrency, parsed)
        self._forget_closed()
        self._made.append(made)
        return made

    def _keep(self, made: Transactions | TwoPhase) -> None:
        self._forget_closed()
        self._made.append(made)

    def _forget_closed(self) -> None:
        """Make room for another object of this client. Raises Closed."""
        self._connections.check_open()
        self._made = [made for made in self._made if not made.closed]

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
