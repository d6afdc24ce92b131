"""Serve ShareFetch: lease messages of a queue's partitions, and send them with their batches.

Messages are leased first, in one turn, then read. What could not be read within the size of the answer is
opened again. An answer with messages leaves after a fence check that follows their leases: a former owner
sends nothing that its successor has seen acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from ledgermq.errors import (
    InvalidRequest,
    InvalidTopicName,
    LedgerMQError,
    OffsetOutOfRange,
    SubscribeNotAccepted,
)
from ledgermq.filters.filter import CHARS_MAX
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame, ShareFetchFrame
from ledgermq.protocol.limits import BATCH_BYTES_TYPICAL, FRAME_PAYLOAD_BYTES_MAX
from ledgermq_broker.bundle.shared.budgets import AnswerBudget, AnswerReader
from ledgermq_broker.bundle.shared.context import BundleMetrics
from ledgermq_broker.bundle.shared.waiters import one_ends
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.metadata.followed import Lookup, Metadata
from ledgermq_broker.queues.counts import ShareCounts
from ledgermq_broker.queues.partition import BundleQueues, lease_ms_of
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.queues.state.records import ShareKey
from ledgermq_broker.queues.state.spans import Grant, Span
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from ledgermq_ledger.topics.topic import Topic
from ledgermq_offsets.names import check_group_name, check_member_name

PARTITIONS_MAX = 1000
ROOM_WAIT_S = 1.0

At = Literal["earliest", "latest"] | int
InBundle = Callable[[int], Awaitable[BundleQueues]]
"""Return the queues of a bundle that this broker serves."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the messages of one partition come from."""

    queues: BundleQueues
    key: ShareKey
    topic: Topic
    readable_end: int


@dataclass(slots=True)
class _Leased:
    """What one partition gives to an answer. `source`: None if there is an error."""

    header: pb.LeasedPartition
    bundle: int | None = None
    source: _Source | None = None
    grants: list[Grant] = field(default_factory=list)
    batches: list[StoredBatch] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(len(batch.data) for batch in self.batches)

    @property
    def messages(self) -> int:
        return sum(grant.last - grant.first + 1 for grant in self.grants)

    def give_back(self) -> None:
        """Send nothing of this partition, and open its messages again."""
        self.take_back(self.grants)
        self.grants, self.batches = [], []

    def take_back(self, grants: Sequence[Grant]) -> None:
        if self.source is not None and grants:
            spans = [Span(grant.first, grant.last) for grant in grants]
            self.source.queues.take_back(self.source.key, self.header.lease, spans)


