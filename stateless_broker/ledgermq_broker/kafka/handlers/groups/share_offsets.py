"""Answer DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets (KIP-932), for tools; find and
delete the share groups that have begun.

The start offset of a group in a partition is known to the owner of the partition, so this broker asks the owners. It
may change where the coordinator knows no members, as in Kafka; members of our own protocol do not count.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ledgermq.errors import (
    GroupError,
    GroupNotEmpty,
    InvalidRequest,
    LedgerMQError,
    TopicBeingDeleted,
    Unauthenticated,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.tasks import all_of
from ledgermq.sources import Sources
from ledgermq_broker.kafka.brokers import NO_EPOCH, Brokers
from ledgermq_broker.kafka.handlers.asked import PARTITIONS_AT_ONCE, Asked, Handler, named_topics
from ledgermq_broker.kafka.handlers.groups.committed import topic_code
from ledgermq_broker.kafka.handlers.groups.membership import group_code
from ledgermq_broker.kafka.handlers.groups.names import inside, outside
from ledgermq_broker.kafka.handlers.groups.share_members import ShareMembers
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of
from ledgermq_broker.kafka.wire.generated import alter_share_group_offsets_response as altered
from ledgermq_broker.kafka.wire.generated import delete_share_group_offsets_response as deleted
from ledgermq_broker.kafka.wire.generated import describe_share_group_offsets_response as described
from ledgermq_broker.kafka.wire.messages import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    Api,
)
from ledgermq_ledger import keys

NOT_BEGUN = -1
"""The start offset of a group in a partition where it has not begun."""
NO_TOPIC = bytes(16)
RESETS_PER_CALL = 1000

P = TypeVar("P")
Place = tuple[str, int]
"""A topic's name, and the number of a partition."""


