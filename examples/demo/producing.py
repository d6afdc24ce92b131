"""Produce all flights into the topic with an idempotent producer; half-way, the broker that owns
most partitions is killed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flights import Flights
from rich.progress import Progress

import ledgermq

TOPIC = "flights"
PARTITIONS = 8
PIECE = 2000
LOOK_S = 0.005
ANSWERS_ON_THEIR_WAY_S = 0.1
"""Answers of the killed broker that arrive within this time were sent before the kill."""


@dataclass
class Outage:
    """Effect of the kill. `gaps`: for how many seconds each partition of the killed broker stored
    nothing.
    """

    address: str
    partitions: set[int]
    killed_at: float
    last_stored: dict[int, float]
    gaps: dict[int, float] = field(default_factory=dict)

    def stored(self, partition: int, now: float) -> None:
        if partition not in self.partitions or partition in self.gaps:
            return
        if now > self.killed_at + ANSWERS_ON_THEIR_WAY_S:
            self.gaps[partition] = now - self.last_stored.get(partition, self.killed_at)
        self.last_stored[partition] = now

    @property
    def gap_s(self) -> float:
        return max(self.gaps.values(), default=0.0)


class Watch:
    """Records under way, one queue per key, because only records of the same key are acknowledged
    in order.
    """

    def __init__(self, on_stored: Callable[[int], None]) -> None:
        self.outage: Outage | None = None
        self.stored = 0
        self.last_stored: dict[int, float] = {}
        """When a record of a partition was last seen to be stored."""
        self._on_stored = on_stored
        self._queues: dict[bytes, deque[ledgermq.Delivery]] = {}

    def add(self, keys: Sequence[bytes], deliveries: Sequence[ledgermq.Delivery]) -> None:
        for key, delivery in zip(keys, deliveries, strict=True):
            self._queues.setdefault(key, deque()).append(delivery)

    def look(self) -> None:
        """Look at the records. Raises the error of a record that could not be stored."""
        now = time.monotonic()
        for queue in self._queues.values():
            while queue and queue[0].done():
                partition = queue.popleft().result().partition
                self.stored += 1
                if self.outage is None:
                    self.last_stored[partition] = now
                else:
                    self.outage.stored(partition, now)
        self._on_stored(self.stored)

    async def look_on(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)


@dataclass(frozen=True)
class Produced:
    records: int
    bytes: int
    seconds: float
    outage: Outage

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds


async def produce(
    client: ledgermq.Client, flights: Flights, kill: Callable[[str], None], progress: Progress
) -> Produced:
    """Produce the flights. `kill`: ends the broker at an address.

    On return every record is acknowledged; raises if one could not be stored.
    """
    bar = progress.add_task("Producing", total=len(flights), note="")
    watch = Watch(lambda stored: progress.update(bar, completed=stored))
    begun = time.monotonic()
    async with client.producer(idempotent=True) as producer:
        looking = asyncio.create_task(watch.look_on())
        for first in range(0, len(flights), PIECE):
            if watch.outage is None and first >= len(flights) // 2:
                watch.outage = await kill_busiest(client, kill, watch.last_stored)
                progress.update(bar, note=f"broker {watch.outage.address} killed")
            keys = flights.keys[first : first + PIECE]
            values = flights.values[first : first + PIECE]
            records = [ledgermq.Record(value, key) for value, key in zip(values, keys, strict=True)]
            watch.add(keys, await producer.send_many(TOPIC, records))
        await producer.flush()
        looking.cancel()
    watch.look()
    seconds = time.monotonic() - begun
    if watch.outage is None or watch.stored != len(flights):
        raise RuntimeError(f"{watch.stored} of {len(flights)} flights were acknowledged")
    return Produced(len(flights), sum(map(len, flights.values)), seconds, watch.outage)


async def kill_busiest(client: ledgermq.Client, kill: Callable[[str], None], last_stored: dict[int, float]) -> Outage:
    owners = [partition.owner for partition in (await client.describe_topic(TOPIC)).partitions]
    address, _ = Counter(owner for owner in owners if owner).most_common(1)[0]
    partitions = {number for number, owner in enumerate(owners) if owner == address}
    kill(address)
    return Outage(address, partitions, time.monotonic(), dict(last_stored))
