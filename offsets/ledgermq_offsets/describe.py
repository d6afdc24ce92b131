"""Describe groups for operators."""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.committing import pending
from ledgermq_offsets.committing.commits import committed
from ledgermq_offsets.state.group import Group, Member


def group_state(group: Group) -> pb.GroupState:
    """Return the group's state. STABLE: every member holds its target, and has seen it."""
    if not group.members:
        return pb.EMPTY
    settled = not group.dirty and all(
        not m.withdrawn and m.seen_epoch >= m.changed_epoch for m in group.members.values()
    )
    return pb.STABLE if settled else pb.RECONCILING


def group_info(group: Group) -> pb.GroupInfo:
    return pb.GroupInfo(
        group=group.name,
        state=group_state(group),
        epoch=group.epoch,
        assignor=group.assignor,
        member_count=len(group.members),
    )


def group_details(group: Group, now_s: float) -> pb.GroupInfo:
    info = group_info(group)
    targets: dict[str, list[PartitionId]] = {member_id: [] for member_id in sorted(group.members)}
    for partition, member_id in sorted(group.target.items()):
        if member_id in targets:
            targets[member_id].append(partition)
    info.members.extend(_member_info(group, group.members[name], now_s, target) for name, target in targets.items())
    info.committed.extend(all_committed(group))
    info.pending.extend(pending.described(group))
    return info


def all_committed(group: Group) -> list[pb.CommittedPartition]:
    """Return the committed offsets, sorted by topic id and partition."""
    stored = sorted(
        (topic_id, number, value.topic) for topic_id, topic in group.offsets.items() for number, value in topic.items()
    )
    return [committed(group, PartitionId(topic_id, number), topic) for topic_id, number, topic in stored]


def _member_info(group: Group, member: Member, now_s: float, target: Sequence[PartitionId]) -> pb.MemberInfo:
    s = member.subscription
    held = sorted(member.held.items())
    return pb.MemberInfo(
        member_id=member.member_id,
        subscription=pb.GroupSubscription(
            topics=s.topics,
            topic_pattern=s.topic_pattern,
            assignor=s.assignor,
            instance_id=s.instance_id,
            rack=s.rack,
            client_id=s.client_id,
            session_timeout_ms=s.session_timeout_ms,
            rebalance_timeout_ms=s.rebalance_timeout_ms,
            filter=s.filter,
            kafka_host=s.kafka_host,
        ),
        assigned=[_given(group, partition, h.epoch) for partition, h in held if not h.withdrawn],
        owned=[_given(group, partition, h.epoch) for partition, h in held],
        heartbeat_age_ms=max(0, int((now_s - member.heard_s) * 1000)),
        seen_epoch=member.seen_epoch,
        target=[
            pb.GivenPartition(topic=group.topics[topic_id].name, topic_id=topic_id, partition=number)
            for topic_id, number in target
            if topic_id in group.topics
        ],
    )


def _given(group: Group, partition: PartitionId, epoch: int) -> pb.GivenPartition:
    return pb.GivenPartition(
        topic=group.names[partition[0]], topic_id=partition[0], partition=partition[1], epoch=epoch
    )
