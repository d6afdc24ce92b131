"""A member of a queue group: leases messages, hands them out, and sends what the program says about them.

Messages that were leased and that the program does not take soon are returned, and so are those that it has
not finished when the queue is closed. Must not know: gRPC, how a handler is called.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Generic, Self

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.client.consuming.message import messages_as, opened, partition_of
from ledgermq.client.context import ClientContext
from ledgermq.client.groups.retry_topics import is_redriven
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.expiry import Expiry
from ledgermq.client.offsets import At
from ledgermq.client.queues.dead_letters import Burials, DeadLetters
from ledgermq.client.queues.leased import LeasedAhead, leased_of
from ledgermq.client.queues.message import Lease, QueueMessage, Reply
from ledgermq.client.queues.polls import PATIENCE_S, Polls, retry_of
from ledgermq.client.queues.words import Word, Words
from ledgermq.client.settings.serializers import V
from ledgermq.client.settings.values import QueueSettings
from ledgermq.errors import Closed, DeadlineExceeded, InvalidRequest, LedgerMQError, Unavailable
from ledgermq.filters.filter import filter_text, parse_filter
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ShareFetchFrame
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.tasks import end
from ledgermq.runtime.wait import wait_until

FETCH_RECORDS_MAX = 2000
HELD_PART = 4
"""Messages that wait for the program are returned after this part of their lease: a quarter."""
MARGIN_PART = 20
"""The member counts its leases as shorter by this part, at most by a second, because of clocks and networks."""
FIRST_LOOK_S = 1.0
"""A first call waits this long for the topics' partitions, if its own time is shorter."""

WAIT_S_MIN = 0.001
"""A loop fires its timers up to the resolution of its clock too early."""

_log = get_log("ledgermq.queues")


