"""Answer Metadata and DescribeCluster.

A topic that is unknown here is asked for at the controller once, as by our own clients. Topics of
the system stay hidden. A caller that may see nothing still gets the brokers.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.asked import named_topics
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of
from ledgermq_broker.kafka.wire.generated import describe_cluster_request as asked_cluster
from ledgermq_broker.kafka.wire.generated import describe_cluster_response as described
from ledgermq_broker.kafka.wire.generated import metadata_request as asked
from ledgermq_broker.kafka.wire.generated import metadata_response as answered
from ledgermq_ledger import keys

NO_TOPIC = bytes(16)
OF_BROKERS, OF_CONTROLLERS = 1, 2
"""Kinds of endpoints."""


class MetadataHandler:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def answer(self, api: BrokerApi, request: asked.MetadataRequest, version: int) -> answered.MetadataResponse:
        present = self._brokers.present()
        return answered.MetadataResponse(
            brokers=[
                answered.MetadataResponseBroker(node_id=one.node, host=one.host, port=one.port, rack=one.rack)
                for one in present
            ],
            cluster_id=self._brokers.cluster_id,
            controller_id=self._brokers.me,
            topics=await self._topics(api, request, version),
        )

    async def cluster(self, request: asked_cluster.DescribeClusterRequest) -> described.DescribeClusterResponse:
        """Return what Metadata says of brokers. No operations are named, since rules are others here."""
        kind = request.endpoint_type
        answer = described.DescribeClusterResponse(endpoint_type=kind, cluster_id=self._brokers.cluster_id)
        if kind != OF_BROKERS:
            is_known = kind == OF_CONTROLLERS
            answer.error_code = Code.MISMATCHED_ENDPOINT_TYPE if is_known else Code.UNSUPPORTED_ENDPOINT_TYPE
            answer.error_message = f"only brokers ({OF_BROKERS}) have endpoints here, not type {kind}"
            return answer
        answer.controller_id = self._brokers.me
        answer.brokers = [
            described.DescribeClusterBroker(broker_id=one.node, host=one.host, port=one.port, rack=one.rack)
            for one in self._brokers.present()
        ]
        return answer

    async def _topics(
        self, api: BrokerApi, request: asked.MetadataRequest, version: int
    ) -> list[answered.MetadataResponseTopic]:
        wanted = request.topics
        if wanted is None or (version == 0 and not wanted):
            found = await api.describe_topics(pb.DescribeTopicsRequest())
            return [self._topic(info) for info in found.topics]
        by_id = {topic.topic_id for topic in wanted if _has_no_name(topic)}
        names = [topic.name or "" for topic in wanted if not _has_no_name(topic)]
        topics = await self._named(api, names, auto_create=request.allow_auto_topic_creation)
        return topics + (await self._by_id(api, by_id) if by_id else [])

    async def _named(
        self, api: BrokerApi, names: Sequence[str], *, auto_create: bool
    ) -> list[answered.MetadataResponseTopic]:
        topics = [
            answered.MetadataResponseTopic(error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, name=name, topic_id=NO_TOPIC)
            for name in dict.fromkeys(names)
            if keys.is_internal(name)
        ]
        found = await named_topics(api, names, auto_create=auto_create)
        return topics + [self._topic(info) for info in found.values()]

    async def _by_id(self, api: BrokerApi, uuids: set[bytes]) -> list[answered.MetadataResponseTopic]:
        found = await api.describe_topics(pb.DescribeTopicsRequest())
        of_id = {self._brokers.topic_uuid(info.topic_id): info for info in found.topics}
        return [
            self._topic(of_id[uuid])
            if uuid in of_id
            else answered.MetadataResponseTopic(error_code=Code.UNKNOWN_TOPIC_ID, name=None, topic_id=uuid)
            for uuid in sorted(uuids)
        ]

    def _topic(self, info: pb.TopicInfo) -> answered.MetadataResponseTopic:
        if info.HasField("error"):
            return answered.MetadataResponseTopic(
                error_code=topic_code(error_from_proto(info.error)), name=info.name, topic_id=NO_TOPIC
            )
        return answered.MetadataResponseTopic(
            name=info.name,
            topic_id=self._brokers.topic_uuid(info.topic_id),
            partitions=[self._partition(index, partition) for index, partition in enumerate(info.partitions)],
        )

    def _partition(self, index: int, partition: pb.PartitionInfo) -> answered.MetadataResponsePartition:
        leader = self._brokers.leader(partition)
        replicas = [leader.node] if leader.node >= 0 else []
        return answered.MetadataResponsePartition(
            error_code=Code.NONE if replicas else Code.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=leader.node,
            leader_epoch=leader.epoch,
            replica_nodes=replicas,
            isr_nodes=list(replicas),
        )


def _has_no_name(topic: asked.MetadataRequestTopic) -> bool:
    """Return whether a topic is asked for by its id; Java's name is empty then, not null."""
    return topic.name is None or (not topic.name and topic.topic_id != NO_TOPIC)


def topic_code(error: LedgerMQError) -> Code:
    """Return the code of a topic that cannot be described. A client refreshes its metadata for one that may be
    repeated.
    """
    return Code.LEADER_NOT_AVAILABLE if error.retriable else code_of(error, Area.FETCH)
