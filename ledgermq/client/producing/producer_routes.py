"""A producer's topics: their queues, the records that wait for a topic's partitions, and who is
asked for what.

Invariant: for each topic at most one question to the brokers is on its way, with a back-off between
two in a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from ledgermq.client.connections import Connections
from ledgermq.client.descriptions import check_topic_name
from ledgermq.client.producing.batch import Batch
from ledgermq.client.producing.partition_queue import Failure, PartitionQueue
from ledgermq.client.producing.topic_queues import TopicQueues
from ledgermq.client.producing.unreported import Unreported
from ledgermq.client.producing.unrouted import Unrouted
from ledgermq.client.routing import Routing, TopicRoute
from ledgermq.client.settings import ProducerSettings
from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner, ResourceExhausted, UnknownTopic
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources


class ProducerRoutes:
    """`changed()`: something may be possible now that was not before.

    `settle(failures)`: tell callers.
    """

    def __init__(
        self,
        routing: Routing,
        connections: Connections,
        settings: ProducerSettings,
        sources: Sources,
        release: Callable[[int], None],
        unreported: Unreported,
    ) -> None:
        self._routing = routing
        self._connections = connections
        self._settings = settings
        self._sources = sources
        self._release = release
        self._unreported = unreported
        self._topics: dict[str, TopicQueues] = {}
        self._queues: dict[tuple[int, int], PartitionQueue] = {}
        self._unrouted: dict[str, Unrouted] = {}
        self._unasked: list[Unrouted] = []
        self._refreshing: dict[str, Backoff] = {}
        self._asking: set[str] = set()
        self.group: asyncio.TaskGroup | None = None
        self.changed: Callable[[], None] = lambda: None
        self.settle: Callable[[list[Failure]], None] = lambda failures: None

    def topic(self, name: str) -> TopicQueues | Unrouted:
        """Where records of the topic go now."""
        found = self._topics.get(name)
        route = self._routing.known(name)
        if found is not None and (route is None or route is found.route):
            return found
        if name in self._unrouted:
            return self._unrouted[name]
        if route is not None:
            return self._take(route)
        check_topic_name(name)
        waiting = self._unrouted[name] = Unrouted(name, self._release, self._unreported.note)
        self._unasked.append(waiting)
        self.changed()
        return waiting

    def find_waiting(self) -> None:
        """Begin to ask about topics that nobody knew."""
        assert self.group is not None, "the dispatcher runs"
        for waiting in self._unasked:
            self.group.create_task(self._find(waiting))
        self._unasked = []

    async def _find(self, waiting: Unrouted) -> None:
        deadline = self._connections.deadline(self._settings.delivery_timeout_s)
        try:
            route = await self._routing.route(waiting.topic, deadline, auto_create=self._settings.auto_create)
        except LedgerMQError as error:
            del self._unrouted[waiting.topic]
            waiting.failed(error)
            return
        del self._unrouted[waiting.topic]
        waiting.routed(self._take(route))

    def _take(self, route: TopicRoute) -> TopicQueues:
        """Take in what is known of a topic now; a topic of another id is another topic."""
        topic = self._topics.get(route.name)
        if topic is not None and topic.route.topic_id != route.topic_id:
            self._gone(route.name, UnknownTopic(f"topic {route.name} was deleted and created again"))
            topic = None
        if topic is None:
            clock = asyncio.get_running_loop().time
            topic = self._topics[route.name] = TopicQueues(
                route, self._settings, self._sources, self._new_queue, clock, self.changed
            )
        else:
            topic.update(route)
        self.changed()
        return topic

    def _new_queue(self, route: TopicRoute, partition: int) -> PartitionQueue:
        queue = PartitionQueue(
            route.name,
            route.topic_id,
            partition,
            idempotent=self._settings.idempotent and self._settings.acks == "durable",
            window_batches=self._settings.window_batches,
            backoff=self._connections.backoff(),
        )
        self._queues[(route.topic_id, partition)] = queue
        return queue

    def _gone(self, name: str, error: LedgerMQError) -> None:
        topic = self._topics.pop(name, None)
        for queue in topic.queues if topic is not None else ():
            self.settle(queue.abandon(error))
            del self._queues[(queue.topic_id, queue.partition)]

    def busy(self) -> list[PartitionQueue]:
        """Whoever has waited longest for its turn to send comes first."""
        return [queue for queue in self._queues.values() if queue]

    def had_turn(self, queue: PartitionQueue) -> None:
        key = (queue.topic_id, queue.partition)
        self._queues[key] = self._queues.pop(key)

    def waiting(self) -> list[Unrouted]:
        return list(self._unrouted.values())

    def batches(self) -> Iterator[Batch]:
        for queue in self._queues.values():
            yield from queue.batches()

    def queue_of(self, batch: Batch) -> PartitionQueue:
        return self._queues[(batch.topic_id, batch.partition)]

    def seal(self, queue: PartitionQueue) -> None:
        topic = self._topics.get(queue.topic)
        if topic is not None:
            topic.seal(queue)
        else:
            queue.seal()

    def owner(self, queue: PartitionQueue) -> str | None:
        """None: it is being asked for."""
        address = self._routing.owner(queue.topic, queue.partition)
        if address is None:
            self.refresh(queue.topic)
        return address

    def learn_from(self, error: LedgerMQError, queue: PartitionQueue, address: str) -> None:
        """What an error of the broker at `address` says of the owner."""
        if isinstance(error, NotOwner):
            self._routing.redirected(queue.topic, queue.partition, error.owner, refused_by=address)
        elif error.retriable and not isinstance(
            error, ResourceExhausted
        ):  # whoever cannot serve it may be an owner of before
            self._routing.redirected(queue.topic, queue.partition, None, refused_by=address)

    def unreachable(self, address: str) -> None:
        self._routing.unreachable(address)

    def refresh_old(self) -> None:
        for name, topic in self._topics.items():
            if self._routing.is_old(self._routing.known(name) or topic.route) and any(topic.queues):
                self.refresh(name)

    def refresh(self, name: str, *, avoid: str | None = None) -> None:
        """Ask the brokers about the topic, in the background; `avoid` last."""
        if name not in self._asking and self.group is not None:
            self._asking.add(name)
            self.group.create_task(self._refresh(name, avoid))

    async def _refresh(self, name: str, avoid: str | None) -> None:
        try:
            backoff = self._refreshing.setdefault(name, self._connections.backoff())
            if backoff.attempts:
                await asyncio.sleep(backoff.next_s())
            else:
                backoff.next_s()
            self._take(await self._routing.refresh(name, self._connections.deadline(), avoid=avoid))
            if all(self._routing.owner(name, queue.partition) for queue in self._topics[name].queues):
                self._refreshing.pop(name, None)
        except InvalidRequest as error:
            self._gone(name, error)
        except LedgerMQError as error:
            self._note(name, error)
        finally:
            self._asking.discard(name)
            self.changed()

    def _note(self, name: str, error: LedgerMQError) -> None:
        topic = self._topics.get(name)
        for queue in topic.queues if topic is not None else ():
            queue.last_error = error

    def abandon(self, error: LedgerMQError) -> None:
        """The producer ends: nothing is left waiting."""
        for waiting in list(self._unrouted.values()):
            waiting.failed(error)
        self._unrouted.clear()
        for name in list(self._topics):
            self._gone(name, error)