class Queue(Generic[V]):
    """Made by `client.queue(…)`. Use `async with`, or call `close()` at the end."""

    def __init__(
        self,
        context: ClientContext,
        topics: Sequence[str],
        group: str,
        start: At,
        settings: QueueSettings,
        dead_letters: DeadLetters | None,
    ) -> None:
        self.group = group
        self.topics: tuple[str, ...] = tuple(topics)
        self.settings = settings
        prefix = f"{settings.client_id}-" if settings.client_id else ""
        self.member_id: str = f"{prefix}{context.sources.new_id().hex()[:16]}"
        self.expired = 0
        """Number of messages that were finished without a delivery, because their time to live was over."""
        self.filtered = 0
        """Number of messages that the filter has left out; they were finished without a delivery."""
        self.dead_lettered = 0
        """Number of messages that this member moved to the dead-letter topic."""
        self._filter = parse_filter(settings.filter)
        self._context = context
        self._base = opened(QueueMessage, settings.deserializer, settings.interceptors, context.replier)
        self._start = start
        self._expiry = Expiry(context.routing.ttl_of, context.sources.now_us)
        self._polls = Polls(context, topics, self._request_of, self._take_in, retry_of(group, topics))
        self._wanted = 0
        self._buffer = LeasedAhead(group, context.metrics)
        self._held: dict[tuple[TopicPartition, int], Lease] = {}
        """Messages that the program has, and has not finished."""
        self._words = Words(context, group, self.member_id)
        self._burials = Burials(group, dead_letters, self._words, self._note_dead_letter)
        self._returning: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self.draining = False
        """Whether `drain` was called."""
        self._finished = asyncio.Event()
        """Set when the program has finished a message."""
        self.closed = False

    async def fetch(self, max_records: int = 500, timeout: float = 1.0) -> list[QueueMessage[V]]:  # noqa: ASYNC109  as Consumer.fetch
        """Return up to `max_records` messages, as soon as there are any; none after `timeout` seconds.

        Each belongs to this member for `lease_s`: finish it with `ack`, give it back with `nack`. Messages
        that are not finished in time come again, here or at another member. An empty list says that the
        brokers have nothing for this member now. If no broker serves the queue when the time is up, this
        raises Unavailable; the next call tries again. Raises UnknownTopic, InvalidGroupName, CorruptFrame,
        DataDamaged. Takes `timeout` at most, and the first call one second at least if no broker answers.
        """
        if not 0 < max_records <= FETCH_RECORDS_MAX:
            raise InvalidRequest(f"max_records must be 1 to {FETCH_RECORDS_MAX}, not {max_records}")
        polls, begun_s = self._polls, self._begin().time()
        deadline = begun_s + timeout
        while not self.draining:
            self._ask_beside(max_records, deadline)
            found = self._from_buffer(max_records)
            if found:
                return found
            if timeout > 0 and not polls.knows_partitions:
                deadline = max(deadline, begun_s + FIRST_LOOK_S)
            if not await self._more(max_records, deadline, begun_s):
                found = self._from_buffer(max_records, at_once=True)
                if not found and timeout > 0:
                    self._raise_if_unserved()
                return found
        return []

    def _raise_if_unserved(self) -> None:
        polls = self._polls
        if not polls.knows_partitions:
            why = "no broker has answered yet" if polls.failing is None else polls.failing.message
            raise Unavailable(f"queue {self.group!r} does not know the partitions of its topics: {why}")
        if (error := polls.unserved) is not None:
            raise Unavailable(f"no broker serves queue {self.group!r} at present: {error.message}") from error

    def __aiter__(self) -> AsyncIterator[QueueMessage[V]]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[QueueMessage[V]]:
        """Yield messages without end. Those that were leased ahead and wait too long are returned meanwhile."""
        records_max, wait_s = self.settings.iteration_records_max, self.settings.request_timeout_s
        while not self._is_over():
            begun_s = self._begin().time()
            self._ask_beside(records_max, begun_s + wait_s)
            while not (found := self._from_buffer(1)) and not self._is_over():
                await self._more(records_max, self._begin().time() + wait_s, begun_s)
            for message in found:
                yield message

    def _is_over(self) -> bool:
        return self.closed or self.draining

    def _ask_beside(self, records_max: int, deadline: float) -> None:
        """With levels of priority, ask for messages of those levels of which none wait here, while others do."""
        if self._polls.has_levels and self._buffer:
            self._wanted = records_max
            self._polls.begin(max(0.0, deadline - self._begin().time()), beside=self._buffer.full())

    async def _more(self, records_max: int, deadline: float, begun_s: float) -> bool:
        """Wait for messages or a change. Return False if the time is up. Raises what `fetch` raises. `begun_s`: when
        the program's call began.
        """
        loop, polls = self._begin(), self._polls
        if (refusal := polls.refusal) is not None:
            polls.refusal = None
            raise refusal
        polls.raise_if_failing(begun_s, self.settings.request_timeout_s)
        now_s = loop.time()
        if deadline - now_s < WAIT_S_MIN:
            return False
        self._wanted = records_max
        polls.changed.clear()
        polls.begin(deadline - now_s, beside=self._buffer.full())
        patience_s = now_s + PATIENCE_S if self._buffer else deadline
        await wait_until(polls.changed, min(deadline, patience_s, polls.next_s))
        return True

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the cluster has answered everything that was said about messages so far.

        Raises DeadlineExceeded after `timeout_s`: the rest is still being sent. Raises Unavailable, UnknownTopic, …
        if something that was said since the last call could not be sent within the client's `timeout_s`, although the
        program may have seen that error in a `Reply`: those messages come again.
        """
        self._begin()
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_answered()
        except TimeoutError:
            raise DeadlineExceeded(f"no broker has answered within {timeout_s} s") from None
        self._words.raise_unsent()

    async def _until_answered(self) -> None:
        while tasks := [*self._burials.tasks, *self._words.sending]:
            await asyncio.wait(tasks)

    async def drain(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109  as GroupConsumer.drain
        """Hand out no further messages, and wait until the program has finished those that it has, or their leases
        have ended, and the cluster has answered. What was leased ahead goes to other members at once. `fetch` returns
        nothing from now on, and `async for` ends.

        Raises DeadlineExceeded after `timeout` seconds: the rest is given back by `close`. Raises what `flush` raises.
        """
        deadline = self._begin().time() + timeout
        self.draining = True
        self._return_untaken()
        self._polls.changed.set()
        while leased := self._leased():
            self._finished.clear()
            if not await wait_until(self._finished, min(deadline, *leased)) and self._begin().time() >= deadline:
                raise DeadlineExceeded(f"{len(leased)} messages are not finished after {timeout} s")
        try:
            async with asyncio.timeout_at(deadline):
                await self._until_answered()
        except TimeoutError:
            raise DeadlineExceeded(f"no broker has answered within {timeout} s") from None
        self._words.raise_unsent()

    def _leased(self) -> list[float]:
        """Return when the leases of messages end that the program has not finished."""
        now_s = self._begin().time()
        return [lease.until_s for lease in self._held.values() if lease.until_s > now_s]

    async def close(self) -> None:
        """Send what was said, give unfinished messages back, and end. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if self._loop is None:
            return
        if self._returning is not None:
            self._returning.cancel()
        await self._polls.close()
        now_s = self._loop.time()
        for message in self._buffer:
            self._say_of(message, pb.RETURN)
        self._buffer.clear()
        for (at, offset), lease in list(self._held.items()):
            if lease.until_s > now_s:
                self._add(at, Word(offset, lease, pb.RELEASE_SHARE, 0, Reply()))
        try:
            async with asyncio.timeout(self._context.connections.attempt_timeout_s):
                await self._until_answered()
        except TimeoutError:
            _log.warning("queue %s was closed before a broker answered: its messages come again later", self.group)
        await end(*self._burials.tasks, *self._words.sending)
        await self._burials.close()

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What the program says; from any thread

    def say(
        self, at: TopicPartition, offset: int, lease: Lease, word: pb.ShareWord, time_ms: int, reply: Reply
    ) -> None:
        if word == pb.RENEW and not time_ms:
            time_ms = round(self.settings.lease_s * 1000)
        self._in_loop(lambda: self._add(at, Word(offset, lease, word, time_ms, reply)), reply)

    def refuse(self, message: QueueMessage, delay_s: float, error: str, *, dead: bool, reply: Reply) -> None:
        def here() -> None:
            if dead or message.attempt >= self.settings.attempts_max:
                self._bury(message, error, reply)
            else:
                word = Word(message.offset, message.lease, pb.RELEASE_SHARE, round(delay_s * 1000), reply)
                self._add(partition_of(message), word)

        self._in_loop(here, reply)

    def _in_loop(self, do: Callable[[], None], reply: Reply) -> None:
        assert self._loop is not None, "messages come from a queue that was begun"
        self._context.connections.home.check_process()
        if threading.get_ident() == self._thread:
            do()
            return
        try:
            self._loop.call_soon_threadsafe(do)
        except RuntimeError:
            reply.fail(Closed("the client is closed"))

    # Inside

    def _begin(self) -> asyncio.AbstractEventLoop:
        if self.closed:
            raise Closed(f"queue {self.group!r} is closed")
        self._context.connections.home.check()
        if self._loop is None:
            self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        return self._loop

    def _request_of(self, partitions: list[pb.SharePartition], wait_s: float) -> pb.ShareFetchRequest:
        request = pb.ShareFetchRequest(
            group=self.group,
            member_id=self.member_id,
            partitions=partitions,
            max_records=self._wanted,
            max_bytes=self.settings.fetch_bytes_max,
            max_wait_ms=round(wait_s * 1000),
            lease_ms=round(self.settings.lease_s * 1000),
            filter=filter_text(self.settings.filter),
        )
        if self._start == "latest":
            request.latest = True
        elif self._start != "earliest":
            request.timestamp_us = round(self._start.timestamp() * 1_000_000)
        return request

    def _take_in(self, frame: ShareFetchFrame, asked_s: float) -> None:
        """Decode an answer; what may not be handed out is said at once."""
        assert self._loop is not None
        for part, leased in leased_of(frame, self.settings.decoded_bytes_max):
            length_s = part.lease_ms / 1000
            until_s = self._loop.time() + length_s - min(1.0, length_s / MARGIN_PART)
            ranges = [(each.first, each.deliveries) for each in part.ranges]
            lease = Lease(self, part.topic_id, part.epoch, part.lease, until_s, ranges, self._base)
            for found in leased:
                if isinstance(found, LedgerMQError):
                    self._polls.refusal = found
                else:
                    self._add_rows(lease, found.rows, TopicPartition(part.topic, part.partition), found.first)
        if self.closed:
            return
        if self.draining:
            self._return_untaken()
        if self._buffer and self._returning is None:
            wait_s = self.settings.lease_s / HELD_PART
            self._returning = self._loop.call_later(wait_s, self._return_untaken)

    def _add_rows(self, lease: Lease, rows: pa.RecordBatch, at: TopicPartition, first: int) -> None:
        """Hold leased messages for the program, and finish those that the filter leaves out."""
        offsets: Sequence[int] = range(first, first + rows.num_rows)
        if self._filter is not None:
            passes = self._filter.passes(rows)
            left_out = pc.indices_nonzero(pc.invert(passes)).to_pylist()
            for row in left_out if not self.closed else ():
                self._add(at, Word(first + row, lease, pb.ACCEPT, 0, Reply()))
                self.filtered += 1
            if left_out:
                rows = rows.filter(passes)
                offsets = pc.add(pc.indices_nonzero(passes), first).to_pylist()
        self._buffer.add(self._polls.level_of(at), messages_as(lease.kind, rows, at.topic, at.partition, offsets))

    def _from_buffer(self, records_max: int, *, at_once: bool = False) -> list[QueueMessage]:
        """Return messages whose turn it is. `at_once`: also if more urgent ones may arrive at any moment."""
        assert self._loop is not None
        now_s, found = self._loop.time(), list[QueueMessage]()
        waits = self._buffer.has_levels and not at_once
        coming = self._polls.coming(now_s) if waits else ()
        while len(found) < records_max and (message := self._buffer.take(coming)) is not None:
            if message.lease.until_s <= now_s:
                continue  # another member may have it
            if message.topic == self._polls.retry and not is_redriven(message):
                self._say_of(message, pb.ACCEPT)  # of a consumer group that has the same name
            elif message.attempt > self.settings.attempts_max:
                self._bury(message, "its last delivery was not answered", Reply())
            elif self._expiry.is_over(message.topic, message.headers, message.timestamp_us):
                self.expired += 1
                self._say_of(message, pb.ACCEPT)
            else:
                self._held[_place_of(message)] = message.lease
                found.append(message)
        if not self._buffer and self._returning is not None:
            self._returning.cancel()
            self._returning = None
        return found

    def _return_untaken(self) -> None:
        """Give messages back that the program has not taken in time, and forget leases that have ended."""
        assert self._loop is not None
        self._returning = None
        for message in self._buffer:
            self._say_of(message, pb.RETURN)
        self._buffer.clear()
        since_s = self._loop.time() - self.settings.lease_s
        self._held = {place: lease for place, lease in self._held.items() if lease.until_s > since_s}

    def _say_of(self, message: QueueMessage, word: pb.ShareWord) -> None:
        self._add(partition_of(message), Word(message.offset, message.lease, word, 0, Reply()))

    def _add(self, at: TopicPartition, word: Word) -> None:
        if word.word != pb.RENEW:
            self._held.pop((at, word.offset), None)
            self._finished.set()
        self._words.add(at, word)

    def _bury(self, message: QueueMessage, error: str, reply: Reply) -> None:
        self._held.pop(_place_of(message), None)
        self._finished.set()
        self._burials.begin(message, error, reply)

    def _note_dead_letter(self) -> None:
        self.dead_lettered += 1


def _place_of(message: QueueMessage) -> tuple[TopicPartition, int]:
    return partition_of(message), message.offset
