"""Opens producer sessions: asks a partition's owner for the end slot that the first batch has to
carry (design P4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ledgermq.client.connections import Connections
from ledgermq.client.producing.partition_queue import Failure, PartitionQueue, Session
from ledgermq.client.producing.producer_routes import ProducerRoutes
from ledgermq.errors import LedgerMQError, Unavailable, UnknownPartition, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto
from ledgermq.sources import Sources

PARTITIONS_PER_CALL_MAX = 4096


class Sessions:
    """One call per broker and turn, whatever the number of partitions."""

    def __init__(self, connections: Connections, routes: ProducerRoutes, sources: Sources, timeout_s: float) -> None:
        self._connections = connections
        self._routes = routes
        self._sources = sources
        self._timeout_s = timeout_s
        self.group: asyncio.TaskGroup | None = None
        self.changed: Callable[[], None] = lambda: None
        self.settle: Callable[[list[Failure]], None] = lambda failures: None

    def open(self, queues: Sequence[PartitionQueue]) -> None:
        by_owner: dict[str, list[PartitionQueue]] = {}
        for queue in queues:
            if (owner := self._routes.owner(queue)) is not None:
                by_owner.setdefault(owner, []).append(queue)
        for owner, asked in by_owner.items():
            asked = asked[:PARTITIONS_PER_CALL_MAX]
            for queue in asked:
                queue.opening = True
            assert self.group is not None, "the dispatcher runs"
            self.group.create_task(self._ask(owner, asked))

    async def _ask(self, owner: str, queues: Sequence[PartitionQueue]) -> None:
        request = pb.OpenProducerRequest(
            partitions=[pb.TopicPartition(topic=queue.topic, partition=queue.partition) for queue in queues]
        )
        try:
            deadline = self._connections.deadline(self._timeout_s)
            response = await self._connections.ask_at(
                owner, lambda connection: connection.open_producer(request), deadline
            )
            if len(response.partitions) != len(queues):
                raise Unavailable(f"{owner} answered for {len(response.partitions)} partitions, not {len(queues)}")
        except LedgerMQError as error:
            self._routes.unreachable(owner)
            for queue in queues:
                self._refused(queue, Unavailable(error.message), owner)
        else:
            for queue, opened in zip(queues, response.partitions, strict=True):
                if opened.HasField("error"):
                    self._refused(queue, error_from_proto(opened.error), owner)
                else:
                    queue.opened(Session(self._sources.new_id(), opened.opened_slot))
        self.changed()

    def _refused(self, queue: PartitionQueue, error: LedgerMQError, owner: str) -> None:
        self._routes.learn_from(error, queue, owner)
        unknown = isinstance(error, UnknownTopic | UnknownPartition)
        if unknown:
            self._routes.refresh(queue.topic)
        if error.retriable or unknown:
            queue.not_opened(error, asyncio.get_running_loop().time())
        else:
            queue.opening = False
            self.settle(queue.abandon(error))
