"""Fetch batches in the background: keep every partition on a stream from its owner, through
redirects, dead brokers and seeks.

One task looks for partitions that no stream feeds, groups them by owner and level of priority, and
opens a stream for each group. No broker's error ends the task: errors that may pass are retried with
back-off, others become the partition's `refusal`, which the program's next call raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from ledgermq.client.connection.routing import UNKNOWN_TOPIC_GRACE_S
from ledgermq.client.consuming.fetching.direct_reads import CannotRead, DirectReads
from ledgermq.client.consuming.fetching.fetch_stream import ALL_RECORDS, AtBrokersOf, FetchStream
from ledgermq.client.consuming.fetching.lanes import Lanes
from ledgermq.client.consuming.fetching.prefetch import Prefetch
from ledgermq.client.consuming.reading import Reading
from ledgermq.client.context import ClientContext
from ledgermq.client.offsets import At
from ledgermq.client.settings.values import ConsumerSettings
from ledgermq.errors import (
    LedgerMQError,
    NotOwner,
    OffsetOutOfRange,
    ResourceExhausted,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.protocol.levels import level_of
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.wait import wait_until

_log = get_log("ledgermq.consumer")

PARTITIONS_PER_STREAM_MAX = 4096
BYTES_S = 60.0
"""How long batches are requested from their owner after a location that it named could not be
read.