class Refused(GroupError):
    """`kafka_code`: the client is to get it."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.kafka_code = code


class Topic(NamedTuple):
    """`info`: None if there is no such topic, or the caller may not describe it, as `error` says."""

    info: pb.TopicInfo | None
    error: LedgerMQError | None


def answers(handler: ShareOffsetsHandler) -> Mapping[Api, Handler]:
    return {
        DESCRIBE_SHARE_GROUP_OFFSETS: handler.describe,
        ALTER_SHARE_GROUP_OFFSETS: handler.alter,
        DELETE_SHARE_GROUP_OFFSETS: handler.delete,
    }


class Begun(NamedTuple):
    """Where share groups have begun. `missing`: of an owner that did not answer, so that groups may have begun in more
    partitions, or be missing; None: this is all.
    """

    groups: Mapping[str, Mapping[Place, pb.ShareInfo]]
    missing: LedgerMQError | None

    def of(self, group: str) -> dict[Place, pb.ShareInfo]:
        return dict(self.groups.get(group, {}))


async def check_coordinator(brokers: Brokers, api: BrokerApi, group: str) -> None:
    """Raise Refused if another broker coordinates the group, Unauthorized, InvalidGroupName and others."""
    found = await api.find_coordinator(pb.FindCoordinatorRequest(group=inside(group)))
    if not brokers.is_me(found.address):
        raise Refused(Code.NOT_COORDINATOR, "another broker coordinates this group")


async def begun_in(api: BrokerApi, group: str) -> dict[Place, pb.ShareInfo]:
    """Return where a share group has begun, of topics that the caller may describe; all bundles are asked. Raises
    Unavailable and others.
    """
    begun = await begun_groups(api, group)
    if begun.missing is not None:
        raise begun.missing
    return begun.of(group)


async def begun_groups(api: BrokerApi, group: str = "") -> Begun:
    """Return the share groups that have begun, by the names that clients know; `group`: this one alone. Raises what
    DescribeCluster raises, InvalidGroupName.
    """
    kept = inside(group) if group else ""
    cluster = await api.describe_cluster(pb.DescribeClusterRequest())

    async def of_bundle(bundle: int) -> Sequence[pb.ShareInfo] | LedgerMQError:
        request = pb.ListSharesRequest(bundle=bundle, group=kept, at_owner=True)
        try:
            return (await api.list_shares(request)).shares
        except Unauthenticated:
            raise
        except LedgerMQError as error:
            return error

    bundles = (each.bundle for each in cluster.bundles if each.bundle != keys.METADATA_BUNDLE)
    found: defaultdict[str, dict[Place, pb.ShareInfo]] = defaultdict(dict)
    missing = None
    for infos in await all_of(map(of_bundle, bundles), PARTITIONS_AT_ONCE):
        if isinstance(infos, LedgerMQError):
            missing = infos
            continue
        for info in infos:
            if info.topic:
                found[outside(info.group)][info.topic, info.partition] = info
    return Begun(found, missing)


class ShareOffsetsHandler:
    def __init__(self, brokers: Brokers, members: ShareMembers, sources: Sources) -> None:
        self._brokers = brokers
        self._members = members
        self._sources = sources

    # Describing

    async def describe(self, asked: Asked) -> described.DescribeShareGroupOffsetsResponse:
        times = Counter(group.group_id for group in asked.message.groups)
        answer = described.DescribeShareGroupOffsetsResponse()
        for group in asked.message.groups:
            found = described.DescribeShareGroupOffsetsResponseGroup(group.group_id)
            answer.groups.append(found)
            try:
                if times[group.group_id] > 1:  # otherwise a small request could ask all owners many times
                    raise InvalidRequest("each group is named once")
                found.topics = await self._described(asked.api, group)
            except LedgerMQError as error:
                found.error_code, found.error_message = group_code(error), error.message
        return answer

    async def _described(self, api: BrokerApi, group: Any) -> list[described.DescribeShareGroupOffsetsResponseTopic]:
        begun = await self._existing(api, group.group_id)
        wanted: defaultdict[str, list[int]] = defaultdict(list)
        if group.topics is None:
            for name, number in sorted(begun):
                wanted[name].append(number)
        else:
            for each in group.topics:
                wanted[each.topic_name] += each.partitions
        topics = await _topics(api, wanted)
        return [
            described.DescribeShareGroupOffsetsResponseTopic(
                name,
                self._uuid(topics[name]),
                [self._partition(topics[name], number, begun.get((name, number))) for number in numbers],
            )
            for name, numbers in wanted.items()
        ]

    def _partition(
        self, topic: Topic, number: int, info: pb.ShareInfo | None
    ) -> described.DescribeShareGroupOffsetsResponsePartition:
        found = described.DescribeShareGroupOffsetsResponsePartition(number, NOT_BEGUN, NO_EPOCH)
        if topic.error is not None and not isinstance(topic.error, UnknownTopic):
            found.error_code, found.error_message = code_of(topic.error, Area.FETCH), topic.error.message
        elif topic.info is not None and info is not None and number < len(topic.info.partitions):
            found.start_offset = info.start
            found.leader_epoch = self._brokers.leader(topic.info.partitions[number]).epoch
        return found

    # Changing

    async def alter(self, asked: Asked) -> altered.AlterShareGroupOffsetsResponse:
        message, answer = asked.message, altered.AlterShareGroupOffsetsResponse()
        wanted: dict[Place, int] = {
            (topic.topic_name, one.partition_index): one.start_offset
            for topic in message.topics
            for one in topic.partitions
        }
        try:
            if len(wanted) < sum(len(topic.partitions) for topic in message.topics):
                raise InvalidRequest("each partition is named once")
            begun = await self._empty(asked.api, message.group_id)
            topics = await _topics(asked.api, (topic.topic_name for topic in message.topics))
            errors = await self._reset(asked.api, message.group_id, wanted, topics, begun)
        except LedgerMQError as error:
            answer.error_code, answer.error_message = group_code(error), error.message
            return answer
        answer.responses = [
            altered.AlterShareGroupOffsetsResponseTopic(
                topic.topic_name,
                self._uuid(topics[topic.topic_name]),
                [
                    altered.AlterShareGroupOffsetsResponsePartition(
                        one.partition_index, *errors[topic.topic_name, one.partition_index]
                    )
                    for one in topic.partitions
                ],
            )
            for topic in message.topics
        ]
        return answer

    async def delete(self, asked: Asked) -> deleted.DeleteShareGroupOffsetsResponse:
        message, answer = asked.message, deleted.DeleteShareGroupOffsetsResponse()
        names = list(dict.fromkeys(topic.topic_name for topic in message.topics))
        try:
            begun = await self._empty(asked.api, message.group_id)
            topics = await _topics(asked.api, names)
            wanted = {place: None for place in begun if place[0] in topics}
            errors = await self._reset(asked.api, message.group_id, wanted, topics, begun)
        except LedgerMQError as error:
            answer.error_code, answer.error_message = group_code(error), error.message
            return answer
        for name in names:
            found = deleted.DeleteShareGroupOffsetsResponseTopic(name, self._uuid(topics[name]))
            refused = [result for (topic, _), result in errors.items() if topic == name and result[0] != Code.NONE]
            if (why := topics[name].error) is not None:
                refused = [(code_of(why, Area.FETCH), why.message)]
            if refused:
                found.error_code, found.error_message = refused[0]
            answer.responses.append(found)
        return answer

    async def forget(self, api: BrokerApi, group: str, begun: Mapping[Place, pb.ShareInfo]) -> Code:
        """Delete a share group that has begun there; return the code of DeleteGroups. Raises GroupNotEmpty, …"""
        await check_coordinator(self._brokers, api, group)
        if self.has_members(group):
            raise GroupNotEmpty(f"share group {group} has members; stop them first")
        topics = await _topics(api, (topic for topic, _ in begun))
        wanted = {place: None for place in begun if not _is_gone(topics[place[0]])}
        errors = await self._reset(api, group, wanted, topics, begun)
        return next((Code(code) for code, _ in errors.values() if code != Code.NONE), Code.NONE)

    async def _reset(
        self,
        api: BrokerApi,
        group: str,
        wanted: Mapping[Place, int | None],
        topics: Mapping[str, Topic],
        begun: Mapping[Place, pb.ShareInfo],
    ) -> dict[Place, tuple[int, str | None]]:
        """Reset partitions to offsets, or forget the group there (None). Return code and text of each."""
        results: dict[Place, tuple[int, str | None]] = {}
        sent = []
        for place, offset in wanted.items():
            if why := _unfit(topics[place[0]], place, offset):
                results[place] = code_of(why, Area.FETCH), why.message
            else:
                sent.append(place)
        for part in _cut(sent, RESETS_PER_CALL):
            request = pb.ResetSharesRequest(group=inside(group), nonce=self._sources.new_id(), at_owners=True)
            for place in part:
                known = begun.get(place)
                one = request.resets.add(topic=place[0], partition=place[1], begun=known.begun if known else b"")
                if (offset := wanted[place]) is not None:
                    one.offset = offset
            for place, result in zip(part, (await api.reset_shares(request)).results, strict=True):
                code = topic_code(result.error) if result.HasField("error") else Code.NONE
                results[place] = code, result.error.message or None
        return results

    # Inside

    async def _existing(self, api: BrokerApi, group: str) -> dict[Place, pb.ShareInfo]:
        """Return where a group has begun. Raises UnknownGroup if it has no members, too, Refused, Unauthorized."""
        await check_coordinator(self._brokers, api, group)
        found = await begun_in(api, group)
        if not found and not self.has_members(group):
            raise UnknownGroup(f"Group {group} not found.")
        return found

    async def _empty(self, api: BrokerApi, group: str) -> dict[Place, pb.ShareInfo]:
        found = await self._existing(api, group)
        if self.has_members(group):
            raise GroupNotEmpty(f"share group {group} has members; stop them first")
        return found

    def has_members(self, group: str) -> bool:
        return bool(self._members.members(group, asyncio.get_running_loop().time()))

    def _uuid(self, topic: Topic) -> bytes:
        return NO_TOPIC if topic.info is None else self._brokers.topic_uuid(topic.info.topic_id)


async def _topics(api: BrokerApi, names: Iterable[str]) -> dict[str, Topic]:
    """Return each of these topics. Topics of the system are unknown."""
    names = list(dict.fromkeys(names))
    found = {name: Topic(None, UnknownTopic(f"there is no topic {name}")) for name in names}
    for name, info in (await named_topics(api, names)).items():
        refused = info.HasField("error")
        found[name] = Topic(None, error_from_proto(info.error)) if refused else Topic(info, None)
    return found


def _is_gone(topic: Topic) -> bool:
    return isinstance(topic.error, UnknownTopic | TopicBeingDeleted)


def _unfit(topic: Topic, place: Place, offset: int | None) -> LedgerMQError | None:
    """Return why a partition cannot be reset."""
    if topic.info is None:
        return topic.error
    if not 0 <= place[1] < len(topic.info.partitions):
        return UnknownPartition(f"topic {place[0]} has {len(topic.info.partitions)} partitions, and no {place[1]}")
    return InvalidRequest(f"{offset} is no start offset") if offset is not None and offset < 0 else None


def _cut(items: Sequence[P], most: int) -> list[Sequence[P]]:
    return [items[at : at + most] for at in range(0, len(items), most)]
