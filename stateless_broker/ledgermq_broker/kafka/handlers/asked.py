"""One request as its handler gets it, and what several handlers do with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ledgermq.protocol.api import BrokerApi

PARTITIONS_AT_ONCE = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """`api`: that of the caller who was admitted. `client_host`: as Kafka shows it, with a slash."""

    api: BrokerApi
    message: Any
    version: int
    client_id: str = ""
    client_host: str = ""


Handler = Callable[[Asked], Awaitable[Any]]
"""Returns the answer: the API's response."""


async def all_here(of_partition: Callable[[int], Awaitable[Sequence[T] | None]]) -> list[T]:
    """Return what this broker coordinates, over all partitions of an internal topic. `of_partition` returns None for
    a partition that does not exist. Raises what it raises.
    """
    found: list[T] = []
    first = 0
    while True:
        parts = await asyncio.gather(*(of_partition(number) for number in range(first, first + PARTITIONS_AT_ONCE)))
        for part in parts:
            found += part or ()
        if None in parts:
            return found
        first += PARTITIONS_AT_ONCE
