"""From names on the wire to topics and partitions of the catalog, with the errors that clients get for them."""

from __future__ import annotations

from ledger.catalog import Topic
from ledgermq.errors import LedgerMQError, UnknownPartition, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_to_proto
from stateless_broker.metadata import Metadata
from stateless_broker.ownership import Ownership


class Topics:
    def __init__(self, metadata: Metadata, ownership: Ownership) -> None:
        self._metadata = metadata
        self._ownership = ownership

    async def find(self, name: str, topic_id: int = 0) -> Topic:
        """A living topic; one that this broker has not heard of yet is asked for. Raises UnknownTopic, TopicBeingDeleted, Unavailable."""
        try:
            return self._known(name, topic_id)
        except UnknownTopic:
            await self._metadata.catch_up()
        return self._known(name, topic_id)

    async def partition(self, name: str, partition: int, topic_id: int = 0) -> tuple[Topic, int]:
        """The topic and the partition's bundle. Raises also UnknownPartition."""
        topic = await self.find(name, topic_id)
        if partition >= topic.partitions:
            await self._metadata.catch_up()
            topic = self._known(name, topic_id)
        if partition >= topic.partitions:
            raise UnknownPartition(f"topic {name!r} has partitions 0 to {topic.partitions - 1}, not {partition}")
        return topic, topic.bundles[partition]

    def _known(self, name: str, topic_id: int) -> Topic:
        topic = self._metadata.catalog.living(name)
        if topic_id and topic.id != topic_id:
            raise UnknownTopic(f"topic {name!r} has the id {topic.id}, not {topic_id}: it was deleted and created again")
        return topic

    def info(self, topic: Topic) -> pb.TopicInfo:
        return pb.TopicInfo(
            name=topic.name,
            topic_id=topic.id,
            partitions=[pb.PartitionInfo(bundle=bundle, owner=self._ownership.address_of(bundle)) for bundle in topic.bundles],
            settings=topic.raw_settings,
            created_ms=topic.created_ms,
        )

    def error(self, error: LedgerMQError, bundle: int | None = None) -> pb.Error:
        """As it goes to the client: NOT_OWNER names whom to ask instead, where that is known."""
        if error.code == "NOT_OWNER" and not error.owner and bundle is not None:
            error = self._ownership.not_owner(bundle)
        return error_to_proto(error)
