"""Descriptions of consumer groups, as plain frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.offset_stores.contract import StoredOffset
from ledgermq.protocol import ledgermq_pb2 as pb

GroupState = Literal["empty", "reconciling", "stable"]
_STATES: dict[int, GroupState] = {pb.EMPTY: "empty", pb.RECONCILING: "reconciling", pb.STABLE: "stable"}


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """`state`: "reconciling" while a member does not yet hold its whole assignment.

    `epoch` grows with every change of the group.
    """

    name: str
    state: GroupState
    epoch: int
    assignor: str
    members: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """`assigned`: partitions that it may hold. `owned`: those that it reported to hold.
    `heartbeat_age_s`: seconds since its last heartbeat. `filter`: "*" if all messages pass, "" if the
    cluster does not know it.
    """

    member_id: str
    instance_id: str
    client_id: str
    rack: str
    topics: tuple[str, ...]
    topic_pattern: str
    assigned: tuple[TopicPartition, ...]
    owned: tuple[TopicPartition, ...]
    heartbeat_age_s: float
    filter: str = ""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """`topic_id`: of the topic that was read. A topic that was deleted and created again under the
    same name has another id.
    """

    topic_id: int
    stored: StoredOffset


@dataclass(frozen=True, slots=True)
class StagedOffset:
    """An offset that is committed if and when its transaction is. Until then, nothing else moves
    the group's offset in this partition. `transactional_id`, `epoch`, `number`: the transaction.
    """

    topic_id: int
    offset: int
    transactional_id: str
    epoch: int
    number: int
    staged_ms: int


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """`coordinator`: address of the broker that answered. `staged`: offsets of transactions that are
    open, or not complete yet.
    """

    summary: GroupSummary
    coordinator: str
    members: tuple[MemberDescription, ...]
    committed: Mapping[TopicPartition, CommittedOffset]
    staged: Mapping[TopicPartition, StagedOffset] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind in a topic: `records` between its committed offsets and the ends of `partitions`
    partitions. `members`: of the group. `stuck_s`: for how many seconds its coordinator has seen a committed offset
    unmoved although there are records behind it; the longest.
    """

    group: str
    topic: str
    records: int
    partitions: int
    members: int
    stuck_s: int


def group_summary(info: pb.GroupInfo) -> GroupSummary:
    return GroupSummary(
        info.group,
        _STATES.get(info.state, "reconciling"),
        info.epoch,
        info.assignor,
        info.member_count or len(info.members),
    )


def group_description(answer: pb.DescribeGroupResponse) -> GroupDescription:
    members = tuple(_member(member) for member in answer.group.members)
    return GroupDescription(
        group_summary(answer.group),
        answer.coordinator,
        members,
        committed_offsets(answer.group.committed),
        {TopicPartition(each.topic, each.partition): _staged_offset(each) for each in answer.group.pending},
    )


def committed_offsets(parts: Iterable[pb.CommittedPartition]) -> dict[TopicPartition, CommittedOffset]:
    """Return the partitions that have an offset."""
    return {
        TopicPartition(part.topic, part.partition): CommittedOffset(
            part.topic_id, StoredOffset(part.offset, part.metadata, part.commit_ms)
        )
        for part in parts
        if part.HasField("offset")
    }


def _staged_offset(found: pb.StagedOffset) -> StagedOffset:
    transaction = found.transaction
    return StagedOffset(
        topic_id=found.topic_id,
        offset=found.offset,
        transactional_id=transaction.transactional_id,
        epoch=transaction.epoch,
        number=transaction.number,
        staged_ms=found.staged_ms,
    )


def _member(info: pb.MemberInfo) -> MemberDescription:
    wanted = info.subscription
    return MemberDescription(
        member_id=info.member_id,
        instance_id=wanted.instance_id,
        client_id=wanted.client_id,
        rack=wanted.rack,
        topics=tuple(wanted.topics),
        topic_pattern=wanted.topic_pattern,
        assigned=tuple(TopicPartition(part.topic, part.partition) for part in info.assigned),
        owned=tuple(TopicPartition(part.topic, part.partition) for part in info.owned),
        heartbeat_age_s=info.heartbeat_age_ms / 1000,
        filter=wanted.filter,
    )
