"""Asks partitions' owners for offsets: the earliest, the latest, the first at or after a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from ledgermq.client.connections import Connections
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.record import microseconds_of
from ledgermq.client.routing import Routing
from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto

At = Literal["earliest", "latest"] | datetime


class Offsets:
    def __init__(self, connections: Connections, routing: Routing) -> None:
        self._connections = connections
        self._routing = routing

    async def find(self, wanted: Mapping[TopicPartition, At], deadline: float) -> dict[TopicPartition, int]:
        """Every partition's answer. Redirects and dead brokers are followed until the deadline.

        Raises UnknownTopic, UnknownPartition, …, Unavailable.
        """
        found: dict[TopicPartition, int] = {}
        backoff = self._connections.backoff()
        while True:
            missing = {partition: at for partition, at in wanted.items() if partition not in found}
            if not missing:
                return found
            last = await self._round(missing, found, deadline)
            if last is None:
                continue
            wait_s = backoff.next_s(last.retry_after_ms)
            if asyncio.get_running_loop().time() + wait_s >= deadline:
                names = ", ".join(f"{topic}/{partition}" for topic, partition in missing if (topic, partition) not in found)
                raise Unavailable(f"no answer in time about {names}: {last}") from last
            await asyncio.sleep(wait_s)
            for topic in {partition.topic for partition in missing if partition not in found}:
                if any(self._routing.owner(*partition) is None for partition in missing if partition.topic == topic):
                    await self._routing.refresh(topic, deadline)

    async def _round(self, missing: Mapping[TopicPartition, At], found: dict[TopicPartition, int], deadline: float) -> LedgerMQError | None:
        """Ask each owner once, all at the same time: one that is silent delays no other. Returns the last error that a retry may cure."""
        by_owner: dict[str, list[TopicPartition]] = {}
        last: LedgerMQError | None = None
        for partition in missing:
            await self._routing.route(partition.topic, deadline)
            if (owner := self._routing.owner(*partition)) is not None:
                by_owner.setdefault(owner, []).append(partition)
            else:
                last = Unavailable(f"nobody owns {partition.topic}/{partition.partition} at present")
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._ask(*one, missing, found, deadline)) for one in by_owner.items()]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return next((error for task in asked if (error := task.result()) is not None), last)

    async def _ask(
        self,
        owner: str,
        partitions: list[TopicPartition],
        missing: Mapping[TopicPartition, At],
        found: dict[TopicPartition, int],
        deadline: float,
    ) -> LedgerMQError | None:
        request = pb.ListOffsetsRequest(queries=[_query(partition, missing[partition]) for partition in partitions])
        try:
            answer = await self._connections.ask_at(owner, lambda at: at.list_offsets(request), deadline)
            if len(answer.results) != len(partitions):
                raise Unavailable(f"{owner} answered {len(answer.results)} of {len(partitions)} questions")
        except InvalidRequest:
            raise
        except LedgerMQError as error:
            if not error.retriable:
                raise
            self._routing.unreachable(owner)
            return error
        last: LedgerMQError | None = None
        for asked, result in zip(partitions, answer.results, strict=True):
            if not result.HasField("error"):
                found[asked] = result.offset
                continue
            last = error_from_proto(result.error)
            if not last.retriable:
                raise last
            named = last.owner if isinstance(last, NotOwner) else None  # whoever cannot serve it may be an owner of before
            self._routing.redirected(asked.topic, asked.partition, named, refused_by=owner)
        return last


def _query(partition: TopicPartition, at: At) -> pb.OffsetQuery:
    query = pb.OffsetQuery(topic=partition.topic, partition=partition.partition)
    if isinstance(at, datetime):
        query.timestamp_us = microseconds_of(at)
    elif at == "earliest":
        query.earliest = True
    else:
        query.latest = True
    return query
