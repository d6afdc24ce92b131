"""Serve every method of `BrokerApi`, composed from the paths; without gRPC, so that it runs in any
event loop. The smaller paths are here: offsets, the cluster.

Any broker returns the owners of all bundles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.limits import check_nonce, with_nonce
from ledgermq.protocol.methods import METHODS
from ledgermq_broker.admission.connections import Connections
from ledgermq_broker.admission.operator_path import OperatorPath, ProcessNumbers
from ledgermq_broker.admission.queries import known_first, side_by_side
from ledgermq_broker.cluster.directory import Directory
from ledgermq_broker.cluster.heartbeat import Heartbeat
from ledgermq_broker.cluster.membership import Membership
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.costs.path import CostPath
from ledgermq_broker.costs.racks import RackTraffic
from ledgermq_broker.health.readiness import problems
from ledgermq_broker.internal.feature import BrokerParts
from ledgermq_broker.metadata.followed import Lookup, Metadata
from ledgermq_broker.metadata.table_path import TablePath
from ledgermq_broker.metadata.topic_path import TopicPath
from ledgermq_broker.paths.deletion_path import DeletionPath
from ledgermq_broker.paths.fetching.fetch_path import refuse_unreadable
from ledgermq_broker.paths.find_path import FindPath
from ledgermq_broker.timed.timers import TIMED
from ledgermq_broker.transactions.participating.settling import SETTLE_S_MAX
from ledgermq_broker.transactions.stage_path import StagePath
from ledgermq_broker.transactions.transactions import TRANSACTIONS
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef

DRAINS_KEPT = 16
"""Nonces of drains, and of their ends, that a broker remembers until it stops; a start ends the drain, too."""


class BrokerService(BrokerApi):
    """`BrokerApi` of one broker: each call goes straight to the one path that has a method of its name."""

    def __init__(self, cluster: ClusterPath, *paths: object) -> None:
        self.problems = cluster.problems
        for method in METHODS:
            having = [path for path in (cluster, *paths) if hasattr(path, method.attribute)]
            assert len(having) == 1, f"{method.name} is in {len(having)} paths: {having}"
            setattr(self, method.attribute, getattr(having[0], method.attribute))


def service_of(parts: BrokerParts, cluster: ClusterPath, *paths: object) -> BrokerService:
    """Return the service of a broker: its features, the paths that need only `parts`, and `paths`."""
    metadata, ownership = parts.metadata, parts.ownership
    transactions, timers = parts.opened.of(TRANSACTIONS), parts.opened.of(TIMED)
    return BrokerService(
        cluster,
        *paths,
        *parts.opened,
        parts.produce_path,
        FindPath(metadata, ownership, parts.context.answers),
        DeletionPath(metadata, ownership),
        OffsetPath(metadata, ownership, transactions.settle, lambda: parts.store_clock.now_us() or 0),
        TopicPath(
            metadata, ownership, parts.controller, parts.at_controller, lambda: parts.settings().auto_create_topics
        ),
        TablePath(metadata, ownership, parts.context),
        StagePath(metadata, ownership, parts.checks, transactions, timers),
        CostPath(metadata, ownership, parts.context, parts.counts_of(StoreCosts), parts.counts_of(RackTraffic)),
        cluster.operator_path(parts),
    )


class OffsetPath:
    """Return offsets of partitions, and the sequences at which producer sessions continue, from the
    partitions' owners.

    `now_us` estimates the store's time; 0 while there is no estimate.
    """

    def __init__(
        self,
        metadata: Metadata,
        ownership: Ownership,
        settle: Callable[[int, PartitionId, float], Awaitable[None]],
        now_us: Callable[[], int],
    ) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._settle = settle
        self._now_us = now_us

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        lookup = self._metadata.lookup()
        settled_by_s = asyncio.get_running_loop().time() + SETTLE_S_MAX
        return pb.ListOffsetsResponse(
            results=await known_first(
                self._known, lambda query: self._offset(lookup, query, settled_by_s), request.queries
            )
        )

    async def open_producer(self, request: pb.OpenProducerRequest) -> pb.OpenProducerResponse:
        lookup = self._metadata.lookup()
        opened = await side_by_side(lambda wanted: self._opened(lookup, wanted, request), request.partitions)
        return pb.OpenProducerResponse(partitions=opened, now_us=self._now_us())

    def _known(self, query: pb.OffsetQuery) -> pb.OffsetResult | None:
        """Return a durable end where this broker has the bundle open; None where `_offset` waits, asks or refuses."""
        topic = self._metadata.catalog.topics_by_name.get(query.topic)
        if topic is None or not topic.living or query.partition >= topic.partitions or not query.durable:
            return None
        owner = self._ownership.opened.get(topic.bundles[query.partition])
        if owner is None or owner.lost is not None:
            return None
        try:
            refuse_unreadable(topic)
            return pb.OffsetResult(offset=owner.durable_end(topic, query.partition))
        except LedgerMQError:
            return None

    async def _offset(self, lookup: Lookup, query: pb.OffsetQuery, settled_by_s: float) -> pb.OffsetResult:
        bundle = None
        try:
            topic, bundle = await lookup.partition(query.topic, query.partition)
            refuse_unreadable(topic)
            owner = await self._ownership.owner(bundle)
            kind = query.WhichOneof("at")
            if kind is None:
                raise InvalidRequest("an offset query asks for one of earliest, latest, durable or a time")
            if kind == "timestamp_us":
                return pb.OffsetResult(offset=await owner.list_offset(topic, query.partition, query.timestamp_us))
            if kind == "latest" and query.settled:
                await self._settle(bundle, PartitionId(topic.id, query.partition), settled_by_s)
            offset = await owner.list_offset(topic, query.partition, kind)
            if kind == "earliest" and query.stored:
                size_bytes = (await owner.backlog(topic, query.partition, offset)).size_bytes
                return pb.OffsetResult(offset=offset, stored_bytes=size_bytes)
            return pb.OffsetResult(offset=offset)
        except LedgerMQError as error:
            return pb.OffsetResult(error=self._ownership.error(error, bundle))

    async def _opened(
        self, lookup: Lookup, wanted: pb.TopicPartition, asked: pb.OpenProducerRequest
    ) -> pb.OpenedPartition:
        bundle = None
        try:
            topic, bundle = await lookup.partition(wanted.topic, wanted.partition)
            owner = await self._ownership.owner(bundle)
            opened_slot = owner.session_slot(topic.id, wanted.partition)
            key = PartitionId(topic.id, wanted.partition)
            next_sequence = owner.next_sequence(asked.producer_id, key, asked.caller)
            return pb.OpenedPartition(opened_slot=opened_slot, next_sequence=next_sequence)
        except LedgerMQError as error:
            return pb.OpenedPartition(error=self._ownership.error(error, bundle))


class ClusterPath:
    """Report brokers, owners of bundles, loads, and problems of the cluster; and drain this broker."""

    def __init__(
        self, ledger: LedgerRef, version: str, membership: Membership, directory: Directory, ownership: Ownership
    ) -> None:
        self._cluster = ledger.cluster
        self._root_url = ledger.store.url
        self._version = version
        self._membership = membership
        self._directory = directory
        self._ownership = ownership
        self._drains: tuple[bytes, ...] = ()

    def operator_path(self, parts: BrokerParts) -> OperatorPath:
        """Return what tells operators about this broker."""
        return OperatorPath(
            self._version,
            self._membership,
            self._directory,
            self._ownership,
            parts.context,
            parts.settings,
            parts.counts_of(ProcessNumbers),
            parts.counts_of(Connections),
        )

    async def describe_cluster(self, request: pb.DescribeClusterRequest) -> pb.DescribeClusterResponse:
        live = self._membership.present()
        known = {name: member.heartbeat for name, member in self._membership.members.items()} | live
        return pb.DescribeClusterResponse(
            cluster_id=self._cluster.cluster_id,
            root=self._root_url,
            brokers=[_broker_info(known[name], is_alive=name in live) for name in sorted(known)],
            bundles=[self._bundle_info(bundle) for bundle in sorted(self._directory.claims)],
            version=self._version,
            controller=self._ownership.address_of(keys.METADATA_BUNDLE),
            problems=self.problems(),
        )

    async def drain_broker(self, request: pb.DrainBrokerRequest) -> pb.DrainBrokerResponse:
        """Let this broker hand over what it owns and take nothing new, or take its share again, once for one nonce.

        Raises InvalidRequest if another broker is meant, or no other one could take over.
        """
        check_nonce(request.nonce)
        me, is_draining = self._membership.me, self._membership.is_draining
        if request.address != me.address:
            raise InvalidRequest(f"this is the broker at {me.address}, not at {request.address!r}: nothing was changed")
        is_overtaken = request.nonce in self._drains and is_draining == request.undrain
        wanted = is_draining if request.nonce in self._drains else not request.undrain
        if wanted and not (me.draining or self._others()):
            await self._ownership.look()  # another one may be back since the last look
            if not self._others():
                raise InvalidRequest(
                    f"no other broker could take over what {me.address} owns: start one first, or end the drain of"
                    " another"
                )
        self._drains = with_nonce(self._drains, request.nonce, DRAINS_KEPT)
        await self._ownership.drain(is_draining=wanted)
        return pb.DrainBrokerResponse(bundles=sorted(self._ownership.opened), overtaken=is_overtaken)

    async def list_loads(self, request: pb.ListLoadsRequest) -> pb.ListLoadsResponse:
        """Return what the partitions of the bundles that this broker owns cost it."""
        answer = pb.ListLoadsResponse()
        for bundle, owner in sorted(self._ownership.opened.items()):
            if (found := self._ownership.partition_loads.of(bundle)) is not None:
                answer.bundles.add(
                    bundle=bundle,
                    epoch=owner.epoch,
                    measured_ms=round(found.measured_s * 1000),
                    partitions=[
                        pb.PartitionLoad(topic_id=key.topic_id, partition=key.partition, load=load)
                        for key, load in sorted(found.by_partition.items())
                    ],
                )
        return answer

    def _others(self) -> set[str]:
        """Return the other brokers that may be given bundles."""
        return self._membership.live().keys() - {self._membership.me.broker}

    def problems(self) -> list[str]:
        """Return why the cluster is not well, as this broker sees it."""
        membership = self._membership
        others = [
            alarm
            for name, heartbeat in membership.present().items()
            if name != membership.me.broker
            for alarm in heartbeat.alarms
        ]
        return problems(self._directory, [*membership.alarms(), *others], asyncio.get_running_loop().time())

    def _bundle_info(self, bundle: int) -> pb.BundleInfo:
        owner = self._directory.owners.get(bundle)
        return pb.BundleInfo(
            bundle=bundle,
            owner=owner.address if owner else "",
            epoch=self._directory.claims[bundle].epoch,
            trouble=self._directory.troubles.get(bundle, ""),
            load=self._directory.loads.get(bundle, 0),
        )


def _broker_info(heartbeat: Heartbeat, *, is_alive: bool) -> pb.BrokerInfo:
    return pb.BrokerInfo(
        id=heartbeat.broker, address=heartbeat.address, alive=is_alive, draining=is_alive and heartbeat.draining
    )
