"""The client without asyncio: makes its background thread, and what programs use on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal, cast, overload

import ledgermq
from ledgermq.client.consuming.start import Start
from ledgermq.client.deletion import Before
from ledgermq.client.groups.handlers.handler import HandlerFunction, handler_settings
from ledgermq.client.groups.start_rule import StartRule
from ledgermq.client.groups.subscription import Topics
from ledgermq.client.settings import PartitionsCallback
from ledgermq.sources import Sources
from ledgermq.sync.background import Background, as_coroutine
from ledgermq.sync.consuming import Consumer, GroupConsumer
from ledgermq.sync.listening import Listener, run_until
from ledgermq.sync.producing import Producer
from ledgermq.sync.tables import Table

CALLBACKS = ("on_assigned", "on_revoked", "on_lost")


def in_thread(callback: PartitionsCallback) -> PartitionsCallback:
    """A callback may call the consumer, which waits for the event loop: it must not stand on it."""

    async def call(partitions: list[ledgermq.TopicPartition]) -> None:
        await asyncio.to_thread(callback, partitions)

    return call


class Client:
    """See `ledgermq.Client`."""

    def __init__(self, background: Background, inner: ledgermq.Client, sources: Sources) -> None:
        self._background = background
        self._inner = inner
        self._sources = sources

    def create_topic(self, name: str, partitions: int = 0, settings: Mapping[str, object] | None = None) -> ledgermq.TopicDescription:
        """See `ledgermq.Client.create_topic`."""
        return self._background.run(self._inner.create_topic(name, partitions, settings))

    def list_topics(self) -> list[ledgermq.TopicDescription]:
        """See `ledgermq.Client.list_topics`."""
        return self._background.run(self._inner.list_topics())

    def describe_topic(self, name: str) -> ledgermq.TopicDescription:
        """See `ledgermq.Client.describe_topic`."""
        return self._background.run(self._inner.describe_topic(name))

    def alter_topic(
        self, name: str, partitions: int = 0, settings: Mapping[str, object] | None = None, unset: Iterable[str] = ()
    ) -> ledgermq.TopicDescription:
        """See `ledgermq.Client.alter_topic`."""
        return self._background.run(self._inner.alter_topic(name, partitions, settings, unset))

    def delete_topic(self, name: str) -> None:
        """See `ledgermq.Client.delete_topic`."""
        self._background.run(self._inner.delete_topic(name))

    def delete_records(
        self, topic: str, before: Before | Mapping[int, Before], partitions: Iterable[int] | None = None, *, dry_run: bool = False
    ) -> dict[int, ledgermq.DeletedRecords]:
        """See `ledgermq.Client.delete_records`."""
        return self._background.run(self._inner.delete_records(topic, before, partitions, dry_run=dry_run))

    def describe_cluster(self) -> ledgermq.ClusterDescription:
        """See `ledgermq.Client.describe_cluster`."""
        return self._background.run(self._inner.describe_cluster())

    def list_offsets(self, topic: str, at: Literal["earliest", "latest"] | datetime = "latest") -> dict[int, int]:
        """See `ledgermq.Client.list_offsets`."""
        return self._background.run(self._inner.list_offsets(topic, at))

    def producer(self, **settings: Any) -> Producer:
        """See `ledgermq.Client.producer`."""
        return Producer(self._background, self._background.run(as_coroutine(lambda: self._inner.producer(**settings))), self._sources)

    @overload
    def consumer(
        self,
        topics: str | Iterable[str],
        partitions: Iterable[int] | None = None,
        start: Start = "earliest",
        group: None = None,
        **settings: Any,
    ) -> Consumer: ...

    @overload
    def consumer(
        self, topics: Topics, partitions: None = None, start: StartRule = "earliest", *, group: str, **settings: Any
    ) -> GroupConsumer: ...

    def consumer(
        self,
        topics: Topics,
        partitions: Iterable[int] | None = None,
        start: Start | StartRule = "earliest",
        group: str | None = None,
        **settings: Any,
    ) -> Consumer | GroupConsumer:
        """See `ledgermq.Client.consumer`."""
        inner = cast(Any, self._inner.consumer)
        callbacks = {name: in_thread(settings[name]) for name in CALLBACKS if settings.get(name) is not None}
        made = self._background.run(as_coroutine(lambda: inner(topics, partitions, start, group, **(settings | callbacks))))
        return Consumer(self._background, made) if group is None else GroupConsumer(self._background, made)

    def table(self, topic: str, **settings: Any) -> Table:
        """See `ledgermq.Client.table`."""
        return Table(self._background, self._background.run(as_coroutine(lambda: self._inner.table(topic, **settings))))

    def handler(self, topics: Topics, *, group: str, **settings: Any) -> Callable[[HandlerFunction], ledgermq.Handler]:
        """See `ledgermq.Client.handler`; the function runs in a thread."""
        return self._inner.handler(topics, group=group, **settings)

    def run_handlers(self, *handlers: ledgermq.Handler, stop: threading.Event | None = None, drain_timeout_s: float = 30.0) -> None:
        """See `ledgermq.Client.run_handlers`; blocks until `stop`, or until Ctrl-C."""
        self._background.run(run_until(self._inner, handlers, stop, drain_timeout_s))

    def listen(self, topics: Topics, function: HandlerFunction, *, group: str, **settings: Any) -> Listener:
        """Handle the messages of a group in the background: settings as of `handler`. Raises InvalidConfig, InvalidGroupName."""
        handler = ledgermq.Handler(function, handler_settings(topics, group, settings))
        return self._background.run(as_coroutine(lambda: Listener(self._background, self._inner, handler)))


@contextmanager
def connect(target: str, *, sources: Sources | None = None, **settings: Any) -> Iterator[Client]:
    """See `ledgermq.connect`."""
    background = Background()
    connection = ledgermq.connect(target, sources=sources, **settings)
    try:
        inner = background.run(connection.__aenter__())
        try:
            yield Client(background, inner, sources or Sources())
        except BaseException as error:
            if not background.run(connection.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            background.run(connection.__aexit__(None, None, None))
    finally:
        background.stop()
