"""Answer FindCoordinator, JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

A join or a sync is held by the coordinator. While it is, nothing else of the connection is served, so clients use a
separate connection for their group.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledgermq.errors import InvalidRequest, LedgerMQError, Unauthenticated, Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.asked import Asked, Handler
from ledgermq_broker.kafka.handlers.groups.names import inside
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of
from ledgermq_broker.kafka.wire.generated import (
    find_coordinator_response,
    heartbeat_response,
    join_group_response,
    leave_group_response,
    sync_group_response,
)
from ledgermq_broker.kafka.wire.messages import FIND_COORDINATOR, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, Api

OF_GROUPS, OF_TRANSACTIONS = 0, 1
NO_BROKER = -1
ID_REQUIRED_FROM, LIST_FROM, NULL_NAME_FROM, SKIP_FROM, BATCH_FROM = 4, 3, 7, 9, 4
"""Versions: of JoinGroup whose new members come again with an id; of LeaveGroup with several members; of JoinGroup
whose name of the protocol may be null; of JoinGroup whose leader may skip the assignment;
of FindCoordinator with several groups.
"""


def group_code(error: LedgerMQError) -> Code:
    """Return the code of a call about a group. Raises the error itself if the connection has to end."""
    if isinstance(error, Unauthenticated):
        raise error
    return code_of(error, Area.GROUP)


def answers(brokers: Brokers) -> Mapping[Api, Handler]:
    return {
        FIND_COORDINATOR: CoordinatorHandler(brokers).answer,
        JOIN_GROUP: join,
        SYNC_GROUP: sync,
        HEARTBEAT: heartbeat,
        LEAVE_GROUP: leave,
    }


class CoordinatorHandler:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def answer(self, asked: Asked) -> find_coordinator_response.FindCoordinatorResponse:
        keys = asked.message.coordinator_keys if asked.version >= BATCH_FROM else [asked.message.key]
        found = [await self._find(asked, key) for key in keys]
        if asked.version >= BATCH_FROM:
            return find_coordinator_response.FindCoordinatorResponse(coordinators=found)
        [one] = found
        return find_coordinator_response.FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    async def _find(self, asked: Asked, key: str) -> find_coordinator_response.Coordinator:
        found = find_coordinator_response.Coordinator(key=key, node_id=NO_BROKER, host="", port=NO_BROKER)
        try:
            answer = await self._at(asked, key)
        except LedgerMQError as error:
            code = group_code(error)
            if isinstance(error, Unauthorized) and asked.message.key_type == OF_TRANSACTIONS:
                code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            found.error_code = Code.COORDINATOR_NOT_AVAILABLE if error.retriable else code
            found.error_message = error.message
            return found
        broker = self._brokers.at(answer.address)
        if broker is None:
            found.error_code = Code.COORDINATOR_NOT_AVAILABLE
            found.error_message = f"broker {answer.address} has no port for clients of the Kafka protocol"
            return found
        found.node_id, found.host, found.port = broker.node, broker.host, broker.port
        return found

    async def _at(self, asked: Asked, key: str) -> pb.FindCoordinatorResponse:
        if asked.message.key_type == OF_GROUPS:
            return await asked.api.find_coordinator(pb.FindCoordinatorRequest(group=inside(key)))
        if asked.message.key_type != OF_TRANSACTIONS:
            raise InvalidRequest(f"there are no coordinators of type {asked.message.key_type}")
        return await asked.api.find_transaction_coordinator(
            pb.FindTransactionCoordinatorRequest(transactional_id=inside(key))
        )


async def join(asked: Asked) -> join_group_response.JoinGroupResponse:
    message = asked.message
    refused = join_group_response.JoinGroupResponse(
        protocol_name=None if asked.version >= NULL_NAME_FROM else "", leader="", member_id=message.member_id
    )
    try:
        answer = await asked.api.join_classic_group(_join_request(asked))
    except LedgerMQError as error:
        refused.error_code = group_code(error)
        return refused
    if answer.join_again:
        refused.error_code, refused.member_id = Code.MEMBER_ID_REQUIRED, answer.member_id
        return refused
    skips = answer.skip_assignment
    return join_group_response.JoinGroupResponse(
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        leader="" if skips and asked.version < SKIP_FROM else answer.leader,
        skip_assignment=skips,
        member_id=answer.member_id,
        members=[]
        if skips and asked.version < SKIP_FROM
        else [
            join_group_response.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id or None, metadata=member.metadata
            )
            for member in answer.members
        ],
    )


def _join_request(asked: Asked) -> pb.JoinClassicGroupRequest:
    message = asked.message
    rebalance_ms = message.rebalance_timeout_ms if message.rebalance_timeout_ms > 0 else message.session_timeout_ms
    return pb.JoinClassicGroupRequest(
        group=inside(message.group_id),
        member_id=message.member_id,
        instance_id=message.group_instance_id or "",
        protocol_type=message.protocol_type,
        protocols=[pb.ClassicProtocol(name=one.name, metadata=bytes(one.metadata)) for one in message.protocols],
        client_id=asked.client_id,
        client_host=asked.client_host,
        session_timeout_ms=max(0, message.session_timeout_ms),
        rebalance_timeout_ms=max(0, rebalance_ms),
        id_required=asked.version >= ID_REQUIRED_FROM,
    )


async def sync(asked: Asked) -> sync_group_response.SyncGroupResponse:
    message = asked.message
    try:
        answer = await asked.api.sync_classic_group(
            pb.SyncClassicGroupRequest(
                group=inside(message.group_id),
                member_id=message.member_id,
                instance_id=message.group_instance_id or "",
                generation=unsigned(message.generation_id),
                protocol_type=message.protocol_type or "",
                protocol=message.protocol_name or "",
                assignments=[
                    pb.ClassicAssignment(member_id=one.member_id, assignment=bytes(one.assignment))
                    for one in message.assignments
                ],
            )
        )
    except LedgerMQError as error:
        return sync_group_response.SyncGroupResponse(error_code=group_code(error))
    return sync_group_response.SyncGroupResponse(
        protocol_type=answer.protocol_type, protocol_name=answer.protocol, assignment=answer.assignment
    )


async def heartbeat(asked: Asked) -> heartbeat_response.HeartbeatResponse:
    message = asked.message
    try:
        await asked.api.classic_heartbeat(
            pb.ClassicHeartbeatRequest(
                group=inside(message.group_id),
                member_id=message.member_id,
                instance_id=message.group_instance_id or "",
                generation=unsigned(message.generation_id),
            )
        )
    except LedgerMQError as error:
        return heartbeat_response.HeartbeatResponse(error_code=group_code(error))
    return heartbeat_response.HeartbeatResponse()


async def leave(asked: Asked) -> leave_group_response.LeaveGroupResponse:
    message = asked.message
    members = (
        [pb.LeavingMember(member_id=one.member_id, instance_id=one.group_instance_id or "") for one in message.members]
        if asked.version >= LIST_FROM
        else [pb.LeavingMember(member_id=message.member_id)]
    )
    try:
        answer = await asked.api.leave_classic_group(
            pb.LeaveClassicGroupRequest(group=inside(message.group_id), members=members)
        )
    except LedgerMQError as error:
        return leave_group_response.LeaveGroupResponse(error_code=group_code(error))
    codes = [
        result.kafka_code or (Code.UNKNOWN_MEMBER_ID if result.HasField("error") else 0) for result in answer.results
    ]
    if asked.version < LIST_FROM:
        return leave_group_response.LeaveGroupResponse(error_code=codes[0])
    return leave_group_response.LeaveGroupResponse(
        members=[
            leave_group_response.MemberResponse(
                member_id=member.member_id, group_instance_id=member.instance_id or None, error_code=code
            )
            for member, code in zip(members, codes, strict=True)
        ]
    )


def unsigned(generation: int) -> int:
    """Return a generation as it is sent on; one below 0 is none that a group ever has."""
    return generation & 0xFFFFFFFF
