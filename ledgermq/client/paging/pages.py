"""Read a bounded page of records of one topic (`client.read`), without a consumer: one question to each owner.

A page says where the next one begins, by partition. With order="oldest" it goes from there up, with "newest" from
there down. Records of one partition stay in their order; those of several are merged by their timestamps, and one that
is ahead of this process's clock counts as of now, so that it does not stay on top forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Literal

from ledgermq.buffers import MIB
from ledgermq.client.connection.routing import AtOwners
from ledgermq.client.consuming.message import Message, decode_run, messages_of
from ledgermq.client.consuming.start import Start, check_known, check_start, wishes
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.offsets import At
from ledgermq.errors import CorruptFrame, InvalidRequest, LedgerMQError, OffsetOutOfRange, Unavailable, UnknownPartition
from ledgermq.filters.filter import parse_filter
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import FetchFrame
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.tasks import end as end_tasks

PARTITIONS_MAX = 256
RECORDS_MAX = 10_000
BYTES_MAX = 8 * MIB
DECODED_BYTES_MAX = 256 * MIB
POLL_S_MAX = 5.0
"""One question waits at a broker no longer than this, and half of the time of an attempt."""
STEP_RECORDS = 64
"""Records that are looked at first, going down, in all partitions together. Steps double."""
STEP_RECORDS_MAX = 4096

PageOrder = Literal["oldest", "newest"]


@dataclass(frozen=True, slots=True)
class Page:
    """Records of a topic, oldest or newest first. `next`: by partition where the following page begins: pass it as
    `start`. `at_end`: nothing more was there. `log_start`, `high_watermark`: by partition.
    """

    topic: str
    topic_id: int
    messages: Sequence[Message]
    next: Mapping[int, int]
    at_end: bool
    log_start: Mapping[int, int]
    high_watermark: Mapping[int, int]


@dataclass(slots=True)
class _Answer:
    """What a partition's owner answered. `next`: behind the last record that it sent."""

    log_start: int
    high_watermark: int
    next: int
    messages: list[Message] = field(default_factory=list)


@dataclass(slots=True)
class _Down:
    """A partition that is read downwards: what was read below `at`, oldest first, and not taken yet begins at `low`."""

    at: int
    low: int
    log_start: int
    step: int
    messages: list[Message] = field(default_factory=list)


class Pages:
    def __init__(self, context: ClientContext) -> None:
        self._context = context

    async def read(
        self,
        topic: str,
        partitions: int | Iterable[int] | None,
        start: Start | None,
        order: PageOrder,
        records_max: int,
        bytes_max: int,
        wait_s: float,
        filter_text: str,
    ) -> Page:
        """See `Client.read`."""
        _check("records_max", records_max, RECORDS_MAX)
        _check("bytes_max", bytes_max, 4 * BYTES_MAX)
        if order not in ("oldest", "newest"):
            raise InvalidRequest(f"order must be 'oldest' or 'newest', not {order!r}")
        deadline = self._context.connections.deadline() + wait_s
        wanted = await self._partitions(topic, partitions, deadline)
        begin = start or ("earliest" if order == "oldest" else "latest")
        given = check_start(begin, [topic], self._context.connections.now())
        check_known(given, wanted)
        run = _Run(self._context, topic, deadline, records_max, bytes_max, filter_text)
        if order == "newest":
            return await run.newest(await self._resolved(given, wanted, "latest", deadline))
        return await run.oldest(await self._resolved(given, wanted, "earliest", deadline), wait_s)

    async def _partitions(
        self, topic: str, partitions: int | Iterable[int] | None, deadline: float
    ) -> list[TopicPartition]:
        route = await self._context.routing.route(topic, deadline)
        chosen = [partitions] if isinstance(partitions, int) else partitions
        numbers = range(route.partitions) if chosen is None else sorted(set(chosen))
        if not 0 < len(numbers) <= PARTITIONS_MAX:
            raise InvalidRequest(
                f"a page has records of 1 to {PARTITIONS_MAX} partitions, not of {len(numbers)}: name them"
            )
        if numbers[0] < 0:
            raise UnknownPartition(f"topic {topic!r} has no partition {numbers[0]}")
        return [TopicPartition(topic, number) for number in numbers]

    async def _resolved(
        self,
        start: Mapping[TopicPartition, int] | At,
        wanted: Sequence[TopicPartition],
        otherwise: Literal["earliest", "latest"],
        deadline: float,
    ) -> dict[TopicPartition, int]:
        places = wishes(start, wanted, otherwise)
        asked = {at: place for at, place in places.items() if not isinstance(place, int)}
        found = await self._context.offsets.find(asked, deadline) if asked else {}
        return {at: place if isinstance(place, int) else found[at] for at, place in places.items()}


