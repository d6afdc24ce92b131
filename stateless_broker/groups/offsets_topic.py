"""Give groups what they need of the catalog: the topic `__consumer_offsets`, created at its first
use, the partition of a group in it, and the live user topics by name and by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from crc32c import crc32c

from ledger import keys
from ledger.log.shared_run import SharedRun
from ledger.topics.catalog import Catalog, Topic
from ledgermq.errors import Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from offsets.topics import TopicSize
from stateless_broker.at_controller import AtController
from stateless_broker.controller import Controller
from stateless_broker.metadata import Metadata


def partition_of(group: str, partitions: int) -> int:
    return int(crc32c(group.encode())) % partitions


class OffsetsTopic:
    """The topic of committed offsets. Partitions are never added to it, so each group stays in its
    partition.
    """

    def __init__(self, metadata: Metadata, controller: Controller, at_controller: AtController) -> None:
        self._metadata = metadata
        self._controller = controller
        self._at_controller = at_controller
        self._creation = SharedRun(self._create)

    @property
    def known(self) -> Topic | None:
        """Return the topic if this broker knows it."""
        return self._metadata.catalog.topics_by_name.get(keys.OFFSETS_TOPIC)

    async def know(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read the controller's catalog if this broker does not know one of these (topic,
        partition). Raises Unavailable.
        """
        topics = self._metadata.catalog.topics_by_name
        if any(name not in topics or partition >= topics[name].partitions for name, partition in partitions):
            await self._metadata.catch_up()

    async def find(self) -> Topic | None:
        """Return the topic, or None if the controller has none. Raises Unavailable."""
        if self.known is None:
            await self._metadata.catch_up()
        return self.known

    async def find_or_create(self) -> Topic:
        """Return the topic, and create it if it does not exist. Raises Unavailable, NotOwner,
        DeadlineExceeded.
        """
        if await self.find() is None:
            await self._creation.run()
        if self.known is None:
            raise Unavailable(
                f"topic {keys.OFFSETS_TOPIC} was created, but this broker has not read it yet; retry",
                retry_after_ms=200,
            )
        return self.known

    async def close(self) -> None:
        await self._creation.close()

    async def _create(self) -> None:
        async def here() -> pb.CreateTopicResponse:
            await self._controller.create_offsets_topic()
            return pb.CreateTopicResponse()

        wish = pb.CreateTopicRequest(name=keys.OFFSETS_TOPIC)
        await self._at_controller.run(wish, here, lambda line, passed: line.create_topic(passed))


class CatalogView:
    """A `TopicsView`. `catalog()` returns this broker's current copy; `rack_of(bundle)` the rack of
    the bundle's owner, "" if it has none.
    """

    def __init__(self, catalog: Callable[[], Catalog], rack_of: Callable[[int], str]) -> None:
        self._catalog = catalog
        self._rack_of = rack_of

    @property
    def version(self) -> int:
        return self._catalog().offset

    def by_name(self, name: str) -> TopicSize | None:
        return _size(self._catalog().topics_by_name.get(name))

    def by_id(self, topic_id: int) -> TopicSize | None:
        return _size(self._catalog().topics_by_id.get(topic_id))

    def names(self) -> Iterable[str]:
        return [topic.name for topic in self._catalog().living_topics() if not topic.internal]

    def is_removed(self, topic_id: int) -> bool:
        catalog = self._catalog()
        return catalog.is_removed(topic_id, catalog.offset)

    def rack(self, topic: TopicSize, partition: int) -> str:
        """Return the rack of the broker that owns the partition now."""
        found = self._catalog().topics_by_id.get(topic.topic_id)
        return self._rack_of(found.bundles[partition]) if found is not None else ""


def _size(topic: Topic | None) -> TopicSize | None:
    return (
        None if topic is None or topic.removed or topic.internal else TopicSize(topic.id, topic.name, topic.partitions)
    )
