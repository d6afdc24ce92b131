"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Unpack

from ledgermq.client.front.handling import Handling as AsyncHandling
from ledgermq.client.groups.assignment import Topics
from ledgermq.client.groups.handlers.handler import BatchFunction, Handler, HandlerFunction
from ledgermq.client.queues.runner import QueueBatchFunction, QueueFunction, QueueHandler
from ledgermq.client.setting_types import HandlerOptions, QueueHandlerOptions
from ledgermq.client.settings.serializers import V
from ledgermq.sync.background import Background, Callers, in_threads
from ledgermq.sync.generated.consumers import MakingConsumers


class Handling(MakingConsumers):
    """The calls of a client that declare and run handlers."""

    _inner: AsyncHandling
    _callers: Callers

    def __init__(self, background: Background, inner: AsyncHandling) -> None:
        self._background = background
        self._inner = inner

    def handler(
        self, topics: Topics, *, group: str, **settings: Unpack[HandlerOptions[V]]
    ) -> Callable[[HandlerFunction[V] | BatchFunction[V]], Handler[V]]:
        """See `ledgermq.Client.handler`; the function, and those of `on_failure` and `retry`, run in threads."""
        return self._inner.handler(topics, group=group, **in_threads(settings, self._callers))

    def queue_handler(
        self, topics: str | Iterable[str], *, group: str, **settings: Unpack[QueueHandlerOptions[V]]
    ) -> Callable[[QueueFunction[V] | QueueBatchFunction[V]], QueueHandler[V]]:
        """See `ledgermq.Client.queue_handler`; the function, and `on_failure`, run in threads."""
        return self._inner.queue_handler(topics, group=group, **in_threads(settings, self._callers))

    @property
    def handlers(self) -> tuple[Handler | QueueHandler, ...]:
        """The declared handlers, in the order of their declaration."""
        return self._inner.handlers
