"""The handlers that a program declares, and how a client runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Unpack

from ledgermq.client.admin.topics import Admin
from ledgermq.client.context import ClientContext
from ledgermq.client.front.consumers import MakingConsumers
from ledgermq.client.groups.assignment import Topics
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.handlers.calls import HandlerCalls
from ledgermq.client.groups.handlers.handler import BatchFunction, Handler, HandlerFunction, handler_settings
from ledgermq.client.groups.handlers.middleware import metering_around, tracing_around
from ledgermq.client.groups.handlers.recovering.local_store import LocalStore
from ledgermq.client.groups.handlers.recovering.recovery import Recovery
from ledgermq.client.groups.handlers.retry import MetaQ
from ledgermq.client.groups.handlers.runner import HandlerRunner
from ledgermq.client.groups.membership.holdings import LettingGo
from ledgermq.client.queues.runner import (
    QueueBatchFunction,
    QueueFunction,
    QueueHandler,
    QueueRunner,
    queue_handler_settings,
)
from ledgermq.client.requests import Requests
from ledgermq.client.setting_types import (
    HandlerOptions,
    QueueHandlerOptions,
)
from ledgermq.client.settings.serializers import V
from ledgermq.client.transactions.handling.handling import TransactionalRunner
from ledgermq.errors import InvalidConfig
from ledgermq.runtime.process.stop_signals import stop_signals
from ledgermq.runtime.tasks import first_of


class Handling(MakingConsumers):
    """The calls of a client that declare and run handlers."""

    def __init__(self, context: ClientContext, admin: Admin, requests: Requests) -> None:
        super().__init__(context, admin, requests)
        self._handlers: list[Handler | QueueHandler] = []

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
        group = handler.settings.group
        around_all = [
            *metering_around(self._context.metrics, group),
            *tracing_around(self._context.tracing, group),
        ]
        if isinstance(handler, QueueHandler):
            own = dict(handler.settings.queue)
            start = own.pop("start", "earliest")
            queue = self.queue(handler.settings.topics, group=handler.settings.group, start=start, **own)
            return QueueRunner(handler, queue, self._sources, around_all)
        make_consumer = partial(self._consumer_of, handler)
        if handler.settings.transactional:
            return TransactionalRunner(handler, make_consumer, self.transactions, self._sources, around_all)
        calls = HandlerCalls(handler, around_all)
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
