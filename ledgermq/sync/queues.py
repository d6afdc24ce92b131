"""Queue groups without asyncio. Messages are the same as those of `ledgermq.Queue`: `message.ack()` returns at
once, and `.result()` of what it returns waits for the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Generic, Self

import ledgermq
from ledgermq.client.queues.admin import Where
from ledgermq.client.settings.serializers import V
from ledgermq.client.settings.values import QueueSettings
from ledgermq.sync.background import Background


class Queue(Generic[V]):
    """See `ledgermq.Queue`."""

    def __init__(self, background: Background, inner: ledgermq.Queue[V]) -> None:
        self._background = background
        self._inner = inner

    @property
    def group(self) -> str:
        return self._inner.group

    @property
    def topics(self) -> tuple[str, ...]:
        return self._inner.topics

    @property
    def settings(self) -> QueueSettings:
        return self._inner.settings

    @property
    def member_id(self) -> str:
        return self._inner.member_id

    @property
    def expired(self) -> int:
        return self._inner.expired

    @property
    def filtered(self) -> int:
        return self._inner.filtered

    @property
    def dead_lettered(self) -> int:
        return self._inner.dead_lettered

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def fetch(self, max_records: int = 500, timeout: float = 1.0) -> list[ledgermq.QueueMessage[V]]:
        """See `ledgermq.Queue.fetch`."""
        return self._background.run(self._inner.fetch(max_records, timeout), timeout)

    def __iter__(self) -> Iterator[ledgermq.QueueMessage[V]]:
        """Yield messages without end; only one is taken at a time, so that other members get the rest."""
        while not self._inner.closed and not self._inner.draining:
            yield from self.fetch(1, self._inner.settings.request_timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """See `ledgermq.Queue.flush`."""
        self._background.run(self._inner.flush(timeout_s))

    def drain(self, timeout: float = 30.0) -> None:
        """See `ledgermq.Queue.drain`."""
        self._background.run(self._inner.drain(timeout), timeout)

    def close(self) -> None:
        """See `ledgermq.Queue.close`."""
        self._background.run(self._inner.close())

    def __enter__(self) -> Self:
        self._background.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class QueueAdmin:
    """Administration of queue groups, as `client.queues`. Every call ends within the client's `timeout_s`."""

    def __init__(self, background: Background, inner: ledgermq.QueueAdmin) -> None:
        self._background = background
        self._inner = inner

    def list(self) -> Sequence[ledgermq.QueueDescription]:
        """See `ledgermq.QueueAdmin.list`."""
        return self._background.run(self._inner.list())

    def describe(self, group: str) -> ledgermq.QueueDescription:
        """See `ledgermq.QueueAdmin.describe`."""
        return self._background.run(self._inner.describe(group))

    def reset(
        self, group: str, topic: str, where: Where, partitions: Iterable[int] | None = None
    ) -> Mapping[ledgermq.TopicPartition, int]:
        """See `ledgermq.QueueAdmin.reset`."""
        return self._background.run(self._inner.reset(group, topic, where, partitions))

    def delete(self, group: str, topic: str, partitions: Iterable[int] | None = None) -> None:
        """See `ledgermq.QueueAdmin.delete`."""
        self._background.run(self._inner.delete(group, topic, partitions))
