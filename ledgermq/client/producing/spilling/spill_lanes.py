"""What a producer's spill has of each partition, and the one task that changes the file.

A *lane* is what is spilled of one partition. A change goes to the file first, then to the lane in memory, then to
the program: a batch is answered as spilled once it is in the file, sent under a session once that is in the file,
and removed once the cluster has it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from pathlib import Path

from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.buffering.send_buffer import SendBuffer
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.compressor import Compressor
from ledgermq.client.producing.partition.partition_queue import Left, PartitionQueue
from ledgermq.client.producing.partition.resend_queue import ResendQueue
from ledgermq.client.producing.partition.sessions import Session
from ledgermq.client.producing.routing.topics import ProducerTopics
from ledgermq.client.producing.spilling.spill_file import (
    ADD_BYTES_MAX,
    LaneKey,
    NewBatch,
    SpilledRun,
    SpillFile,
    StoredLane,
)
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.spill import Spill, SpillState
from ledgermq.errors import LedgerMQError, ResourceExhausted, StoreUnusable
from ledgermq.protocol.limits import WINDOW_BATCHES
from ledgermq.runtime.process.log import get_log

LOADED_BATCHES, LOADED_BYTES = 64, 8 * 1024 * 1024
"""Batches of one lane that are in memory at a time, and about their size."""
LOADED_BYTES_ALL = 64 * 1024 * 1024
"""About the size of the batches of all lanes that are in memory at a time. Each lane has one at least."""
TROUBLE_S = 1.0
"""How long the file is left alone after a write failed, or a bound was reached."""

PASSING = (ResourceExhausted, StoreUnusable)
"""Errors of the file that may pass: no room, no space, a disk that cannot be written."""

_log = get_log("ledgermq.producer")


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


class Lanes:
    """`work` is set when there is something to write or to load."""

    def __init__(
        self,
        spill: Spill,
        context: ClientContext,
        settings: ProducerSettings,
        topics: ProducerTopics,
        buffer: SendBuffer,
        work: asyncio.Event,
    ) -> None:
        self._spill = spill
        self._context = context
        self._settings = settings
        self._topics = topics
        self._buffer = buffer
        self._work = work
        self.file = SpillFile(Path(spill.path), in_thread=context.connections.threads is not None)
        self._lanes: dict[LaneKey, Lane] = {}
        self._leaving: dict[LaneKey, Left] = {}
        """Batches that were taken out of their queues, and are not written yet."""
        self._records = self._bytes = self._spilled = self._resent = self._maybe_twice = 0
        self._trouble: LedgerMQError | None = None
        """Why the file could not be written."""
        self._not_before_s = 0.0
        self._compressor = Compressor("none")

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._lanes.values()))

    def get(self, key: LaneKey) -> Lane | None:
        return self._lanes.get(key)

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

    def is_leaving(self, key: LaneKey) -> bool:
        """Return whether batches of the partition were taken out of their queue, and are not written yet."""
        return key in self._leaving

    def write_later(self, key: LaneKey, left: Left) -> None:
        """Have batches written by the next `write`. No other ones of the partition wait for it."""
        assert key not in self._leaving, "what was taken earlier is written first"
        self._leaving[key] = left
        self._work.set()

    def restore(self, lanes: Iterable[tuple[LaneKey, StoredLane]]) -> None:
        """Take over what an earlier process has left in the file. Lanes with a session wait until `delivered` says
        how far it came.
        """
        for key, stored in lanes:
            lane = self._new_lane(key, stored, None)
            lane.runs.extend(stored.runs)
            lane.next_sequence = stored.runs[-1].end if stored.runs else stored.base
            self._records += sum(run.records for run in lane.runs)
            self._bytes += sum(run.size for run in lane.runs)
            lane.queue.waits = stored.session is not None
            lane.maybe_sent = WINDOW_BATCHES if stored.session is not None else 0
        if self._records:
            where, count = self._spill.path, len(self._lanes)
            _log.warning("spill %s has %d records of %d partitions; they are sent first", where, self._records, count)

    def delivered(self, lane: Lane, next_sequence: int) -> None:
        """Go on with a restored lane: brokers have its session up to `next_sequence`."""
        session = lane.stored.session
        assert session is not None, "a lane without a session was never sent"
        while lane.runs and lane.runs[0].end - lane.stored.base <= next_sequence:
            self._resent += lane.runs[0].records
            lane.done.append(lane.runs.popleft())
        if lane.runs:
            lane.queue.resume(replace(session, next_sequence=lane.runs[0].sequence - lane.stored.base))
        lane.queue.last_error = None
        self._work.set()

    # -- writing

    async def write(self) -> None:
        """Apply all that waits to the file. Raises DataDamaged."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._not_before_s and not self._leaving:
            return
        try:
            await self._remove()
            await self._write_sessions()
        except PASSING as error:
            self.note(error)
        await self._add()

    def note(self, error: LedgerMQError) -> None:
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
        await self.file.remove([run.id for runs in removed.values() for run in runs], [lane.key for lane in ended])
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
            await self.file.put_lanes([(lane.key, lane.stored) for lane in fresh])
        except PASSING as error:
            for lane in fresh:
                lane.queue.not_confirmed(error, asyncio.get_running_loop().time())
            raise
        for lane in fresh:
            lane.queue.confirm()

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
                ids = await self.file.add(rows, [new for _, new in piece], self._context.sources.now_ms())
            except PASSING as error:
                self.note(error)
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

    async def load(self) -> None:
        """Read the next batches of each lane that has few in memory."""
        bytes_max = min(LOADED_BYTES, LOADED_BYTES_ALL // max(1, len(self._lanes)))
        for lane in self:
            if lane.queue.waits or lane.loaded == len(lane.runs) or lane.loaded > LOADED_BATCHES // 2:
                continue
            chosen: list[SpilledRun] = []
            size = sum(run.size for run in islice(lane.runs, lane.loaded))
            for run in islice(lane.runs, lane.loaded, LOADED_BATCHES):
                if (chosen or lane.loaded) and size + run.size > bytes_max:
                    break
                chosen.append(run)
                size += run.size
            if not chosen:
                continue
            try:
                loaded = await self.file.load(lane.key, [run.id for run in chosen])
            except StoreUnusable as error:
                self.note(error)
                return
            for run, encoded in zip(chosen, loaded, strict=True):
                batch = Batch(lane.queue.at, lane.key.topic_id, inf, self._compressor)
                batch.take_spilled(encoded, run.id)
                batch.in_doubt = lane.maybe_sent > 0
                lane.maybe_sent = max(0, lane.maybe_sent - 1)
                lane.queue.add_sealed(batch)
                lane.loaded += 1

    def abandon(self, error: LedgerMQError) -> None:
        """Fail the batches that are not written, because the producer ends."""
        for batch in list(self.unwritten()):
            queue = self._topics.queue_at(batch.topic_id, batch.at.partition)
            self._buffer.give_up([(batch, queue.unknown(batch) if queue is not None and batch.in_doubt else error)])
        self._leaving = {}


def _piece_count(planned: Sequence[tuple[Batch, NewBatch]]) -> int:
    """Return how many batches are written at a time: some `ADD_BYTES_MAX`, and all that follow and have numbers."""
    size = 0
    for count, (batch, new) in enumerate(planned):
        if count and size + len(new.encoded.data) > ADD_BYTES_MAX and batch.sequence is None:
            return count
        size += len(new.encoded.data)
    return len(planned)