Usually the segment was trimmed; soon the owner locates all records of that age elsewhere.
"""


class Fetcher:
    """Feeds the partitions of `readings`, the reader's own list, which changes. `on_route(topic)`
    is called when a topic's route was looked up.

    `out_of_range`: where to continue when an offset does not exist; None: the program's call
    raises.
    """

    def __init__(
        self,
        context: ClientContext,
        readings: list[Reading],
        prefetch: Lanes,
        settings: ConsumerSettings,
        out_of_range: At | None,
        on_route: Callable[[str], None],
        wanted_of: AtBrokersOf = lambda topic: ALL_RECORDS,
    ) -> None:
        self._connections = context.connections
        self._routing = context.routing
        self._offsets = context.offsets
        self._readings = readings
        self._prefetch = prefetch
        self._settings = settings
        self._out_of_range_at = out_of_range
        self._on_route = on_route
        self._wanted_of = wanted_of
        threads = context.connections.threads
        self._direct = (
            DirectReads(settings.direct_reads, threads) if settings.direct_reads and threads is not None else None
        )
        self._bytes_until_s: dict[str, float] = {}
        """By owner: until when its batches are requested from it, because a location that it named
        could not be read.
        """
        self._wake = asyncio.Event()
        self._refreshing: set[str] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                due_s = self._turn(group, asyncio.get_running_loop().time())
                await wait_until(self._wake, due_s)

    def wake(self) -> None:
        """Wake the task, which looks for partitions to fetch."""
        self._wake.set()

    def moved(self, reading: Reading) -> None:
        """End the stream that feeds the partition, because the program moved, paused or removed
        it.
        """
        if reading.stream is not None:
            reading.stream.cancel()
        self._wake.set()

    def _turn(self, group: asyncio.TaskGroup, now_s: float) -> float | None:
        due_s: list[float] = []
        feeds: dict[tuple[str, int, int], list[Reading]] = {}
        for topic in dict.fromkeys(reading.partition.topic for reading in self._readings):
            route = self._routing.known(topic)
            if route is None or self._routing.is_old(route):
                self._refresh(group, topic)
            else:
                due_s.append(route.learned_at_s + self._routing.age_s_max + 0.001)
        for reading in self._readings:
            if not reading.idle:
                continue
            if reading.not_before_s > now_s:
                due_s.append(reading.not_before_s)
                continue
            owner = self._routing.owner(*reading.partition)
            if reading.resetting:
                self._reset(group, reading, now_s, due_s)
            elif owner is None:
                self._refresh(group, reading.partition.topic)
            else:
                levels = self._routing.levels_of(reading.partition.topic)
                feeds.setdefault((owner, self._level_of(reading), levels), []).append(reading)
        if any(levels > 1 for _, _, levels in feeds):
            self._prefetch.expect({self._level_of(reading) for reading in self._readings if not reading.paused})
        for (owner, level, levels), readings in feeds.items():
            lane = self._prefetch.lane(level, levels)
            for first in range(0, len(readings), PARTITIONS_PER_STREAM_MAX):
                self._open(group, owner, lane, readings[first : first + PARTITIONS_PER_STREAM_MAX])
        # A moment later, because timers may fire a moment early.
        return min(due_s) + 0.001 if due_s else None

    def _level_of(self, reading: Reading) -> int:
        return level_of(reading.partition.partition, self._routing.levels_of(reading.partition.topic))

    def _open(self, group: asyncio.TaskGroup, owner: str, lane: Prefetch, readings: Sequence[Reading]) -> None:
        answered = lane.opens()
        stream = group.create_task(self._feed(owner, lane, readings, answered))
        stream.add_done_callback(lambda _: answered())
        self._fed_by(stream, readings)

    def _fed_by(self, stream: asyncio.Task[None], readings: Sequence[Reading]) -> None:
        """Let a task feed these partitions until it ends. A task that `moved` cancels before its first step
        runs no line of its coroutine, so its end is noted here.
        """
        for reading in readings:
            reading.stream = stream

        def ended(_: asyncio.Task[None]) -> None:
            for reading in readings:
                if reading.stream is stream:
                    reading.stream = None
            self._wake.set()

        stream.add_done_callback(ended)

    async def _feed(
        self, owner: str, lane: Prefetch, readings: Sequence[Reading], answered: Callable[[], None]
    ) -> None:
        own = asyncio.current_task()

        def refused(reading: Reading, error: LedgerMQError) -> None:
            reading.stream = None
            self._partition_failed(reading, error, owner)
            self._wake.set()

        async def is_moved() -> bool:
            with suppress(LedgerMQError):
                await self._look_for_others([reading for reading in readings if reading.stream is own], owner)
            return any(
                self._routing.owner(*reading.partition) not in (None, owner)
                for reading in readings
                if reading.stream is own
            )

        connection, direct = self._connections.at(owner), self._direct_at(owner)
        stream = FetchStream(
            connection,
            readings,
            lane,
            self._settings.fetch_bytes_max,
            refused,
            is_moved,
            direct,
            self._wanted_of,
            answered,
        )
        try:
            if await stream.run():
                await self._look_for_others([reading for reading in readings if reading.stream is own], owner)
            else:
                await lane.wait_for_room()
        except CannotRead as error:
            _log.info("reading through %s for %.0f s: %s", owner, BYTES_S, error)
            self._bytes_until_s[owner] = asyncio.get_running_loop().time() + BYTES_S
        except LedgerMQError as error:
            self._stream_failed([reading for reading in readings if reading.stream is own], error, owner)

    def _direct_at(self, owner: str) -> DirectReads | None:
        if asyncio.get_running_loop().time() < self._bytes_until_s.get(owner, 0.0):
            return None
        self._bytes_until_s.pop(owner, None)
        return self._direct

    async def _look_for_others(self, readings: Sequence[Reading], owner: str) -> None:
        """Look up the routes at other brokers: no batch came for a while, so another broker may
        have taken over from an owner that is stopped.
        """
        for topic in dict.fromkeys(reading.partition.topic for reading in readings):
            await self._routing.refresh(
                topic, self._connections.deadline(self._settings.request_timeout_s), avoid=owner
            )

    def _stream_failed(self, readings: Sequence[Reading], error: LedgerMQError, owner: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if error.retriable and not isinstance(error, ResourceExhausted):
            self._routing.unreachable(owner)
        for reading in readings:
            reading.failed(error, now_s)
            if not error.retriable:
                self._refuse(reading, error)

    def _partition_failed(self, reading: Reading, error: LedgerMQError, owner: str) -> None:
        now_s = asyncio.get_running_loop().time()
        reading.failed(error, now_s)
        if isinstance(error, NotOwner):
            self._routing.redirected(*reading.partition, error.owner, refused_by=owner)
            if error.owner and reading.backoff.attempts == 1:
                reading.not_before_s = now_s
        elif isinstance(error, OffsetOutOfRange):
            self._out_of_range(reading, error)
        elif isinstance(error, UnknownTopic | UnknownPartition):
            self._routing.redirected(*reading.partition, None, refused_by=owner)
            if reading.failing_since_s is not None and now_s - reading.failing_since_s > UNKNOWN_TOPIC_GRACE_S:
                self._refuse(reading, error)
        elif not error.retriable:
            self._refuse(reading, error)
        else:  # a broker that cannot serve it may be a former owner
            self._routing.redirected(*reading.partition, None, refused_by=owner)

    def _out_of_range(self, reading: Reading, error: OffsetOutOfRange) -> None:
        if self._out_of_range_at is None:
            self._refuse(reading, OffsetOutOfRange(f"{reading.partition}, offset {reading.fetch_at}: {error.message}"))
        else:
            reading.resetting = True

    def _reset(self, group: asyncio.TaskGroup, reading: Reading, now_s: float, due_s: list[float]) -> None:
        """Look up where to continue, after the program has received all that was fetched before."""
        if reading.position == reading.fetch_at:
            self._fed_by(group.create_task(self._ask_reset(reading)), [reading])
        else:
            due_s.append(now_s + 0.1)

    async def _ask_reset(self, reading: Reading) -> None:
        assert self._out_of_range_at is not None, "without a reset the program's call raises"
        generation = reading.generation
        try:
            deadline = self._connections.deadline(self._settings.request_timeout_s)
            found = await self._offsets.find({reading.partition: self._out_of_range_at}, deadline)
            if reading.generation == generation:
                reading.seek(found[reading.partition])
        except LedgerMQError as error:
            reading.failed(error, asyncio.get_running_loop().time())

    def _refuse(self, reading: Reading, error: LedgerMQError) -> None:
        reading.refusal = error
        self._prefetch.changed.set()

    def _refresh(self, group: asyncio.TaskGroup, topic: str) -> None:
        if topic not in self._refreshing:
            self._refreshing.add(topic)
            group.create_task(self._ask_route(topic))

    async def _ask_route(self, topic: str) -> None:
        try:
            await self._routing.refresh(topic, self._connections.deadline(self._settings.request_timeout_s))
            self._on_route(topic)
            now_s = asyncio.get_running_loop().time()
            for reading in self._readings:
                if (
                    reading.partition.topic == topic
                    and reading.idle
                    and self._routing.owner(*reading.partition) is None
                ):
                    reading.failed(
                        reading.last_error or Unavailable(f"{reading.partition} has no owner at present"), now_s
                    )
        except LedgerMQError as error:
            now_s = asyncio.get_running_loop().time()
            for reading in self._readings:
                if reading.partition.topic == topic and reading.idle:
                    reading.failed(error, now_s)
                    if not error.retriable:
                        self._refuse(reading, error)
            self._prefetch.changed.set()
        finally:
            self._refreshing.discard(topic)
            self._wake.set()
