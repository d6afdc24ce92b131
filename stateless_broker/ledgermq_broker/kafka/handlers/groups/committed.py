"""Answer OffsetCommit, OffsetFetch and OffsetDelete.

Committed offsets are those of our own groups: `ledgermq group`, lags and members of either kind see the same.
Requests of more partitions than one call takes are cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ledgermq.errors import LedgerMQError, Unavailable, UnknownPartition, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.kafka.handlers.asked import Asked, Handler
from ledgermq_broker.kafka.handlers.groups.membership import group_code, unsigned
from ledgermq_broker.kafka.handlers.groups.names import inside
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of
from ledgermq_broker.kafka.wire.generated import (
    offset_commit_response,
    offset_delete_response,
    offset_fetch_response,
)
from ledgermq_broker.kafka.wire.messages import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, Api
from ledgermq_offsets.classic.consumer_protocol import PROTOCOL_TYPE, subscribed_topics
from ledgermq_offsets.limits import METADATA_BYTES_MAX

PARTITIONS_PER_CALL = 10_000
NOTHING = -1
GROUPS_FROM, UNSTABLE_FROM, MEMBERS_FROM = 8, 7, 9
"""Versions of OffsetFetch: with several groups; whose clients know the code of a pending offset; with members."""


P = TypeVar("P")


def answers() -> Mapping[Api, Handler]:
    return {OFFSET_COMMIT: commit, OFFSET_FETCH: fetch, OFFSET_DELETE: delete}


def _cut(items: Sequence[P]) -> list[Sequence[P]]:
    """Return pieces for one call each; none of nothing."""
    return [items[at : at + PARTITIONS_PER_CALL] for at in range(0, len(items), PARTITIONS_PER_CALL)]


def topic_code(error: pb.Error) -> Code:
    """Return the code of one partition."""
    found = error_from_proto(error)
    return code_of(found, Area.FETCH if error.code == "UNAUTHORIZED" else Area.GROUP)


def result_code(result: pb.CommitResult) -> Code:
    """Return the code of one partition whose offset was to be committed, or staged in a transaction."""
    return topic_code(result.error) if result.HasField("error") else Code.NONE


async def commit(asked: Asked) -> offset_commit_response.OffsetCommitResponse:
    message = asked.message
    places = [(topic.name, one) for topic in message.topics for one in topic.partitions]
    codes: list[Code] = [unfit(one) for _, one in places]
    sent = [at for at, code in enumerate(codes) if code is Code.NONE]
    try:
        for part in _cut(sent) or [[]]:
            answer = await asked.api.commit_for_generation(_commit_request(message, [places[at] for at in part]))
            for at, result in zip(part, answer.results, strict=True):
                codes[at] = _of_member(result_code(result))
    except LedgerMQError as error:
        codes = [group_code(error)] * len(places)
    left = iter(codes)
    return offset_commit_response.OffsetCommitResponse(
        topics=[
            offset_commit_response.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    offset_commit_response.OffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=next(left)
                    )
                    for one in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _of_member(code: Code) -> Code:
    """Return the code of a partition that the coordinator gave to another member, or later, as KIP-848 says it: the
    member sends a heartbeat, and commits again. A generation is judged for all partitions at once.
    """
    return Code.STALE_MEMBER_EPOCH if code is Code.ILLEGAL_GENERATION else code


def unfit(one: Any) -> Code:
    """Return why the offset of one partition can be neither committed nor staged; NONE: it can."""
    if len((one.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
        return Code.OFFSET_METADATA_TOO_LARGE
    if one.partition_index < 0:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    return Code.INVALID_REQUEST if one.committed_offset < 0 else Code.NONE


def _commit_request(message: Any, places: Sequence[tuple[str, Any]]) -> pb.CommitForGenerationRequest:
    generation = message.generation_id_or_member_epoch
    return pb.CommitForGenerationRequest(
        group=inside(message.group_id),
        member_id=message.member_id,
        instance_id=message.group_instance_id or "",
        generation=unsigned(generation),
        outside=generation < 0 and not message.member_id,
        commits=[
            pb.GenerationCommit(
                topic=topic,
                partition=one.partition_index,
                offset=one.committed_offset,
                metadata=one.committed_metadata or "",
            )
            for topic, one in places
        ],
    )


# Reading


async def fetch(asked: Asked) -> offset_fetch_response.OffsetFetchResponse:
    message = asked.message
    stable = message.require_stable
    if asked.version < GROUPS_FROM:
        code, topics = await _fetch_group(asked, message, stable)
        return offset_fetch_response.OffsetFetchResponse(error_code=code, topics=_old_topics(topics))
    groups = []
    times = Counter(group.group_id for group in message.groups)
    for group in message.groups:
        code, topics = Code.INVALID_REQUEST, []
        if times[group.group_id] == 1:  # otherwise a small request could ask for all of a large group many times
            code, topics = await _fetch_group(asked, group, stable)
        groups.append(
            offset_fetch_response.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code, topics=topics)
        )
    return offset_fetch_response.OffsetFetchResponse(groups=groups)


async def _fetch_group(
    asked: Asked, group: Any, stable: bool
) -> tuple[Code, list[offset_fetch_response.OffsetFetchResponseTopics]]:
    """Return the committed offsets of a group. Its `topics` are None for all that it has committed."""
    topics = group.topics
    wanted = [
        pb.TopicPartition(topic=topic.name, partition=number)
        for topic in topics or ()
        for number in topic.partition_indexes
        if number >= 0
    ]
    try:
        found: list[pb.CommittedPartition] = []
        if wanted or topics is None:
            for part in _cut(wanted) or [[]]:
                request = _fetch_request(asked, group, part, stable)
                found += (await asked.api.fetch_committed(request)).partitions
    except LedgerMQError as error:
        code = group_code(error)
        return code, [
            offset_fetch_response.OffsetFetchResponseTopics(
                name=topic.name, partitions=[_part(number, NOTHING, "", code) for number in topic.partition_indexes]
            )
            for topic in topics or ()
        ]
    by_topic: dict[str, list[offset_fetch_response.OffsetFetchResponsePartitions]] = {}
    for one in found:
        if topics is not None or one.HasField("offset") or one.HasField("error"):
            by_topic.setdefault(one.topic, []).append(_committed(one, asked.version))
    return Code.NONE, [
        offset_fetch_response.OffsetFetchResponseTopics(name=name, partitions=parts) for name, parts in by_topic.items()
    ]


def _fetch_request(
    asked: Asked, group: Any, part: Sequence[pb.TopicPartition], stable: bool
) -> pb.FetchCommittedRequest:
    request = pb.FetchCommittedRequest(group=inside(group.group_id), partitions=part, without_staged=not stable)
    if asked.version >= MEMBERS_FROM and group.member_id and group.member_epoch >= 0:
        request.member_id, request.generation = group.member_id, group.member_epoch
    return request


def _committed(one: pb.CommittedPartition, version: int) -> offset_fetch_response.OffsetFetchResponsePartitions:
    code = Code.NONE
    if one.HasField("error"):
        error = error_from_proto(one.error)
        if isinstance(error, Unavailable) and version >= UNSTABLE_FROM:
            code = Code.UNSTABLE_OFFSET_COMMIT
        elif not isinstance(error, UnknownTopic | UnknownPartition):  # Kafka only says that nothing is committed
            code = topic_code(one.error)
    offset = one.offset if one.HasField("offset") and code is Code.NONE else NOTHING
    return _part(one.partition, offset, one.metadata, code)


def _part(number: int, offset: int, metadata: str, code: Code) -> offset_fetch_response.OffsetFetchResponsePartitions:
    return offset_fetch_response.OffsetFetchResponsePartitions(
        partition_index=number, committed_offset=offset, metadata=metadata, error_code=code
    )


def _old_topics(
    topics: Sequence[offset_fetch_response.OffsetFetchResponseTopics],
) -> list[offset_fetch_response.OffsetFetchResponseTopic]:
    return [
        offset_fetch_response.OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                offset_fetch_response.OffsetFetchResponsePartition(
                    partition_index=one.partition_index,
                    committed_offset=one.committed_offset,
                    metadata=one.metadata,
                    error_code=one.error_code,
                )
                for one in topic.partitions
            ],
        )
        for topic in topics
    ]


# Deleting


async def delete(asked: Asked) -> offset_delete_response.OffsetDeleteResponse:
    message = asked.message
    try:
        group = inside(message.group_id)
        info = (await asked.api.describe_group(pb.DescribeGroupRequest(group=group))).group
        subscribed = _subscribed(info)
        places = [
            (topic.name, one.partition_index)
            for topic in message.topics
            for one in topic.partitions
            if topic.name not in subscribed and one.partition_index >= 0
        ]
        codes: dict[tuple[str, int], Code] = {}
        for part in _cut(places):
            resets = [pb.OffsetReset(topic=topic, partition=number) for topic, number in part]
            answer = await asked.api.reset_offsets(pb.ResetOffsetsRequest(group=group, resets=resets))
            for place, result in zip(part, answer.results, strict=True):
                codes[place] = topic_code(result.error) if result.HasField("error") else Code.NONE
    except LedgerMQError as error:
        return offset_delete_response.OffsetDeleteResponse(error_code=group_code(error))
    return offset_delete_response.OffsetDeleteResponse(
        topics=[
            offset_delete_response.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    offset_delete_response.OffsetDeleteResponsePartition(
                        partition_index=one.partition_index,
                        error_code=Code.GROUP_SUBSCRIBED_TO_TOPIC
                        if topic.name in subscribed
                        else codes.get((topic.name, one.partition_index), Code.UNKNOWN_TOPIC_OR_PARTITION),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _subscribed(info: pb.GroupInfo) -> set[str]:
    """Return the topics whose offsets members still use."""
    if info.classic.protocol_type == PROTOCOL_TYPE:
        return {topic for member in info.classic.members for topic in subscribed_topics(member.metadata)}
    return {given.topic for member in info.members for given in member.owned} | {
        topic for member in info.members for topic in member.subscription.topics
    }
