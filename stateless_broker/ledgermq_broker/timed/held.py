"""Hold what one term of a bundle knows of its timed messages, and wake the tasks that work on them.

The state is ahead of its log, so it is valid only as long as `IssuedState` says so. It changes in turns
of the event loop that wait for nothing, and each change goes into the log in that turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ledgermq.errors import LedgerMQError
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.timed.hidden_logs import HiddenLogs
from ledgermq_broker.timed.pace import Pace
from ledgermq_broker.timed.state.blocks import Key, Source
from ledgermq_broker.timed.state.bundle_timers import BundleTimers
from ledgermq_broker.timed.state.limits import TimerLimits
from ledgermq_broker.timed.state.memory.merged import Chunk
from ledgermq_broker.timed.state.memory.waiting import Waiting
from ledgermq_broker.timed.state.places import RangeId
from ledgermq_broker.timed.state.sizes import Size
from ledgermq_ledger.topics.catalog import Catalog

T = TypeVar("T")

READ_BYTES = 1024 * 1024
"""Of one read of blocks, about."""
BATCH_BYTES = 512
"""What a stored batch takes beside its block, about."""

InFlight = dict["asyncio.Future[Any]", int]
"""Appends to the intake that have no outcome yet, and when the first of their rows is due. Those of
producers are kept for the whole term of the bundle, also while its state is loaded again (W14).
"""


def exists_in(catalog: Catalog) -> Callable[[int], bool]:
    """Return whether messages that wait for a topic, named by its id, are still wanted (W7)."""
    return lambda topic_id: not catalog.is_removed(topic_id, catalog.offset)


@dataclass
class Held:
    """`timers`: the pure state. `waiting`: the rows in memory. `loaded`: the near ranges whose rows are all
    there. `closed_us`: the highest time that a delivery has begun with; nothing new is due at or below it.
    """

    state: IssuedState
    timers: BundleTimers
    logs: HiddenLogs
    limits: TimerLimits
    pace: Pace
    closed_us: int
    durable: Key
    """The watermark that is durable."""
    waiting: Waiting = field(default_factory=Waiting)
    loaded: set[RangeId] = field(default_factory=set)
    in_flight: InFlight = field(default_factory=dict)
    """Those of this state only."""
    behind_us: int | None = None
    """When the first row may be due of the blocks that are durable and not in memory yet; None: there are none."""
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the intake is in memory."""
    due_changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be something to deliver earlier than before."""
    moves_changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be something to flush, load or turn."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when an append to the intake has an outcome, and when its rows are in memory."""
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when log starts may move."""
    troubles: dict[str, LedgerMQError] = field(default_factory=dict)
    """Kind of work -> why its last attempt failed."""
    restoring: int = 0
    """Calls that read bodies again: nothing is evicted meanwhile."""

    @property
    def bundle(self) -> int:
        return self.logs.owner.bundle

    @property
    def size_bytes(self) -> int:
        """Return how many bytes wait: those of blocks in ranges, and of blocks in the intake with rows in memory."""
        return self.timers.waiting_bytes + self.waiting.sizes.stored.total

    def size_of(self, principal: int) -> Size:
        """Return what a principal has here."""
        stored_bytes, index_bytes = self.waiting.sizes.of(principal)
        return Size(self.timers.waiting_bytes_of(principal) + stored_bytes, index_bytes)

    def messages_of(self, topic_id: int) -> int:
        """Return how many messages of a topic wait: in ranges, and in memory. Those of a range that is being
        loaded count in both.
        """
        return self.waiting.topics[topic_id] + self.timers.waiting_of(topic_id, self.loaded)

    def lowest_in_flight_us(self) -> int | None:
        """Return when the first row may be due that is on its way into memory: its append to the intake has
        no outcome yet, or it is durable and has to be read.
        """
        lowest_us = min(self.in_flight.values(), default=None)
        if self.behind_us is None or lowest_us is None:
            return self.behind_us if lowest_us is None else lowest_us
        return min(lowest_us, self.behind_us)

    def note_added(self) -> None:
        """Note that rows came into memory; drop bodies that exceed the budget."""
        if not self.restoring:
            self.waiting.evict(self.limits.body_bytes)
        self.due_changed.set()

    def note_moved(self) -> None:
        """Note that ranges changed or went."""
        self.freed.set()
        self.due_changed.set()
        self.moves_changed.set()

    async def with_chunk(self, find: Callable[[Waiting], Chunk | None], use: Callable[[Chunk | None], T]) -> T:
        """Return what `use` returns for the rows that `find` finds, with all their bodies. None: there are none.
        Both run in a turn of the pace, and in one turn of the event loop. Raises the errors of
        `HiddenLogs.read`, NotOwner.
        """
        self.restoring += 1
        try:
            while True:
                async with self.pace.turn():
                    self.state.check()
                    chunk = find(self.waiting)
                    if chunk is None or not chunk.missing:
                        return use(chunk)
                await self.restore(chunk.missing)
        finally:
            self.restoring -= 1

    async def restore(self, missing: Iterable[Source]) -> None:
        """Read the bodies of these blocks again, in their order. Raises as `HiddenLogs.read`.

        A read takes about the bytes of the blocks that are wanted: what follows a single one is not read with it.
        """
        wanted = deque(missing)
        while wanted:
            source = wanted[0]
            end = self.logs.durable_end(source.range_id)
            here = [each for each in wanted if each.range_id == source.range_id]
            only = {each.offset for each in here}
            size_bytes = 1 if len(here) == 1 else self.waiting.bytes_of(here) + BATCH_BYTES * len(here)
            for read, block in await self.logs.read(
                source.range_id, source.offset, end, min(READ_BYTES, size_bytes), only
            ):
                if wanted and read == wanted[0]:
                    wanted.popleft()
                    self.waiting.restore(read, block)
