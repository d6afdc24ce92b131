"""Serve the exclusive producers of a cluster in one broker: route calls to the bundles of their partitions.

Who has a partition is known in the bundle of the partition, whose owner answers. Any other broker answers
NOT_OWNER, which names the owner.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ledgermq.errors import InvalidRequest, LedgerMQError, PublishNotAccepted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import PARTITIONS_PER_CALL_MAX, PRODUCER_NAME_CHARS_MAX
from ledgermq.protocol.naming.exclusive_ids import is_exclusive
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.exclusive.counts import HolderCounts, gauges
from ledgermq_broker.exclusive.partition import HeldPartitions, HolderParts
from ledgermq_broker.exclusive.state.bundle_holders import BundleHolders, Claim
from ledgermq_broker.exclusive.state.limits import HolderLimits
from ledgermq_broker.internal.core import CoreKind
from ledgermq_broker.internal.feature import BrokerParts, Feature, Serving
from ledgermq_broker.internal.terms import InternalTerms
from ledgermq_broker.internal.topic import InternalTopic
from ledgermq_broker.metadata.followed import Lookup, Metadata
from ledgermq_broker.metadata.topic_changes import TopicSpec
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.settings import HOLDERS, INTERNAL_KIND
from ledgermq_ledger.topics.topic import Topic

HolderKind = CoreKind[BundleHolders, HeldPartitions]
A = TypeVar("A")


class Holders(Serving[HeldPartitions]):
    """`topic`: `__holders`."""

    def __init__(
        self, topic: InternalTopic, metadata: Metadata, ownership: Ownership, terms: InternalTerms, kind: HolderKind
    ) -> None:
        super().__init__(topic, terms, kind)
        self._metadata = metadata
        self._ownership = ownership

    # Calls of clients

    async def hold_partitions(self, request: pb.HoldPartitionsRequest) -> pb.HoldPartitionsResponse:
        _check_partitions(len(request.partitions))
        if len(request.name) > PRODUCER_NAME_CHARS_MAX:
            raise InvalidRequest(
                f"a producer's name has up to {PRODUCER_NAME_CHARS_MAX} characters, not {len(request.name)}"
            )
        if request.producer_id:
            _check_id(request.producer_id)
        lookup = self._metadata.lookup()
        return pb.HoldPartitionsResponse(
            holders=await asyncio.gather(*(self._hold(lookup, request, each) for each in request.partitions))
        )

    async def release_partitions(self, request: pb.ReleasePartitionsRequest) -> pb.ReleasePartitionsResponse:
        _check_partitions(len(request.partitions))
        _check_id(request.producer_id)
        lookup = self._metadata.lookup()
        return pb.ReleasePartitionsResponse(
            partitions=await asyncio.gather(*(self._release(lookup, request, each) for each in request.partitions))
        )

    # Inside

    async def _hold(
        self, lookup: Lookup, request: pb.HoldPartitionsRequest, wanted: pb.WantedPartition
    ) -> pb.PartitionHolder:
        bundle = None
        try:
            number = wanted.number if wanted.HasField("number") and request.producer_id else None
            topic, bundle = await self._found(lookup, wanted)
            key = PartitionId(topic.id, wanted.partition)
            claim = Claim(request.producer_id, request.name, number, request.fences, request.caller)
            if number is None and await self._topic.find() is None:
                return pb.PartitionHolder()  # there was never an exclusive producer
            standing = await self._in_bundle(bundle, lambda held: held.hold(key, claim))
        except LedgerMQError as error:
            return pb.PartitionHolder(error=self._ownership.error(error, bundle))
        holder = standing.holder
        return pb.PartitionHolder(
            is_caller=bool(holder.producer_id) and holder.is_of(request.producer_id, request.caller),
            is_held=bool(holder.producer_id),
            name=holder.name,
            number=holder.number,
            lease_ms=math.ceil(standing.lease_left_s * 1000),
        )

    async def _release(
        self, lookup: Lookup, request: pb.ReleasePartitionsRequest, wanted: pb.WantedPartition
    ) -> pb.ReleasedPartition:
        bundle = None
        try:
            topic, bundle = await self._found(lookup, wanted)
            if await self._topic.find() is None:
                return pb.ReleasedPartition()
            key = PartitionId(topic.id, wanted.partition)
            released = await self._in_bundle(
                bundle, lambda held: held.release(key, request.producer_id, request.caller)
            )
        except LedgerMQError as error:
            return pb.ReleasedPartition(error=self._ownership.error(error, bundle))
        return pb.ReleasedPartition(released=released)

    async def _found(self, lookup: Lookup, wanted: pb.WantedPartition) -> tuple[Topic, int]:
        topic, bundle = await lookup.partition(wanted.topic, wanted.partition, wanted.topic_id)
        if topic.internal:
            raise PublishNotAccepted(f"topic {topic.name!r} belongs to the system")
        return topic, bundle

    async def _in_bundle(self, bundle: int, call: Callable[[HeldPartitions], Awaitable[A]]) -> A:
        """Return what `call` returns for the bundle, if this broker serves it; create `__holders` at its first use.

        Raises NotOwner, Unavailable, the error of damaged data, and what `call` raises.
        """
        topic = await self._topic.find_or_create()
        topic = await self._topic.in_bundles(topic, [bundle])
        return await self._terms.call(self._kind, topic, keys.bundle_partition(bundle), call)


def _check_partitions(count: int) -> None:
    if not 0 < count <= PARTITIONS_PER_CALL_MAX:
        raise InvalidRequest(f"a call names 1 to {PARTITIONS_PER_CALL_MAX} partitions, not {count}")


def _check_id(producer_id: bytes) -> None:
    if not is_exclusive(producer_id):
        raise InvalidRequest(f"{producer_id.hex()[:64]!r} is not the id of an exclusive producer")


def open_holders(parts: BrokerParts) -> Holders:
    """Build the exclusive producers of a broker, and add them to its internal topics."""
    metadata, limits = parts.metadata, parts.limits_of(HolderLimits)

    def name_of(key: PartitionId) -> str:
        topic = metadata.catalog.topics_by_id.get(key.topic_id)
        return str(key) if topic is None else f"{topic.name}/{key.partition}"

    shared = HolderParts(lambda: metadata.catalog, parts.counts_of(HolderCounts))
    kind: HolderKind = CoreKind(
        keys.HOLDERS_TOPIC,
        lambda partition: BundleHolders(limits, name_of),
        lambda holders, opening: HeldPartitions(holders, opening, shared),
    )
    parts.terms.add(kind)
    return Holders(parts.topic(keys.HOLDERS_TOPIC), metadata, parts.ownership, parts.terms, kind)


EXCLUSIVE = Feature(
    "exclusive producers",
    (TopicSpec(keys.HOLDERS_TOPIC, settings={INTERNAL_KIND: HOLDERS}),),
    open_holders,
    announced="exclusive producers",
    if_refused=", whose bundle takes no records",
    gauges=gauges,
)
"""Earlier releases would store what an exclusive producer keeps others from writing."""
