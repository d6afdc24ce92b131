"""List topics, and forward changes of topics to the controller."""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.errors import InvalidRequest, LedgerMQError, TopicExists, Unavailable, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.metadata.at_controller import AtController
from ledgermq_broker.metadata.controller import Controller
from ledgermq_broker.metadata.followed import Lookup, Metadata
from ledgermq_ledger import keys
from ledgermq_ledger.topics.topic import Topic

NAMES_MAX = 10_000
"""Topics that one request names."""
READ_AFTER_MS = 250
"""A broker reads the records of `__metadata` within this time, mostly."""


class TopicPath:
    """`auto_create_topics()` returns whether a look-up may create the topic."""

    def __init__(
        self,
        metadata: Metadata,
        ownership: Ownership,
        controller: Controller,
        at_controller: AtController,
        auto_create_topics: Callable[[], bool],
    ) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._controller = controller
        self._at_controller = at_controller
        self._auto_create_topics = auto_create_topics

    async def describe_topics(self, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        if len(request.topics) > NAMES_MAX:
            raise InvalidRequest(f"at most {NAMES_MAX} topics in one request, not {len(request.topics)}")
        if request.fresh or not request.topics:
            await self._metadata.catch_up()
        if request.topics:
            lookup = self._metadata.lookup()
            trashed = self._metadata.catalog.trashed if request.deleted else {}
            return pb.DescribeTopicsResponse(
                topics=[
                    self._info(trashed[name])
                    if name in trashed
                    else await self._describe(lookup, name, request.auto_create)
                    for name in request.topics
                ]
            )
        chosen = self._metadata.catalog.trashed.values() if request.deleted else self._metadata.catalog.living_topics()
        listed = (topic for topic in chosen if not topic.internal and topic.name.startswith(request.prefix))
        topics = sorted((topic for topic in listed if topic.name > request.after), key=lambda topic: topic.name)
        # The answer copies each topic; a list of all would fragment the memory by 100 bytes a partition.
        shown = _name_of if request.names_only else self._listed
        return pb.DescribeTopicsResponse(topics=map(shown, topics[: request.limit or None]))

    async def create_topic(self, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
        """Create a topic; with `dry_run` only raise what creating it would raise, by the newest catalog."""

        async def here() -> pb.CreateTopicResponse:
            # another broker's wish; its caller chooses nothing about it
            if request.forwarded and self._controller.creates(request.name):
                topic = await self._controller.create_internal_topic(request.name)
                return pb.CreateTopicResponse(topic=self._info(topic))
            settings = dict(request.settings)
            topic = await self._controller.create_topic(
                request.name, request.partitions, settings, request.nonce, dry_run=request.dry_run
            )
            return pb.CreateTopicResponse(topic=self._info(topic))

        keys.check_topic_name(request.name)
        if request.dry_run:
            await self._metadata.catch_up()
            return await here()
        return await self._at_controller.run(request, here, lambda line, passed: line.create_topic(passed))

    async def alter_topic(self, request: pb.AlterTopicRequest) -> pb.AlterTopicResponse:
        """Change a topic; with `dry_run` only raise what the change would raise, by the newest catalog."""

        async def here() -> pb.AlterTopicResponse:
            topic = await self._controller.alter_topic(request)
            return pb.AlterTopicResponse(topic=self._info(topic), rebuilt=request.rebuild_table)

        if request.dry_run:
            await self._metadata.catch_up()
            return await here()
        return await self._at_controller.run(request, here, lambda line, passed: line.alter_topic(passed))

    async def delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        if request.with_cuts and not request.now:
            raise InvalidRequest("cuts are dropped only with a topic that is deleted for good: set `now`, too")

        async def here() -> pb.DeleteTopicResponse:
            cuts: list[str] | None = [] if request.with_cuts else None
            topic = await self._controller.delete_topic(
                request.name, request.topic_id, at_once=request.now, dropped_cuts=cuts
            )
            until_ms = 0 if topic.trash is None else topic.trash.until_ms
            return pb.DeleteTopicResponse(kept_until_ms=until_ms, dropped_cuts=cuts, with_cuts=request.with_cuts)

        return await self._at_controller.run(request, here, lambda line, passed: line.delete_topic(passed))

    async def undelete_topic(self, request: pb.UndeleteTopicRequest) -> pb.UndeleteTopicResponse:
        async def here() -> pb.UndeleteTopicResponse:
            topic = await self._controller.undelete_topic(request.name, request.nonce, request.topic_id)
            return pb.UndeleteTopicResponse(topic=self._info(topic))

        return await self._at_controller.run(request, here, lambda line, passed: line.undelete_topic(passed))

    async def add_bundles(self, request: pb.AddBundlesRequest) -> pb.AddBundlesResponse:
        attempts = 0

        async def here() -> pb.AddBundlesResponse:
            nonlocal attempts
            attempts += 1
            before, after = await self._controller.add_bundles(request.bundles, dry_run=request.dry_run)
            return pb.AddBundlesResponse(before=before, bundles=after)

        async def there(line: Connection, passed: pb.AddBundlesRequest) -> pb.AddBundlesResponse:
            nonlocal attempts
            attempts += 1
            return await line.add_bundles(passed)

        answer = await self._at_controller.run(request, here, there)
        answer.once = attempts == 1  # an attempt without an answer may have made the change
        return answer

    async def move_partition(self, request: pb.MovePartitionRequest) -> pb.MovePartitionResponse:
        async def here() -> pb.MovePartitionResponse:
            move = await self._controller.move_partition(
                request.topic,
                request.partition,
                request.bundle,
                dry_run=request.dry_run,
                nonce=request.nonce,
                topic_id=request.topic_id,
            )
            source, move_id = (0, 0) if move is None else (move.source, move.id)
            return pb.MovePartitionResponse(source=source, move=move_id)

        return await self._at_controller.run(request, here, lambda line, passed: line.move_partition(passed))

    async def prepare_move(self, request: pb.PrepareMoveRequest) -> pb.PrepareMoveResponse:
        """Let a partition go that this broker's bundle holds. Raises NotOwner, PartitionBusy, Unavailable."""
        topic = self._metadata.catalog.topics_by_id.get(request.topic_id)
        if topic is None or request.partition >= topic.partitions:
            raise Unavailable("this broker has not read of the partition yet; retry", retry_after_ms=READ_AFTER_MS)
        owner = await self._ownership.owner(topic.bundles[request.partition])
        owner.prepare_move(topic, request.partition, dry_run=request.dry_run)
        return pb.PrepareMoveResponse()

    def _info(self, topic: Topic) -> pb.TopicInfo:
        """Return the description of one topic, with the racks of its owners."""
        info = self._listed(topic)
        info.racks.update(self._ownership.racks_of({part.owner for part in info.partitions}))
        return info

    def _listed(self, topic: Topic) -> pb.TopicInfo:
        ttl_ms, ttl_ms_max = self._controller.limits.ttl_of(topic)
        return pb.TopicInfo(
            name=topic.name,
            topic_id=max(0, topic.id),  # one that is not created has none
            partitions=[
                pb.PartitionInfo(
                    bundle=bundle,
                    owner=self._ownership.address_of(bundle),
                    moving_from=move.source if (move := topic.moves.get(partition)) and not move.ended else 0,
                    moves=move.count if move else 0,
                )
                for partition, bundle in enumerate(topic.bundles)
            ],
            settings=topic.raw_settings,
            created_ms=topic.created_ms,
            message_ttl_ms=ttl_ms,
            message_ttl_ms_max=ttl_ms_max,
            nonce=topic.nonce,
            deleted_ms=0 if topic.trash is None else topic.trash.deleted_ms,
            kept_until_ms=0 if topic.trash is None else topic.trash.until_ms,
        )

    async def _describe(self, lookup: Lookup, name: str, auto_create: bool) -> pb.TopicInfo:
        try:
            return self._info(await self._find_or_create(lookup, name, auto_create and self._auto_create_topics()))
        except LedgerMQError as error:
            return pb.TopicInfo(name=name, error=self._ownership.error(error))

    async def _find_or_create(self, lookup: Lookup, name: str, auto_create: bool) -> Topic:
        try:
            return await lookup.find(name)
        except UnknownTopic:
            if not auto_create:
                raise
        try:
            await self.create_topic(pb.CreateTopicRequest(name=name))
        except TopicExists:
            pass
        return await self._metadata.lookup().find(name)


def _name_of(topic: Topic) -> pb.TopicInfo:
    return pb.TopicInfo(
        name=topic.name,
        topic_id=topic.id,
        created_ms=topic.created_ms,
        deleted_ms=0 if topic.trash is None else topic.trash.deleted_ms,
    )
