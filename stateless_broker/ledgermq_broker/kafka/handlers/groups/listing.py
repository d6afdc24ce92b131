"""Answer DescribeGroups, ListGroups and DeleteGroups, for tools.

Groups with members of our own protocol are shown as consumer groups, too. Each broker lists the groups that it
coordinates, and tools ask all brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

from ledgermq.errors import LedgerMQError, NotOwner, UnknownGroup, UnknownPartition
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq_broker.kafka.handlers.asked import Asked, Handler, all_here
from ledgermq_broker.kafka.handlers.groups.membership import group_code
from ledgermq_broker.kafka.handlers.groups.names import inside, outside
from ledgermq_broker.kafka.handlers.groups.share_members import ShareMembers
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import delete_groups_response, describe_groups_response, list_groups_response
from ledgermq_broker.kafka.wire.messages import DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS, Api
from ledgermq_offsets.classic.consumer_protocol import PROTOCOL_TYPE, assignment, subscription

NOT_FOUND_FROM = 6
"""Version of DescribeGroups that says so of a group which does not exist; before it is shown as dead."""
TYPES_FROM = 5
"""Version of ListGroups whose clients know types of groups, with their states."""
STATES = {pb.EMPTY: "Empty", pb.STABLE: "Stable", pb.RECONCILING: "PreparingRebalance"}
CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"


def answers(members: ShareMembers) -> Mapping[Api, Handler]:
    """Return the handlers. `members`: of share groups."""

    def listed(asked: Asked) -> Awaitable[list_groups_response.ListGroupsResponse]:
        return list_groups(asked, members)

    return {DESCRIBE_GROUPS: describe, LIST_GROUPS: listed, DELETE_GROUPS: delete}


async def describe(asked: Asked) -> describe_groups_response.DescribeGroupsResponse:
    return describe_groups_response.DescribeGroupsResponse(
        groups=[await _described(asked, name) for name in dict.fromkeys(asked.message.groups)]
    )


async def _described(asked: Asked, name: str) -> describe_groups_response.DescribedGroup:
    found = describe_groups_response.DescribedGroup(group_id=name)
    try:
        info = (await asked.api.describe_group(pb.DescribeGroupRequest(group=inside(name)))).group
    except UnknownGroup as error:
        found.group_state = "Dead"
        if asked.version >= NOT_FOUND_FROM:
            found.error_code, found.error_message = Code.GROUP_ID_NOT_FOUND, error.message
        return found
    except LedgerMQError as error:
        found.error_code = group_code(error)
        if asked.version >= NOT_FOUND_FROM:
            found.error_message = error.message
        return found
    found.group_state, found.protocol_type = _state(info), _protocol_type(info)
    found.protocol_data = info.classic.protocol if info.HasField("classic") else info.assignor
    found.members = _members(info)
    return found


def _state(info: pb.GroupInfo, version: int = 0) -> str:
    if info.HasField("classic"):
        return str(info.classic.state)
    return "Reconciling" if info.state == pb.RECONCILING and version >= TYPES_FROM else STATES[info.state]


def _protocol_type(info: pb.GroupInfo) -> str:
    """Return the type; "" for a group that never had members of the Kafka protocol, and has none now."""
    if info.HasField("classic"):
        return str(info.classic.protocol_type)
    return PROTOCOL_TYPE if info.member_count else ""


def _members(info: pb.GroupInfo) -> list[describe_groups_response.DescribedGroupMember]:
    if info.HasField("classic"):
        return [
            describe_groups_response.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id or None,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in info.classic.members
        ]
    found = []
    for one in info.members:
        by_topic: dict[str, list[int]] = {}
        for given in one.owned:
            by_topic.setdefault(given.topic, []).append(given.partition)
        found.append(
            describe_groups_response.DescribedGroupMember(
                member_id=outside(one.member_id),
                group_instance_id=one.subscription.instance_id or None,
                client_id=one.subscription.client_id,
                client_host="",
                member_metadata=subscription(one.subscription.topics),
                member_assignment=assignment(by_topic),
            )
        )
    return found


async def list_groups(asked: Asked, members: ShareMembers) -> list_groups_response.ListGroupsResponse:
    states = {state.lower() for state in asked.message.states_filter}
    types = {kind.lower() for kind in asked.message.types_filter}
    try:
        groups = await all_here(lambda partition: _groups_of(asked.api, partition))
    except LedgerMQError as error:
        return list_groups_response.ListGroupsResponse(error_code=group_code(error))
    listed = [
        list_groups_response.ListedGroup(
            group_id=outside(info.group),
            protocol_type=_protocol_type(info),
            group_state=_state(info, asked.version),
            group_type=_kind(info),
        )
        for info in groups
    ]
    listed += await _share_groups(asked.api, members)
    return list_groups_response.ListGroupsResponse(
        groups=[
            one
            for one in listed
            if (not states or one.group_state.lower() in states) and (not types or one.group_type in types)
        ]
    )


def _kind(info: pb.GroupInfo) -> str:
    return CONSUMER if info.member_count and not info.HasField("classic") else CLASSIC


async def _share_groups(api: BrokerApi, members: ShareMembers) -> list[list_groups_response.ListedGroup]:
    """Return the share groups with members that this broker coordinates, and that the caller may see."""
    found = []
    for group in members.groups(asyncio.get_running_loop().time()):
        try:
            await api.find_coordinator(pb.FindCoordinatorRequest(group=inside(group)))
        except LedgerMQError:
            continue
        found.append(
            list_groups_response.ListedGroup(
                group_id=group, protocol_type=SHARE, group_state=STATES[pb.STABLE], group_type=SHARE
            )
        )
    return found


async def _groups_of(api: BrokerApi, partition: int) -> list[pb.GroupInfo] | None:
    """Return the groups of a partition, none if another broker coordinates them; None: there is no such partition."""
    try:
        answer = await api.list_groups(pb.ListGroupsRequest(partition=partition))
    except UnknownPartition:
        return None
    except NotOwner:
        return []
    return list(answer.groups) if answer.partitions else None


async def delete(asked: Asked) -> delete_groups_response.DeleteGroupsResponse:
    results = []
    for name in asked.message.groups_names:
        code = Code.NONE
        try:
            await asked.api.delete_group(pb.DeleteGroupRequest(group=inside(name)))
        except LedgerMQError as error:
            code = group_code(error)
        results.append(delete_groups_response.DeletableGroupResult(group_id=name, error_code=code))
    return delete_groups_response.DeleteGroupsResponse(results=results)
