"""Stage offsets of transactions: they are invisible, and are committed when their transaction is.

A staged offset is judged when it arrives, as a commit is. It is applied without a condition when its
transaction is committed, because that decision is final. In between, the partition may get another
holder, and the group a later epoch. So every operation that would change or read the committed
offset waits: commits, staged offsets of other transactions, resets, deletion, expiry, and reads.
Therefore the judgement still holds when the offset is applied, and the next holder of the partition
begins behind it.

The offset is stored with the epoch and the counter of its staging, as if it had been committed then.
A later holder has a later epoch, so its first commit applies, whatever its counter. A delayed commit
that the same holder sent earlier does not.

Transactions of one producer are completed in the order of (epoch, number). Offsets that are staged at
or below a completed one are late doubles, and are dropped with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ledgermq.errors import (
    CommitGoesBack,
    InvalidRequest,
    LedgerMQError,
    ResourceExhausted,
    StaleAssignment,
    TransactionTooLarge,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import PRODUCER_ID_BYTES
from ledgermq.protocol.naming.producer_ids import shown_producer_id
from ledgermq.protocol.status import error_to_proto
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.committing.commits import (
    PENDING_RETRY_MS,
    Ends,
    check_settled,
    committed,
    is_current,
    is_news,
    stale,
)
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.names import check_member_name
from ledgermq_offsets.state.group import Group, Member
from ledgermq_offsets.state.records import (
    OffsetValue,
    PendingEntry,
    PendingKey,
    PendingOffset,
    PendingValue,
    encode,
)
from ledgermq_offsets.topics import TopicsView


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction with staged offsets. `groups`: the groups of these offsets, sorted. `staged_ms`:
    when the first offset was staged.
    """

    transactional_id: str
    coordinator: int
    producer_id: bytes
    epoch: int
    number: int
    groups: tuple[str, ...]
    staged_ms: int


# Staging


def check_transaction(request: pb.StageOffsetsRequest) -> PendingKey:
    """Return the key of the request's transaction. Raises InvalidRequest."""
    ref = request.transaction
    check_member_name(ref.transactional_id, "transactional id")
    if len(ref.producer_id) != PRODUCER_ID_BYTES or not ref.epoch or not ref.number:
        raise InvalidRequest(
            f"a transaction is named by a producer id of {PRODUCER_ID_BYTES} bytes, an epoch and a number from 1, not"
            f" by {len(ref.producer_id)} bytes, {ref.epoch} and {ref.number}"
        )
    if not request.commits:
        raise InvalidRequest("the request stages no offset")
    return PendingKey(ref.producer_id, ref.epoch, ref.number)


def staged_by(group: Group, key: PendingKey) -> dict[PartitionId, PendingOffset]:
    """Return a copy of the offsets that the transaction has staged in the group."""
    before = group.pending.get(key)
    return {} if before is None else dict(before.offsets)


def judge(
    group: Group,
    member: Member | None,
    key: PendingKey,
    staged: Mapping[PartitionId, PendingOffset],
    partition: PartitionId,
    commit: pb.OffsetCommit,
    ends: Ends,
) -> bool:
    """Return True if the offset has to be staged, False if the transaction has staged it, or a later
    one, already.

    `staged`: the offsets of the transaction, with earlier ones of the same request. Another offset under
    the same counter is of another program. Raises the error for the offset's result.
    """
    if not is_current(group, member, partition, commit):
        raise stale(group, member, partition, commit)
    if group.pending_in.get(partition, key) != key:
        check_settled(group, partition)
    before, stored = staged.get(partition), group.offset_of(partition)
    if before is not None and (before.epoch, before.counter) >= (commit.epoch, commit.counter):
        is_same_turn = (before.epoch, before.counter) == (commit.epoch, commit.counter)
        if is_same_turn and (before.offset, before.metadata) != (commit.offset, commit.metadata):
            raise StaleAssignment(
                f"partition {commit.partition} of {commit.topic}: another program has staged offset {before.offset}"
                " under the same transaction, epoch and counter; nothing was staged, so abort the transaction"
            )
        return False
    if stored is not None and not is_news(stored, commit):
        # A repeated plain commit would succeed here; but then the transaction would have staged nothing.
        raise CommitGoesBack(
            f"partition {commit.partition} of {commit.topic}: commit {stored.counter} was applied already, and"
            f" commit {commit.counter} is not after it; abort the transaction"
        )
    lowest = max((stored.offset or 0) if stored is not None else 0, before.offset if before is not None else 0)
    if commit.offset < lowest:
        raise CommitGoesBack(
            f"partition {commit.partition} of {commit.topic}: offset {lowest} is"
            f" {'staged' if before is not None else 'committed'}, and {commit.offset} is before it"
        )
    ends.check(partition, commit.offset, lowest)
    return True


def offset_of(commit: pb.OffsetCommit, topic: str) -> PendingOffset:
    return PendingOffset(commit.offset, commit.metadata, commit.epoch, commit.counter, topic)


