"""Serve the call about costs: what this broker's requests to the store have cost since it started, and what its topics
keep there. A client asks each broker, and adds up.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledgermq.errors import LedgerMQError, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.costs.counted import CLUSTER, REST, StoreCosts
from ledgermq_broker.costs.racks import RackTraffic
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger.topics.topic import Topic

CLUSTER_NAME, REST_NAME = "(cluster)", "(other)"
"""Labels of what no topic pays for, and of topics that are not counted one by one; no topic can have these names."""


class CostPath:
    """`racks`: what clients sent and received."""

    def __init__(
        self,
        metadata: Metadata,
        ownership: Ownership,
        context: BundleContext,
        costs: StoreCosts,
        racks: RackTraffic,
    ) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._costs = costs
        self._racks = racks
        self._since_ms = context.sources.now_ms()

    async def list_costs(self, request: pb.ListCostsRequest) -> pb.ListCostsResponse:
        """Return costs by topic and principal. Raises UnknownTopic."""
        await self._metadata.catch_up()
        catalog = self._metadata.catalog
        living = {topic.id: topic for topic in catalog.topics_by_id.values() if not topic.removed}
        if request.topic and request.topic not in {topic.name for topic in living.values()}:
            raise UnknownTopic(f"there is no topic {request.topic!r}")
        names = {CLUSTER.topic_id: CLUSTER_NAME, REST.topic_id: REST_NAME}
        names |= {topic.id: topic.name for topic in living.values()}
        prices = self._costs.prices
        answer = pb.ListCostsResponse(
            since_ms=self._since_ms,
            total_picodollars=self._costs.total,
            write_dollars=prices.write,
            read_dollars=prices.read,
            delete_dollars=prices.delete,
            tb_month_dollars=prices.tb_month,
        )
        for kind, traffic in self._racks.by_kind.items():
            answer.traffic.add(rack=kind, bytes_in=traffic.bytes_in, bytes_out=traffic.bytes_out)
        for payer, spent in sorted(self._costs.by_payer(living).items()):
            name = names[payer.topic_id]
            if request.topic in ("", name) and spent.total:
                answer.costs.add(
                    topic=name, principal=payer.principal, write_picodollars=spent.writes, read_picodollars=spent.reads
                )
        for topic in sorted(living.values(), key=lambda each: each.name):
            if request.topic in ("", topic.name):
                size_bytes, unknown = await self._kept(topic)
                if size_bytes or unknown:
                    answer.kept.add(topic=topic.name, size_bytes=size_bytes, partitions_unknown=unknown)
        return answer

    async def _kept(self, topic: Topic) -> tuple[int, int]:
        """Return the bytes that the partitions which this broker serves keep, and how many it could not measure."""
        size_bytes = unknown = 0
        for partition in self._served(topic):
            owner = self._ownership.opened.get(topic.bundles[partition])
            try:
                if owner is not None:
                    start = await owner.list_offset(topic, partition, "earliest")
                    size_bytes += (await owner.backlog(topic, partition, start)).size_bytes
            except LedgerMQError:
                unknown += 1
        return size_bytes, unknown

    def _served(self, topic: Topic) -> Iterator[int]:
        yield from (at for at, bundle in enumerate(topic.bundles) if bundle in self._ownership.opened)
