"""Write records that cannot be delivered to the producer's spill, and send them from there.

    PartitionQueue ──no broker in time, or buffer full──> SpillFile ──in order──> ResendQueue ──stored──> removed

While a partition has batches in the file (a *lane*), its queue sends nothing: later records are written behind
them, or wait in memory while the file is being emptied. So the order of a partition's records is that of
`send`. Which partition a record belongs to was decided before, and never changes.

A batch in the file is sent under a session that is in the file, too. A process that begins again asks brokers
how far the session came, and sends the rest under the same numbers. Only where the brokers no longer know the
session may batches whose answer was lost be stored twice.

One task writes. It is never cancelled in between: what it has written is reported to the program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from ledgermq.client.connection.routing import TopicRoute
from ledgermq.client.context import ClientContext
from ledgermq.client.producing.buffering.send_buffer import SendBuffer
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.partition_queue import PartitionQueue
from ledgermq.client.producing.partition.sessions import open_sessions
from ledgermq.client.producing.publishing import encoding_error
from ledgermq.client.producing.routing.topics import ProducerTopics
from ledgermq.client.producing.spilling.spill_file import LaneKey, RememberedTopic, check_cluster
from ledgermq.client.producing.spilling.spill_lanes import PASSING, Lane, Lanes
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.spill import Spill, SpillState
from ledgermq.errors import LedgerMQError, RetriableError, StoreUnusable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.tasks import retrieve_error, shared


class Spilling:
    """`wake` is set when the dispatcher may have work."""

    def __init__(
        self,
        spill: Spill,
        context: ClientContext,
        settings: ProducerSettings,
        topics: ProducerTopics,
        buffer: SendBuffer,
        wake: asyncio.Event,
    ) -> None:
        self._path = Path(spill.path)
        self._context = context
        self._settings = settings
        self._topics = topics
        topics.on_route = self._note_topic
        self._buffer = buffer
        self._wake = wake
        self._work = asyncio.Event()
        """Set when there is something to write or to load."""
        self._lanes = Lanes(spill, context, settings, topics, buffer, self._work)
        self._opening: asyncio.Task[None] | None = None
        self._cluster_id = ""
        self._is_identified = False
        """Whether brokers have said that they are the cluster of the file."""
        self._remembered: dict[str, RememberedTopic] = {}
        self._unconfirmed: set[str] = set()
        """Topics whose description is only remembered."""
        self._new_topics: dict[str, RememberedTopic] = {}
        self._is_finished = False

    @property
    def state(self) -> SpillState:
        return self._lanes.state

    def unwritten(self) -> Iterator[Batch]:
        """Return the batches that were taken out of their queues, and are not written yet."""
        return self._lanes.unwritten()

    # -- the queues of the program's records

    def turn(self, queue: PartitionQueue, now_s: float, due_s: list[float]) -> bool:
        """Take a queue's batches, if they are to be written now. Return whether the queue must send nothing."""
        key = LaneKey(queue.topic_id, queue.at.partition)
        lane = self._lanes.get(key)
        is_held = lane is not None or self._lanes.is_leaving(key)
        born_s = queue.oldest_s()
        if born_s is None or not self._cluster_id:
            return is_held
        is_late = born_s < now_s - self._settings.delivery_timeout_s
        if not is_held:
            is_stalled = queue.last_error is not None and self._buffer.is_full
            is_held = is_late or is_stalled or queue.at.topic in self._unconfirmed
            if not is_held or not queue.can_leave():
                return False
        if self._lanes.is_leaving(key):
            return True  # what is being written now goes first
        if lane is not None and not (lane.queue.is_stalled or is_late or self._buffer.is_full):
            due_s.append(born_s + self._settings.delivery_timeout_s + 0.001)
            return True
        self._take(queue)
        return True

    def _take(self, queue: PartitionQueue) -> None:
        """Take all batches of a queue, none of which is on its way, to be written. Needs no earlier batches of the
        partition that are not written yet.
        """
        self._topics.seal(queue)
        left = queue.leave()
        batches = []
        for batch in left.batches:
            if (error := encoding_error(batch)) is not None:
                self._buffer.give_up([(batch, error)])
            else:
                batches.append(batch)
        if batches:
            self._lanes.write_later(LaneKey(queue.topic_id, queue.at.partition), replace(left, batches=batches))

    # -- topics

    def _note_topic(self, route: TopicRoute) -> None:
        """Remember a topic as brokers describe it."""
        if route.learned_at_s == -inf:
            return  # it is what was remembered
        self._unconfirmed.discard(route.name)
        found = RememberedTopic(route.name, route.topic_id, route.partitions, route.record_bytes_max)
        if self._remembered.get(route.name) != found:
            self._remembered[route.name] = self._new_topics[route.name] = found
            self._work.set()

    def remembered(self, name: str) -> TopicRoute | None:
        """Return a topic as brokers described it before, because none answers now. Its records are written to the
        file.
        """
        found = self._remembered.get(name)
        if found is None or not self._cluster_id:
            return None
        self._unconfirmed.add(name)
        settings = {"max.message.bytes": str(found.record_bytes_max)}
        return TopicRoute(name, found.topic_id, found.partitions, settings, -inf)

    # -- the background

    async def open(self) -> None:
        """Open the file; every caller waits for the same opening. Raises what `SpillFile.open` raises."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        await shared(self._opening, "the producer's spill")

    async def _open(self) -> None:
        contents = await self._lanes.file.open()
        self._cluster_id = contents.cluster_id
        self._remembered = {topic.name: topic for topic in contents.topics} | self._remembered
        self._lanes.restore(contents.lanes.items())

    async def run(self) -> None:
        """Write and send until cancelled. Raises DataDamaged, InvalidConfig."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._identify(tasks))
            while True:
                await self._work.wait()
                self._work.clear()
                await _finished(self._write())
                if self._is_identified:
                    await self._lanes.load()
                self._wake.set()

    async def _write(self) -> None:
        await self._lanes.write()
        topics, self._new_topics = self._new_topics, {}
        if topics:
            try:
                await self._lanes.file.remember(topics.values())
            except PASSING as error:
                self._new_topics = topics | self._new_topics
                self._lanes.note(error)

    async def _identify(self, tasks: asyncio.TaskGroup) -> None:
        """Find out which cluster the brokers are; nothing is sent from the file before. Then begin."""
        connections, backoff = self._context.connections, self._context.connections.backoff()
        request = pb.DescribeClusterRequest()
        while True:
            try:
                answer = await connections.ask(lambda at: at.describe_cluster(request), connections.deadline())
                if not self._cluster_id:
                    await self._lanes.file.set_cluster(answer.cluster_id)
                break
            except (RetriableError, StoreUnusable) as error:
                for lane in self._lanes:
                    lane.queue.last_error = error
                await backoff.pause()
        check_cluster(self._path, self._cluster_id or answer.cluster_id, answer.cluster_id)
        self._cluster_id, self._is_identified = answer.cluster_id, True
        for lane in self._lanes:
            if lane.queue.waits:
                tasks.create_task(self._resume(lane))
        self._work.set()
        self._wake.set()

    async def _resume(self, lane: Lane) -> None:
        """Ask brokers how far an earlier process came with a lane, and go on from there."""
        session = lane.stored.session
        assert session is not None, "a lane that was never sent is not resumed"
        connections, backoff = self._context.connections, self._context.connections.backoff()
        while True:
            try:
                at = lane.queue.at
                found = (await open_sessions(self._context, session.id, [at], connections.deadline()))[at]
                break
            except LedgerMQError as error:  # also: the topic is gone, or not known yet
                lane.queue.last_error = error
                await backoff.pause()
        self._lanes.delivered(lane, found.next_sequence)

    # -- the end

    async def finish(self, *, keeps: bool = False) -> None:
        """Close the file, after the background has ended; a second call does nothing. `keeps`: first write what the
        queues hold, none of which is on its way any longer.
        """
        if self._is_finished:
            return
        self._is_finished = True
        is_open = self._opening is not None and self._opening.done() and self._opening.exception() is None
        try:
            if is_open and keeps:
                await self._write()  # what was taken before comes first
                self._take_all()
            if is_open:
                await self._write()
        finally:
            await self._lanes.file.close()

    def _take_all(self) -> None:
        for queue in self._topics.busy() if self._cluster_id else ():
            if not queue.resends and queue.can_leave():
                self._take(queue)

    def abandon(self, error: LedgerMQError) -> None:
        """Fail the batches that are not written, because the producer ends."""
        self._lanes.abandon(error)


async def _finished(work: Coroutine[Any, Any, None]) -> None:
    """Do some work to its end, also if the caller is cancelled meanwhile."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        retrieve_error(task)
        raise
