"""Read a changing set of partitions: owns the fetcher's background task, the prefetch queue, and
the batch that the program is reading.

A consumer decides which partitions are read: fixed ones, or those that its group assigns. The
reader does not depend on why a partition is read, nor on groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.client.consuming.expiring import Expired, ExpiringRun
from ledgermq.client.consuming.fetching.fetch_stream import ALL_RECORDS, AtBrokers
from ledgermq.client.consuming.fetching.fetcher import Fetcher
from ledgermq.client.consuming.fetching.lanes import Lanes
from ledgermq.client.consuming.fetching.prefetch import DecodeAhead
from ledgermq.client.consuming.message import TABLE_SCHEMA, M
from ledgermq.client.consuming.reading import DecodedRun, FetchedRun, FlowStep, MessagesOf, Reading, Reports, go_past
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.expiry import expiries_of
from ledgermq.client.offsets import At
from ledgermq.client.settings.values import ConsumerSettings
from ledgermq.errors import InvalidConfig, LedgerMQError, Unavailable
from ledgermq.filters.filter import parse_filter
from ledgermq.runtime.tasks import end, raise_end
from ledgermq.runtime.wait import wait_until


@dataclass(slots=True)
class FilterCounts:
    """What the filter of a consumer has left out since the consumer began."""

    by_brokers: int = 0
    """Messages that brokers did not send."""
    by_client: int = 0
    """Messages that were fetched, and left out here."""
    batches: int = 0
    """Batches that were fetched, and left out as a whole."""
    batch_bytes: int = 0
    """Bytes of these batches, as they were sent."""
    failed: int = 0
    """Messages, among the others, that were left out because the filter function failed on them: it raised, or took
    too long. Brokers log where; a batch that is fetched again counts again.
    """

    @property
    def messages(self) -> int:
        """Return the number of all messages that were left out."""
        return self.by_brokers + self.by_client


class Reader(Generic[M]):
    """Reads the partitions that its consumer chooses. `check` is called by every call that waits,
    and raises errors that concern the whole consumer.

    `out_of_range`: where to continue when an offset does not exist; None: calls raise
    OffsetOutOfRange. `messages_of` makes the program's messages from rows; `reports` are called with
    the messages that the program receives or a filter has left out, `expired` with those that have expired.
    `on_route` is called with each topic whose route was looked up. `unfiltered`: a topic of which all messages
    pass, because they have passed the filter before. `group`: its name in metrics.
    """

    def __init__(
        self,
        context: ClientContext,
        settings: ConsumerSettings,
        *,
        out_of_range: At | None,
        check: Callable[[], None],
        messages_of: MessagesOf[M],
        expired: Expired,
        reports: Reports = Reports(),  # noqa: B008  immutable
        unfiltered: str = "",
        on_route: Callable[[str], None] = lambda topic: None,
        group: str = "",
    ) -> None:
        self._metrics, self._group = context.metrics, group
        self._connections = context.connections
        self._settings = settings
        self._check = check
        self._messages_of = messages_of
        self._reports = reports
        self._on_expired = expired
        self._filter_counts = FilterCounts()
        self._failed_before = 0
        """`failed_in_filter` of the readings that were removed."""
        self._went_past = False
        """Whether the filter has left out a whole batch since the last look."""
        self._ttl_of = context.routing.ttl_of
        self._now_us = context.sources.now_us
        self.readings: list[Reading] = []
        self._prefetch = Lanes(
            settings.prefetch_bytes_max, DecodeAhead(context.connections.threads, settings.decoded_bytes_max)
        )
        self._filter = parse_filter(settings.filter)
        self._at_brokers = ALL_RECORDS
        if self._filter is not None:
            self._at_brokers = AtBrokers(tuple(sorted(self._filter.tags or ())), self._filter.function)
        self._unfiltered = unfiltered
        self._fetcher = Fetcher(
            context, self.readings, self._prefetch, settings, out_of_range, on_route, self._wanted_of
        )
        self._background: asyncio.Task[None] | None = None
        self.run: DecodedRun[M] | None = None
        self.interrupted: Callable[[], bool] = lambda: False
        """Returns whether `next_run` returns without a batch, because its caller has other messages."""
        self._aside: dict[Reading, DecodedRun[M]] = {}
        """By held-back reading: the batch that the program was reading."""

    # -- which partitions

    def start(self) -> None:
        self._background = asyncio.get_running_loop().create_task(self._fetcher.run(), name="ledgermq consumer")
        self._background.add_done_callback(lambda _: self.wake())

    @property
    def started(self) -> bool:
        return self._background is not None

    def add(self, partition: TopicPartition, topic_id: int, position: int, *, paused: bool = False) -> Reading:
        reading = Reading(partition, topic_id, position, self._connections.backoff(), paused=paused)
        self.readings.append(reading)
        self._fetcher.wake()
        return reading

    def remove(self, readings: Iterable[Reading]) -> None:
        """Stop reading these partitions; the program receives none of their messages any longer."""
        gone = list(readings)
        for reading in gone:
            self.readings.remove(reading)
            self._failed_before += reading.failed_in_filter
            reading.generation += 1
        self._drop(gone)

    def seek(self, positions: Iterable[tuple[Reading, int]], not_before_s: float = 0.0) -> None:
        """Continue from other offsets; fetching begins at `not_before_s`, a time of the loop's
        clock.
        """
        moved = list(positions)
        for reading, position in moved:
            reading.seek(position)
            reading.not_before_s = not_before_s
        self._drop([reading for reading, _ in moved])

    def pause(self, reading: Reading) -> None:
        """Stop fetching. Batches that were fetched ahead are dropped, because they would occupy
        the room of other partitions.
        """
        if not reading.paused:
            reading.paused = True
            reading.answered()
            self.seek([(reading, reading.position)])

    def resume(self, reading: Reading) -> None:
        reading.paused = False
        self._fetcher.wake()

    def hold_back(self, reading: Reading) -> None:
        """Hand out none of its messages until `go_on`: its consumer can take no further ones at
        present.
        """
        reading.turn(FlowStep.HOLD_BACK)
        if self.run is not None and self.run.reading is reading:
            if not self.run.spent:
                self._aside[reading] = self.run
            self.run = None

    def go_on(self, reading: Reading) -> None:
        reading.turn(FlowStep.GO_ON)
        self._fetcher.wake()
        self.wake()

    def _make_room(self) -> None:
        """Park the reading if its held-back batches keep other partitions from being fetched."""
        if self._prefetch.is_full:
            parked = list({run.reading: None for run in self._prefetch.runs if run.reading.held_back})
            for reading in parked:
                reading.turn(FlowStep.PARK)
            self.seek((reading, reading.position) for reading in parked)

    def _drop(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            self._fetcher.moved(reading)
            if self.run is not None and self.run.reading is reading:
                self.run = None
            self._aside.pop(reading, None)
        self._prefetch.drop_unwanted()

    @property
    def last_error(self) -> LedgerMQError | None:
        """Return the error of the partition that has failed for longest; None: all are served."""
        failing = [reading for reading in self.readings if reading.failing_since_s is not None]
        return min(failing, key=lambda reading: reading.failing_since_s or 0.0).last_error if failing else None

    @property
    def filter_counts(self) -> FilterCounts:
        """Return what the filter has left out."""
        failed = self._failed_before + sum(reading.failed_in_filter for reading in self.readings)
        return replace(self._filter_counts, failed=failed)

    # -- reading

    async def fetch(self, max_records: int, deadline: float) -> list[M]:
        """Return at least one message, or an empty list: at the deadline, or after skipping others."""
        messages: list[M] = []
        if max_records < 1:
            raise InvalidConfig(f"max_records must be at least 1, not {max_records}")
        run = await self.next_run(deadline)
        while run is not None:
            messages += run.take(max_records - len(messages))
            if len(messages) >= max_records or not messages:
                break
            run = self._current(wait_for_error=True)
        return messages

    async def fetch_arrow(self, max_records: int, deadline: float) -> pa.Table:
        """Return a table like `fetch`."""
        batches: list[pa.RecordBatch] = []
        count = 0
        if max_records < 1:
            raise InvalidConfig(f"max_records must be at least 1, not {max_records}")
        run = await self.next_run(deadline)
        while run is not None:
            batches.append(run.take_arrow(max_records - count))
            count += batches[-1].num_rows
            if count >= max_records or not count:
                break
            run = self._current(wait_for_error=True)
        return pa.Table.from_batches(batches, schema=TABLE_SCHEMA)

    async def next_run(self, deadline: float | None) -> DecodedRun[M] | None:
        """Wait for the batch to take messages from; None at the deadline, or after the filter has left out a batch.

        Raises pending errors once no message is left to read.
        """
        loop = asyncio.get_running_loop()
        if isinstance(self.run, ExpiringRun):
            await asyncio.sleep(0)  # all its messages may have expired, and those of many batches behind it
        while True:
            self._prefetch.changed.clear()
            self._went_past = False
            if (run := self._current()) is not None:
                return run
            if self._went_past:
                await asyncio.sleep(0)  # a filter may leave out many batches one after the other
                return None
            if self.interrupted():
                return None
            self._make_room()
            self.raise_trouble(loop.time())
            if deadline is not None and loop.time() >= deadline:
                if self._prefetch.wait_no_longer():
                    continue
                return None
            await wait_until(self._prefetch.changed, self._next_look(deadline))

    def wake(self) -> None:
        """Wake calls that wait for messages, so that they check their conditions again."""
        self._prefetch.changed.set()

    async def changed(self, deadline: float) -> bool:
        """Wait for `wake` or for messages. Return False at the deadline. Raises pending errors."""
        self.raise_trouble(asyncio.get_running_loop().time())
        self._prefetch.changed.clear()
        return await wait_until(self._prefetch.changed, deadline)

    def _next_look(self, deadline: float | None) -> float | None:
        """Return when to stop waiting: at the deadline, or once a partition has failed too long."""
        patience_s = self._settings.request_timeout_s
        moments = [r.failing_since_s + patience_s + 0.001 for r in self.readings if r.failing_since_s is not None]
        moments.append(asyncio.get_running_loop().time() + patience_s)
        return min([*moments, deadline] if deadline is not None else moments)

    def raise_trouble(self, now_s: float) -> None:
        """Raise pending errors: of the consumer, of a partition that is refused, or of one that
        was not served for `request_timeout_s`.
        """
        self._check()
        self.raise_if_dead()
        for reading in self.readings:
            if reading.refusal is not None:
                refusal, reading.refusal = reading.refusal, None
                raise refusal
        for reading in self.readings:
            since_s = reading.failing_since_s
            if since_s is not None and now_s - since_s > self._settings.request_timeout_s:
                reading.failing_since_s = now_s
                raise Unavailable(
                    f"{reading.partition} was not served for {now_s - since_s:.1f} s: {reading.last_error}"
                ) from reading.last_error

    def raise_if_dead(self) -> None:
        if self._background is not None and self._background.done():
            raise_end(self._background, "the consumer")

    def _current(self, *, wait_for_error: bool = False) -> DecodedRun[M] | None:
        """Return the batch to take messages from; None: there is none, or the filter has left out all of one.

        A damaged batch raises each time, until the program seeks past it. With `wait_for_error`
        this returns None instead, so that the caller first returns the good messages before it.
        """
        if self.run is not None and not self.run.spent:
            return self.run
        self.run = next((run for reading, run in self._aside.items() if not reading.held_back), None)
        if self.run is not None:
            return self._aside.pop(self.run.reading)
        while (fetched := self._prefetch.head()) is not None:
            reading = fetched.reading
            try:
                rows = self._prefetch.rows(fetched)
            except LedgerMQError:
                if wait_for_error:
                    return None
                raise
            if reading.end is not None:
                if fetched.base_offset >= reading.end:
                    reading.position = max(reading.position, reading.end)  # the records between them were deleted
                rows = rows.slice(0, max(0, reading.end - fetched.base_offset))
            if self._at_brokers != ALL_RECORDS:  # what lies between was left out by the broker
                self._filter_counts.by_brokers += max(0, fetched.base_offset - reading.position)
            skip = max(0, reading.position - fetched.base_offset)
            rows = rows.slice(skip)
            rows = rows.slice(0, self._prefetch.take(fetched, rows.num_rows))
            if rows.num_rows:
                self.run = self._run_of(fetched, rows, skip)
                return self.run
        if self._at_brokers != ALL_RECORDS:
            self._go_past_left_out()
        return None

    def _wanted_of(self, topic: str) -> AtBrokers:
        """Return what brokers may leave out of a topic."""
        return ALL_RECORDS if topic == self._unfiltered else self._at_brokers

    def _go_past_left_out(self) -> None:
        """Continue behind what the broker has left out. Nothing that was fetched waits to be read before it."""
        for reading in self.readings:
            end = reading.fetch_at if reading.end is None else min(reading.fetch_at, reading.end)
            if reading.position < end and not reading.held_back:
                self._went_past = True
                self._filter_counts.by_brokers += end - reading.position
                go_past(reading, end, self._reports)

    def _run_of(self, fetched: FetchedRun, rows: pa.RecordBatch, skip: int) -> DecodedRun[M] | None:
        """Return the batch without what the filter leaves out; None: it leaves out all, and the reading goes on.

        `rows`: those behind its first `skip`.
        """
        reading, offset = fetched.reading, fetched.base_offset + skip
        offsets: Sequence[int] = range(offset, offset + rows.num_rows)
        end = offset + rows.num_rows
        if self._filter is not None and reading.partition.topic != self._unfiltered:
            passes = self._filter.passes(rows)
            if fetched.passes is not None:
                judged = pa.Array.from_buffers(
                    pa.bool_(), rows.num_rows, [None, pa.py_buffer(fetched.passes)], offset=skip
                )
                passes = pc.and_(passes, judged)
            self._filter_counts.by_client += rows.num_rows - passes.true_count
            if not passes.true_count:
                self._filter_counts.batches += 1
                self._filter_counts.batch_bytes += len(fetched.data)
                self._went_past = True
                go_past(reading, end, self._reports)
                return None
            if passes.true_count < rows.num_rows:
                rows = rows.filter(passes)
                offsets = pc.add(pc.indices_nonzero(passes), offset).to_pylist()
        if self._metrics is not None:
            self._metrics.consumed(reading.partition.topic, self._group, rows.num_rows)
        expires_us = None
        if not self._settings.deliver_expired:
            expires_us = expiries_of(rows, self._ttl_of(reading.partition.topic))
        if expires_us is None:
            return DecodedRun(reading, rows, offsets, end, self._messages_of, self._reports)
        given = (reading, rows, offsets, end, self._messages_of, self._reports)
        return ExpiringRun(*given, expires_us, self._now_us, self._on_expired)

    # -- end

    async def close(self) -> None:
        await end(self._background)
        self._prefetch.clear()
        self.run = None
        self._aside.clear()
        self.wake()
