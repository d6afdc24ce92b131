"""Consumer groups: list, describe, delete, reset, and the offsets of readers that are no members."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ledgermq.client.groups.admin.descriptions import GroupDescription, GroupSummary
from ledgermq.client.groups.admin.resets import PlannedReset
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError, StaleAssignment, UnknownGroup
from ledgermq.protocol.limits import OFFSET_MAX
from ledgermq_gateway.http.call import Answer, Call
from ledgermq_gateway.http.problems import Problem, problem_of
from ledgermq_gateway.records.bodies import decode
from ledgermq_gateway.resources.parameters import position_of

Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""Of a partition."""


class Group(Struct, kw_only=True):
    """`epoch` grows with every change of the group."""

    name: str
    state: str
    epoch: int
    assignor: str
    members: int


class Groups(Struct, kw_only=True):
    groups: list[Group]


class GroupMember(Struct, kw_only=True):
    """`assigned`: partitions as topic/number."""

    member_id: str
    client_id: str
    topics: list[str]
    assigned: list[str]
    heartbeat_age_s: float


class GroupOffset(Struct, kw_only=True):
    """`offset`: the next one to read. `topic_id`: of the topic that was read."""

    topic: str
    partition: int
    offset: int
    topic_id: int


class GroupDetails(Group, kw_only=True):
    """A group with its members and its offsets."""

    coordinator: str
    group_members: list[GroupMember]
    offsets: list[GroupOffset]


class PartitionLag(Struct, kw_only=True):
    """`seconds`: age of the next record, null if its producer gave no time."""

    topic: str
    partition: int
    records: int
    seconds: float | None


class GroupLags(Struct, kw_only=True):
    lags: list[PartitionLag]


class GroupOffsets(Struct, kw_only=True):
    """`epoch`: give it back with the offsets that you commit."""

    epoch: int
    offsets: list[GroupOffset]


class OffsetIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """`topic_id`: refuse the offset if the topic was made again. Not given: any."""

    topic: str
    partition: Number
    offset: Offset
    topic_id: int | None = None


class OffsetsIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """`epoch`: as answered with the offsets that were read; 0 for a group that does not exist yet."""

    epoch: Offset
    offsets: Annotated[list[OffsetIn], Meta(min_length=1, max_length=10_000)]


class Expected(Struct, forbid_unknown_fields=True, kw_only=True):
    """The committed offset that the caller has seen; null: none."""

    topic: str
    partition: Number
    offset: Offset | None


class ResetIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """`to`: earliest, latest, a time, an age, or an offset. Of these topics; if none is given, of all with offsets.
    `expect`: refuse all if another offset is committed by now. `dry_run`: only answer what would change.
    """

    to: Annotated[str, Meta(min_length=1)] | Offset
    topics: list[str] = []
    partition: Number | UnsetType = UNSET
    expect: list[Expected] = []
    dry_run: bool = False


class ResetOffset(Struct, kw_only=True):
    topic: str
    partition: int
    before: int | None
    after: int


class Resets(Struct, kw_only=True):
    resets: list[ResetOffset]


_offsets_in = msgspec.json.Decoder(OffsetsIn)
_reset_in = msgspec.json.Decoder(ResetIn)


async def list_groups(call: Call) -> Answer:
    found = await call.caller.client.groups.list()
    return Answer(msgspec.json.encode(Groups(groups=[Group(**_summary(each)) for each in found])))


async def get_group(call: Call) -> Answer:
    found = await call.caller.client.groups.describe(call.names["group"])
    members = [
        GroupMember(
            member_id=each.member_id,
            client_id=each.client_id,
            topics=list(each.topics),
            assigned=[str(partition) for partition in each.assigned],
            heartbeat_age_s=each.heartbeat_age_s,
        )
        for each in found.members
    ]
    details = GroupDetails(
        **_summary(found.summary), coordinator=found.coordinator, group_members=members, offsets=_offsets(found)
    )
    return Answer(msgspec.json.encode(details))


