"""Look up what a producer needs from brokers: a topic's partitions, their owners, and the slot at
which a session begins.

Requests are noted at any time and sent by the dispatcher's next turn, in its task group. Invariant:
for each topic at most one look-up is in flight, with a back-off between two in a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ledgermq.client.context import ClientContext
from ledgermq.client.producing.buffering.send_buffer import SendBuffer
from ledgermq.client.producing.exclusive import Exclusive
from ledgermq.client.producing.partition.partition_queue import PartitionQueue
from ledgermq.client.producing.partition.sessions import Session, ask_time, open_new_sessions
from ledgermq.client.producing.publishing import Publishing
from ledgermq.client.producing.routing.topics import ProducerTopics
from ledgermq.client.producing.routing.unrouted import Unrouted
from ledgermq.client.producing.spilling.spilling import Spilling
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    NotOwner,
    ResourceExhausted,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.protocol.limits import PARTITIONS_PER_CALL_MAX
from ledgermq.runtime.backoff import Backoff


class Discovery:
    """`wake` is set when an answer has arrived, because sending may be possible now."""

    def __init__(
        self,
        context: ClientContext,
        settings: ProducerSettings,
        topics: ProducerTopics,
        buffer: SendBuffer,
        wake: asyncio.Event,
        spilling: Spilling | None,
        publishing: Publishing,
        exclusive: Exclusive | None,
    ) -> None:
        self._spilling = spilling
        self._exclusive = exclusive
        self._context = context
        self._connections = context.connections
        self._routing = context.routing
        self._settings = settings
        self._topics = topics
        self._buffer = buffer
        self._wake = wake
        self._finding: set[str] = set()
        self._wished: dict[str, str | None] = {}
        """Topics to look up, each with the broker to try last."""
        self._asking: set[str] = set()
        self._backoffs: dict[str, Backoff] = {}
        self._publishing = publishing

    def owner(self, queue: PartitionQueue) -> str | None:
        """Return the address of the owner; None: it is being looked up."""
        address = self._routing.owner(*queue.at)
        if address is None:
            self.refresh(queue.at.topic)
        return address

    def bundle(self, queue: PartitionQueue) -> int:
        """Return the bundle of the partition, as far as known: the batches of a bundle are stored in order."""
        return self._routing.bundle(*queue.at)

    def refresh(self, name: str, *, avoid: str | None = None) -> None:
        """Look up the topic in the next turn, at broker `avoid` last."""
        if name not in self._asking:
            self._wished.setdefault(name, avoid)

    def refresh_old(self) -> None:
        """Look up the topics in use whose description has become old."""
        for topic in self._topics.known():
            if self._routing.is_old(self._routing.known(topic.route.name) or topic.route) and any(topic.queues):
                self.refresh(topic.route.name)

    def ask(self, group: asyncio.TaskGroup) -> None:
        """Start the look-ups that were requested."""
        for name, waiting in self._topics.unrouted.items():
            if name not in self._finding:
                self._finding.add(name)
                group.create_task(self._find(waiting))
        for name, avoid in self._wished.items():
            self._asking.add(name)
            group.create_task(self._refresh(name, avoid))
        self._wished = {}
        if self._publishing.needs_time and self._context.clock.is_old():
            self._context.clock.note_asked()
            group.create_task(ask_time(self._context, self._connections.deadline()))

    async def _find(self, waiting: Unrouted) -> None:
        deadline = self._connections.deadline(self._settings.delivery_timeout_s)
        try:
            route = await self._routing.route(waiting.topic, deadline, auto_create=self._settings.auto_create)
        except LedgerMQError as error:
            if self._topics.leave(waiting):
                self._not_found(waiting, error)
        else:
            if self._topics.leave(waiting):
                waiting.routed(self._topics.take(route))
        finally:
            self._finding.discard(waiting.topic)
            self._wake.set()  # records may wait for the topic again

    def _not_found(self, waiting: Unrouted, error: LedgerMQError) -> None:
        """No broker has described the topic: the records fail, or join the queues of the topic as it was, to be
        spilled.
        """
        remembered = self._spilling.remembered(waiting.topic) if self._spilling and error.retriable else None
        if remembered is None:
            waiting.failed(error)
        else:
            waiting.routed(self._topics.take(remembered))

    async def _refresh(self, name: str, avoid: str | None) -> None:
        try:
            backoff = self._backoffs.setdefault(name, self._connections.backoff())
            if backoff.attempts:
                await backoff.pause()
            else:
                backoff.next_s()  # the first look-up is made at once, and counts
            topic = self._topics.take(await self._routing.refresh(name, self._connections.deadline(), avoid=avoid))
            if all(self._routing.owner(*queue.at) for queue in topic.queues):
                self._backoffs.pop(name, None)
        except InvalidRequest as error:
            self._topics.gone(name, error)
        except LedgerMQError as error:
            for queue in self._topics.queues_of(name):
                queue.last_error = error
        finally:
            self._asking.discard(name)
            self._wake.set()

    def learn_from(self, error: LedgerMQError, queue: PartitionQueue, address: str) -> None:
        """Apply what an error of the broker at `address` says about the partition's owner."""
        if isinstance(error, NotOwner):
            self._routing.redirected(*queue.at, error.owner, refused_by=address)
        elif error.retriable and not isinstance(error, ResourceExhausted):  # it may be a former owner
            self._routing.redirected(*queue.at, None, refused_by=address)

    def unreachable(self, address: str) -> None:
        self._routing.unreachable(address)

    def open_sessions(self, group: asyncio.TaskGroup, queues: Sequence[PartitionQueue]) -> None:
        """Open sessions at the owners: one call per broker and turn, for any number of partitions; of an exclusive
        producer one per topic, too, because it may have to wait for a topic.
        """
        by_owner: dict[tuple[str, str], list[PartitionQueue]] = {}
        for queue in queues:
            if (owner := self.owner(queue)) is not None:
                by_owner.setdefault((owner, queue.at.topic if self._exclusive else ""), []).append(queue)
        for (owner, _), asked in by_owner.items():
            asked = asked[:PARTITIONS_PER_CALL_MAX]
            for queue in asked:
                queue.session_asked()
            group.create_task(self._open_sessions(owner, asked))

    async def _open_sessions(self, owner: str, queues: Sequence[PartitionQueue]) -> None:
        opened: list[Session | LedgerMQError]
        try:
            if self._exclusive is not None:
                for queue in queues:
                    await self._exclusive.acquire(*queue.at)
        except LedgerMQError as error:
            for queue in queues:
                self._not_opened(queue, error, owner)
            self._wake.set()
            return
        deadline = self._connections.deadline(self._settings.request_timeout_s)
        try:
            places = [queue.at for queue in queues]
            opened = await open_new_sessions(self._context, owner, places, deadline, self._publishing.session_kind)
        except LedgerMQError as error:
            self._routing.unreachable(owner)
            opened = [Unavailable(error.message)] * len(queues)
        for queue, session in zip(queues, opened, strict=True):
            if isinstance(session, Session):
                if self._exclusive is not None:
                    session = self._exclusive.session(queue.at, session, queue.next_epoch)
                queue.opened(session)
            else:
                self._not_opened(queue, session, owner)
        self._wake.set()

    def _not_opened(self, queue: PartitionQueue, error: LedgerMQError, owner: str) -> None:
        self.learn_from(error, queue, owner)
        unknown = isinstance(error, UnknownTopic | UnknownPartition)
        if unknown:
            self.refresh(queue.at.topic)
        if error.retriable or unknown or queue.resends:
            queue.not_opened(error, asyncio.get_running_loop().time())
        else:
            self._buffer.give_up(queue.never_opened(error))
