"""Answer DescribeGroups, ListGroups and DeleteGroups, for tools.

Groups with members of our own protocol are shown as consumer groups, too. Each broker lists the groups that it
coordinates, and tools ask all brokers.

A share group without members of this protocol is known to the owners of the partitions in which it has begun, so all
of them are asked: for clients that know types of groups, and wish to see such a group. To Kafka's tools a name is one
group, to LedgerMQ it may be one of each kind: such a name is not deleted, because it is not known which is meant.

While an owner does not answer, lists lack the share groups that it alone knows, unless the client asks for nothing
else; and a consumer group is deleted if no other owner knows a share group of its name, which then stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

from ledgermq.errors import LedgerMQError, NotOwner, Unauthenticated, UnknownGroup, UnknownPartition
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.asked import Asked, Handler, all_here
from ledgermq_broker.kafka.handlers.groups.membership import group_code
from ledgermq_broker.kafka.handlers.groups.names import inside, outside
from ledgermq_broker.kafka.handlers.groups.share_members import ShareMembers
from ledgermq_broker.kafka.handlers.groups.share_offsets import (
    Begun,
    ShareOffsetsHandler,
    begun_groups,
    check_coordinator,
)
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import delete_groups_response, describe_groups_response, list_groups_response
from ledgermq_broker.kafka.wire.messages import DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS, Api
from ledgermq_broker.logs import get_logger
from ledgermq_offsets.classic.consumer_protocol import PROTOCOL_TYPE, assignment, subscription

NOT_FOUND_FROM = 6
"""Version of DescribeGroups that says so of a group which does not exist; before it is shown as dead."""
TYPES_FROM = 5
"""Version of ListGroups whose clients know types of groups, with their states."""
STATES = {pb.EMPTY: "Empty", pb.STABLE: "Stable", pb.RECONCILING: "PreparingRebalance"}
log = get_logger(__name__)

CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"


def answers(brokers: Brokers, members: ShareMembers, shares: ShareOffsetsHandler) -> Mapping[Api, Handler]:
    """Return the handlers. `members`: of share groups. `shares`: deletes them."""

    def listed(asked: Asked) -> Awaitable[list_groups_response.ListGroupsResponse]:
        return list_groups(asked, brokers, members)

    def deleted(asked: Asked) -> Awaitable[delete_groups_response.DeleteGroupsResponse]:
        return delete(asked, shares)

    return {DESCRIBE_GROUPS: describe, LIST_GROUPS: listed, DELETE_GROUPS: deleted}


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


async def list_groups(asked: Asked, brokers: Brokers, members: ShareMembers) -> list_groups_response.ListGroupsResponse:
    states = {state.lower() for state in asked.message.states_filter}
    types = {kind.lower() for kind in asked.message.types_filter}
    try:
        groups = await all_here(lambda partition: _groups_of(asked.api, partition))
        with_empty = asked.version >= TYPES_FROM and (not types or SHARE in types) and (not states or "empty" in states)
        begun = await _begun(asked.api) if with_empty else Begun({}, None)
        if begun.missing is not None:
            if types == {SHARE}:
                raise begun.missing
            log.warning("a list of groups lacks share groups", error=begun.missing.message)
        shares = await _share_groups(asked.api, brokers, members, begun)
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
    return list_groups_response.ListGroupsResponse(
        groups=[
            one
            for one in listed + shares
            if (not states or one.group_state.lower() in states) and (not types or one.group_type in types)
        ]
    )


def _kind(info: pb.GroupInfo) -> str:
    return CONSUMER if info.member_count and not info.HasField("classic") else CLASSIC


async def _begun(api: BrokerApi, group: str = "") -> Begun:
    """Return what is known of the share groups that have begun. `group`: of this one alone. Raises Unauthenticated."""
    try:
        return await begun_groups(api, group)
    except Unauthenticated:
        raise
    except LedgerMQError as error:
        return Begun({}, error)


async def _share_groups(
    api: BrokerApi, brokers: Brokers, members: ShareMembers, begun: Begun
) -> list[list_groups_response.ListedGroup]:
    """Return the share groups that this broker coordinates, and that the caller may see."""
    states = dict.fromkeys(begun.groups, pb.EMPTY)
    states |= dict.fromkeys(members.groups(asyncio.get_running_loop().time()), pb.STABLE)
    found = []
    for group, state in sorted(states.items()):
        try:
            await check_coordinator(brokers, api, group)
        except LedgerMQError:
            continue
        found.append(
            list_groups_response.ListedGroup(
                group_id=group, protocol_type=SHARE, group_state=STATES[state], group_type=SHARE
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


async def delete(asked: Asked, shares: ShareOffsetsHandler) -> delete_groups_response.DeleteGroupsResponse:
    names = list(dict.fromkeys(asked.message.groups_names))
    begun = await _begun(asked.api, names[0] if len(names) == 1 else "")
    codes = {name: await _deleted(asked.api, shares, name, begun) for name in names}
    return delete_groups_response.DeleteGroupsResponse(
        results=[delete_groups_response.DeletableGroupResult(name, code) for name, code in codes.items()]
    )


async def _deleted(api: BrokerApi, shares: ShareOffsetsHandler, name: str, begun: Begun) -> Code:
    """Delete a group of either kind. `begun`: where the share group of this name has, and perhaps others."""
    try:
        places = begun.of(name)
        is_share_group = bool(places) or shares.has_members(name)
        if begun.missing is not None and (is_share_group or not await _is_consumer_group(api, name)):
            raise begun.missing
        if not is_share_group:
            await api.delete_group(pb.DeleteGroupRequest(group=inside(name)))
            return Code.NONE
        return Code.INVALID_GROUP_ID if await _is_consumer_group(api, name) else await shares.forget(api, name, places)
    except LedgerMQError as error:
        return group_code(error)


async def _is_consumer_group(api: BrokerApi, name: str) -> bool:
    try:
        await api.describe_group(pb.DescribeGroupRequest(group=inside(name)))
    except UnknownGroup:
        return False
    return True
