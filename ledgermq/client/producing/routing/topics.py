"""All topics of a producer, and their queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from ledgermq.client.connection.routing import TopicRoute
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import check_topic_text
from ledgermq.client.producing.buffering.send_buffer import SendBuffer
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.partition_queue import PartitionQueue
from ledgermq.client.producing.publishing import Publishing
from ledgermq.client.producing.routing.topic_queues import TopicQueues
from ledgermq.client.producing.routing.unrouted import Unrouted
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.errors import LedgerMQError, UnknownTopic

QueueKey = tuple[int, int, bool]
"""Topic id, partition, and whether the queue sends batches from the producer's spill."""


class ProducerTopics:
    """`wake` is set when a batch was opened or completed, or a topic must be looked up: the
    dispatcher may have work.
    """

    def __init__(
        self,
        context: ClientContext,
        settings: ProducerSettings,
        buffer: SendBuffer,
        wake: asyncio.Event,
        publishing: Publishing,
    ) -> None:
        self._context = context
        self._settings = settings
        self._buffer = buffer
        self._wake = wake
        self._publishing = publishing
        self._topics: dict[str, TopicQueues] = {}
        self._queues: dict[QueueKey, PartitionQueue] = {}
        """The queue that has waited longest for its turn comes first."""
        self._resending: dict[str, list[PartitionQueue]] = {}
        """By topic, the queues that send batches from the producer's spill."""
        self.unrouted: dict[str, Unrouted] = {}
        self.on_route: Callable[[TopicRoute], None] = lambda route: None
        """Called with each description of a topic that is applied."""

    def topic(self, name: str) -> TopicQueues | Unrouted:
        """Return the place that records of the topic join now."""
        found = self._topics.get(name)
        route = self._context.routing.known(name)
        if found is not None and (route is None or route is found.route):
            return found
        if name in self.unrouted:
            return self.unrouted[name]
        if route is not None:
            return self.take(route)
        check_topic_text(name)
        waiting = self.unrouted[name] = Unrouted(name, self._buffer, quiet=not self._settings.raise_on_error)
        self._wake.set()
        return waiting

    def take(self, route: TopicRoute) -> TopicQueues:
        """Apply the present description of a topic; if the id has changed, it is another topic."""
        self.on_route(route)
        topic = self._topics.get(route.name)
        if topic is not None and topic.route.topic_id != route.topic_id:
            self.gone(route.name, UnknownTopic(f"topic {route.name} was deleted and created again"))
            topic = None
        if topic is None:
            topic = self._topics[route.name] = TopicQueues(
                route, self._settings, self._context, self._wake, self._publishing
            )
        else:
            topic.update(route)
        for queue in topic.queues:
            self._queues.setdefault((route.topic_id, queue.at.partition, False), queue)
        self._wake.set()
        return topic

    def leave(self, waiting: Unrouted) -> bool:
        """End the wait of a topic's records. Return False if they failed in the meantime."""
        if self.unrouted.get(waiting.topic) is not waiting:
            return False
        del self.unrouted[waiting.topic]
        return True

    def gone(self, name: str, error: LedgerMQError) -> None:
        """Fail all records of a topic."""
        topic = self._topics.pop(name, None)
        for queue in topic.queues if topic is not None else ():
            self._buffer.give_up(queue.abandon(error))
            del self._queues[(queue.topic_id, queue.at.partition, False)]

    def known(self) -> list[TopicQueues]:
        """Return the topics whose partitions are known."""
        return list(self._topics.values())

    def queues_of(self, name: str) -> list[PartitionQueue]:
        """Return the queues of a topic, also those of the spill."""
        topic = self._topics.get(name)
        return [*(topic.queues if topic is not None else ()), *self._resending.get(name, ())]

    def add_resending(self, queue: PartitionQueue) -> None:
        """Add a queue of batches from the spill; it takes turns with the others."""
        self._queues[(queue.topic_id, queue.at.partition, True)] = queue
        self._resending.setdefault(queue.at.topic, []).append(queue)

    def remove_resending(self, queue: PartitionQueue) -> None:
        del self._queues[(queue.topic_id, queue.at.partition, True)]
        self._resending[queue.at.topic].remove(queue)

    def busy(self) -> list[PartitionQueue]:
        """Return the queues that have work, the one that has waited longest first."""
        return [queue for queue in self._queues.values() if queue]

    def had_turn(self, queue: PartitionQueue) -> None:
        key = (queue.topic_id, queue.at.partition, queue.resends)
        self._queues[key] = self._queues.pop(key)

    def batches(self) -> Iterator[Batch]:
        """Return the batches of the program's records that are not settled yet."""
        for (_, _, resends), queue in self._queues.items():
            if not resends:
                yield from queue.batches()

    def queue_of(self, batch: Batch) -> PartitionQueue:
        return self._queues[(batch.topic_id, batch.at.partition, batch.in_file is not None)]

    def queue_at(self, topic_id: int, partition: int) -> PartitionQueue | None:
        """Return the queue of the program's records for a partition."""
        return self._queues.get((topic_id, partition, False))

    def seal(self, queue: PartitionQueue, *, only_open: bool = False) -> None:
        """Seal the open batches of a queue, or `open` alone."""
        topic = self._topics.get(queue.at.topic)
        if topic is not None:
            topic.seal(queue, only_open=only_open)
        else:
            queue.seal()

    def avoid(self, queue: PartitionQueue) -> None:
        """Let records without a key avoid partitions whose owner stores nothing; `queue` is one of them."""
        topic = self._topics.get(queue.at.topic)
        if topic is not None:
            topic.avoid(queue)

    def abandon(self, error: LedgerMQError) -> None:
        """Fail everything, because the producer, or its transaction, ends. Later records begin
        with new queues.
        """
        for waiting in list(self.unrouted.values()):
            waiting.failed(error)
        self.unrouted.clear()
        for name in list(self._topics):
            self.gone(name, error)