async def get_lag(call: Call) -> Answer:
    found = await call.caller.client.groups.lag(call.names["group"])
    lags = [
        PartitionLag(topic=at.topic, partition=at.partition, records=lag.messages, seconds=lag.seconds)
        for at, lag in sorted(found.items())
    ]
    return Answer(msgspec.json.encode(GroupLags(lags=lags)))


async def delete_group(call: Call) -> Answer:
    await call.caller.client.groups.delete(call.names["group"])
    return Answer(status=204)


async def get_offsets(call: Call) -> Answer:
    found = await call.caller.client.groups.describe(call.names["group"])
    return Answer(msgspec.json.encode(GroupOffsets(epoch=found.summary.epoch, offsets=_offsets(found))))


async def put_offsets(call: Call) -> Answer:
    """Commit offsets of a reader that is no member. The epoch lets of two readers that took the same place only one go
    on; the coordinator itself keeps an offset from going back.
    """
    given: OffsetsIn = decode(_offsets_in, call.body)
    group, groups = call.names["group"], call.caller.client.groups
    await _check_epoch(call, group, given.epoch)
    wanted: dict[TopicPartition, tuple[int, int]] = {}
    for each in given.offsets:
        topic = await call.caller.topic(each.topic)
        if each.topic_id not in (None, topic.topic_id):
            raise Problem("OTHER_TOPIC", f"topic {topic.name!r} was made again: it has the id {topic.topic_id}")
        wanted[TopicPartition(each.topic, each.partition)] = topic.topic_id, each.offset
    _raise_first(await groups.commit(group, wanted))
    return await get_offsets(call)


async def _check_epoch(call: Call, group: str, epoch: int) -> None:
    try:
        found = (await call.caller.client.groups.describe(group)).summary.epoch
    except UnknownGroup:
        found = 0
    if found != epoch:
        raise problem_of(StaleAssignment(f"group {group!r} has changed: it has the epoch {found}, not {epoch}"))


async def reset_group(call: Call) -> Answer:
    given: ResetIn = decode(_reset_in, call.body)
    group, groups = call.names["group"], call.caller.client.groups
    where: Any = given.to if isinstance(given.to, int) else position_of("to", given.to, call.service.sources.now_us())
    partitions: list[TopicPartition] = []
    if given.partition is not UNSET:
        assert isinstance(given.partition, int)
        partitions = [TopicPartition(topic, given.partition) for topic in given.topics]
    planned = await groups.plan_reset(group, where, () if partitions else given.topics, partitions)
    before = {change.partition: change.before for change in planned}
    for seen in given.expect:
        at = TopicPartition(seen.topic, seen.partition)
        if at in before and before[at] != seen.offset:
            raise Problem(
                "OTHER_OFFSET", f"{at} of group {group!r} stands at {before[at]} by now, not at {seen.offset}"
            )
    if not given.dry_run:
        _raise_first(await groups.reset(group, planned))
    return Answer(msgspec.json.encode(Resets(resets=[_reset(change) for change in planned])))


def _raise_first(errors: Any) -> None:
    for partition, error in errors.items():
        assert isinstance(error, LedgerMQError)
        shown = {str(each): problem_of(one).code for each, one in errors.items()}
        raise problem_of(type(error)(f"{partition}: {error.message}"), {"failed": shown})


def _reset(change: PlannedReset) -> ResetOffset:
    return ResetOffset(
        topic=change.partition.topic, partition=change.partition.partition, before=change.before, after=change.after
    )


def _summary(found: GroupSummary) -> dict[str, Any]:
    return {
        "name": found.name,
        "state": found.state,
        "epoch": found.epoch,
        "assignor": found.assignor,
        "members": found.members,
    }


def _offsets(found: GroupDescription) -> list[GroupOffset]:
    return [
        GroupOffset(topic=at.topic, partition=at.partition, offset=known.stored.offset, topic_id=known.topic_id)
        for at, known in sorted(found.committed.items())
    ]
