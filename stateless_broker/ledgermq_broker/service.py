"""Serve every method of `BrokerApi`, composed from the paths; without gRPC, so that it runs in any
event loop. The smaller paths are here: offsets, topics, the cluster.

Any broker returns the owners of all bundles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq.errors import InvalidRequest, LedgerMQError, TopicExists, Unavailable, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq_broker.access.quota_path import QuotaPath
from ledgermq_broker.access.rule_path import RulePath
from ledgermq_broker.admission.queries import QUERIES_MAX, side_by_side
from ledgermq_broker.cluster.directory import Directory
from ledgermq_broker.cluster.heartbeat import Heartbeat
from ledgermq_broker.cluster.membership import Membership
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.exclusive.holders import Holders
from ledgermq_broker.groups.groups import Groups
from ledgermq_broker.health import problems
from ledgermq_broker.metadata.at_controller import AtController
from ledgermq_broker.metadata.controller import Controller
from ledgermq_broker.metadata.followed import Lookup, Metadata
from ledgermq_broker.paths.deletion_path import DeletionPath
from ledgermq_broker.paths.fetch_path import FetchPath, refuse_unreadable
from ledgermq_broker.paths.find_path import FindPath
from ledgermq_broker.paths.produce_path import ProducePath
from ledgermq_broker.queues.shares import Shares
from ledgermq_broker.timed.timers import Timers
from ledgermq_broker.transactions.stage_path import StagePath
from ledgermq_broker.transactions.transactions import Transactions
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.topics.catalog import Topic

READ_AFTER_MS = 250
"""A broker reads the records of `__metadata` within this time, mostly."""


class BrokerService:
    """`BrokerApi` of one broker: a table of the methods of its paths, so that calls go straight to
    them.
    """

    def __init__(  # noqa: PLR0915  a table
        self,
        produce_path: ProducePath,
        fetch_path: FetchPath,
        find_path: FindPath,
        deletion_path: DeletionPath,
        offsets: OffsetPath,
        topics: TopicPath,
        cluster: ClusterPath,
        groups: Groups,
        stage_path: StagePath,
        transactions: Transactions,
        timers: Timers,
        shares: Shares,
        holders: Holders,
        rules: RulePath,
        quotas: QuotaPath,
    ) -> None:
        self.produce = produce_path.produce
        self.produce_once = produce_path.produce_once
        self.fetch = fetch_path.fetch
        self.fetch_once = fetch_path.fetch_once
        self.find_messages = find_path.find_messages
        self.delete_records = deletion_path.delete_records
        self.list_offsets = offsets.list_offsets
        self.open_producer = offsets.open_producer
        self.describe_topics = topics.describe_topics
        self.create_topic = topics.create_topic
        self.alter_topic = topics.alter_topic
        self.delete_topic = topics.delete_topic
        self.undelete_topic = topics.undelete_topic
        self.describe_cluster = cluster.describe_cluster
        self.drain_broker = cluster.drain_broker
        self.add_bundles = topics.add_bundles
        self.move_partition = topics.move_partition
        self.prepare_move = topics.prepare_move
        self.list_loads = cluster.list_loads
        self.problems = cluster.problems
        self._add_groups(groups)
        self.stage = stage_path.stage
        self.stage_delayed = stage_path.stage_delayed
        self.stage_offsets = transactions.stage_offsets
        self.init_transactions = transactions.init_transactions
        self.end_transaction = transactions.end_transaction
        self.transaction_outcome = transactions.transaction_outcome
        self.resolve_transaction = transactions.resolve_transaction
        self.list_transactions = transactions.list_transactions
        self.describe_transaction = transactions.describe_transaction
        self.complete_transaction = transactions.complete_transaction
        self.ask_transaction = transactions.ask_transaction
        self.poll_checks = transactions.poll_checks
        self.read_staged = transactions.read_staged
        self.produce_delayed = timers.produce_delayed
        self.produce_delayed_once = timers.produce_delayed_once
        self.recall_delayed = timers.recall_delayed
        self.list_delayed = timers.list_delayed
        self.share_fetch = shares.share_fetch
        self.share_answer = shares.share_answer
        self.reset_shares = shares.reset_shares
        self.list_shares = shares.list_shares
        self.hold_partitions = holders.hold_partitions
        self.release_partitions = holders.release_partitions
        self.change_rules = rules.change_rules
        self.list_rules = rules.list_rules
        self.test_rules = rules.test_rules
        self.create_token = rules.create_token
        self.revoke_token = rules.revoke_token
        self.list_tokens = rules.list_tokens
        self.confirm_rules = rules.confirm_rules
        self.change_quota = quotas.change_quota
        self.list_quotas = quotas.list_quotas

    def _add_groups(self, groups: Groups) -> None:
        self.slowest_commits = groups.slowest_commits
        self.group_heartbeat = groups.group_heartbeat
        self.commit_offsets = groups.commit_offsets
        self.fetch_committed = groups.fetch_committed
        self.reset_offsets = groups.reset_offsets
        self.find_coordinator = groups.find_coordinator
        self.join_classic_group = groups.join_classic_group
        self.sync_classic_group = groups.sync_classic_group
        self.classic_heartbeat = groups.classic_heartbeat
        self.leave_classic_group = groups.leave_classic_group
        self.commit_for_generation = groups.commit_for_generation
        self.list_groups = groups.list_groups
        self.describe_group = groups.describe_group
        self.delete_group = groups.delete_group


class OffsetPath:
    """Return offsets of partitions, and the sequences at which producer sessions continue, from the
    partitions' owners.

    `now_us` estimates the store's time; 0 while there is no estimate.
    """

    def __init__(self, metadata: Metadata, ownership: Ownership, now_us: Callable[[], int]) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._now_us = now_us

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        lookup = self._metadata.lookup()
        return pb.ListOffsetsResponse(
            results=await side_by_side(lambda query: self._offset(lookup, query), request.queries)
        )

    async def open_producer(self, request: pb.OpenProducerRequest) -> pb.OpenProducerResponse:
        lookup = self._metadata.lookup()
        opened = await side_by_side(lambda wanted: self._opened(lookup, wanted, request), request.partitions)
        return pb.OpenProducerResponse(partitions=opened, now_us=self._now_us())

    async def _offset(self, lookup: Lookup, query: pb.OffsetQuery) -> pb.OffsetResult:
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
            return pb.OffsetResult(offset=await owner.list_offset(topic, query.partition, kind))
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


class TopicPath:
    """List topics, and forward changes of topics to the controller."""

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
        if len(request.topics) > QUERIES_MAX:
            raise InvalidRequest(f"at most {QUERIES_MAX} topics in one request, not {len(request.topics)}")
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
        topics = sorted(chosen, key=lambda topic: topic.name)
        # The answer copies each topic; a list of all would fragment the memory by 100 bytes a partition.
        return pb.DescribeTopicsResponse(topics=(self._info(topic) for topic in topics if not topic.internal))

    async def create_topic(self, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
        async def here() -> pb.CreateTopicResponse:
            # another broker's wish; its caller chooses nothing about it
            if request.forwarded and self._controller.creates(request.name):
                topic = await self._controller.create_internal_topic(request.name)
                return pb.CreateTopicResponse(topic=self._info(topic))
            settings = dict(request.settings)
            topic = await self._controller.create_topic(request.name, request.partitions, settings, request.nonce)
            return pb.CreateTopicResponse(topic=self._info(topic))

        keys.check_topic_name(request.name)
        return await self._at_controller.run(request, here, lambda line, passed: line.create_topic(passed))

    async def alter_topic(self, request: pb.AlterTopicRequest) -> pb.AlterTopicResponse:
        async def here() -> pb.AlterTopicResponse:
            topic = await self._controller.alter_topic(
                request.name,
                request.partitions,
                dict(request.set),
                list(request.unset),
                request.nonce,
                request.topic_id,
            )
            return pb.AlterTopicResponse(topic=self._info(topic))

        return await self._at_controller.run(request, here, lambda line, passed: line.alter_topic(passed))

    async def delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        async def here() -> pb.DeleteTopicResponse:
            topic = await self._controller.delete_topic(request.name, request.topic_id, at_once=request.now)
            return pb.DeleteTopicResponse(kept_until_ms=0 if topic.trash is None else topic.trash.until_ms)

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
                request.topic, request.partition, request.bundle, dry_run=request.dry_run
            )
            return (
                pb.MovePartitionResponse()
                if move is None
                else pb.MovePartitionResponse(source=move.source, move=move.id)
            )

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
        ttl_ms, ttl_ms_max = self._controller.limits.ttl_of(topic)
        return pb.TopicInfo(
            name=topic.name,
            topic_id=topic.id,
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


class ClusterPath:
    """Report brokers, owners of bundles, and problems of the cluster."""

    def __init__(
        self, ledger: LedgerRef, version: str, membership: Membership, directory: Directory, ownership: Ownership
    ) -> None:
        self._cluster = ledger.cluster
        self._root_url = ledger.store.url
        self._version = version
        self._membership = membership
        self._directory = directory
        self._ownership = ownership

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
        """Let this broker hand over what it owns and take nothing new, or take its share again.

        Raises InvalidRequest if another broker is meant, or no other one could take over.
        """
        me = self._membership.me
        if request.address != me.address:
            raise InvalidRequest(f"this is the broker at {me.address}, not at {request.address!r}: nothing was changed")
        if not (request.undrain or me.draining or self._others()):
            await self._ownership.look()  # another one may be back since the last look
            if not self._others():
                raise InvalidRequest(
                    f"no other broker could take over what {me.address} owns: start one first, or end the drain of"
                    " another"
                )
        await self._ownership.drain(is_draining=not request.undrain)
        return pb.DrainBrokerResponse(bundles=sorted(self._ownership.opened))

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