def stage(
    group: Group,
    key: PendingKey,
    ref: pb.TransactionRef,
    offsets: Mapping[PartitionId, PendingOffset],
    now_ms: int,
    limits: GroupLimits,
) -> None:
    """Stage offsets that `judge` accepted. `offsets` replaces all earlier offsets of the transaction.

    Raises ResourceExhausted or TransactionTooLarge, and then changes nothing.
    """
    before = group.pending.get(key)
    if before is None and len(group.pending) >= limits.pending_max:
        raise ResourceExhausted(
            f"group {group.name} has staged offsets of {limits.pending_max} open transactions, which is the maximum;"
            " stage the offsets again later",
            retry_after_ms=PENDING_RETRY_MS,
        )
    added = [p for p in offsets if p not in group.pending_in and group.offset_of(p) is None]
    if added and not group.has_space(len(added), limits.partitions_max):
        raise ResourceExhausted(
            f"group {group.name} would have committed offsets of more than {limits.partitions_max} partitions, which is"
            " the maximum; use a second group"
        )
    value = PendingValue(
        ref.transactional_id, ref.coordinator, now_ms if before is None else before.staged_ms, dict(offsets)
    )
    size = len(encode(PendingEntry(group.name, key, value)).value or b"")
    if len(offsets) > limits.commits_max or size > limits.request_bytes_max:
        raise TransactionTooLarge(
            f"transaction {ref.transactional_id} would stage {len(offsets)} offsets of group {group.name} in {size}"
            f" bytes; at most {limits.commits_max} offsets and {limits.request_bytes_max} bytes are allowed; abort the"
            " transaction, and use smaller ones"
        )
    group.set_pending(key, value)


# The end of a transaction


def settle(group: Group, key: PendingKey, *, commit: bool, view: TopicsView, now_ms: int) -> None:
    """Commit or drop the offsets that one transaction has staged in the group.

    Offsets of removed topics are dropped in both cases.
    """
    ended = group.pending[key]
    group.set_pending(key, None)
    if not commit:
        return
    for partition, staged in ended.offsets.items():
        if not view.is_removed(partition[0]):
            group.set_offset(
                partition,
                OffsetValue(staged.offset, staged.metadata, now_ms, staged.epoch, staged.counter, staged.topic),
            )


def transactions(found: Iterable[tuple[str, PendingKey, PendingValue]]) -> list[PendingTransaction]:
    """Return the transactions of these tuples (group, key, staged offsets), the oldest first."""
    by_key: dict[PendingKey, list[tuple[str, PendingValue]]] = {}
    for group, key, value in found:
        by_key.setdefault(key, []).append((group, value))
    listed = [
        PendingTransaction(
            parts[0][1].transactional_id,
            parts[0][1].coordinator,
            *key,
            tuple(sorted(group for group, _ in parts)),
            min(value.staged_ms for _, value in parts),
        )
        for key, parts in by_key.items()
    ]
    return sorted(listed, key=lambda transaction: transaction.staged_ms)


# Answers


def committed_or_busy(group: Group, partition: PartitionId, topic: str) -> pb.CommittedPartition:
    """Return the committed offset. While another offset is staged, the result has the error Unavailable
    instead: the next holder of the partition would process the messages of the transaction again.
    """
    try:
        check_settled(group, partition)
    except Unavailable as busy:
        return pb.CommittedPartition(
            topic=topic, topic_id=partition[0], partition=partition[1], error=error_to_proto(busy)
        )
    return committed(group, partition, topic)


def named_committed_or_busy(group: Group, view: TopicsView, asked: pb.TopicPartition) -> pb.CommittedPartition:
    """Return the same for a partition that a caller names; with UnknownTopic or UnknownPartition if there is none."""
    topic = view.by_name(asked.topic)
    known = topic is not None and asked.partition < topic.partitions
    # A partition that a member holds exists, even if this broker's catalog is behind.
    held = [
        topic_id
        for topic_id, name in group.names.items()
        if name == asked.topic and PartitionId(topic_id, asked.partition) in group.holders
    ]
    if topic is not None and (known or topic.topic_id in held):
        return committed_or_busy(group, PartitionId(topic.topic_id, asked.partition), asked.topic)
    if held and topic is None:
        return committed_or_busy(group, PartitionId(max(held), asked.partition), asked.topic)
    error: LedgerMQError = UnknownTopic(f"there is no topic {asked.topic!r}")
    if topic is not None:
        error = UnknownPartition(
            f"topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, not {asked.partition}"
        )
    return pb.CommittedPartition(topic=asked.topic, partition=asked.partition, error=error_to_proto(error))


def all_committed_or_busy(group: Group) -> list[pb.CommittedPartition]:
    """Return all committed offsets, with an error for each partition that has a staged one, sorted by
    topic id and partition.
    """
    topics = {PartitionId(t, p): value.topic for t, topic in group.offsets.items() for p, value in topic.items()}
    topics |= {p: staged.topic for value in group.pending.values() for p, staged in value.offsets.items()}
    return [committed_or_busy(group, partition, topics[partition]) for partition in sorted(topics)]


def described(group: Group) -> list[pb.StagedOffset]:
    """Return the staged offsets, sorted by topic id and partition. Producer ids are only shown."""
    return [
        pb.StagedOffset(
            topic=staged.topic,
            topic_id=partition[0],
            partition=partition[1],
            offset=staged.offset,
            staged_ms=value.staged_ms,
            transaction=pb.TransactionRef(
                transactional_id=value.transactional_id,
                coordinator=value.coordinator,
                producer_id=shown_producer_id(key.producer_id),
                epoch=key.epoch,
                number=key.number,
            ),
        )
        for partition, key in sorted(group.pending_in.items())
        for value in [group.pending[key]]
        for staged in [value.offsets[partition]]
    ]
