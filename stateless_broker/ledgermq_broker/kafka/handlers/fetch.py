"""Answer Fetch: every partition that was asked for is in the answer, with its true end.

    full fetches only       a client that names a session is asked to begin without one
    nothing to read         wait as long as the client allows, also if it asks for no partition
    only errors             wait up to `ERRORS_WAIT_S`: a client asks again at once
    more than 4,096         partitions are asked for in turns
    size                    counted in encoded bytes; one batch of the answer may exceed `max_bytes`

Both isolation levels read the same: what is undecided has no offset yet, so no reader waits for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from ledgermq.buffers import KIB, Buffer
from ledgermq.errors import LedgerMQError, ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import FetchFrame
from ledgermq.protocol.limits import PARTITIONS_PER_CALL_MAX
from ledgermq_broker.bundle.shared.budgets import CALLER
from ledgermq_broker.kafka.handlers.offsets import ask
from ledgermq_broker.kafka.wire.answers import fetched
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of
from ledgermq_broker.kafka.wire.generated import fetch_request as asked
from ledgermq_broker.kafka.wire.generated import fetch_response as answered

ERRORS_WAIT_S = 0.25
TURN_S = 0.25
"""How long one turn of partitions is waited for while others have none."""
WAIT_S_MAX = 30.0
ANSWER_BYTES_MAX = 16 * 1024 * KIB
"""Of records in one answer, whatever a client asks for; librdkafka refuses answers above 100 MB."""
INLINE_BYTES_MAX = 256 * KIB
ENDS_MAX = 100_000
NO_END = -1

RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
Place = tuple[str, int]


class FetchHandler:
    """Of one connection."""

    def __init__(self, api: BrokerApi, run_blocking: RunBlocking) -> None:
        self._api = api
        self._run_blocking = run_blocking
        self._ends: OrderedDict[Place, tuple[int, int]] = OrderedDict()
        """The end and the start of partitions, as they were answered last."""

    async def answer(self, request: asked.FetchRequest, version: int) -> answered.FetchResponse:
        if request.session_id:
            return answered.FetchResponse(error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
        loop = asyncio.get_running_loop()
        wanted = [(topic.topic, one) for topic in request.topics for one in topic.partitions]
        deadline_s = loop.time() + min(WAIT_S_MAX, max(0, request.max_wait_ms) / 1000)
        found = await self._collect(wanted, request, deadline_s)
        await self._add_ends([(name, one.partition) for name, one in wanted], found)
        return answered.FetchResponse(
            responses=[
                answered.FetchableTopicResponse(
                    topic=topic.topic,
                    partitions=[found[topic.topic, one.partition] for one in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    async def _collect(
        self, wanted: Sequence[tuple[str, asked.FetchPartition]], request: asked.FetchRequest, deadline_s: float
    ) -> dict[Place, answered.PartitionData]:
        """Return what the partitions have; those that had no turn are missing."""
        loop = asyncio.get_running_loop()
        turns = [wanted[at : at + PARTITIONS_PER_CALL_MAX] for at in range(0, len(wanted), PARTITIONS_PER_CALL_MAX)]
        found: dict[Place, answered.PartitionData] = {}
        wait_s = 0.0 if len(turns) > 1 else max(0.0, deadline_s - loop.time())
        while turns:
            for turn in turns:
                let_go()
                found |= await self._turn(turn, request, wait_s)
                if any(part.records for part in found.values()):
                    return found
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                return found
            if any(part.error_code for part in found.values()):
                await asyncio.sleep(min(ERRORS_WAIT_S, left_s))
                return found
            wait_s = min(TURN_S, left_s) if len(turns) > 1 else left_s
        await asyncio.sleep(max(0.0, deadline_s - loop.time()))
        return found

    async def _turn(
        self, turn: Sequence[tuple[str, asked.FetchPartition]], request: asked.FetchRequest, wait_s: float
    ) -> dict[Place, answered.PartitionData]:
        """Ask for some partitions. An error of the call is that of each."""
        good = [(name, one) for name, one in turn if one.partition >= 0 and one.fetch_offset >= 0]
        found = {
            (name, one.partition): _failed(
                one.partition, Code.UNKNOWN_TOPIC_OR_PARTITION if one.partition < 0 else Code.OFFSET_OUT_OF_RANGE
            )
            for name, one in turn
            if one.partition < 0 or one.fetch_offset < 0
        }
        if not good:
            return found
        bytes_max = min(ANSWER_BYTES_MAX, max(1, request.max_bytes))
        call = pb.FetchRequest(
            partitions=[
                pb.FetchPartition(topic=name, partition=one.partition, offset=one.fetch_offset) for name, one in good
            ],
            max_bytes=min(bytes_max, max(1, sum(max(0, one.partition_max_bytes) for _, one in good))),
            max_wait_ms=round(1000 * wait_s),
            min_bytes=max(0, request.min_bytes),
        )
        try:
            frame = await self._api.fetch_once(call)
        except ResourceExhausted as error:  # above its quota: nothing, later
            await asyncio.sleep(min(wait_s, (error.retry_after_ms or 0) / 1000))
            return found
        except LedgerMQError as error:
            code = code_of(error, Area.FETCH)
            return found | {(name, one.partition): _failed(one.partition, code) for name, one in good}
        limits = {(name, one.partition): one for name, one in good}
        convert = partial(_converted, frame, limits, bytes_max)
        parts: dict[Place, answered.PartitionData]
        parts = await self._run_blocking(convert) if frame.payload_bytes > INLINE_BYTES_MAX else convert()
        return found | parts

    async def _add_ends(self, wanted: Sequence[Place], found: dict[Place, answered.PartitionData]) -> None:
        """Add the partitions that had no turn, without records."""
        for place, part in found.items():
            if not part.error_code:
                self._ends[place] = part.high_watermark, part.log_start_offset
                self._ends.move_to_end(place)
        missing = [place for place in wanted if place not in found]
        unknown = [place for place in dict.fromkeys(missing) if place not in self._ends]
        if unknown:
            await self._learn_ends(unknown)
        for place in missing:
            end, start = self._ends.get(place, (NO_END, NO_END))
            found[place] = answered.PartitionData(
                partition_index=place[1], high_watermark=end, last_stable_offset=end, log_start_offset=start
            )
        while len(self._ends) > ENDS_MAX:
            self._ends.popitem(last=False)

    async def _learn_ends(self, places: Sequence[Place]) -> None:
        ends = [pb.OffsetQuery(topic=topic, partition=partition, durable=True) for topic, partition in places]
        starts = [pb.OffsetQuery(topic=topic, partition=partition, earliest=True) for topic, partition in places]
        try:
            results = await ask(self._api, ends + starts)
        except LedgerMQError:
            return
        for place, end, start in zip(places, results, results[len(places) :], strict=False):
            if not end.HasField("error") and not start.HasField("error"):
                self._ends[place] = end.offset, start.offset


def let_go() -> None:
    """Give back the room of the turn before, which had no records: else the connection has no room for the next."""
    caller = CALLER.get(None)
    if caller is not None:
        caller.ended()
        caller.readers.clear()


def _failed(partition: int, code: Code) -> answered.PartitionData:
    return answered.PartitionData(partition_index=partition, error_code=code, high_watermark=NO_END)


def _converted(
    frame: FetchFrame, limits: dict[Place, asked.FetchPartition], bytes_max: int
) -> dict[Place, answered.PartitionData]:
    """Convert an answer, until it is full; partitions behind that have no turn."""
    found: dict[Place, answered.PartitionData] = {}
    payload = memoryview(frame.payload[0] if len(frame.payload) == 1 else b"".join(frame.payload))
    at, left, is_first = 0, bytes_max, True
    for part in frame.header.partitions:
        pieces: list[Buffer] = []
        for batch in part.batches:
            pieces.append(payload[at : at + batch.length])
            at += batch.length
        if pieces and left <= 0:
            continue
        place = part.topic, part.partition
        one = limits[place]
        bound = min(left, max(1, one.partition_max_bytes))
        data = fetched(part, pieces, fetch_offset=one.fetch_offset, bytes_max=bound, first=is_first)
        records: Any = data.records
        size = sum(map(len, records)) if isinstance(records, list) else len(records or b"")
        if size:
            left -= size
            is_first = False
        found[place] = data
    return found
