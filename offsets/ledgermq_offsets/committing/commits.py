"""Decide which commits apply, and what the others are answered.

One rule fences everything: a commit names the epoch under which its partition was given, and an
epoch other than the one in force commits nothing. Under one epoch a committed offset only grows. It
does not go back under a later epoch either, except by a reset.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ledgermq.errors import (
    CommitGoesBack,
    GroupNotEmpty,
    InvalidRequest,
    LedgerMQError,
    OffsetOutOfRange,
    ResourceExhausted,
    StaleAssignment,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import OFFSET_MAX
from ledgermq.protocol.status import error_to_proto
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.limits import METADATA_BYTES_MAX, GroupLimits
from ledgermq_offsets.membership.members import RETRY_MS, member_of
from ledgermq_offsets.state.group import Group, Member
from ledgermq_offsets.state.records import OffsetValue
from ledgermq_offsets.topics import TopicsView

T = TypeVar("T")

PENDING_RETRY_MS = 200
"""When to retry what waits for the end of a transaction; most end within one or two puts."""


@dataclass
class Ends:
    """Durable ends of partitions, one entry each; an entry may be older than the true end.

    `fresh`: ends read for the request at hand. Older entries can accept an offset, but never refuse
    one.
    """

    known: dict[PartitionId, int] = field(default_factory=dict)
    fresh: Collection[PartitionId] = ()

    def learn(self, ends: Mapping[PartitionId, int]) -> None:
        self.fresh = ends.keys()
        for partition, end in ends.items():
            self.known[partition] = max(end, self.known.get(partition, 0))

    def forget(self, is_removed: Callable[[int], bool]) -> None:
        self.known = {partition: end for partition, end in self.known.items() if not is_removed(partition[0])}

    def check(self, partition: PartitionId, offset: int, committed: int) -> None:
        """Check an offset against the partition's end.

        Raises OffsetOutOfRange; Unavailable when no fresh end is known.
        """
        if offset <= max(self.known.get(partition, 0), committed):
            return
        if partition not in self.fresh:
            raise Unavailable(f"the end of partition {partition[1]} is unknown at present", retry_after_ms=RETRY_MS)
        raise OffsetOutOfRange(
            f"offset {offset} is beyond the end of partition {partition[1]}, which is {self.known[partition]}"
        )


def check_request(
    group: Group | None, request: pb.CommitOffsetsRequest | pb.StageOffsetsRequest, limits: GroupLimits
) -> Member | None:
    """Check what applies to all commits of a request, and return its member.

    Raises InvalidRequest, UnknownMember, GroupNotEmpty.
    """
    check_count(len(request.commits), limits)
    if request.ByteSize() > limits.request_bytes_max:
        raise InvalidRequest(
            f"a commit has at most {limits.request_bytes_max} bytes, this one has {request.ByteSize()}"
        )
    if request.member_id:
        return member_of(group, request.group, request.member_id)
    if group is not None and group.member_count:
        raise GroupNotEmpty(f"group {request.group} has members, so only a member can commit; stop its members first")
    return None


def check_count(count: int, limits: GroupLimits) -> None:
    if count > limits.commits_max:
        raise InvalidRequest(f"a commit has at most {limits.commits_max} partitions, this one has {count}")


def resolve(view: TopicsView, named: pb.OffsetCommit | pb.OffsetReset) -> tuple[PartitionId, str]:
    """Return the partition and the topic's name. Raises UnknownTopic, UnknownPartition."""
    topic = view.by_id(named.topic_id) if named.topic_id else view.by_name(named.topic)
    if topic is None or topic.name != named.topic:  # access rules have judged the name
        raise UnknownTopic(
            f"there is no topic {named.topic!r}" + (f" with the id {named.topic_id}" if named.topic_id else "")
        )
    if named.partition >= topic.partitions:
        raise UnknownPartition(
            f"topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, not {named.partition}"
        )
    return PartitionId(topic.topic_id, named.partition), topic.name


