"""Compute lag: how far positions are behind the ends of their partitions, in messages and in
seconds.

Seconds are the age of the first unread message, by its producer's timestamp. To read it, one batch
of each lagging partition is fetched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from ledgermq.buffers import MIB
from ledgermq.client.consuming.message import decode_run, messages_of
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError, NotOwner, OffsetOutOfRange, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import FetchFrame
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.tasks import all_of

AT_ONCE = 16
"""Number of partitions that are looked up at the same time."""
DECODED_BYTES_MAX = 256 * MIB


@dataclass(frozen=True, slots=True)
class Lag:
    """`messages`: number of unread ones, up to the end. `seconds`: age of the next one, None if
    its producer gave no time. Exactly 0 and 0.0 once everything was read.
    """

    messages: int
    seconds: float | None


class Lags:
    """Looks up lags at the partitions' owners."""

    def __init__(self, context: ClientContext) -> None:
        self._connections = context.connections
        self._routing = context.routing
        self._offsets = context.offsets
        self._sources = context.sources

    async def find(self, positions: Mapping[TopicPartition, int], deadline: float) -> dict[TopicPartition, Lag]:
        """Return the lag of each position. Raises UnknownTopic, UnknownPartition, …, Unavailable."""
        ends = await self._offsets.find(dict.fromkeys(positions, "latest"), deadline)
        lags = {at: Lag(0, 0.0) for at, position in positions.items() if position >= ends[at]}
        behind = [at for at in positions if at not in lags]
        found = await all_of((self._lag(at, positions[at], ends[at], deadline) for at in behind), AT_ONCE)
        lags |= dict(zip(behind, found, strict=True))
        return {at: lags[at] for at in positions}

    async def _lag(self, at: TopicPartition, position: int, end: int, deadline: float) -> Lag:
        try:
            timestamp_us = await self._timestamp(at, position, deadline)
        except OffsetOutOfRange:
            # Deleted before it was read: the next one is the first that is kept.
            position = (await self._offsets.find({at: "earliest"}, deadline))[at]
            if position >= end:
                return Lag(0, 0.0)
            timestamp_us = await self._timestamp(at, position, deadline)
        seconds = None if timestamp_us is None else max(0.0, (self._sources.now_us() - timestamp_us) / 1e6)
        return Lag(end - position, seconds)

    async def _timestamp(self, at: TopicPartition, offset: int, deadline: float) -> int | None:
        """Return the timestamp of the first message at or after `offset`, in microseconds."""
        backoff = self._connections.backoff()
        asked = pb.FetchPartition(topic=at.topic, partition=at.partition, offset=offset)
        request = pb.FetchRequest(partitions=[asked], max_bytes=1)
        while True:
            try:
                return _first_timestamp(await self._fetch(at, request, deadline), at, offset)
            except LedgerMQError as error:
                wait_s = backoff.next_s(error.retry_after_ms)
                if not error.retriable or asyncio.get_running_loop().time() + wait_s >= deadline:
                    raise
                await asyncio.sleep(wait_s)

    async def _fetch(self, at: TopicPartition, request: pb.FetchRequest, deadline: float) -> FetchFrame:
        owner = self._routing.owner(*at)
        if owner is None:
            await self._routing.refresh(at.topic, deadline)
            owner = self._routing.owner(*at)
        if owner is None:
            raise Unavailable(f"{at} has no owner at present")
        try:
            frame = await self._connections.ask_at(owner, lambda line: line.fetch_once(request), deadline)
            for part in frame.header.partitions:
                if part.HasField("error"):
                    raise error_from_proto(part.error)
        except NotOwner as error:
            self._routing.redirected(*at, error.owner, refused_by=owner)
            raise
        except LedgerMQError as error:
            if error.retriable:
                self._routing.unreachable(owner)
            raise
        return frame


def _first_timestamp(frame: FetchFrame, at: TopicPartition, offset: int) -> int | None:
    for part in frame.header.partitions:
        for batch in part.batches[:1]:
            data = memoryview(b"".join(frame.payload))[: batch.length]
            where = f"{at}, offset {batch.base_offset}"
            rows = decode_run(data, batch.crc, batch.record_count, DECODED_BYTES_MAX, where)
            skip = max(0, offset - batch.base_offset)
            return messages_of(rows.slice(skip, 1), *at, offset)[0].timestamp_us
    raise Unavailable(f"the owner of {at} sent no record at offset {offset}")
