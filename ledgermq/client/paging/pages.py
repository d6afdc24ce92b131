"""Read a bounded page of records of one topic (`client.read`), without a consumer: one question to each owner.

A page says where the next one begins, by partition. With order="oldest" it goes from there up, with "newest" from
there down. Records of one partition stay in their order; those of several are merged by their timestamps, and one that
is ahead of this process's clock counts as of now, so that it does not stay on top forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal

import pyarrow as pa

from ledgermq.buffers import MIB
from ledgermq.client.connection.routing import AtOwners
from ledgermq.client.consuming.message import Message, decode_run, messages_of_table
from ledgermq.client.consuming.start import Start, check_known, check_start, wishes
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.offsets import At
from ledgermq.client.paging.rows import Answer, Down, Rows, Seen, merged
from ledgermq.errors import (
    CorruptFrame,
    InvalidRequest,
    LedgerMQError,
    OffsetOutOfRange,
    RetriableError,
    Unavailable,
    UnknownPartition,
)
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
PARTITION_BYTES, TOGETHER = 256 * 1024, 8
"""What is asked for each of several partitions at least, and of how many: a broker reads so much of so many at once."""
FILTERED_PAGES_MAX = 8  # a page that goes down, by a filter, looks at as many bytes as so many pages may have
STEP_RECORDS = 64
"""Records that are looked at first, going down, in all partitions together. Steps double."""

PageOrder = Literal["oldest", "newest"]


@dataclass(frozen=True, slots=True)
class Page:
    """Records of a topic, oldest or newest first. `table`: them with the columns of `Consumer.fetch_arrow`. `next`: by
    partition where the following page begins: pass it as `start`. `at_end`: nothing more was there. `log_start`,
    `high_watermark`: by partition.
    """

    topic: str
    topic_id: int
    table: pa.Table
    next: Mapping[int, int]
    at_end: bool
    log_start: Mapping[int, int]
    high_watermark: Mapping[int, int]
    _made: list[Message] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def messages(self) -> Sequence[Message]:
        """Return the records as messages, which are made when they are first asked for."""
        if len(self._made) != self.table.num_rows:
            self._made[:] = messages_of_table(self.table)
        return self._made


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
        for name, given, most in (("records_max", records_max, RECORDS_MAX), ("bytes_max", bytes_max, 4 * BYTES_MAX)):
            if type(given) is not int or not 0 < given <= most:
                raise InvalidRequest(f"{name} must be 1 to {most}, not {given!r}")
        if order not in ("oldest", "newest"):
            raise InvalidRequest(f"order must be 'oldest' or 'newest', not {order!r}")
        deadline = self._context.connections.deadline() + wait_s
        wanted = await self._partitions(topic, partitions, deadline)
        begin = start or ("earliest" if order == "oldest" else "latest")
        places = check_start(begin, [topic], self._context.connections.now())
        check_known(places, wanted)
        run = _Run(self._context, topic, deadline, records_max, bytes_max, filter_text)
        if order == "newest":
            return await run.newest(await self._resolved(places, wanted, "latest", deadline))
        return await run.oldest(await self._resolved(places, wanted, "earliest", deadline), wait_s)

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
        self._seen = Seen()
        self._sent_bytes_max = bytes_max  # once so much has come, no partition is asked again

    async def oldest(self, positions: Mapping[TopicPartition, int], wait_s: float) -> Page:
        loop = asyncio.get_running_loop()
        until_s, poll_s = loop.time() + wait_s, min(POLL_S_MAX, self._context.connections.attempt_timeout_s / 2)
        answers: dict[TopicPartition, Answer] = {}
        self._sent_bytes_max += PARTITION_BYTES * len(positions) if len(positions) > 1 else 0
        await self._more(answers, positions, 0, self._records_max if len(positions) == 1 else 1)
        while not any(each.rows for each in answers.values()) and until_s - loop.time() > 0.001:
            positions = {at: answers[at].next if at in answers else offset for at, offset in positions.items()}
            answers |= await self._first(positions, min(poll_s, until_s - loop.time()))
        if len(positions) == 1:
            for each in answers.values():
                each.places.extend(range(each.rows.fitting(self._records_max, self._bytes_max)))
        else:
            await self._take_by_time(answers, positions)
        after = {at: answers[at].after if at in answers else offset for at, offset in positions.items()}
        parts = [(each.rows.table(0, len(each.places)), each.places) for each in answers.values() if each.places]
        table = merged(parts, sum(len(places) for _, places in parts))
        return self._page(table, after, at_end=all(offset >= self._end(at) for at, offset in after.items()))

    async def _more(
        self, answers: dict[TopicPartition, Answer], positions: Mapping[TopicPartition, int], count: int, least: int
    ) -> None:
        """Ask owners until `least` records of each partition are there that are not in the page, which has `count`; or
        all; or until so much has come that only partitions are asked of which nothing came. A question is for about as
        much as the page has room for: a broker sends whole batches, and does not know how many records that is.
        """

        def lacks(at: TopicPartition) -> bool:
            if (known := answers.get(at)) is None:
                return True
            has_room = known.left < least and known.rows.data_bytes < self._bytes_max
            return has_room and known.next < known.high_watermark and self._seen.bytes < self._sent_bytes_max

        while asked := [at for at in positions if lacks(at)]:
            have = min(answers[at].left if at in answers else 0 for at in asked)
            begin = {at: answers[at].next if at in answers else positions[at] for at in asked}
            try:
                found = await self._ask(begin, 0.0, self._records_max - count - have)
            except (OffsetOutOfRange, RetriableError):
                if any(at not in answers for at in asked):
                    raise
                return  # retention, or a takeover: the page has what came before
            moved = any(at not in answers or each.next > begin[at] for at, each in found.items())
            for at, each in found.items():
                if at in answers:
                    answers[at].join(each)
                else:
                    answers[at] = each
            if not moved:
                return

    async def _take_by_time(
        self, answers: dict[TopicPartition, Answer], positions: Mapping[TopicPartition, int]
    ) -> None:
        """Take the oldest records that a page has room for. It ends before its time where a partition has more of them
        that are not there: younger ones would come before those.
        """
        now_us, count, size = self._context.sources.now_us(), 0, 0
        heads: list[tuple[int, TopicPartition]] = []
        empty = [*positions]
        while count < self._records_max:
            if any(at not in answers or not answers[at].left for at in empty):
                await self._more(answers, {at: positions[at] for at in empty}, count, 1)
            for at in empty:
                if at in answers and (answer := answers[at]).left:
                    heappush(heads, (min(answer.rows.times_us[len(answer.places)], now_us), at))
            ran_out = [at for at in empty if at in answers and answers[at].runs_out]
            if not heads or any(count or answers[at].next > positions[at] for at in ran_out):
                break
            _, at = heappop(heads)
            taken = answers[at].places
            size += answers[at].rows.sizes[len(taken)]
            if count and size > self._bytes_max:
                break
            taken.append(count)
            count, empty = count + 1, [at]

    async def newest(self, positions: Mapping[TopicPartition, int]) -> Page:
        wanted = [*positions]
        first = await self._context.offsets.find(dict.fromkeys(wanted, "earliest"), self._deadline)
        last = await self._context.offsets.find(dict.fromkeys(wanted, "latest"), self._deadline)
        self._ends = {at.partition: (first[at], last[at]) for at in wanted}
        step = max(1, min(self._records_max, STEP_RECORDS) // len(wanted))
        tops = {at: max(first[at], min(offset, last[at])) for at, offset in positions.items()}
        downs = {at: Down(top, top, first[at], step) for at, top in tops.items()}
        heads: list[tuple[int, TopicPartition]] = []
        now_us, count, size, empty = self._context.sources.now_us(), 0, 0, [*downs]
        while count < self._records_max:
            await self._fill({at: downs[at] for at in empty})
            for at in empty:
                if down_left := downs[at].left:
                    heappush(heads, (-min(downs[at].rows.times_us[down_left - 1], now_us), at))
            if not heads or (count and downs[at].runs_out):
                break
            _, at = heappop(heads)
            down = downs[at]
            size += down.rows.sizes[down.left - 1]
            if count and size > self._bytes_max:
                break
            down.left -= 1
            down.at = down.rows.offsets[down.left]
            down.places.append(count)
            count, empty = count + 1, [at]
        below = {at: down.at if down.left else down.low for at, down in downs.items()}
        for down in downs.values():
            down.let_go()
        parts = [(pa.concat_tables(reversed(down.taken)), down.places[::-1]) for down in downs.values() if down.places]
        at_end = all(offset <= downs[at].log_start for at, offset in below.items())
        return self._page(merged(parts, count), below, at_end=at_end)

    async def _fill(self, downs: Mapping[TopicPartition, Down]) -> None:
        """Read more of partitions of which everything is taken, until each has a record or is at its beginning."""
        while empty := [at for at, down in downs.items() if down.runs_out]:
            if self._filter is not None and self._seen.bytes >= FILTERED_PAGES_MAX * self._bytes_max:
                return  # the page would come too late, and say no place to go on
            lows = {at: max(downs[at].log_start, downs[at].low - downs[at].step) for at in empty}
            try:
                read = await self._ranges({at: (low, downs[at].low) for at, low in lows.items()})
            except OffsetOutOfRange:  # retention has removed a part of it since
                for at, begin in (
                    await self._context.offsets.find(dict.fromkeys(empty, "earliest"), self._deadline)
                ).items():
                    downs[at].log_start = begin
                continue
            for at, rows in read.items():
                downs[at].read(rows, lows[at])

    async def _ranges(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, Rows]:
        """Return the records of each partition from one offset up to, without, another."""
        found = {at: Rows() for at in ranges}
        lows, backoff = {at: low for at, (low, _) in ranges.items()}, self._context.connections.backoff()
        while lows:
            moved = False
            records = sum(ranges[at][1] - low for at, low in lows.items())
            for at, answer in (await self._ask(lows, 0.0, records, self._seen.bytes_of(records))).items():
                high = ranges[at][1]
                moved = moved or answer.next > lows[at]
                answer.rows.keep(high)
                found[at].extend(answer.rows)
                lows[at] = answer.next
                if answer.next >= high:
                    del lows[at]
            if not moved and not await backoff.pause(deadline=self._deadline):
                raise Unavailable(f"no broker has sent the records of {next(iter(lows))} in time")
        return found

    async def _first(self, positions: Mapping[TopicPartition, int], wait_s: float) -> dict[TopicPartition, Answer]:
        """Ask each owner by itself, and return what the first ones say that have records, or all."""
        owner = self._context.routing.owner
        groups: dict[str | None, dict[TopicPartition, int]] = {}
        for at, offset in positions.items():
            groups.setdefault(owner(*at), {})[at] = offset
        asking = {asyncio.create_task(self._ask(group, wait_s, self._records_max)) for group in groups.values()}
        found: dict[TopicPartition, Answer] = {}
        try:
            while asking and not any(each.rows for each in found.values()):
                done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    found |= task.result()
        finally:
            await end_tasks(*asking)
        return found

    async def _ask(
        self, positions: Mapping[TopicPartition, int], wait_s: float, records_max: int, likely_bytes: int = 0
    ) -> dict[TopicPartition, Answer]:
        """Ask the owners, each for all of its partitions. Those that had no turn in an answer are left out.
        `likely_bytes`: what the records take, encoded; 0: as many as `records_max` that the filter lets pass.
        """
        likely_bytes = likely_bytes or self._seen.bytes_of_passing(records_max)

        async def ask(at: BrokerApi, partitions: Sequence[TopicPartition]) -> list[Answer | LedgerMQError | None]:
            asked = [
                pb.FetchPartition(topic=each.topic, partition=each.partition, offset=positions[each])
                for each in partitions
            ]
            together = min(len(asked), TOGETHER) if len(asked) > 1 else 0
            sent_bytes = max(min(likely_bytes, self._bytes_max), PARTITION_BYTES * together)
            request = pb.FetchRequest(partitions=asked, max_bytes=sent_bytes, max_wait_ms=round(wait_s * 1000))
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
    ) -> dict[TopicPartition, Answer | LedgerMQError]:
        """Decode up to `records_max` records of each partition of an answer. Raises CorruptFrame, …"""
        pieces = frame.payload
        payload, begin = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces)), 0
        found: dict[TopicPartition, Answer | LedgerMQError] = {}
        for part in frame.header.partitions:
            at = TopicPartition(part.topic, part.partition)
            if at not in positions:
                raise CorruptFrame(f"a broker answered for {at}, for which it was not asked")
            if part.HasField("error"):
                found[at] = error_from_proto(part.error)
                continue
            answer = Answer(part.log_start, part.high_watermark, positions[at])
            for batch in part.batches:
                data, begin = payload[begin : begin + batch.length], begin + batch.length
                self._seen.records += batch.record_count
                self._seen.bytes += batch.length
                if len(answer.rows) >= records_max:
                    continue
                where = f"{at}, offset {batch.base_offset}"
                rows = decode_run(data, batch.crc, batch.record_count, DECODED_BYTES_MAX, where)
                skip = max(0, answer.next - batch.base_offset)
                offsets: Sequence[int] = range(batch.base_offset + skip, batch.base_offset + batch.record_count)
                rows = rows.slice(skip)
                if self._filter is not None:
                    passes = self._filter.passes(rows)
                    self._seen.judged += rows.num_rows
                    offsets = [each for each, kept in zip(offsets, passes.to_pylist(), strict=True) if kept]
                    rows = rows.filter(passes)
                    self._seen.passed += rows.num_rows
                room = records_max - len(answer.rows)
                answer.next = max(answer.next, batch.base_offset + batch.record_count)
                if len(offsets) > room:
                    answer.next = offsets[room]
                answer.rows.add(rows.slice(0, room), *at, offsets[:room])
            found[at] = answer
        return found

    def _end(self, at: TopicPartition) -> int:
        """Return the partition's end; one that had no turn may have more."""
        return self._ends[at.partition][1] if at.partition in self._ends else 2**63

    def _page(self, table: pa.Table, after: Mapping[TopicPartition, int], *, at_end: bool) -> Page:
        route = self._context.routing.known(self._topic)
        return Page(
            self._topic,
            0 if route is None else route.topic_id,
            table,
            {at.partition: offset for at, offset in after.items()},
            at_end,
            {partition: ends[0] for partition, ends in self._ends.items()},
            {partition: ends[1] for partition, ends in self._ends.items()},
        )