def place(
    group: Group | None, member: Member | None, view: TopicsView, commit: pb.OffsetCommit
) -> tuple[PartitionId, str]:
    """Return the partition of a commit. A partition that the member holds exists, even if this
    broker's catalog is behind.
    """
    partition = PartitionId(commit.topic_id, commit.partition)
    if group is not None and member is not None and partition in member.held and not view.is_removed(commit.topic_id):
        if group.names[commit.topic_id] != commit.topic:  # access rules have judged the name
            raise UnknownTopic(f"there is no topic {commit.topic!r} with the id {commit.topic_id}")
        return partition, group.names[commit.topic_id]
    if member is not None and commit.topic_id and partition not in member.held:
        raise stale(group, member, partition, commit)
    return resolve(view, commit)


def stale(
    group: Group | None, member: Member | None, partition: PartitionId, commit: pb.OffsetCommit
) -> StaleAssignment:
    whose = "outside of membership" if member is None else f"of member {member.member_id}"
    now = (
        ""
        if group is None or member is None or partition not in member.held
        else f", which is {group.epoch_in_force(partition)} now"
    )
    return StaleAssignment(
        f"partition {commit.partition} of {commit.topic} is not {whose} under epoch {commit.epoch}{now}: nothing was"
        " committed"
    )


def check_fields(commit: pb.OffsetCommit) -> None:
    """Raises InvalidRequest."""
    size = len(commit.metadata.encode())
    if size > METADATA_BYTES_MAX:
        raise InvalidRequest(
            f"the metadata of a committed offset has at most {METADATA_BYTES_MAX} bytes, this one has {size}"
        )
    if not commit.counter:
        raise InvalidRequest("the counter of a commit has to be at least 1")
    if commit.offset > OFFSET_MAX:
        raise InvalidRequest(f"offset {commit.offset} is too large: at most {OFFSET_MAX} is allowed")


def judge(
    group: Group,
    member: Member | None,
    partition: PartitionId,
    commit: pb.OffsetCommit,
    ends: Ends,
    limits: GroupLimits,
) -> bool:
    """Return True if the commit has to be applied, False if it or a later one was applied already.

    A partition with a staged offset takes no other commit: the transaction could put its offset in
    the place of a later one. Raises the error that goes into the commit's result.
    """
    if not is_current(group, member, partition, commit):
        raise stale(group, member, partition, commit)
    stored = group.offset_of(partition)
    if stored is not None:
        if not is_news(stored, commit):
            check_same_program(member, stored, commit)
            return False
        if goes_back(stored, commit):
            raise CommitGoesBack(
                f"partition {commit.partition} of {commit.topic}: offset {stored.offset} is committed, and"
                f" {commit.offset} is before it"
            )
    check_settled(group, partition)
    check_space(group, partition, limits)
    ends.check(partition, commit.offset, (stored.offset or 0) if stored is not None else 0)
    return True


def check_settled(group: Group, partition: PartitionId) -> None:
    """Check that no open transaction has staged an offset of the partition. Raises Unavailable."""
    key = group.pending_in.get(partition)
    if key is not None:
        raise Unavailable(
            f"group {group.name}: open transaction {group.pending[key].transactional_id} has staged an offset of"
            f" partition {partition[1]} of {group.pending[key].offsets[partition].topic}; retry when it has ended",
            retry_after_ms=PENDING_RETRY_MS,
        )


def check_space(group: Group, partition: PartitionId, limits: GroupLimits) -> None:
    """Check that the partition may get an offset. Raises ResourceExhausted."""
    if group.offset_of(partition) is None and not group.has_space(1, limits.partitions_max):
        raise ResourceExhausted(
            f"group {group.name} has committed offsets of {limits.partitions_max} partitions, which is the maximum"
        )


def is_current(group: Group, member: Member | None, partition: PartitionId, commit: pb.OffsetCommit) -> bool:
    if member is not None and partition not in member.held:
        return False
    return commit.epoch == group.epoch_in_force(partition)


