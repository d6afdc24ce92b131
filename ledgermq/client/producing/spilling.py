"""Write records that cannot be delivered to the producer's spill, and send them from there.

    PartitionQueue ──no broker in time, or buffer full──> SpillFile ──in order──> ResendQueue ──stored──> removed

While a partition has batches in the file (a *lane*), its queue sends nothing: later records are written behind
them, or wait in memory while the file is being emptied. So the order of a partition's records is that of
`send`. Which partition a record belongs to was decided before, and never changes.

A batch in the file is sent under a session that is in the file, too. A process that begins again asks brokers
how far the session came, and sends the rest under the same numbers. Only where the brokers no longer know the
session may batches whose answer was lost be stored twice.

One task writes (`_write`): removals, sessions, new batches. It is never cancelled in between: what it has
written is reported to the program.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from ledgermq.client.context import ClientContext
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.producing.batch import Batch, Compressor, encoding_error
from ledgermq.client.producing.partition_queue import Left, PartitionQueue
from ledgermq.client.producing.resend_queue import ResendQueue
from ledgermq.client.producing.send_buffer import SendBuffer
from ledgermq.client.producing.sessions import Session, open_sessions
from ledgermq.client.producing.spill_file import (
    ADD_BYTES_MAX,
    LaneKey,
    NewBatch,
    RememberedTopic,
    SpilledRun,
    SpillFile,
    StoredLane,
    check_cluster,
)
from ledgermq.client.producing.topics import ProducerTopics
from ledgermq.client.routing import TopicRoute
from ledgermq.client.settings import ProducerSettings
from ledgermq.client.spill import Spill, SpillState
from ledgermq.errors import (
    LedgerMQError,
    ResourceExhausted,
    RetriableError,
    StoreUnusable,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import WINDOW_BATCHES
from ledgermq.runtime.tasks import retrieve_error

LOADED_BATCHES, LOADED_BYTES = 64, 8 * 1024 * 1024
"""Batches of one lane that are in memory at a time, and about their size."""
TROUBLE_S = 1.0
"""How long the file is left alone after a write failed, or a bound was reached."""

_PASSING = (ResourceExhausted, StoreUnusable)
"""Errors of the file that may pass: no room, no space, a disk that cannot be written."""

_log = logging.getLogger("ledgermq.producer")


@dataclass(eq=False, slots=True)
class Lane:
    """What is in the file of one partition."""

    key: LaneKey
    stored: StoredLane
    queue: ResendQueue
    runs: deque[SpilledRun] = field(default_factory=deque)
    """Those that are not known to be stored, oldest first."""
    loaded: int = 0
    """How many of them are in `queue`, or were."""
    maybe_sent: int = 0
    """How many of the next ones an earlier process may have sent."""
    done: list[SpilledRun] = field(default_factory=list)
    """Stored in the cluster, and still in the file."""
    next_sequence: int = 0

    def finished(self, batch: Batch) -> SpilledRun:
        run = next(run for run in self.runs if run.id == batch.in_file)
        self.runs.remove(run)
        self.loaded -= 1
        self.done.append(run)
        return run


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
        self._spill = spill
        self._context = context
        self._settings = settings
        self._topics = topics
        topics.on_route = self._note_topic
        self._buffer = buffer
        self._wake = wake
        self._file = SpillFile(Path(spill.path), in_thread=context.connections.threads is not None)
        self._work = asyncio.Event()
        """Set when there is something to write or to load."""
        self._opening: asyncio.Task[None] | None = None
        self._cluster_id = ""
        self._is_identified = False
        """Whether brokers have said that they are the cluster of the file."""
        self._remembered: dict[str, RememberedTopic] = {}
        self._unconfirmed: set[str] = set()
        """Topics whose description is only remembered."""
        self._new_topics: dict[str, RememberedTopic] = {}
        self._lanes: dict[LaneKey, Lane] = {}
        self._leaving: dict[LaneKey, Left] = {}
        """Batches that were taken out of their queues, and are not written yet."""
        self._records = self._bytes = self._spilled = self._resent = self._maybe_twice = 0
        self._trouble: LedgerMQError | None = None
        """Why the file could not be written."""
        self._not_before_s = 0.0
        self._is_finished = False
        self._compressor = Compressor("none")

    # -- state

    @property
    def state(self) -> SpillState:
        errors = (lane.queue.last_error for lane in self._lanes.values())
        maybe_twice = self._maybe_twice + sum(lane.queue.maybe_twice for lane in self._lanes.values())
        last_error = self._trouble or next((error for error in errors if error is not None), None)
        partitions = sum(bool(lane.runs) for lane in self._lanes.values())
        return SpillState(self._records, self._bytes, partitions, self._spilled, self._resent, maybe_twice, last_error)

    def unwritten(self) -> Iterator[Batch]:
        """Return the batches that were taken out of their queues, and are not written yet."""
        for left in self._leaving.values():
            yield from (batch for batch in left.batches if not batch.outcome.settled)

    # -- the queues of the program's records

    def turn(self, queue: PartitionQueue, now_s: float, due_s: list[float]) -> bool:
        """Take a queue's batches, if they are to be written now. Return whether the queue must send nothing."""
        key = LaneKey(queue.topic_id, queue.at.partition)
        lane = self._lanes.get(key)
        is_held = lane is not None or key in self._leaving
        born_s = queue.oldest_s()
        if born_s is None or not self._cluster_id:
            return is_held
        is_late = born_s < now_s - self._settings.delivery_timeout_s
        if not is_held:
            is_stalled = queue.last_error is not None and self._buffer.is_full
            is_held = is_late or is_stalled or queue.at.topic in self._unconfirmed
            if not is_held or not queue.can_leave():
                return False
        if key in self._leaving:
            return True  # what is being written now goes first
        if lane is not None and not (lane.queue.is_stalled or is_late or self._buffer.is_full):
            due_s.append(born_s + self._settings.delivery_timeout_s + 0.001)
            return True
        self.take(queue)
        return True

    def take(self, queue: PartitionQueue) -> None:
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
            self._leaving[LaneKey(queue.topic_id, queue.at.partition)] = replace(left, batches=batches)
            self._work.set()

    # -- topics

    def _note_topic(self, route: TopicRoute) -> None:
        """Remember a topic as brokers describe it."""
        if route.learned_at_s == -inf:
            return  # it is what was remembered
        self._unconfirmed.discard(route.name)
        found = RememberedTopic(route.name, route.topic_id, route.partitions)
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
        return TopicRoute(name, found.topic_id, found.partitions, {}, -inf)

    # -- the background

    async def open(self) -> None:
        """Open the file; every caller waits for the same opening. Raises what `SpillFile.open` raises."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        contents = await self._file.open()
        self._cluster_id = contents.cluster_id
        self._remembered = {topic.name: topic for topic in contents.topics} | self._remembered
        for key, stored in contents.lanes.items():
            lane = self._new_lane(key, stored, None)
            lane.runs.extend(stored.runs)
            lane.next_sequence = stored.runs[-1].end if stored.runs else stored.base
            self._records += sum(run.records for run in lane.runs)
            self._bytes += sum(run.size for run in lane.runs)
            lane.queue.waits = stored.session is not None
            lane.maybe_sent = WINDOW_BATCHES if stored.session is not None else 0
        if self._records:
            _log.warning(
                "spill %s has %d records of %d partitions; they are sent first", self._spill.path, self._records,
                len(self._lanes),
            )  # fmt: skip

    async def run(self) -> None:
        """Write and send until cancelled. Raises DataDamaged, InvalidConfig."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._identify(tasks))
            while True:
                await self._work.wait()
                self._work.clear()
                await _finished(self._write())
                await self._load()
                self._wake.set()

    async def _identify(self, tasks: asyncio.TaskGroup) -> None:
        """Find out which cluster the brokers are; nothing is sent from the file before. Then begin."""
        connections, backoff = self._context.connections, self._context.connections.backoff()
        request = pb.DescribeClusterRequest()
        while True:
            try:
                answer = await connections.ask(lambda at: at.describe_cluster(request), connections.deadline())
                if not self._cluster_id:
                    await self._file.set_cluster(answer.cluster_id)
                break
            except (RetriableError, StoreUnusable) as error:
                self._note_all(error)
                await backoff.pause()
        check_cluster(Path(self._spill.path), self._cluster_id or answer.cluster_id, answer.cluster_id)
        self._cluster_id, self._is_identified = answer.cluster_id, True
        for lane in self._lanes.values():
            if lane.queue.waits:
                tasks.create_task(self._resume(lane))
        self._work.set()
        self._wake.set()

    def _note_all(self, error: LedgerMQError) -> None:
        for lane in self._lanes.values():
            lane.queue.last_error = error

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
        while lane.runs and lane.runs[0].end - lane.stored.base <= found.next_sequence:
            self._resent += lane.runs[0].records
            lane.done.append(lane.runs.popleft())
        if lane.runs:
            next_sequence = lane.runs[0].sequence - lane.stored.base
            lane.queue.resume(replace(session, next_sequence=next_sequence))
        lane.queue.last_error = None
        self._work.set()

    # -- writing

    async def _write(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._not_before_s and not self._leaving:
            return
        try:
            await self._remove()
            await self._write_sessions()
            await self._write_topics()
        except _PASSING as error:
            self._note(error)
        await self._add()

    def _note(self, error: LedgerMQError) -> None:
        """Note that the file could not be written; try again later."""
        if self._trouble is None:
            _log.error("spill %s: %s", self._spill.path, error.message)
        self._trouble = error
        loop = asyncio.get_running_loop()
        self._not_before_s = loop.time() + TROUBLE_S
        loop.call_later(TROUBLE_S, self._work.set)

    async def _remove(self) -> None:
        """Remove batches that are stored in the cluster, and lanes that are empty."""
        removed = {lane: list(lane.done) for lane in self._lanes.values() if lane.done}
        ended = [lane for lane in self._lanes.values() if not lane.runs and lane.key not in self._leaving]
        if not removed and not ended:
            return
        await self._file.remove([run.id for runs in removed.values() for run in runs], [lane.key for lane in ended])
        self._trouble = None
        for lane, runs in removed.items():
            del lane.done[: len(runs)]
            self._records -= sum(run.records for run in runs)
            self._bytes -= sum(run.size for run in runs)
        for lane in ended:
            if not lane.runs and not lane.done and lane.key not in self._leaving:
                self._end(lane)

    def _end(self, lane: Lane) -> None:
        del self._lanes[lane.key]
        self._topics.remove_resending(lane.queue)
        self._maybe_twice += lane.queue.maybe_twice
        _log.warning("all spilled records of %s are stored", lane.queue.at)

    async def _write_sessions(self) -> None:
        fresh = [lane for lane in self._lanes.values() if lane.queue.fresh is not None]
        if not fresh:
            return
        for lane in fresh:
            lane.stored = StoredLane(lane.stored.topic, lane.runs[0].sequence, lane.queue.fresh)
        try:
            await self._file.put_lanes([(lane.key, lane.stored) for lane in fresh])
        except _PASSING as error:
            for lane in fresh:
                lane.queue.not_confirmed(error, asyncio.get_running_loop().time())
            raise
        for lane in fresh:
            lane.queue.confirm()

    async def _write_topics(self) -> None:
        topics, self._new_topics = self._new_topics, {}
        if not topics:
            return
        try:
            await self._file.remember(topics.values())
        except _PASSING:
            self._new_topics = topics | self._new_topics
            raise

    async def _add(self) -> None:
        """Write the batches that were taken out of their queues, as many as there is room for."""
        leaving = dict(self._leaving)
        if not leaving:
            return
        lanes: dict[LaneKey, StoredLane] = {}
        planned: list[tuple[Batch, NewBatch]] = []
        failed: list[tuple[Batch, LedgerMQError]] = []
        records, size = self._records, self._bytes
        for key, left in leaving.items():
            count = self._count_with_room(left, records, size)
            failed += [(batch, self._full()) for batch in left.batches[count:]]
            lanes[key], sequence = self._begin_of(key, left)
            for batch in left.batches[:count]:
                planned.append((batch, NewBatch(key, sequence, batch.encoded())))
                sequence, records = sequence + batch.record_count, records + batch.record_count
                size += len(batch.encode())
        while planned:
            piece = planned[: _piece_count(planned)]
            keys = {new.key for _, new in piece}
            rows = [(key, lane) for key, lane in lanes.items() if key in keys]
            try:
                ids = await self._file.add(rows, [new for _, new in piece], self._context.sources.now_ms())
            except _PASSING as error:
                self._note(error)
                failed = [(batch, error) for batch, _ in planned] + failed
                break
            for (batch, new), batch_id in zip(piece, ids, strict=True):
                self._written(lanes[new.key], leaving[new.key], batch, new, batch_id)
            del planned[: len(piece)]
        self._refuse(failed)
        for key in leaving:
            del self._leaving[key]

    def _count_with_room(self, left: Left, records: int, size: int) -> int:
        """Return how many batches there is room for, beside so many records and bytes. Batches that have numbers
        are written all or not at all: the number of one that is left out could not be used again, because brokers
        would take the next record for it.
        """
        for count, batch in enumerate(left.batches):
            records, size = records + batch.record_count, size + len(batch.encode())
            if records > self._spill.records_max or size > self._spill.bytes_max:
                return 0 if batch.sequence is not None else count
        return len(left.batches)

    def _begin_of(self, key: LaneKey, left: Left) -> tuple[StoredLane, int]:
        """Return the lane that batches join, and the sequence of the first one."""
        lane = self._lanes.get(key)
        if lane is not None:
            return lane.stored, lane.next_sequence
        first = left.batches[0]
        if left.session is None or first.sequence is None:
            return StoredLane(first.at.topic), 0
        return StoredLane(first.at.topic, 0, left.session), first.sequence

    def _written(self, stored: StoredLane, left: Left, batch: Batch, new: NewBatch, batch_id: int) -> None:
        """Apply that a batch is in the file: it is settled."""
        lane = self._lanes.get(new.key)
        if lane is None:
            _log.warning(
                "records of %s are spilled to %s from now on: %s", batch.at, self._spill.path, left.error.message
            )
            lane = self._new_lane(new.key, stored, new.sequence)
            lane.queue.last_error = left.error
        run = SpilledRun(batch_id, new.sequence, batch.record_count, len(new.encoded.data))
        lane.runs.append(run)
        lane.next_sequence = run.end
        if batch.in_doubt:
            lane.maybe_sent = len(lane.runs) - lane.loaded
        self._records += run.records
        self._bytes += run.size
        self._spilled += run.records
        self._trouble = None
        self._buffer.release(batch.buffer_bytes)
        batch.spilled()

    def _new_lane(self, key: LaneKey, stored: StoredLane, next_sequence: int | None) -> Lane:
        """Return a new lane. `next_sequence`: of the session that this process has opened; None: the session, if
        there is one, is of an earlier process.
        """
        session: Session | None = None
        if stored.session is not None and next_sequence is not None:
            session = replace(stored.session, next_sequence=next_sequence - stored.base)
        queue = ResendQueue(
            TopicPartition(stored.topic, key.partition),
            key.topic_id,
            window_batches=self._settings.window_batches,
            backoff=self._context.connections.backoff(),
            session=session,
            on_stored=lambda batch: self._resent_batch(lane, batch),
            on_opened=self._work.set,
        )
        lane = self._lanes[key] = Lane(key, stored, queue)
        self._topics.add_resending(queue)
        return lane

    def _full(self) -> LedgerMQError:
        return ResourceExhausted(
            f"spill {self._spill.path} has {self._records} records of {self._bytes} bytes, and no room for more: raise"
            " records_max or bytes_max of the Spill, or send less until brokers answer again",
            retry_after_ms=round(1000 * TROUBLE_S),
        )

    def _refuse(self, failed: Sequence[tuple[Batch, LedgerMQError]]) -> None:
        """Fail batches for which there was no room, and later records of their partitions for a while."""
        for batch, error in failed:
            queue = self._topics.queue_at(batch.topic_id, batch.at.partition)
            self._buffer.give_up([(batch, queue.unknown(batch) if queue is not None and batch.in_doubt else error)])
            if queue is not None and queue.refuses is None:
                queue.refuses = error
                asyncio.get_running_loop().call_later(TROUBLE_S, self._accept, queue)

    def _accept(self, queue: PartitionQueue) -> None:
        queue.refuses = None
        self._work.set()  # its lane may be empty

    # -- sending

    def _resent_batch(self, lane: Lane, batch: Batch) -> None:
        self._resent += lane.finished(batch).records
        self._work.set()

    async def _load(self) -> None:
        """Read the next batches of each lane that has few in memory."""
        if not self._is_identified:
            return
        for lane in list(self._lanes.values()):
            if lane.queue.waits or lane.loaded == len(lane.runs) or lane.loaded > LOADED_BATCHES // 2:
                continue
            chosen: list[SpilledRun] = []
            size = sum(run.size for run in list(lane.runs)[: lane.loaded])
            for run in list(lane.runs)[lane.loaded : LOADED_BATCHES]:
                if chosen and size + run.size > LOADED_BYTES:
                    break
                chosen.append(run)
                size += run.size
            try:
                loaded = await self._file.load(lane.key, [run.id for run in chosen])
            except StoreUnusable as error:
                self._note(error)
                return
            for run, encoded in zip(chosen, loaded, strict=True):
                batch = Batch(lane.queue.at, lane.key.topic_id, inf, self._compressor)
                batch.take_spilled(encoded, run.id)
                batch.in_doubt = lane.maybe_sent > 0
                lane.maybe_sent = max(0, lane.maybe_sent - 1)
                lane.queue.add_sealed(batch)
                lane.loaded += 1

    # -- the end

    async def finish(self) -> None:
        """Write what is taken, after the background has ended, and close the file; a second call does nothing."""
        if self._is_finished:
            return
        self._is_finished = True
        if self._opening is None or not self._opening.done() or self._opening.exception() is not None:
            await self._file.close()
            return
        try:
            await self._write()
        finally:
            await self._file.close()

    def abandon(self, error: LedgerMQError) -> None:
        """Fail the batches that are not written, because the producer ends."""
        for batch in list(self.unwritten()):
            queue = self._topics.queue_at(batch.topic_id, batch.at.partition)
            self._buffer.give_up([(batch, queue.unknown(batch) if queue is not None and batch.in_doubt else error)])
        self._leaving = {}

    def closing(self) -> None:
        """Take what the queues hold, none of which is on its way any longer, because the producer ends."""
        if not self._cluster_id:
            return
        for queue in self._topics.busy():
            key = LaneKey(queue.topic_id, queue.at.partition)
            if not queue.resends and queue.can_leave() and key not in self._leaving:
                self.take(queue)


async def _finished(work: Coroutine[Any, Any, None]) -> None:
    """Do some work to its end, also if the caller is cancelled meanwhile."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        retrieve_error(task)
        raise


def _piece_count(planned: Sequence[tuple[Batch, NewBatch]]) -> int:
    """Return how many batches are written at a time: some `ADD_BYTES_MAX`, and all that follow and have numbers."""
    size = 0
    for count, (batch, new) in enumerate(planned):
        if count and size + len(new.encoded.data) > ADD_BYTES_MAX and batch.sequence is None:
            return count
        size += len(new.encoded.data)
    return len(planned)
