"""Answer ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848): members of the groups that our own clients join.

The coordinator assigns the partitions, to clients of both protocols alike. A heartbeat is never held: these clients
ask again after the interval that the answer names.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from ledgermq.errors import LedgerMQError, Unauthorized, UnknownGroup
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.names import is_new_name
from ledgermq.sources import Sources
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.asked import Asked, Handler
from ledgermq_broker.kafka.handlers.groups.membership import group_code
from ledgermq_broker.kafka.handlers.groups.names import inside, outside
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import consumer_group_describe_response as described
from ledgermq_broker.kafka.wire.generated import consumer_group_heartbeat_response as answered
from ledgermq_broker.kafka.wire.messages import CONSUMER_GROUP_DESCRIBE, CONSUMER_GROUP_HEARTBEAT, Api
from ledgermq_offsets.consumer.epochs import shown_epoch
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.names import kept_name

JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2
"""Epochs that a client names instead of one."""
OWN_ID_FROM = 1
"""Version of ConsumerGroupHeartbeat whose clients draw their ids; before, the broker does."""
REBALANCE_MS_MAX = GroupLimits().rebalance_timeout_ms_max
STATES = {pb.EMPTY: "Empty", pb.STABLE: "Stable", pb.RECONCILING: "Reconciling"}
OF_CONSUMER = 1
"""Type of a member that the coordinator assigns."""


def answers(brokers: Brokers, sources: Sources) -> Mapping[Api, Handler]:
    handler = ConsumerHandler(brokers, sources)
    return {CONSUMER_GROUP_HEARTBEAT: handler.heartbeat, CONSUMER_GROUP_DESCRIBE: handler.describe}


class ConsumerHandler:
    def __init__(self, brokers: Brokers, sources: Sources) -> None:
        self._brokers = brokers
        self._sources = sources

    async def heartbeat(self, asked: Asked) -> answered.ConsumerGroupHeartbeatResponse:
        message = asked.message
        member_id = message.member_id
        if not member_id and message.member_epoch == JOINS and asked.version < OWN_ID_FROM:
            member_id = _new_id(self._sources.random.getrandbits(128))
        if why := _unfit(message, member_id):
            return answered.ConsumerGroupHeartbeatResponse(error_code=Code.INVALID_REQUEST, error_message=why)
        try:
            answer = await asked.api.group_heartbeat(self._request(asked, member_id))
        except LedgerMQError as error:
            code = await _topics_or_group(asked) if type(error) is Unauthorized else _code(error)
            return answered.ConsumerGroupHeartbeatResponse(error_code=code, error_message=error.message)
        if message.member_epoch < JOINS:
            return answered.ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=message.member_epoch)
        return answered.ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=shown_epoch(answer.group_epoch),
            heartbeat_interval_ms=answer.heartbeat_interval_ms,
            assignment=self._assignment(answer.assigned) if answer.is_news or _says_all(message) else None,
        )

    def _request(self, asked: Asked, member_id: str) -> pb.GroupHeartbeatRequest:
        message = asked.message
        owned = (
            (topic_id, number)
            for topic in message.topic_partitions or ()
            if (topic_id := self._brokers.topic_id(topic.topic_id)) is not None
            for number in topic.partitions
            if number >= 0
        )
        return pb.GroupHeartbeatRequest(
            group=inside(message.group_id),
            member_id=kept_name(member_id),
            step=_step(message.member_epoch),
            owned=[pb.GivenPartition(topic_id=topic_id, partition=number) for topic_id, number in owned],
            subscription=_subscription(asked),
            kafka=pb.KafkaMember(
                epoch=max(0, message.member_epoch),
                instance_id=message.instance_id or "",
                owned=message.topic_partitions is not None,
                topics=message.subscribed_topic_names is not None,
                pattern=message.subscribed_topic_regex is not None,
            ),
        )

    def _assignment(self, given: Iterable[pb.GivenPartition]) -> answered.Assignment:
        by_topic: dict[int, list[int]] = {}
        for one in given:
            by_topic.setdefault(one.topic_id, []).append(one.partition)
        return answered.Assignment(
            topic_partitions=[
                answered.TopicPartitions(topic_id=self._brokers.topic_uuid(topic_id), partitions=numbers)
                for topic_id, numbers in by_topic.items()
            ]
        )

    # Tools

    async def describe(self, asked: Asked) -> described.ConsumerGroupDescribeResponse:
        return described.ConsumerGroupDescribeResponse(
            groups=[await self._described(asked, name) for name in dict.fromkeys(asked.message.group_ids)]
        )

    async def _described(self, asked: Asked, name: str) -> described.DescribedGroup:
        found = described.DescribedGroup(group_id=name)
        try:
            info = (await asked.api.describe_group(pb.DescribeGroupRequest(group=inside(name)))).group
            if not info.member_count or info.HasField("classic"):
                raise UnknownGroup(f"group {name} is not a consumer group: it has no members, or classic ones")
        except LedgerMQError as error:
            found.error_code, found.error_message = group_code(error), error.message
            return found
        found.group_state = STATES[info.state]
        found.group_epoch = found.assignment_epoch = shown_epoch(info.epoch)
        found.assignor_name = info.assignor
        found.members = [self._member(one) for one in info.members]
        return found

    def _member(self, info: pb.MemberInfo) -> described.Member:
        asked = info.subscription
        return described.Member(
            member_id=outside(info.member_id),
            instance_id=asked.instance_id or None,
            rack_id=asked.rack or None,
            member_epoch=shown_epoch(info.seen_epoch),
            client_id=asked.client_id,
            client_host=asked.kafka_host,
            subscribed_topic_names=list(asked.topics),
            subscribed_topic_regex=asked.topic_pattern or None,
            assignment=self._held(info.owned),
            target_assignment=self._held(info.target),
            member_type=OF_CONSUMER,
        )

    def _held(self, given: Iterable[pb.GivenPartition]) -> described.Assignment:
        by_topic: dict[tuple[int, str], list[int]] = {}
        for one in given:
            by_topic.setdefault((one.topic_id, one.topic), []).append(one.partition)
        return described.Assignment(
            topic_partitions=[
                described.TopicPartitions(
                    topic_id=self._brokers.topic_uuid(topic_id), topic_name=topic, partitions=numbers
                )
                for (topic_id, topic), numbers in by_topic.items()
            ]
        )


def _unfit(message: Any, member_id: str) -> str:
    """Return what is wrong with a heartbeat; "" if nothing is."""
    epoch = message.member_epoch
    if not message.group_id:
        return "GroupId can't be empty."
    if not member_id:
        return "MemberId can't be empty."
    if epoch < LEAVES_FOR_A_WHILE:
        return f"MemberEpoch is {epoch}, but must be greater than or equal to -2."
    if message.instance_id == "":
        return "InstanceId can't be empty."
    if epoch == LEAVES_FOR_A_WHILE and message.instance_id is None:
        return "InstanceId can't be null."
    if epoch != JOINS:
        return ""
    if message.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if message.topic_partitions is None or message.topic_partitions:
        return "TopicPartitions must be empty when (re-)joining."
    if message.subscribed_topic_names is None and not message.subscribed_topic_regex:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be set in first request."
    return ""


def _step(epoch: int) -> pb.GroupStep:
    return {JOINS: pb.JOIN, LEAVES: pb.LEAVE, LEAVES_FOR_A_WHILE: pb.LEAVE_FOR_A_WHILE}.get(epoch, pb.STAY)


def _says_all(message: Any) -> bool:
    """Return whether a client says everything, as it does after an error: then it may have missed an answer."""
    subscribes = message.subscribed_topic_names is not None or message.subscribed_topic_regex is not None
    says_all = message.rebalance_timeout_ms != -1 and subscribes and message.topic_partitions is not None
    return says_all or message.member_epoch == JOINS


def _subscription(asked: Asked) -> pb.GroupSubscription | None:
    """Return what a heartbeat says of the subscription; None: nothing has changed. Names that no topic can have are
    left out, as names of topics that do not exist are.
    """
    message = asked.message
    names, pattern = message.subscribed_topic_names, message.subscribed_topic_regex
    says = (names is not None, pattern is not None, message.rebalance_timeout_ms != -1, message.server_assignor)
    if message.member_epoch < JOINS or not any((*says, message.rack_id)):
        return None
    return pb.GroupSubscription(
        topics=[name for name in names or () if is_new_name(name)],
        topic_pattern=pattern or "",
        assignor=message.server_assignor or "",
        instance_id=message.instance_id or "",
        rack=message.rack_id or "",
        client_id=asked.client_id,
        rebalance_timeout_ms=min(max(0, message.rebalance_timeout_ms), REBALANCE_MS_MAX),
        kafka_host=asked.client_host,
    )


async def _topics_or_group(asked: Asked) -> Code:
    """Return whether a caller without the right to a heartbeat lacks that to its topics, or to the group."""
    try:
        await asked.api.find_coordinator(pb.FindCoordinatorRequest(group=inside(asked.message.group_id)))
    except Unauthorized as error:
        return group_code(error)
    except LedgerMQError:
        pass  # the group's rules let it pass
    return Code.TOPIC_AUTHORIZATION_FAILED


def _code(error: LedgerMQError) -> Code:
    """Return the code of a heartbeat. An outcome that is not known is final for Java: it looks for the coordinator
    and sends the heartbeat again.
    """
    code = group_code(error)
    return Code.COORDINATOR_NOT_AVAILABLE if code is Code.REQUEST_TIMED_OUT else code


def _new_id(drawn: int) -> str:
    """Return a member id as clients draw them: a UUID in base64."""
    return base64.urlsafe_b64encode(drawn.to_bytes(16, "big")).decode().rstrip("=")
