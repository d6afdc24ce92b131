"""Queue groups without asyncio. Messages are the same as those of `ledgermq.Queue`: `message.ack()` returns at
once, and `.result()` of what it returns waits for the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledgermq.client.queues.message import QueueMessage
from ledgermq.client.settings.serializers import V
from ledgermq.sync.generated.queues import QueueCalls


class Queue(QueueCalls[V]):
    """See `ledgermq.Queue`."""

    def __iter__(self) -> Iterator[QueueMessage[V]]:
        """Yield messages without end; only one is taken at a time, so that other members get the rest."""
        while not self._inner.closed and not self._inner.draining:
            yield from self.fetch(1, self._inner.settings.request_timeout_s)