class _Run:
    """One page that is being read."""

    def __init__(
        self, context: ClientContext, topic: str, deadline: float, records_max: int, bytes_max: int, text: str
    ) -> None:
        self._context = context
        self._topic = topic
        self._deadline = deadline
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._filter = parse_filter(text)
        self._ends: dict[int, tuple[int, int]] = {}
        """Log start and high watermark, by partition."""

    async def oldest(self, positions: Mapping[TopicPartition, int], wait_s: float) -> Page:
        loop = asyncio.get_running_loop()
        until_s, poll_s = loop.time() + wait_s, min(POLL_S_MAX, self._context.connections.attempt_timeout_s / 2)
        answers = await self._ask(positions, 0.0, self._records_max)
        while not any(each.messages for each in answers.values()) and until_s - loop.time() > 0.001:
            positions = {at: answers[at].next if at in answers else offset for at, offset in positions.items()}
            answers |= await self._first(positions, min(poll_s, until_s - loop.time()))
        taken: list[Message] = []
        after = {at: answers[at].next if at in answers else offset for at, offset in positions.items()}
        left = {at: iter(each.messages) for at, each in answers.items()}
        heads = [(self._time(each.messages[0]), at, next(left[at])) for at, each in answers.items() if each.messages]
        heapify(heads)
        size = 0
        while heads:
            _, at, message = heads[0]
            size += _size(message)
            if taken and (len(taken) >= self._records_max or size > self._bytes_max):
                break
            taken.append(message)
            if (following := next(left[at], None)) is None:
                heappop(heads)
            else:
                heapreplace(heads, (self._time(following), at, following))
        after |= {at: message.offset for _, at, message in heads}
        return self._page(taken, after, at_end=all(offset >= self._end(at) for at, offset in after.items()))

    async def newest(self, positions: Mapping[TopicPartition, int]) -> Page:
        wanted = [*positions]
        first = await self._context.offsets.find(dict.fromkeys(wanted, "earliest"), self._deadline)
        last = await self._context.offsets.find(dict.fromkeys(wanted, "latest"), self._deadline)
        self._ends = {at.partition: (first[at], last[at]) for at in wanted}
        step = max(1, min(self._records_max, STEP_RECORDS) // len(wanted))
        tops = {at: max(first[at], min(offset, last[at])) for at, offset in positions.items()}
        downs = {at: _Down(top, top, first[at], step) for at, top in tops.items()}
        taken: list[Message] = []
        heads: list[tuple[int, TopicPartition]] = []
        size, empty = 0, [*downs]
        while len(taken) < self._records_max:
            await self._fill({at: downs[at] for at in empty})
            for at in empty:
                if downs[at].messages:
                    heappush(heads, (-self._time(downs[at].messages[-1]), at))
            if not heads:
                break
            _, at = heappop(heads)
            message = downs[at].messages[-1]
            size += _size(message)
            if taken and size > self._bytes_max:
                break
            taken.append(downs[at].messages.pop())
            downs[at].at = message.offset
            empty = [at]
        below = {at: down.at if down.messages else down.low for at, down in downs.items()}
        return self._page(taken, below, at_end=all(offset <= downs[at].log_start for at, offset in below.items()))

    async def _fill(self, downs: Mapping[TopicPartition, _Down]) -> None:
        """Read more of partitions of which everything is taken, until each has a record or is at its beginning."""
        while empty := [at for at, down in downs.items() if not down.messages and down.low > down.log_start]:
            lows = {at: max(downs[at].log_start, downs[at].low - downs[at].step) for at in empty}
            try:
                read = await self._ranges({at: (low, downs[at].low) for at, low in lows.items()})
            except OffsetOutOfRange:  # retention has removed a part of it since
                for at, begin in (
                    await self._context.offsets.find(dict.fromkeys(empty, "earliest"), self._deadline)
                ).items():
                    downs[at].log_start = begin
                continue
            for at, messages in read.items():
                down = downs[at]
                down.messages, down.low, down.step = messages, lows[at], min(2 * down.step, STEP_RECORDS_MAX)

    async def _ranges(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, list[Message]]:
        """Return the records of each partition from one offset up to, without, another."""
        found: dict[TopicPartition, list[Message]] = {at: [] for at in ranges}
        lows, backoff = {at: low for at, (low, _) in ranges.items()}, self._context.connections.backoff()
        while lows:
            moved = False
            for at, answer in (await self._ask(lows, 0.0, STEP_RECORDS_MAX)).items():
                high = ranges[at][1]
                moved = moved or answer.next > lows[at]
                found[at] += [each for each in answer.messages if each.offset < high]
                lows[at] = answer.next
                if answer.next >= high:
                    del lows[at]
            if not moved and not await backoff.pause(deadline=self._deadline):
                raise Unavailable(f"no broker has sent the records of {next(iter(lows))} in time")
        return found

    async def _first(self, positions: Mapping[TopicPartition, int], wait_s: float) -> dict[TopicPartition, _Answer]:
        """Ask each owner by itself, and return what the first ones say that have records, or all."""
        owner = self._context.routing.owner
        groups: dict[str | None, dict[TopicPartition, int]] = {}
        for at, offset in positions.items():
            groups.setdefault(owner(*at), {})[at] = offset
        asking = {asyncio.create_task(self._ask(group, wait_s, self._records_max)) for group in groups.values()}
        found: dict[TopicPartition, _Answer] = {}
        try:
            while asking and not any(each.messages for each in found.values()):
                done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    found |= task.result()
        finally:
            await end_tasks(*asking)
        return found

    async def _ask(
        self, positions: Mapping[TopicPartition, int], wait_s: float, records_max: int
    ) -> dict[TopicPartition, _Answer]:
        """Ask the owners, each for all of its partitions. Those that had no turn in an answer are left out."""

        async def ask(at: BrokerApi, partitions: Sequence[TopicPartition]) -> list[_Answer | LedgerMQError | None]:
            asked = [
                pb.FetchPartition(topic=each.topic, partition=each.partition, offset=positions[each])
                for each in partitions
            ]
            request = pb.FetchRequest(partitions=asked, max_bytes=self._bytes_max, max_wait_ms=round(wait_s * 1000))
            found = self._answers(await at.fetch_once(request), positions, records_max)
            return [found.get(each) for each in partitions]

        context = self._context
        found = await AtOwners(context.connections, context.routing, ask).find([*positions], self._deadline)
        answers = {at: each for at, each in found.items() if each is not None}
        for at, each in answers.items():
            self._ends[at.partition] = each.log_start, each.high_watermark
        return answers

    def _answers(
        self, frame: FetchFrame, positions: Mapping[TopicPartition, int], records_max: int
    ) -> dict[TopicPartition, _Answer | LedgerMQError]:
        """Decode up to `records_max` records of each partition of an answer. Raises CorruptFrame, …"""
        payload, begin = memoryview(b"".join(frame.payload)), 0
        found: dict[TopicPartition, _Answer | LedgerMQError] = {}
        for part in frame.header.partitions:
            at = TopicPartition(part.topic, part.partition)
            if at not in positions:
                raise CorruptFrame(f"a broker answered for {at}, for which it was not asked")
            if part.HasField("error"):
                found[at] = error_from_proto(part.error)
                continue
            answer = _Answer(part.log_start, part.high_watermark, positions[at])
            for batch in part.batches:
                data, begin = payload[begin : begin + batch.length], begin + batch.length
                if len(answer.messages) >= records_max:
                    continue
                where = f"{at}, offset {batch.base_offset}"
                rows = decode_run(data, batch.crc, batch.record_count, DECODED_BYTES_MAX, where)
                skip = max(0, answer.next - batch.base_offset)
                offsets: Sequence[int] = range(batch.base_offset + skip, batch.base_offset + batch.record_count)
                rows = rows.slice(skip)
                if self._filter is not None:
                    passes = self._filter.passes(rows)
                    offsets = [each for each, kept in zip(offsets, passes.to_pylist(), strict=True) if kept]
                    rows = rows.filter(passes)
                room = records_max - len(answer.messages)
                answer.next = max(answer.next, batch.base_offset + batch.record_count)
                if len(offsets) > room:
                    answer.next = offsets[room]
                answer.messages += messages_of(rows.slice(0, room), *at, offsets[:room])
            found[at] = answer
        return found

    def _time(self, message: Message) -> int:
        return min(message.timestamp_us or 0, self._context.sources.now_us())

    def _end(self, at: TopicPartition) -> int:
        """Return the partition's end; one that had no turn may have more."""
        return self._ends[at.partition][1] if at.partition in self._ends else 2**63

    def _page(self, messages: list[Message], after: Mapping[TopicPartition, int], *, at_end: bool) -> Page:
        route = self._context.routing.known(self._topic)
        return Page(
            self._topic,
            0 if route is None else route.topic_id,
            messages,
            {at.partition: offset for at, offset in after.items()},
            at_end,
            {partition: ends[0] for partition, ends in self._ends.items()},
            {partition: ends[1] for partition, ends in self._ends.items()},
        )


def _size(message: Message) -> int:
    return len(message.key or b"") + len(message.value or b"")


def _check(name: str, given: int, most: int) -> None:
    if type(given) is not int or not 0 < given <= most:
        raise InvalidRequest(f"{name} must be 1 to {most}, not {given!r}")
