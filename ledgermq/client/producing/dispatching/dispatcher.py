"""The producer's background task: seals batches in time, looks up owners and sessions, sends
frames, and applies answers.

The task runs in turns. In a turn it looks at every partition that has work, decides
(`PartitionQueue` does), and puts the batches that may be sent into one frame per broker. Then it
sleeps until the next deadline. Errors of brokers never end it. If it ends nevertheless, every
record fails with the error, and the producer's next call raises it.

Each answer is logged, so that one message can be followed: logger "ledgermq.producer", level DEBUG.
The ids are those that brokers log and segments hold: producer, sequence, topic id, partition,
offsets. The content of records is never logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledgermq.client.connection.routing import UNKNOWN_TOPIC_GRACE_S, ask_at_s
from ledgermq.client.context import ClientContext
from ledgermq.client.producing.buffering.send_buffer import SendBuffer
from ledgermq.client.producing.dispatching.discovery import Discovery
from ledgermq.client.producing.dispatching.produce_stream import ANY_BUNDLE, Answer, ProduceStream, SentFrame
from ledgermq.client.producing.exclusive import Exclusive
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.partition_queue import PartitionQueue
from ledgermq.client.producing.publishing import Publishing, Result, encoding_error
from ledgermq.client.producing.routing.topics import ProducerTopics
from ledgermq.client.producing.runs import DuplicateOf
from ledgermq.client.producing.spilling.spilling import Spilling
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.errors import LedgerMQError, Unavailable, UnknownPartition, UnknownTopic
from ledgermq.protocol.limits import BATCHES_PER_FRAME_MAX
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.wait import wait_until

_log = get_log("ledgermq.producer")

ATTEMPT_S_MIN = 1.0
"""Least time of an attempt. A record's delivery may therefore take this much longer than its
time-out.
"""

LATE_S = 0.05
"""A turn that is so much too late may find answers that are not read yet, because the program blocked the event loop.
"""
LOOK_S = 0.01
"""Time from such a turn to the next one."""

LINGER_S = 0.005
"""Default linger: while a batch is on its way, the next is closed this long after the previous
one, or after its first record.
"""


Lane = tuple[str, int]
"""Where a frame travels: the broker, and the bundle of all its batches or ANY_BUNDLE."""


@dataclass(slots=True)
class Draft:
    """A frame in the making."""

    payload: list[bytes] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    entries: list[Any] = field(default_factory=list)
    size: int = 0

    def fits(self, data: bytes, size_max: int) -> bool:
        if not self.batches:
            return True
        return self.size + len(data) <= size_max and len(self.batches) < BATCHES_PER_FRAME_MAX


class Dispatcher:
    """`wake` is set whenever there may be work."""

    def __init__(
        self,
        context: ClientContext,
        settings: ProducerSettings,
        topics: ProducerTopics,
        discovery: Discovery,
        buffer: SendBuffer,
        wake: asyncio.Event,
        publishing: Publishing,
        spilling: Spilling | None,
        exclusive: Exclusive | None,
    ) -> None:
        self._spilling = spilling
        self._exclusive = exclusive
        self._connections = context.connections
        self._settings = settings
        self._topics = topics
        self._discovery = discovery
        self._buffer = buffer
        self._wake = wake
        self._publishing = publishing
        self._sealed_s = float("-inf")
        self._turned_s = self._due_s = float("inf")
        """When the last turn was, and by when the next one had to be."""
        self._streams: dict[str, ProduceStream] = {}
        self.flushing = 0
        """Number of waiting calls of `flush`: open batches are sealed at once."""

    async def run(self) -> None:
        if self._spilling is not None:
            await self._spilling.open()
        async with asyncio.TaskGroup() as group:
            if self._spilling is not None:
                group.create_task(self._spilling.run())
            if self._exclusive is not None:
                group.create_task(self._exclusive.run())
            while True:
                self._wake.clear()
                due_s = self._turn(group, asyncio.get_running_loop().time())
                await wait_until(self._wake, due_s)

    def _turn(self, group: asyncio.TaskGroup, now_s: float) -> float | None:
        """Do all that can be done now; return when to run again at the latest."""
        not_before_s, linger_s = self._linger()
        for stream in self._streams.values():
            stream.look()
        drafts: dict[Lane, Draft] = {}
        due_s: list[float] = []
        without_session: list[PartitionQueue] = []
        answers_to_s = now_s if now_s <= self._due_s + LATE_S else self._turned_s
        self._fail_unrouted(now_s, due_s)
        for queue in self._topics.busy():
            if self._spilling is not None and not queue.resends and self._spilling.turn(queue, now_s, due_s):
                continue
            self._buffer.give_up(queue.expire(now_s - self._settings.delivery_timeout_s))
            self._buffer.give_up(queue.overdue(now_s, answers_to_s))
            self._buffer.give_up(queue.drop_overdue())
            self._seal(queue, now_s, not_before_s, linger_s, due_s)
            if not queue:
                continue
            if queue.wants_session(now_s):
                without_session.append(queue)
            self._draft(group, queue, now_s, drafts)
            self._note_due(queue, now_s, due_s)
            self._heed_silence(queue, now_s, due_s)
        self._discovery.open_sessions(group, without_session)
        self._discovery.refresh_old()
        for lane, draft in drafts.items():
            self._ship(group, lane, draft, now_s)
        self._suspect(now_s, due_s)
        self._discovery.ask(group)
        # A moment later, because timers may fire a moment early.
        self._turned_s, self._due_s = now_s, min(due_s, default=float("inf")) + 0.001
        return self._due_s if due_s else None

    def _fail_unrouted(self, now_s: float, due_s: list[float]) -> None:
        """Fail the records whose own time is over before their topic is known."""
        for waiting in list(self._topics.unrouted.values()):
            if (deadline_s := waiting.overdue(now_s)) is not None:
                due_s.append(deadline_s)
            if not waiting.record_count and self._topics.leave(waiting):
                waiting.outcome.settle()

    def _linger(self) -> tuple[float, float]:
        """Return the close of an open batch, which is the earlier of two: a time of the clock, or
        a number of seconds after its first record.
        """
        if self._settings.linger_ms is not None:
            return float("inf"), self._settings.linger_ms / 1000
        busy = any(stream.oldest() is not None for stream in self._streams.values())
        return self._sealed_s + LINGER_S, LINGER_S if busy else 0.0

    def _seal(
        self, queue: PartitionQueue, now_s: float, not_before_s: float, linger_s: float, due_s: list[float]
    ) -> None:
        batches = queue.open_batches()
        if not batches:
            return
        ripe_s = min(not_before_s, *(batch.ripe_s(linger_s) for batch in batches))
        if queue.has_room() and (self.flushing or ripe_s <= now_s):
            self._topics.seal(queue)
            self._sealed_s = now_s
        elif queue.open is not None and queue.open.data_bytes >= self._settings.batch_bytes_max:
            self._topics.seal(queue, only_open=True)
            self._sealed_s = now_s
        elif queue.has_room():
            due_s.append(ripe_s)

    def _heed_silence(self, queue: PartitionQueue, now_s: float, due_s: list[float]) -> None:
        """Have records without a key avoid the partition if its owner has stored nothing for a while."""
        timeout_s = self._settings.availability_timeout_s
        since_s = queue.look(now_s)
        if since_s is None or not timeout_s or queue.resends:
            return
        if now_s - since_s >= timeout_s:
            self._topics.avoid(queue)
        else:
            due_s.append(since_s + timeout_s)

    def _note_due(self, queue: PartitionQueue, now_s: float, due_s: list[float]) -> None:
        if queue.not_before_s > now_s:
            due_s.append(queue.not_before_s)
        if (deadline_s := queue.deadlines.next_s()) is not None:
            due_s.append(max(now_s + LOOK_S, deadline_s))
        if (born_s := queue.oldest_s()) is not None:
            # A moment later, so that a batch on its way ends at its own deadline first.
            due_s.append(max(now_s + 0.05, born_s + self._settings.delivery_timeout_s + 0.001))

    def _draft(self, group: asyncio.TaskGroup, queue: PartitionQueue, now_s: float, drafts: dict[Lane, Draft]) -> None:
        while (batch := queue.next_to_send(now_s)) is not None:
            if (gap := queue.gap_before(batch)) is not None:
                self._buffer.give_up(queue.abandon(gap))
                return
            owner = self._discovery.owner(queue)
            if owner is None or (lane := self._lane(group, owner, queue, drafts)) is None:
                return
            self._publishing.prepare(batch)
            if (refusal := encoding_error(batch)) is not None:
                queue.sent(batch)
                self._buffer.give_up(queue.failed(batch, refusal, now_s))
                return
            data = batch.encode()
            draft = drafts.setdefault(lane, Draft())
            if not draft.fits(data, self._settings.request_bytes_max):
                self._wake.set()  # Send what is complete, then continue.
                return
            queue.sent(batch)
            self._topics.had_turn(queue)
            draft.batches.append(batch)
            draft.entries.append(self._publishing.entry(batch, queue.session))
            draft.payload.append(data)
            draft.size += len(data)

    def _lane(
        self, group: asyncio.TaskGroup, owner: str, queue: PartitionQueue, drafts: Mapping[Lane, Draft]
    ) -> Lane | None:
        """Return the frame that a batch of the queue travels in; None: there is no room for one."""
        stream = self._stream(group, owner)
        lane = owner, self._discovery.bundle(queue) if stream.is_slow else ANY_BUNDLE
        made = sum(other[0] == owner and other != lane for other in drafts)
        return lane if stream.has_room(lane[1], made) else None

    def _suspect(self, now_s: float, due_s: list[float]) -> None:
        """Look up the owners again: a broker that is slow to answer may stand still while another
        has taken over.
        """
        for stream in self._streams.values():
            if (oldest := stream.oldest()) is None:
                continue
            if stream.suspected_s >= oldest.sent_s and not any(
                self._discovery.owner(queue) == stream.address for queue in self._queues(oldest)
            ):
                stream.give_up()
            elif now_s >= ask_at_s(oldest.sent_s, stream.suspected_s):
                stream.suspected_s = now_s
                for topic in dict.fromkeys(batch.at.topic for batch in oldest.batches):
                    self._discovery.refresh(topic, avoid=stream.address)
            due_s.append(ask_at_s(oldest.sent_s, stream.suspected_s))

    def _queues(self, frame: SentFrame) -> list[PartitionQueue]:
        return [self._topics.queue_of(batch) for batch in frame.batches if not batch.is_done]

    def _stream(self, group: asyncio.TaskGroup, address: str) -> ProduceStream:
        stream = self._streams.get(address)
        if stream is not None and stream.outdated and stream.oldest() is None:
            stream.give_up()
            stream = None
        if stream is None or stream.ended:
            stream = self._streams[address] = ProduceStream(
                self._connections.at(address), self._answered, self._publishing.call
            )
            group.create_task(stream.run())
        return stream

    def _ship(self, group: asyncio.TaskGroup, lane: Lane, draft: Draft, now_s: float) -> None:
        if not draft.batches:
            return
        frame = self._publishing.frame(draft.entries, draft.payload)
        oldest_s = min(batch.born_s for batch in draft.batches)
        # A stream that misses a deadline fails everything on it, so batches near their end do not
        # set its deadline.
        left_s = max(oldest_s + self._settings.delivery_timeout_s - now_s, ATTEMPT_S_MIN)
        deadline_s = now_s + min(self._settings.request_timeout_s, left_s)
        address, bundle = lane
        self._stream(group, address).send(SentFrame(frame, draft.batches, now_s, deadline_s, bundle))

    def _answered(self, address: str, batches: Sequence[Batch], answer: Answer) -> None:
        if not isinstance(answer, LedgerMQError) and len(answer.results) != len(batches):
            answer = Unavailable(f"{address} answered {len(answer.results)} results to {len(batches)} batches")
        if isinstance(answer, LedgerMQError):
            if answer.retriable or type(answer) is LedgerMQError:
                self._discovery.unreachable(address)
                answer = _passing(answer)
            for batch in batches:
                self._failed(batch, answer, address)
        else:
            results: Sequence[Result] = answer.results
            for batch, result in zip(batches, results, strict=True):
                if duplicates := self._publishing.duplicates(result):
                    self._leave_out(batch, duplicates, error_from_proto(result.error), address)
                elif result.HasField("error"):
                    self._failed(batch, error_from_proto(result.error), address)
                else:
                    self._stored(batch, result, address)
        self._wake.set()

    def _stored(self, batch: Batch, result: Result, address: str) -> None:
        if batch.is_done:
            return
        queue = self._topics.queue_of(batch)
        base_offset = self._publishing.stored(batch, result)
        queue.progressed(asyncio.get_running_loop().time())
        _log_stored(batch, queue, base_offset, address)
        failures = queue.stored(batch, base_offset)
        self._buffer.release(batch.buffer_bytes)
        self._buffer.give_up(failures)

    def _leave_out(
        self, batch: Batch, duplicates: Mapping[int, DuplicateOf], error: LedgerMQError, address: str
    ) -> None:
        """Apply the answer that some records of a batch are duplicates, and nothing of it is stored."""
        if batch.is_done:
            return
        if any(not _is_row_of(batch, row, original) for row, original in duplicates.items()):
            self._failed(batch, LedgerMQError(f"{address} named rows that a batch does not have"), address)
            return
        queue = self._topics.queue_of(batch)
        _log_refused(batch, queue, error, address)
        now_s = asyncio.get_running_loop().time()
        queue.progressed(now_s)
        failures = queue.duplicates(batch, duplicates, error, now_s)
        if not batch.sent_count:
            self._buffer.release(batch.buffer_bytes)
        self._buffer.give_up(failures)

    def _failed(self, batch: Batch, error: LedgerMQError, address: str) -> None:
        if batch.is_done:
            return
        queue = self._topics.queue_of(batch)
        _log_refused(batch, queue, error, address)
        now_s = asyncio.get_running_loop().time()
        if isinstance(error, UnknownTopic | UnknownPartition):
            self._discovery.refresh(queue.at.topic)
            if now_s - batch.born_s < UNKNOWN_TOPIC_GRACE_S:
                error = _passing(error)
        self._discovery.learn_from(error, queue, address)
        self._buffer.give_up(queue.failed(batch, error, now_s))


def _passing(error: LedgerMQError) -> Unavailable:
    """Return the error as one that passes. Where nothing was stored, it says so, too."""
    passing = Unavailable(error.message, retry_after_ms=error.retry_after_ms)
    passing.not_stored = error.not_stored
    return passing


def _is_row_of(batch: Batch, row: int, original: DuplicateOf) -> bool:
    return row < batch.sent_count and (original.row is None or original.row < row)


def _log_stored(batch: Batch, queue: PartitionQueue, base_offset: int | None, address: str) -> None:
    """Log that a batch is stored, or staged: then it has no base offset."""
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("batch stored %s base_offset=%s broker=%s", _ids(batch, queue), base_offset, address)


def _log_refused(batch: Batch, queue: PartitionQueue, error: LedgerMQError, address: str) -> None:
    """Log that an attempt failed; the batch may be sent again."""
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug(
            "batch refused %s broker=%s code=%s error=%s", _ids(batch, queue), address, error.code, error.message
        )


def _ids(batch: Batch, queue: PartitionQueue) -> str:
    producer = queue.session.id.hex() if queue.session is not None else None
    where = f"topic={batch.at.topic} topic_id={batch.topic_id} partition={batch.at.partition}"
    return f"{where} records={batch.record_count} producer={producer} sequence={batch.sequence}"