class ShareFetching:
    """`in_bundle` returns the queues of a bundle. `wait_s_max`: bound of a long poll."""

    def __init__(
        self,
        metadata: Metadata,
        ownership: Ownership,
        in_bundle: InBundle,
        limits: ShareLimits,
        answers: AnswerBudget,
        metrics: BundleMetrics,
        counts: ShareCounts,
        wait_s_max: Callable[[], float],
    ) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._in_bundle = in_bundle
        self._limits = limits
        self._answers = answers
        self._metrics = metrics
        self._counts = counts
        self._wait_s_max = wait_s_max
        self._turns = count()

    async def fetch(self, request: pb.ShareFetchRequest) -> ShareFetchFrame:
        """Answer one long poll. Raises InvalidRequest, InvalidGroupName."""
        _check(request)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.max_wait_ms / 1000, self._wait_s_max())
        is_over = False
        reader = self._answers.reader(once=True, urgent=False)
        try:
            while True:
                found, had_room = await self._round(request, reader)
                answers = [each for each in found if each.grants or each.header.HasField("error")]
                if answers or is_over or loop.time() >= deadline:
                    reader.hand_over()
                    return self._frame(request.group, answers)
                reader.rest()
                is_over = had_room and not await self._wait(found, deadline)
        except BaseException:
            reader.leave()
            raise
        finally:
            if reader.caller is None:  # the answer has arrived
                reader.leave()

    async def _round(self, request: pb.ShareFetchRequest, reader: AnswerReader) -> tuple[list[_Leased], bool]:
        """Lease what is open now, and read it. Return it, and whether there was room for the answer. All
        leases are taken back if this fails.
        """
        found: list[_Leased] = []
        try:
            await self._lease_all(request, found)
            had_room = await self._read_all(request, reader, found)
            await self._confirm(found)
        except BaseException:
            for each in found:
                each.give_back()
            raise
        return found, had_room

    async def _lease_all(self, request: pb.ShareFetchRequest, found: list[_Leased]) -> None:
        """Lease from one partition after the other; each call begins with another one."""
        lookup, begin = self._metadata.lookup(), next(self._turns) % len(request.partitions)
        left = min(request.max_records or self._limits.records_max, self._limits.records_max)
        for wanted in (*request.partitions[begin:], *request.partitions[:begin]):
            header = pb.LeasedPartition(topic=wanted.topic, topic_id=wanted.topic_id, partition=wanted.partition)
            leased = _Leased(header)
            found.append(leased)
            try:
                await self._lease(lookup, request, leased, left)
            except LedgerMQError as error:
                header.error.CopyFrom(self._ownership.error(error, leased.bundle))
            left -= leased.messages

    async def _lease(self, lookup: Lookup, request: pb.ShareFetchRequest, leased: _Leased, records_max: int) -> None:
        header = leased.header
        topic, leased.bundle = await lookup.partition(header.topic, header.partition, header.topic_id)
        check_readable(topic)
        queues = await self._in_bundle(leased.bundle)
        key = ShareKey(request.group, topic.id, header.partition)
        owner, at = queues.owner, _start_of(request)
        await queues.begun(key, lambda: owner.list_offset(topic, header.partition, at), request.caller)
        queues.announce(key, request.filter)
        log_start = await owner.list_offset(topic, header.partition, "earliest")
        readable_end = owner.durable_end(topic, header.partition)
        leased.source = _Source(queues, key, topic, readable_end)
        header.topic_id, header.epoch = topic.id, owner.epoch_of(PartitionId(*key[1:]))
        header.lease_ms = lease_ms_of(request.lease_ms, self._limits)
        if records_max > 0:
            header.lease, leased.grants = queues.lease(
                key, request.member_id, records_max, header.lease_ms / 1000, log_start, readable_end
            )

    async def _read_all(self, request: pb.ShareFetchRequest, reader: AnswerReader, found: Sequence[_Leased]) -> bool:
        """Read what is leased; return False if there was no room for it, and nothing is leased any longer."""
        leased = [each for each in found if each.grants]
        if not leased:
            return True
        room = reader.room(min(request.max_bytes or BATCH_BYTES_TYPICAL, FRAME_PAYLOAD_BYTES_MAX))
        if not await reader.take(room, asyncio.get_running_loop().time() + ROOM_WAIT_S):
            for each in leased:
                each.give_back()
            return False
        for each in leased:
            if room > 0 and each.source is not None:
                await self._read(each, each.source, room)
            else:
                each.give_back()
            room -= each.size_bytes
        while not reader.fit(size_bytes := sum(each.size_bytes for each in leased)):
            if len(leased) == 1:  # a batch is larger than the room
                reader.rest()
                if await reader.take(size_bytes, asyncio.get_running_loop().time() + ROOM_WAIT_S):
                    continue
            leased.pop().give_back()  # another call gets it
        return bool(leased)

    async def _read(self, leased: _Leased, source: _Source, room: int) -> None:
        """Read the batches of the leased messages while there is room, at least one if there is any."""
        wanted = leased.grants
        try:
            at = await self._read_batches(leased, source, room)
        except OffsetOutOfRange:
            leased.give_back()  # retention was faster; the next lease knows the log start
        except LedgerMQError as error:
            leased.give_back()
            leased.header.error.CopyFrom(self._ownership.error(error, leased.bundle))
        else:
            leased.grants = [part for grant in wanted for part in _covered(grant, at, leased.batches)]
            leased.take_back([Grant(max(grant.first, at), grant.last, 0) for grant in wanted if grant.last >= at])

    async def _read_batches(self, leased: _Leased, source: _Source, room: int) -> int:
        """Return the offset up to which everything that is leased was read, or is gone."""
        owner, at, last = source.queues.owner, leased.grants[0].first, leased.grants[-1].last
        for grant in leased.grants:
            at = max(at, grant.first)
            while at <= grant.last:
                if leased.size_bytes >= room:
                    return at
                read = await owner.fetch(source.topic, source.key.partition, at, room - leased.size_bytes)
                if not read.batches:
                    return at
                for batch in read.batches:
                    if batch.base_offset > at:  # what is between them was cleaned
                        source.queues.gone(source.key, Span(at, batch.base_offset - 1))
                    if batch.base_offset > last:
                        return last + 1
                    if any(each.first < batch.end and each.last >= batch.base_offset for each in leased.grants):
                        leased.batches.append(batch)
                    at = batch.end
        return at

    async def _confirm(self, found: Sequence[_Leased]) -> None:
        """Check the fences of the bundles whose messages are in the answer. That a partition was here when they were
        leased is enough for moves: the next bundle opens it later.
        """
        sent = [(each, each.source.queues.owner) for each in found if each.source is not None and each.grants]
        owners = list(dict.fromkeys(owner for _, owner in sent))
        checks = await asyncio.gather(*(owner.check_fence() for owner in owners), return_exceptions=True)
        for checked, failed in zip(owners, checks, strict=True):
            if isinstance(failed, LedgerMQError):
                for each in [each for each, owner in sent if owner is checked]:
                    each.give_back()
                    each.header.error.CopyFrom(self._ownership.error(failed, each.bundle))
            elif failed is not None:
                raise failed

    def _frame(self, group: str, answers: Sequence[_Leased]) -> ShareFetchFrame:
        for each in answers:
            part = each.header
            for grant in each.grants:
                part.ranges.add(first=grant.first, last=grant.last, deliveries=grant.deliveries)
            for batch in each.batches:
                part.batches.add(
                    base_offset=batch.base_offset,
                    record_count=batch.record_count,
                    length=len(batch.data),
                    crc=batch.crc,
                )
            if each.grants:
                again = sum(grant.last - grant.first + 1 for grant in each.grants if grant.deliveries > 1)
                self._counts.leased(group, each.messages, again)
                self._metrics.delivered(part.topic_id, each.messages, each.size_bytes)
        header = pb.ShareFetchHeader(partitions=[each.header for each in answers])
        return Frame(header, [batch.data for each in answers for batch in each.batches])

    async def _wait(self, found: Sequence[_Leased], deadline: float) -> bool:
        """Wait until a partition has grown, or a message is open again. Return False if the time was up first."""
        by_bundle: dict[BundleQueues, list[_Source]] = {}
        for each in found:
            if each.source is not None:
                by_bundle.setdefault(each.source.queues, []).append(each.source)
        tasks = []
        for queues, sources in by_bundle.items():
            ends = {PartitionId(*source.key[1:]): source.readable_end for source in sources}
            tasks.append(asyncio.create_task(queues.owner.wait_for_data(ends), name="queue waits for records"))
            waiting = queues.wait([source.key for source in sources])
            tasks.append(asyncio.create_task(waiting, name="queue waits for released messages"))
        return await one_ends(tasks, deadline)


