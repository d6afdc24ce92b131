"""Serve the timed messages of a cluster in one broker: route calls to the bundles of their targets.

A timed message waits in the bundle of its target partition, whose owner delivers it, recalls and lists it.
Any other broker raises NotOwner, which names the owner.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ledgermq.errors import InvalidRequest, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ProduceFrame
from ledgermq_broker.bundle.committing.group_commit import BUNDLE_SHARE
from ledgermq_broker.internal.core import CoreKind
from ledgermq_broker.internal.feature import BrokerParts, Feature, Serving
from ledgermq_broker.internal.terms import InternalTerms
from ledgermq_broker.internal.topic import InternalTopic
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_broker.metadata.topic_changes import TopicSpec
from ledgermq_broker.paths.produce_path import ProducePath
from ledgermq_broker.paths.received_batches import BatchChecks
from ledgermq_broker.timed.counts import TimerCounts, gauges
from ledgermq_broker.timed.partition import TimerPartition, TimerParts
from ledgermq_broker.timed.send_path import SendPath
from ledgermq_broker.timed.state.blocks import OFFSET_END, ROW_END, Id
from ledgermq_broker.timed.state.bundle_timers import BundleTimers
from ledgermq_broker.timed.state.limits import TimerLimits
from ledgermq_broker.timed.state.recalls import RecallAnswer
from ledgermq_broker.timed.stored.check import add_timers
from ledgermq_broker.timed.taking_in.intake import Sent, check_due
from ledgermq_ledger import keys
from ledgermq_ledger.root.store_clock import StoreClock
from ledgermq_ledger.topics.settings import HIDDEN, INTERNAL_KIND, STAGED
from ledgermq_ledger.topics.topic import Topic

DELIVERY_SHARE = 4
"""Deliveries of a bundle take this share of its memory for producing at most: one quarter."""
HIDDEN_FILES = {"parquet.max.lag.ms": str(60 * 60 * 1000), "parquet.target.bytes": str(128 * 1024 * 1024)}
"""Timed messages that move on within the hour never become Parquet."""
OUTCOMES = {
    RecallAnswer.RECALLED: pb.RECALLED,
    RecallAnswer.TOO_LATE: pb.TOO_LATE,
    RecallAnswer.FORGOTTEN: pb.FORGOTTEN,
}

TimerKind = CoreKind[BundleTimers, TimerPartition]


class Timers(Serving[TimerPartition]):
    """`topic`: `__timers`."""

    def __init__(
        self,
        topic: InternalTopic,
        metadata: Metadata,
        terms: InternalTerms,
        kind: TimerKind,
        checks: BatchChecks,
        answers: ProducePath,
        clock: StoreClock,
        limits: TimerLimits,
    ) -> None:
        super().__init__(topic, terms, kind)
        self._metadata = metadata
        self._clock = clock
        self._limits = limits
        self._path = SendPath(metadata, checks, answers, clock, topic.find_or_create, self._in_bundle, self.check_due)

    # Calls of clients

    def produce_delayed(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        return self._path.produce_delayed(requests)

    async def produce_delayed_once(self, request: ProduceFrame) -> pb.ProduceResponse:
        return await self._path.produce_delayed_once(request)

    async def recall_delayed(self, request: pb.RecallDelayedRequest) -> pb.RecallDelayedResponse:
        if not request.topic_id:
            raise InvalidRequest("a recall names the id of the message's topic")
        if request.offset >= OFFSET_END or request.row >= ROW_END:
            raise InvalidRequest(f"offset {request.offset}, row {request.row} is not a timed message; check the handle")
        target, bundle = await self._metadata.lookup().partition(request.topic, request.partition, request.topic_id)
        topic = await self._topic.find()
        if topic is None:
            raise InvalidRequest("this cluster has had no timed message yet; check the handle")
        message, due_us = Id(request.offset, request.row), request.due_us
        has_moved = request.partition in target.moves
        answer = await self._terms.call(
            self._kind,
            topic,
            keys.bundle_partition(bundle),
            lambda found: found.recall(message, due_us, target.id, has_moved=has_moved, principal=request.caller),
        )
        return pb.RecallDelayedResponse(outcome=OUTCOMES[answer])

    async def list_delayed(self, request: pb.ListDelayedRequest) -> pb.ListDelayedResponse:
        topic = await self._topic.find()
        if topic is None:
            return pb.ListDelayedResponse()
        topic = await self._topic.in_bundles(topic, [request.bundle])
        if request.bundle not in topic.bundles:
            raise InvalidRequest(
                f"bundle {request.bundle} has no timed messages: bundles {topic.bundles[0]} to {topic.bundles[-1]} have"
            )
        if not request.topic and (request.topic_id or request.HasField("partition")):
            raise InvalidRequest("a call that names a partition or a topic's id names the topic, too")
        topic_id: int | None = None
        if request.topic:
            wanted = await self._metadata.lookup().find(request.topic)
            if request.topic_id not in (0, wanted.id):
                raise UnknownTopic(f"topic {request.topic!r} has id {wanted.id} now, not {request.topic_id}")
            topic_id = wanted.id
        partition = request.partition if request.HasField("partition") else None
        return await self._terms.call(
            self._kind,
            topic,
            keys.bundle_partition(request.bundle),
            lambda found: found.list(topic_id, partition, request.max_messages),
        )

    # For other parts of this broker

    async def begin_send(self) -> int:
        """Return the store's time, once the topics of timed messages exist.

        Raises Unavailable and other errors if the cluster can take no timed messages now.
        """
        await self._topic.find_or_create()
        return await self._clock.read()

    def check_due(self, sent: Sent, now_us: int) -> None:
        """Check the due times of a batch. Raises InvalidRecord."""
        check_due(sent, now_us, self._limits.horizon_days)

    def alarms(self) -> list[str]:
        """Return why timed messages are not delivered, where damage is the reason."""
        return [f"timed messages of bundle {found.bundle}: {found.damage}" for found in self.served() if found.damage]

    async def _in_bundle(self, topic: Topic, bundle: int) -> TimerPartition:
        async def itself(found: TimerPartition) -> TimerPartition:
            return found

        return await self._terms.call(self._kind, topic, keys.bundle_partition(bundle), itself)


def open_timers(parts: BrokerParts) -> Timers:
    """Build the timed messages of a broker, and add them to its internal topics."""
    context, ownership, metadata = parts.context, parts.ownership, parts.metadata
    limits = parts.limits_of(TimerLimits)
    shared = TimerParts(
        limits=limits,
        sources=context.sources,
        clock=parts.store_clock,
        catalog=lambda: metadata.catalog,
        near=lambda: metadata.catalog.living(keys.DELAYED_TOPIC),
        far=lambda: metadata.catalog.living(keys.DELAYED_FAR_TOPIC),
        counts=parts.counts_of(TimerCounts),
        delivery_bytes_max=lambda: context.produce_memory.bytes_max // BUNDLE_SHARE // DELIVERY_SHARE,
        damaged_retry_s=lambda: ownership.times.damaged_retry_s,
    )
    kind: TimerKind = CoreKind(
        keys.TIMERS_TOPIC,
        lambda partition: BundleTimers(limits),
        lambda timers, opening: TimerPartition(timers, opening, shared),
    )
    parts.terms.add(kind)
    topic = parts.topic(keys.TIMERS_TOPIC)
    return Timers(topic, metadata, parts.terms, kind, parts.checks, parts.produce_path, parts.store_clock, limits)


TIMED = Feature(
    "timed messages",
    (
        TopicSpec(keys.DELAYED_TOPIC, keys.NEAR_PARTITIONS, {INTERNAL_KIND: STAGED}),
        TopicSpec(keys.DELAYED_FAR_TOPIC, keys.FAR_PARTITIONS, {INTERNAL_KIND: HIDDEN, **HIDDEN_FILES}),
        TopicSpec(keys.TIMERS_TOPIC),
    ),
    open_timers,
    announced="timers",
    gauges=gauges,
    check=add_timers,
)
"""A timed message waits in the segments of the bundle in which it is delivered. Earlier releases cannot read a
catalog with these topics.
"""
