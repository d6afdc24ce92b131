"""Resolve names on the wire to topics and partitions of the catalog, with the errors for clients."""

from __future__ import annotations

from ledger.topics.catalog import Topic
from ledgermq.errors import LedgerMQError, UnknownPartition, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_to_proto
from stateless_broker.metadata import Metadata
from stateless_broker.ownership import Ownership


class Topics:
    def __init__(self, metadata: Metadata, ownership: Ownership) -> None:
        self._metadata = metadata
        self._ownership = ownership

    def lookup(self) -> Lookup:
        """Return a lookup for one request."""
        return Lookup(self._metadata)

    def info(self, topic: Topic) -> pb.TopicInfo:
        return pb.TopicInfo(
            name=topic.name,
            topic_id=topic.id,
            partitions=[
                pb.PartitionInfo(bundle=bundle, owner=self._ownership.address_of(bundle)) for bundle in topic.bundles
            ],
            settings=topic.raw_settings,
            created_ms=topic.created_ms,
        )

    def error(self, error: LedgerMQError, bundle: int | None = None) -> pb.Error:
        """Return the error for the client: NOT_OWNER names the broker to ask instead, if it is
        known.
        """
        if error.code == "NOT_OWNER" and not error.owner and bundle is not None:
            error = self._ownership.not_owner(bundle)
        return error_to_proto(error)


class Lookup:
    """The names in one request.

    It requests the controller's catalog at most once, however many names this broker does not know.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._has_asked = False

    async def find(self, name: str, topic_id: int = 0) -> Topic:
        """Return a live topic. Raises UnknownTopic, TopicBeingDeleted, Unavailable."""
        try:
            return self._known(name, topic_id)
        except UnknownTopic:
            if not await self._has_news():
                raise
        return self._known(name, topic_id)

    async def partition(self, name: str, partition: int, topic_id: int = 0) -> tuple[Topic, int]:
        """Return the topic and the partition's bundle. Also raises UnknownPartition."""
        topic = await self.find(name, topic_id)
        if partition >= topic.partitions and await self._has_news():
            topic = self._known(name, topic_id)
        if partition >= topic.partitions:
            raise UnknownPartition(f"topic {name!r} has partitions 0 to {topic.partitions - 1}, not {partition}")
        return topic, topic.bundles[partition]

    async def _has_news(self) -> bool:
        """Read the controller's catalog; return False if that was already done for this request."""
        if self._has_asked:
            return False
        await self._metadata.catch_up()
        self._has_asked = True
        return True

    def _known(self, name: str, topic_id: int) -> Topic:
        topic = self._metadata.catalog.living(name)
        if topic_id and topic.id != topic_id:
            raise UnknownTopic(
                f"topic {name!r} has the id {topic.id}, not {topic_id}: it was deleted and created again"
            )
        return topic
