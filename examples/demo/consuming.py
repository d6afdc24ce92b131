"""Read everything from the topic, and prove that each flight arrived exactly once, in order per
key.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from flights import NUMBER
from producing import TOPIC
from rich.progress import Progress

import ledgermq

FETCH_RECORDS_MAX = 5000
SILENCE_S_MAX = 60.0


class WrongData(Exception):
    """The broker did not keep its promise."""


@dataclass(frozen=True)
class Consumed:
    records: int
    seconds: float

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds


async def consume(client: ledgermq.Client, expected: int, progress: Progress) -> Consumed:
    """Consume the topic. Raises WrongData."""
    bar = progress.add_task("Consuming", total=expected, note="")
    check = Check(expected)
    begun = heard = time.monotonic()
    async with client.consumer(TOPIC, start="earliest") as consumer:
        ends = await consumer.end_offsets()
        missing = sum(ends.values())
        while missing:
            messages = await consumer.fetch(FETCH_RECORDS_MAX, timeout=1.0)
            for message in messages:
                check.add(message)
            missing -= len(messages)
            progress.update(bar, completed=check.count)
            heard = time.monotonic() if messages else heard
            if time.monotonic() - heard > SILENCE_S_MAX:
                raise WrongData(f"{missing} records never came")
    seconds = time.monotonic() - begun
    check.finish()
    return Consumed(check.count, seconds)


class Check:
    """`expected`: flights, numbered from 0."""

    def __init__(self, expected: int) -> None:
        self.count = 0
        self._seen = bytearray(expected)
        self._last_of_key: dict[bytes | None, int] = {}
        self._next_offset: dict[int, int] = {}

    def add(self, message: ledgermq.Message) -> None:
        number = json.loads(message.value)[NUMBER]
        if self._seen[number]:
            raise WrongData(f"flight {number} came twice")
        if number <= self._last_of_key.get(message.key, -1):
            raise WrongData(
                f"flight {number} of carrier {message.key!r} came after flight {self._last_of_key[message.key]}"
            )
        if message.offset != self._next_offset.get(message.partition, 0):
            raise WrongData(f"partition {message.partition} has a gap before offset {message.offset}")
        self._seen[number] = 1
        self._last_of_key[message.key] = number
        self._next_offset[message.partition] = message.offset + 1
        self.count += 1

    def finish(self) -> None:
        if self.count != len(self._seen):
            raise WrongData(f"{len(self._seen) - self.count} flights never came")
