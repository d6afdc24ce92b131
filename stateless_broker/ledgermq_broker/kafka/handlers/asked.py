"""One request as its handler gets it, and what several handlers do with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq_ledger import keys

PARTITIONS_AT_ONCE = 16
TOPICS_PER_CALL = 1000

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


async def named_topics(
    api: BrokerApi, names: Iterable[str], *, auto_create: bool = False, fresh: bool = False
) -> dict[str, pb.TopicInfo]:
    """Return what is answered for each of these topics, an error, too, by calls of bounded size. Topics of the system
    are left out. `fresh`: as the controller knows them now. Raises what DescribeTopics raises.
    """
    wanted = [name for name in dict.fromkeys(names) if not keys.is_internal(name)]
    found: dict[str, pb.TopicInfo] = {}
    for at in range(0, len(wanted), TOPICS_PER_CALL):
        request = pb.DescribeTopicsRequest(
            topics=wanted[at : at + TOPICS_PER_CALL], auto_create=auto_create, fresh=fresh and at == 0
        )
        found |= {info.name: info for info in (await api.describe_topics(request)).topics}
    return found


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
