"""Messages with tags, the filters of them, and what a group has committed past them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ledgermq
from ledgermq.client.consuming.fetching.prefetch import Prefetch
from ledgermq.client.consuming.reading import FetchedRun
from tests.broker.cluster import Cluster
from tests.e2e.group_clients import committed

TAGS = ["A", "B", "C", None]


async def send(client: ledgermq.Client, topic: str, numbers: range, partitions: int = 1, **settings: int) -> None:
    """Records with their number as value and as header `n`; each fourth has tag A, B, C and none."""
    async with client.producer(**settings) as producer:
        for number in numbers:
            headers = {"n": str(number)} if number % 5 else None
            tag = TAGS[number % 4]
            producer.send(topic, f"{number}", partition=number % partitions, tag=tag, headers=headers)
        await producer.flush()


FILTERS: dict[str, Callable[[int], bool]] = {
    "A": lambda number: number % 4 == 0,
    "A || C": lambda number: number % 4 in (0, 2),
    "n > 50 AND NOT n BETWEEN 60 AND 70": lambda n: n % 5 > 0 and n > 50 and not 60 <= n <= 70,
    "n IS NULL OR TAGS IS NULL": lambda number: number % 5 == 0 or number % 4 == 3,
    "none": lambda number: False,
    "*": lambda number: True,
}


# -- the broker leaves out


async def send_in_batches(client: ledgermq.Client, topic: str, tags: list[str | None]) -> None:
    """A batch of ten records for each tag."""
    async with client.producer() as producer:
        for tag in tags:
            for _ in range(10):
                producer.send(topic, bytes(100), tag=tag)
            await producer.flush()


def noted_fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of batches that come from brokers; empty it before each consumer."""
    offsets: list[int] = []
    add = Prefetch.add

    def counted(self: Prefetch, run: FetchedRun) -> None:
        offsets.append(run.base_offset)
        add(self, run)

    monkeypatch.setattr(Prefetch, "add", counted)
    return offsets


async def is_committed(cluster: Cluster, offset: int) -> bool:
    return await committed(cluster, "g", "t") == {0: offset}
