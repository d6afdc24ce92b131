"""Answer ShareGroupHeartbeat and ShareGroupDescribe (KIP-932).

The coordinator only keeps a list of members, for tools. A member is given all partitions of its topics, as they
are at its heartbeat; which message goes to whom is decided by leases. Topics are described again when the catalog has
changed, which has the access rules, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ledgermq.errors import InvalidRequest, LedgerMQError, Unauthorized, UnknownGroup
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.asked import Asked, Handler, named_topics
from ledgermq_broker.kafka.handlers.groups.membership import group_code
from ledgermq_broker.kafka.handlers.groups.names import inside
from ledgermq_broker.kafka.handlers.groups.share_members import (
    INTERVAL_MS,
    Assignment,
    Member,
    ShareMembers,
    TooManyMembers,
)
from ledgermq_broker.kafka.handlers.groups.share_offsets import Refused, begun_in, check_coordinator
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import share_group_describe_response as described
from ledgermq_broker.kafka.wire.generated import share_group_heartbeat_response as answered
from ledgermq_broker.kafka.wire.messages import SHARE_GROUP_DESCRIBE, SHARE_GROUP_HEARTBEAT, Api

JOINS, LEAVES = 0, -1
"""Epochs that a client names instead of one."""
ASSIGNOR = "all"
STABLE, EMPTY = "Stable", "Empty"


def answers(brokers: Brokers, members: ShareMembers) -> Mapping[Api, Handler]:
    handler = ShareGroupHandler(brokers, members)
    return {SHARE_GROUP_HEARTBEAT: handler.heartbeat, SHARE_GROUP_DESCRIBE: handler.describe}


class ShareGroupHandler:
    def __init__(self, brokers: Brokers, members: ShareMembers) -> None:
        self._brokers = brokers
        self._members = members

    async def heartbeat(self, asked: Asked) -> answered.ShareGroupHeartbeatResponse:
        message = asked.message
        try:
            if why := _unfit(message):
                raise InvalidRequest(why)
            await check_coordinator(self._brokers, asked.api, message.group_id)
            if message.member_epoch == LEAVES:
                self._members.remove(message.group_id, message.member_id)
                return answered.ShareGroupHeartbeatResponse(member_id=message.member_id, member_epoch=LEAVES)
            member = await self._member(asked)
            assigned = await self._assigned(asked.api, member)
        except LedgerMQError as error:
            return answered.ShareGroupHeartbeatResponse(error_code=group_code(error), error_message=error.message)
        says_all = message.subscribed_topic_names is not None
        is_news = member.give(assigned, message.member_epoch, says_all=says_all)
        return answered.ShareGroupHeartbeatResponse(
            member_id=member.id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=INTERVAL_MS,
            assignment=_assignment(assigned) if is_news else None,
        )

    async def _member(self, asked: Asked) -> Member:
        """Return the member who sends a heartbeat. Raises Refused."""
        message, now_s = asked.message, asyncio.get_running_loop().time()
        topics = message.subscribed_topic_names
        found = self._members.find(message.group_id, message.member_id)
        if topics is None:
            if found is None:
                raise Refused(Code.UNKNOWN_MEMBER_ID, f"group {message.group_id} has no member {message.member_id}")
            found.seen_s = now_s
            return found
        if found is None:
            await _check_kind(asked.api, message.group_id)
        member = Member(
            message.group_id,
            message.member_id,
            asked.client_id,
            asked.client_host,
            message.rack_id if found is None or message.rack_id is not None else found.rack,
            tuple(sorted(set(topics))),
        )
        if found is not None:
            member.epoch, member.assigned = found.epoch, found.assigned
        try:
            self._members.keep(member, now_s)
        except TooManyMembers as error:
            raise Refused(Code.GROUP_MAX_SIZE_REACHED, str(error)) from error
        return member

    async def _assigned(self, api: BrokerApi, member: Member) -> Assignment:
        """Return what a member is to have now. Raises as `_all_of`."""
        looked = api, self._brokers.catalog_offset()
        if member.assigned is not None and member.looked == looked:
            return member.assigned
        assigned = await self._all_of(api, member.topics)
        member.looked = looked
        return assigned

    async def _all_of(self, api: BrokerApi, names: Sequence[str]) -> Assignment:
        """Return the topics that there are, with the numbers of their partitions. Raises Refused if the caller may not
        describe one.
        """
        found: list[tuple[bytes, str, int]] = []
        for info in (await named_topics(api, names)).values():
            if not info.HasField("error"):
                found.append((self._brokers.topic_uuid(info.topic_id), info.name, len(info.partitions)))
            elif isinstance(error := error_from_proto(info.error), Unauthorized):
                raise Refused(Code.TOPIC_AUTHORIZATION_FAILED, error.message)
        return tuple(found)

    # Tools

    async def describe(self, asked: Asked) -> described.ShareGroupDescribeResponse:
        return described.ShareGroupDescribeResponse(
            groups=[await self._described(asked.api, name) for name in dict.fromkeys(asked.message.group_ids)]
        )

    async def _described(self, api: BrokerApi, name: str) -> described.DescribedGroup:
        found = described.DescribedGroup(group_id=name)
        try:
            await check_coordinator(self._brokers, api, name)
            members = self._members.members(name, asyncio.get_running_loop().time())
            if not members and not await begun_in(api, name):
                raise UnknownGroup(f"there is no share group {name}")
        except LedgerMQError as error:
            found.error_code, found.error_message = group_code(error), error.message
            return found
        found.group_state, found.assignor_name = STABLE if members else EMPTY, ASSIGNOR
        found.group_epoch = found.assignment_epoch = max((member.epoch for member in members), default=0)
        found.members = [_shown(member) for member in members]
        return found


async def _check_kind(api: BrokerApi, group: str) -> None:
    """Refuse a share group with the name of a consumer group that has members: to Kafka's tools a name is one of them.
    It is no rule here, where the two have separate names. Raises Refused.
    """
    try:
        info = (await api.describe_group(pb.DescribeGroupRequest(group=inside(group)))).group
    except UnknownGroup:
        return
    if info.member_count:
        raise Refused(Code.GROUP_ID_NOT_FOUND, f"Group {group} is not a share group.")


def _unfit(message: Any) -> str:
    """Return what is wrong with a heartbeat; "" if nothing is."""
    if not message.group_id:
        return "GroupId can't be empty."
    if not message.member_id:
        return "MemberId can't be empty."
    if message.member_epoch < LEAVES:
        return "MemberEpoch is invalid."
    if message.member_epoch == JOINS and not message.subscribed_topic_names:
        return "SubscribedTopicNames must be set in first request."
    return ""


def _assignment(assigned: Assignment) -> answered.Assignment:
    return answered.Assignment([answered.TopicPartitions(uuid, list(range(count))) for uuid, _, count in assigned])


def _shown(member: Member) -> described.Member:
    return described.Member(
        member_id=member.id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        assignment=described.Assignment(
            [described.TopicPartitions(uuid, name, list(range(count))) for uuid, name, count in member.assigned or ()]
        ),
    )
