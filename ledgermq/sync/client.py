"""The client without asyncio: starts its background thread, and makes the objects that programs
use on it.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Any, Self, Unpack, cast

from ledgermq.client.client import Client as AsyncClient
from ledgermq.client.connecting import connect as connect_async
from ledgermq.client.connection.grpc_connection import refuse_after_fork
from ledgermq.client.connection.home import refuse_green_threads
from ledgermq.client.consuming.message import Message
from ledgermq.client.finding import TIMEOUT_S
from ledgermq.client.groups.assignment import Topics
from ledgermq.client.groups.handlers.handler import BatchFunction, Handler, HandlerFunction, handler_settings
from ledgermq.client.messages.message_id import MessageId
from ledgermq.client.messages.record import Headers
from ledgermq.client.operating.tracing import MessageTrace
from ledgermq.client.producing.delivery import SendResult
from ledgermq.client.queues.runner import QueueHandler
from ledgermq.client.setting_types import (
    ClientOptions,
    HandlerOptions,
    ProducerOptions,
)
from ledgermq.client.settings.serializers import S, V
from ledgermq.client.settings.values import ClientSettings, settings_from
from ledgermq.client.transactions.checks import CheckedMessage, Resolution
from ledgermq.errors import LedgerMQError, UsedElsewhere
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.process.stop_signals import stop_signals
from ledgermq.runtime.tasks import called_in_thread
from ledgermq.sources import Sources
from ledgermq.sync.admin.access import Access
from ledgermq.sync.admin.group_admin import GroupAdmin
from ledgermq.sync.admin.quotas import Quotas
from ledgermq.sync.background import Background, Callers, as_coroutine, in_threads
from ledgermq.sync.generated.client import ClientCalls
from ledgermq.sync.generated.cuts import Cuts
from ledgermq.sync.generated.operating import DeadLetterAdmin, UnresolvedAdmin
from ledgermq.sync.generated.queues import QueueAdmin
from ledgermq.sync.generated.schemas import Schemas
from ledgermq.sync.generated.table_admin import TableAdmin
from ledgermq.sync.generated.topics import TopicAdmin
from ledgermq.sync.listening import Listener, run_until
from ledgermq.sync.producing import Producer
from ledgermq.sync.transactions.half_messages import HalfMessages
from ledgermq.sync.transactions.transaction_admin import TransactionClient

_log = get_log("ledgermq.sync")
_open: set[Client] = set()


class Client(ClientCalls):
    """See `ledgermq.Client`. Use it in a `with` block, or call `close()` at the end."""

    def __init__(
        self,
        background: Background,
        connection: AbstractAsyncContextManager[AsyncClient],
        inner: AsyncClient,
        sources: Sources,
        *,
        is_view: bool = False,
    ) -> None:
        """`is_view`: the thread belongs to the client of which this is a view."""
        super().__init__(background, inner)
        self._connection = connection
        self._is_view = is_view
        self._sources = sources
        self._lock = threading.RLock()
        """Guards the lists of what was made, as several threads may make objects at a time."""
        self._producers: list[Producer] = []
        self._listeners: list[Listener] = []
        self._views: list[Client] = []
        self.settings = inner.settings
        self.topics = TopicAdmin(background, inner.topics)
        """Administration of topics: create, list, describe, alter, delete, and plans of many."""
        self.groups = GroupAdmin(background, inner.groups)
        """Administration of consumer groups: list, describe, reset, delete."""
        self.queues = QueueAdmin(background, inner.queues)
        """Administration of queue groups: list, describe, reset, delete."""
        self.access = Access(background, inner.access)
        """Access rules and tokens: grant, revoke, list, test."""
        self.quotas = Quotas(background, inner.quotas)
        """Quotas of principals and client ids: set, unset, list."""
        self.transactions = TransactionClient(background, inner.transactions, sources)
        """Transactions: records of any topics, and offsets of groups, all or nothing."""
        self.schemas = Schemas(background, inner.schemas)
        """Schemas of values: put, check, list, describe, delete."""
        self.tables = TableAdmin(background, inner.tables)
        """Tables of topics, which other programs read: describe, rebuild, drop."""
        self.cuts = Cuts(background, inner.cuts)
        """Instants of the whole cluster with names: take, list, show, keep, drop, files."""
        self.dead_letters = DeadLetterAdmin(background, inner.dead_letters)
        """Dead letters: list, redrive, drop."""
        self.unresolved = UnresolvedAdmin(background, inner.unresolved)
        """Half messages whose producers never answered: list, publish, drop."""
        self._callers = Callers()
        self._closed = False
        _open.add(self)

    def as_caller(self, token: str) -> Client:
        """See `ledgermq.Client.as_caller`."""
        inner = self._background.run(as_coroutine(lambda: self._inner.as_caller(token)))
        view = Client(self._background, inner, inner, self._sources, is_view=True)
        with self._lock:
            self._views = [*(made for made in self._views if not made.closed), view]
        return view

    def producer(self, **settings: Unpack[ProducerOptions[S]]) -> Producer[S]:
        """See `ledgermq.Client.producer`."""
        inner = self._background.run(as_coroutine(lambda: self._inner.producer(**settings)))
        producer = Producer(self._background, inner, self._sources)
        with self._lock:
            self._producers = [*(made for made in self._producers if not made.closed), producer]
        return producer

    def trace(self, message_id: str | MessageId, *, timeout: float = TIMEOUT_S) -> MessageTrace:
        """See `ledgermq.Client.trace`."""
        return self._background.run(self._inner.trace(message_id, timeout=timeout))

    def reply(self, message: Message, value: Any, headers: Headers | None = None) -> SendResult:
        """Reply to a request, from any thread, and wait until the reply is stored. Raises InvalidRequest if the message
        is no request, and the errors of `Producer.send`.
        """

        async def reply() -> SendResult:
            return await self._inner.reply(message, value, headers)

        return self._background.run(reply())

    def half_messages(
        self,
        group: str,
        *,
        check: Callable[[CheckedMessage], Resolution],
        concurrency: int = 16,
        **settings: Unpack[ProducerOptions[S]],
    ) -> HalfMessages[S]:
        """See `ledgermq.Client.half_messages`. Here `check` runs in another thread."""

        called = self._callers.noting(check)

        async def in_thread(message: CheckedMessage) -> Resolution:
            return await asyncio.to_thread(called_in_thread, called, message)

        inner = self._background.run(
            as_coroutine(lambda: self._inner.half_messages(group, check=in_thread, concurrency=concurrency, **settings))
        )
        return HalfMessages(self._background, inner)

    def run_handlers(
        self,
        *handlers: Handler | QueueHandler,
        stop: threading.Event | None = None,
        drain_timeout_s: float = 30.0,
        stop_on_sigterm: bool = True,
    ) -> None:
        """See `ledgermq.Client.run_handlers`; blocks until `stop` is set, until SIGTERM, or until Ctrl-C."""
        ending = asyncio.Event()
        signals = stop_signals.stopping(lambda: self._background.loop.call_soon_threadsafe(ending.set))
        with signals if stop_on_sigterm else nullcontext():
            self._background.run(run_until(self._inner, handlers, stop, ending, drain_timeout_s))

    def listen(
        self,
        topics: Topics,
        function: HandlerFunction[V] | BatchFunction[V],
        *,
        group: str,
        **settings: Unpack[HandlerOptions[V]],
    ) -> Listener:
        """Handle the messages of a group in the background; settings as in `handler`.

        Raises InvalidConfig, InvalidGroupName.
        """
        callers = Callers()
        handler = Handler(
            cast(HandlerFunction, callers.noting(function)),
            handler_settings(topics, group, in_threads(settings, callers)),
        )
        listener = self._background.run(as_coroutine(lambda: Listener(self._background, self._inner, handler, callers)))
        with self._lock:
            self._listeners = [*(made for made in self._listeners if not made.reported), listener]
        return listener

    def unanswered_records(self) -> int:
        """Return the number of records of all producers that are neither stored nor refused yet; 0
        in a forked process, to which they do not belong.
        """
        if self._background.home.left:
            return 0
        return sum(producer.unanswered_records for producer in self._producers if not producer.closed)

    def close(self) -> None:
        """See `ledgermq.Client.close`; listeners first finish the calls that they have begun.

        May be called again.
        """
        listeners = [listener.close for listener in self._listeners if not listener.reported]
        self._end([*listeners, *(view.close for view in self._views)], None)

    def abort(self) -> None:
        """See `ledgermq.Client.abort`."""
        self._end([view.abort for view in self._views], self._inner.abort)

    def _end(self, first: Sequence[Callable[[], None]], abort: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        self._background.home.check_process()
        if self._closed:
            return
        if self._callers.has_this or any(listener.callers.has_this for listener in self._listeners):
            raise UsedElsewhere(
                "a function that the client calls cannot close the client, which waits until it has returned: return"
                " first, and close the client in another thread"
            )
        self._closed = True
        _open.discard(self)
        with ExitStack() as last:  # callbacks run in reverse order, and an error of one does not skip the others
            if not self._is_view:
                last.callback(self._background.stop)
            last.callback(lambda: self._background.run(self._leave(abort)))
            for step in first:
                last.callback(step)

    async def _leave(self, abort: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Pass the waiting records to their producers; after an abort, the producers refuse them."""
        if abort is not None:
            await abort()
        for producer in self._producers:
            producer.hand_over()
        await self._connection.__aexit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def connect(target: str, *, sources: Sources | None = None, **settings: Unpack[ClientOptions]) -> Client:
    """See `ledgermq.connect`. Use the client in a `with` block, or call `close()`."""
    refuse_after_fork()  # before a thread is made, because leftovers of gRPC make new threads crash
    refuse_green_threads(in_thread=True)
    background = Background(settings_from(ClientSettings, settings).timeout_s)
    try:
        connection = connect_async(target, sources=sources, **settings)
        return Client(background, connection, background.run(connection.__aenter__()), sources or Sources())
    except BaseException:
        background.stop()
        raise


def _warn_of_lost_records() -> None:
    """Warn at the end of the process, when it is too late to send the records."""
    for client in list(_open):
        try:
            lost = client.unanswered_records()
        except LedgerMQError:  # its thread is blocked, or has ended
            continue
        if lost:
            _log.warning(
                "%d records may not be stored: a client of ledgermq.sync was not closed; use `with`, or call close()",
                lost,
            )


atexit.register(_warn_of_lost_records)
