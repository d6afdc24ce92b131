"""Serve the queue groups of a cluster in one broker: route calls to the bundles of their partitions.

The state of a partition is in the bundle of the partition, whose owner leases its messages. Any other
broker answers NOT_OWNER, which names the owner.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner, OffsetOutOfRange
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import ShareFetchFrame
from ledgermq.protocol.limits import check_nonce
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.internal.bundle_calls import BundleCalls
from ledgermq_broker.internal.core import CoreKind
from ledgermq_broker.internal.feature import BrokerParts, Feature, Serving
from ledgermq_broker.internal.terms import InternalTerms
from ledgermq_broker.internal.topic import InternalTopic
from ledgermq_broker.metadata.followed import Lookup, Metadata
from ledgermq_broker.metadata.topic_changes import TopicSpec
from ledgermq_broker.queues.counts import ShareCounts, gauges
from ledgermq_broker.queues.fetching import PARTITIONS_MAX, ShareFetching, check_readable
from ledgermq_broker.queues.partition import WORDS, BundleQueues
from ledgermq_broker.queues.parts import ShareParts
from ledgermq_broker.queues.state.bundle_shares import BundleShares
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.queues.state.records import ShareKey
from ledgermq_broker.queues.stored.check import add_shares
from ledgermq_ledger import keys
from ledgermq_offsets.names import check_group_name

SPANS_MAX = 10_000
"""Of one call."""

ShareKind = CoreKind[BundleShares, BundleQueues]


class Shares(Serving[BundleQueues]):
    """`topic`: `__shares`."""

    def __init__(
        self,
        topic: InternalTopic,
        metadata: Metadata,
        ownership: Ownership,
        terms: InternalTerms,
        kind: ShareKind,
        context: BundleContext,
        limits: ShareLimits,
        counts: ShareCounts,
        wait_s_max: Callable[[], float],
        calls: BundleCalls,
    ) -> None:
        super().__init__(topic, terms, kind)
        self._calls = calls
        self._metadata = metadata
        self._ownership = ownership
        self._fetching = ShareFetching(
            metadata, ownership, self._in_bundle, limits, context.answers, context.metrics, counts, wait_s_max
        )

    # Calls of clients

    async def share_fetch(self, request: pb.ShareFetchRequest) -> ShareFetchFrame:
        return await self._fetching.fetch(request)

    async def share_answer(self, request: pb.ShareAnswerRequest) -> pb.ShareAnswerResponse:
        check_group_name(request.group)
        _check_partitions(len(request.partitions))
        spans = [span for wanted in request.partitions for span in wanted.spans]
        if len(spans) > SPANS_MAX:
            raise InvalidRequest(f"at most {SPANS_MAX} spans in one call, not {len(spans)}")
        for span in spans:
            if span.first > span.last:
                raise InvalidRequest(f"a span ends before it begins: {span.first} to {span.last}")
            if span.word not in WORDS:
                raise InvalidRequest(f"{span.word} is no word of a member; upgrade this broker if a client knows it")
        lookup = self._metadata.lookup()
        results = await asyncio.gather(*(self._answer(lookup, request.group, each) for each in request.partitions))
        return pb.ShareAnswerResponse(results=results)

    async def reset_shares(self, request: pb.ResetSharesRequest) -> pb.ResetSharesResponse:
        check_group_name(request.group)
        _check_partitions(len(request.resets))
        check_nonce(request.nonce)
        if request.nonce and len({(each.topic, each.partition) for each in request.resets}) < len(request.resets):
            raise InvalidRequest("a reset with a nonce names each partition once")
        if request.at_owners:
            return await self._reset_at_owners(request)
        lookup = self._metadata.lookup()
        results = await asyncio.gather(*(self._reset(lookup, request, each) for each in request.resets))
        return pb.ResetSharesResponse(results=results)

    async def list_shares(self, request: pb.ListSharesRequest) -> pb.ListSharesResponse:
        if request.at_owner:
            passed = pb.ListSharesRequest(bundle=request.bundle, group=request.group, members=request.members)
            return await self._calls.at(request.bundle, lambda at: at.list_shares(passed))
        topic = await self._topic.find()
        if topic is None:
            return pb.ListSharesResponse()
        topic = await self._topic.in_bundles(topic, [request.bundle])
        if request.bundle not in topic.bundles:
            raise InvalidRequest(
                f"bundle {request.bundle} has no queues: bundles {topic.bundles[0]} to {topic.bundles[-1]} have"
            )
        found = await self._terms.call(
            self._kind,
            topic,
            keys.bundle_partition(request.bundle),
            lambda queues: queues.describe(request.group, members=request.members),
        )
        return pb.ListSharesResponse(shares=found)

    # Inside

    async def _answer(self, lookup: Lookup, group: str, wanted: pb.SharePartitionAnswer) -> pb.SharePartitionResult:
        bundle = None
        try:
            topic, bundle = await lookup.partition(wanted.topic, wanted.partition, wanted.topic_id)
            queues = await self._in_bundle(bundle)
            late = await queues.answer(ShareKey(group, topic.id, wanted.partition), wanted.spans)
        except LedgerMQError as error:
            return pb.SharePartitionResult(error=self._ownership.error(error, bundle))
        return pb.SharePartitionResult(late=[pb.OffsetSpan(first=span.first, last=span.last) for span in late])

    async def _reset_at_owners(self, request: pb.ResetSharesRequest) -> pb.ResetSharesResponse:
        """Reset partitions by one call for each bundle. A call that is repeated at another owner needs a nonce."""
        lookup = self._metadata.lookup()
        results = [pb.ShareResetResult() for _ in request.resets]
        by_bundle: defaultdict[int, list[int]] = defaultdict(list)
        for at, wanted in enumerate(request.resets):
            try:
                by_bundle[(await lookup.partition(wanted.topic, wanted.partition, wanted.topic_id))[1]].append(at)
            except LedgerMQError as error:
                results[at] = pb.ShareResetResult(error=self._ownership.error(error, None))

        async def in_bundle(bundle: int, places: list[int]) -> None:
            part = pb.ResetSharesRequest(
                group=request.group,
                resets=[request.resets[at] for at in places],
                nonce=request.nonce,
                caller=request.caller,
            )
            try:
                answers = list((await self._calls.at(bundle, lambda at: _reset_by(at, part))).results)
            except LedgerMQError as error:
                answers = [pb.ShareResetResult(error=self._ownership.error(error, None))] * len(places)
            for at, answer in zip(places, answers, strict=True):
                results[at] = answer

        await asyncio.gather(*(in_bundle(bundle, places) for bundle, places in by_bundle.items()))
        return pb.ResetSharesResponse(results=results)

    async def _reset(
        self, lookup: Lookup, request: pb.ResetSharesRequest, wanted: pb.ShareReset
    ) -> pb.ShareResetResult:
        bundle = None
        try:
            topic, bundle = await lookup.partition(wanted.topic, wanted.partition, wanted.topic_id)
            check_readable(topic)
            queues = await self._in_bundle(bundle)
            key = ShareKey(request.group, topic.id, wanted.partition)
            if not wanted.HasField("offset"):
                await queues.reset(key, None, request.nonce, request.caller, wanted.begun)
                return pb.ShareResetResult()
            start = await queues.owner.list_offset(topic, wanted.partition, "earliest")
            latest = await queues.owner.list_offset(topic, wanted.partition, "latest")
            if wanted.offset > latest:
                raise OffsetOutOfRange(
                    f"{topic.name}/{wanted.partition} ends at offset {latest}: a queue cannot begin at {wanted.offset}"
                )
            offset = max(start, wanted.offset)
            await queues.reset(key, offset, request.nonce, request.caller, wanted.begun)
        except LedgerMQError as error:
            return pb.ShareResetResult(error=self._ownership.error(error, bundle))
        return pb.ShareResetResult(offset=offset)

    async def _in_bundle(self, bundle: int) -> BundleQueues:
        """Return the queues of a bundle that this broker serves; create `__shares` at its first use.

        Raises NotOwner, Unavailable, and the error of damaged data.
        """

        async def itself(found: BundleQueues) -> BundleQueues:
            return found

        topic = await self._topic.find_or_create()
        return await self._terms.call(self._kind, topic, keys.bundle_partition(bundle), itself)


async def _reset_by(broker: BrokerApi, request: pb.ResetSharesRequest) -> pb.ResetSharesResponse:
    """Raises NotOwner if the broker does not own one of the partitions: the next call names the others again."""
    answer = await broker.reset_shares(request)
    for result in answer.results:
        if isinstance(error := error_from_proto(result.error), NotOwner):
            raise error
    return answer


def _check_partitions(count: int) -> None:
    if not 0 < count <= PARTITIONS_MAX:
        raise InvalidRequest(f"a call names 1 to {PARTITIONS_MAX} partitions, not {count}")


def open_shares(parts: BrokerParts) -> Shares:
    """Build the queues of a broker, and add them to its internal topics."""
    metadata, limits = parts.metadata, parts.limits_of(ShareLimits)
    counts = parts.counts_of(ShareCounts)
    shared = ShareParts(limits, lambda: metadata.catalog, counts, parts.context.sources.new_id)
    kind: ShareKind = CoreKind(
        keys.SHARES_TOPIC,
        lambda partition: BundleShares(limits),
        lambda shares, opening: BundleQueues(shares, opening, shared),
        follows=True,
    )
    parts.terms.add(kind)
    return Shares(
        parts.topic(keys.SHARES_TOPIC),
        metadata,
        parts.ownership,
        parts.terms,
        kind,
        parts.context,
        limits,
        counts,
        lambda: parts.settings().fetch_wait_ms_max / 1000,
        parts.calls,
    )


QUEUES = Feature(
    "queues",
    (TopicSpec(keys.SHARES_TOPIC),),
    open_shares,
    announced="shares",
    gauges=gauges,
    check=add_shares,
)
"""Earlier releases do not serve queue groups."""