def check_readable(topic: Topic) -> None:
    """Raise InvalidTopicName for a topic of the system, SubscribeNotAccepted for one that is closed."""
    if keys.is_internal(topic.name):
        raise InvalidTopicName(f"topic {topic.name!r} belongs to the system: a queue group cannot read it")
    if not topic.settings.accept_subscribe:
        raise SubscribeNotAccepted(
            f"topic {topic.name!r} does not accept fetching at present (accept.subscribe = false)"
        )


def _check(request: pb.ShareFetchRequest) -> None:
    check_group_name(request.group)
    check_member_name(request.member_id)
    if len(request.filter) > CHARS_MAX:
        raise InvalidRequest(f"a filter has at most {CHARS_MAX} characters, not {len(request.filter)}")
    if not 0 < len(request.partitions) <= PARTITIONS_MAX:
        raise InvalidRequest(f"a queue names 1 to {PARTITIONS_MAX} partitions, not {len(request.partitions)}")
    if len({(each.topic, each.partition) for each in request.partitions}) < len(request.partitions):
        raise InvalidRequest("a queue names each partition once")


def _start_of(request: pb.ShareFetchRequest) -> At:
    kind = request.WhichOneof("start")
    if kind == "timestamp_us":
        return request.timestamp_us
    return "latest" if kind == "latest" and request.latest else "earliest"


def _covered(grant: Grant, end_offset: int, batches: Sequence[StoredBatch]) -> list[Grant]:
    """Return the parts of a grant below `end_offset` that batches hold."""
    return [
        Grant(max(grant.first, batch.base_offset), min(grant.last, batch.end - 1, end_offset - 1), grant.deliveries)
        for batch in batches
        if batch.base_offset <= min(grant.last, end_offset - 1) and batch.end > grant.first
    ]
