"""Find an internal topic in this broker's catalog, and create it at its first use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from ledgermq.errors import Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.metadata.at_controller import AtController
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger.log.writing.shared_run import SharedRun
from ledgermq_ledger.topics.topic import Topic


class InternalTopic:
    """An internal topic. A partition never changes its bundle. More partitions come only with added bundles,
    and names are not spread over those, so a name always maps to the same partition.

    `create()` creates the topic if this broker is the controller; otherwise the request is sent to
    the controller. It raises no error if the topic exists.
    """

    def __init__(
        self, name: str, metadata: Metadata, at_controller: AtController, create: Callable[[], Awaitable[object]]
    ) -> None:
        self.name = name
        self._metadata = metadata
        self._at_controller = at_controller
        self._create_here = create
        self._creation = SharedRun(self._create)

    @property
    def known(self) -> Topic | None:
        """Return the topic if this broker knows it."""
        return self._metadata.catalog.topics_by_name.get(self.name)

    async def find(self) -> Topic | None:
        """Return the topic, or None if the controller has none. Raises Unavailable."""
        if self.known is None:
            await self._metadata.catch_up()
        return self.known

    async def in_bundles(self, topic: Topic, bundles: Iterable[int]) -> Topic:
        """Return the topic as this broker knows it; catch up first if it lacks partitions in one of these
        bundles, because the bundle may have been added since. Raises Unavailable.
        """
        if set(bundles) <= set(topic.bundles):
            return topic
        await self._metadata.catch_up()
        return self._metadata.catalog.living(self.name)

    async def find_or_create(self) -> Topic:
        """Return the topic, and create it first if it does not exist. Raises Unavailable, NotOwner,
        DeadlineExceeded.
        """
        if await self.find() is None:
            await self._creation.run()
        if self.known is None:
            raise Unavailable(
                f"topic {self.name} was created, but this broker has not read it yet; retry", retry_after_ms=200
            )
        return self.known

    async def close(self) -> None:
        await self._creation.close()

    async def _create(self) -> None:
        async def here() -> pb.CreateTopicResponse:
            await self._create_here()
            return pb.CreateTopicResponse()

        wish = pb.CreateTopicRequest(name=self.name)
        await self._at_controller.run(wish, here, lambda line, passed: line.create_topic(passed))