def is_news(stored: OffsetValue, commit: pb.OffsetCommit) -> bool:
    return stored.epoch != commit.epoch or commit.counter > stored.counter


def check_same_program(member: Member | None, stored: OffsetValue, commit: pb.OffsetCommit) -> None:
    """Check that a commit which is no news comes from the program that committed the stored offset. Raises
    StaleAssignment.

    A repetition says the same as the commit that was applied under its counter. Members do not share a
    partition, so a lower counter of a member is a delayed repetition. Outside of membership each program
    sends one commit at a time: a higher counter then is of another program.
    """
    is_same_turn = commit.counter == stored.counter
    if is_same_turn and (commit.offset, commit.metadata) != (stored.offset, stored.metadata):
        raise StaleAssignment(
            f"partition {commit.partition} of {commit.topic}: another program has committed offset"
            f" {stored.offset} under the same epoch and counter; nothing was committed"
        )
    if not is_same_turn and member is None:
        raise StaleAssignment(
            f"partition {commit.partition} of {commit.topic}: another program has committed offset {stored.offset}"
            " since the committed offset was read; read it again, and commit again if yours is higher"
        )


def goes_back(stored: OffsetValue, commit: pb.OffsetCommit) -> bool:
    return stored.offset is not None and commit.offset < stored.offset


def value_of(topic: str, commit: pb.OffsetCommit, now_ms: int) -> OffsetValue:
    return OffsetValue(commit.offset, commit.metadata, now_ms, commit.epoch, commit.counter, topic)


def committed(group: Group, partition: PartitionId, topic: str) -> pb.CommittedPartition:
    """Return the committed offset, with the epoch and the newest counter that the next commit has
    to continue from. An offset that is staged is not part of it.
    """
    epoch = group.epoch_in_force(partition)
    found = pb.CommittedPartition(topic=topic, topic_id=partition[0], partition=partition[1], epoch=epoch)
    stored = group.offset_of(partition)
    if stored is not None:
        found.metadata = stored.metadata
        found.commit_ms = stored.commit_ms
        if stored.offset is not None:
            found.offset = stored.offset
        if stored.epoch == epoch:
            found.counter = stored.counter
    return found


def each_result(apply: Callable[[T], bool], asked: Sequence[T]) -> tuple[list[pb.CommitResult], bool]:
    """Apply each by itself: one that fails changes nothing for the others.

    Also return whether any was applied.
    """
    results: list[pb.CommitResult] = []
    applied = False
    for each in asked:
        try:
            applied |= apply(each)
            results.append(pb.CommitResult())
        except LedgerMQError as error:
            results.append(pb.CommitResult(error=error_to_proto(error)))
    return results, applied


# Without an epoch and a counter, as clients of the Kafka protocol commit: they may go back, and beyond the end. Who may
# commit is judged before, by a generation, or by the member that holds the partition.


def check_values(commit: pb.GenerationCommit | pb.OffsetCommit) -> None:
    """Raises InvalidRequest."""
    if len(commit.metadata.encode()) > METADATA_BYTES_MAX or commit.offset > OFFSET_MAX:
        raise InvalidRequest(
            f"a commit has an offset of at most {OFFSET_MAX}, and metadata of at most {METADATA_BYTES_MAX} bytes"
        )


def turn(group: Group, partition: PartitionId, offset: int) -> tuple[int, int]:
    """Return the epoch and the counter under which an offset is stored.

    One that goes back draws a new epoch, which fences what others have read and would commit. A partition that a
    member holds has no other committers, so its epoch stays, and the counter says which commit is newer.
    """
    stored = group.offset_of(partition)
    if partition not in group.holders and stored is not None and offset < (stored.offset or 0):
        return group.draw(), 0
    epoch = group.epoch_in_force(partition)
    return epoch, stored.counter + 1 if stored is not None and stored.epoch == epoch else 1
