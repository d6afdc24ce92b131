"""Committed offsets of groups: commit, read, reset, and stage them in a transaction.

A reset is the only way by which they go back. It draws a new epoch for each of its partitions, so work
that began before it can never be committed after it. A member that holds the partition receives it
again, sees the epoch, and begins again at the new offset. A call may come again after its answer was
lost, and another program may have reset, or committed, in between. The group keeps the nonces of its
newest resets, so what the first attempt has reset stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import OFFSET_MAX, check_nonce
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_offsets.committing import commits, pending
from ledgermq_offsets.committing.commits import check_settled
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.served_groups import ServedGroups
from ledgermq_offsets.state.group import Group
from ledgermq_offsets.state.records import (
    OffsetValue,
    PendingKey,
    size_of,
)
from ledgermq_offsets.topics import TopicsView

Ends = Mapping[PartitionId, int]
"""(topic id, partition) -> a durable end of it: the high watermark or a lower bound of it."""


@dataclass(frozen=True, slots=True)
class EndWanted:
    topic: str
    topic_id: int
    partition: int


class ServedOffsets(ServedGroups):
    """What a broker asks about offsets. All are decided by pure functions of `committing`."""

    def __init__(self, limits: GroupLimits, topics: TopicsView) -> None:
        super().__init__(limits, topics)
        self._ends = commits.Ends()

    def ends_needed(
        self, request: pb.CommitOffsetsRequest | pb.StageOffsetsRequest | pb.ResetOffsetsRequest
    ) -> list[EndWanted]:
        """Return the partitions whose end has to be read for this request, above what is known
        already.

        Raises what the request would raise.
        """
        group = self._group(request.group) or self._new_group(request.group, 0, request.caller)
        wanted: dict[PartitionId, EndWanted] = {}
        if not isinstance(request, pb.ResetOffsetsRequest):
            member = commits.check_request(group, request, self._limits)
            for commit in request.commits:
                self._want(wanted, group, commit.offset, partial(commits.place, group, member, self._view, commit))
        else:
            commits.check_count(len(request.resets), self._limits)
            for reset in request.resets:
                self._want(wanted, group, reset.offset, partial(commits.resolve, self._view, reset))
        return list(wanted.values())

    def _want(
        self,
        wanted: dict[PartitionId, EndWanted],
        group: Group,
        offset: int,
        place: Callable[[], tuple[PartitionId, str]],
    ) -> None:
        try:
            partition, topic = place()
        except LedgerMQError:
            return  # its result reports the error
        stored = group.offset_of(partition)
        if offset > max(self._ends.known.get(partition, 0), (stored.offset or 0) if stored is not None else 0):
            wanted[partition] = EndWanted(topic, *partition)

    def commit(
        self, request: pb.CommitOffsetsRequest, ends: Ends, now_s: float, now_ms: int
    ) -> Decision[pb.CommitOffsetsResponse]:
        """Commit offsets. `ends`: the ends of `ends_needed` that could be read; a commit that needs
        a missing one gets Unavailable.

        For the whole request, raises InvalidGroupName, InvalidRequest, UnknownMember,
        GroupNotEmpty, ResourceExhausted. For each commit, its result has StaleAssignment,
        CommitGoesBack, OffsetOutOfRange, UnknownTopic, UnknownPartition, InvalidRequest or
        Unavailable.
        """
        group = self._group(request.group) or self._new_group(request.group, now_ms, request.caller)
        member = commits.check_request(group, request, self._limits)
        self._ends.learn(ends)

        def one(commit: pb.OffsetCommit) -> bool:
            commits.check_fields(commit)
            partition, topic = commits.place(group, member, self._view, commit)
            if not commits.judge(group, member, partition, commit, self._ends, self._limits):
                return False
            value = commits.value_of(topic, commit, now_ms)
            self._check_offset(group, partition, value)
            group.set_offset(partition, value)
            return True

        results, applied = commits.each_result(one, request.commits)
        return self._decided(group, pb.CommitOffsetsResponse(results=results), applied)

    def committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        """Return committed offsets; they are durable when all records of earlier decisions are. A
        partition with a staged offset has Unavailable in its result.

        Raises InvalidGroupName, InvalidRequest.
        """
        group = self._group(request.group) or self._new_group(request.group, 0, checked=False)
        commits.check_count(len(request.partitions), self._limits)
        if not request.partitions:
            return pb.FetchCommittedResponse(partitions=pending.all_committed_or_busy(group))
        found = [pending.named_committed_or_busy(group, self._view, asked) for asked in request.partitions]
        return pb.FetchCommittedResponse(partitions=found)

    def reset(
        self, request: pb.ResetOffsetsRequest, ends: Ends, now_s: float, now_ms: int
    ) -> Decision[pb.ResetOffsetsResponse]:
        """Reset committed offsets. Members that hold a partition get it under a new epoch
        (`woken`).

        Raises the errors of `commit`.
        """
        group = self._group(request.group) or self._new_group(request.group, now_ms, request.caller)
        commits.check_count(len(request.resets), self._limits)
        self._ends.learn(ends)

        left = _left_of(group, request)

        def one(asked: tuple[int, pb.OffsetReset]) -> bool:
            at, reset = asked
            if not left >> at & 1:
                return False
            partition, topic = commits.resolve(self._view, reset)
            _check_reset(group, partition, reset, self._ends, self._limits)
            self._check_offset(group, partition, OffsetValue(0, "", now_ms, 0, 0, topic))
            _apply_reset(group, partition, topic, reset, now_ms)
            return True

        results, applied = commits.each_result(one, [*enumerate(request.resets)])
        if applied:
            _note_reset(group, request, results)
        return self._decided(group, pb.ResetOffsetsResponse(results=results), applied)

    def _check_offset(self, group: Group, partition: PartitionId, value: OffsetValue) -> None:
        """Raises ResourceExhausted if the group may not grow so much."""
        more = value.size_bytes - size_of(group.offset_of(partition))
        self.state.check_bytes(group, more, self._limits)

    def stage_offsets(
        self, request: pb.StageOffsetsRequest, ends: Ends, now_ms: int
    ) -> Decision[pb.StageOffsetsResponse]:
        """Stage offsets of a transaction: all of them, or none if any has an error in its result.

        A later request of the same transaction replaces its offset of a partition. The caller has
        checked in this turn that the transaction is not over here. `ends`: as in `commit`.

        Raises the errors of `commit` and TransactionTooLarge; results have those of `commit`,
        Unavailable also while another transaction has staged an offset of the partition.
        """
        key = pending.check_transaction(request)
        group = self._group(request.group) or self._new_group(request.group, now_ms, request.caller)
        member = commits.check_request(group, request, self._limits)
        self._ends.learn(ends)
        staged = pending.staged_by(group, key)

        def one(commit: pb.OffsetCommit) -> bool:
            commits.check_fields(commit)
            partition, topic = commits.place(group, member, self._view, commit)
            if not pending.judge(group, member, key, staged, partition, commit, self._ends):
                return False
            staged[partition] = pending.offset_of(commit, topic)
            return True

        results, changed = commits.each_result(one, request.commits)
        stages = changed and not any(result.HasField("error") for result in results)
        if stages:
            more = sum(each.size_bytes for each in staged.values()) - size_of(group.pending.get(key))
            self.state.check_bytes(group, more, self._limits)
            pending.stage(group, key, request.transaction, staged, now_ms, self._limits)
            self.state.note_pending(group, key)
        return self._decided(group, pb.StageOffsetsResponse(results=results), stages)

    def has_pending(self, group: str, producer_id: bytes, epoch: int, number: int) -> bool:
        """Return True if exactly this transaction has staged offsets of the group."""
        found = self.state.groups.get(group)
        return found is not None and PendingKey(producer_id, epoch, number) in found.pending

    def pending_names(self, producer_id: bytes) -> set[str]:
        """Return the transactional ids under which a producer id has staged offsets."""
        staged = self.state.pending.get(producer_id, ())
        return {self.state.groups[name].pending[key].transactional_id for name, key in staged}

    def settle_pending(
        self,
        producer_id: bytes,
        epoch: int,
        number: int,
        commit_groups: Collection[str],
        now_ms: int,
        transactional_id: str,
    ) -> Decision[None]:
        """Complete a transaction here: commit, unconditionally, what it has staged of
        `commit_groups`, and drop what else this producer has staged at or below (epoch, number) under
        the same transactional id.

        Repeating it changes nothing. An abort names no groups.
        """
        ended = PendingKey(producer_id, epoch, number)
        records: list[LogRecord] = []
        for name, key in list(self.state.pending.get(producer_id, ())):
            group = self.state.groups[name]
            if key <= ended and group.pending[key].transactional_id == transactional_id:
                commit = key == ended and name in commit_groups
                pending.settle(group, key, commit=commit, view=self._view, now_ms=now_ms)
                self.state.note_pending(group, key)
                records += self.state.drain(group)
        return Decision(records, None)

    def pending_transactions(self, now_ms: int, older_than_ms: int) -> list[pending.PendingTransaction]:
        """Return the transactions whose offsets have been staged for so long, the oldest first: the
        bundle has to ask their coordinators about them. Also those that seem to be of later: the clock
        of the owner that staged them was wrong.
        """
        found = (
            (name, key, self.state.groups[name].pending[key])
            for producer in self.state.pending.values()
            for name, key in producer
        )
        return [t for t in pending.transactions(found) if not now_ms - older_than_ms < t.staged_ms <= now_ms]


def _left_of(group: Group, request: pb.ResetOffsetsRequest) -> int:
    """Return the offsets of a call that no earlier attempt has reset, as bits. Raises InvalidRequest."""
    check_nonce(request.nonce)
    return group.resets.get(request.nonce, (1 << len(request.resets)) - 1)


def _note_reset(group: Group, request: pb.ResetOffsetsRequest, results: Sequence[pb.CommitResult]) -> None:
    if request.nonce:
        group.note_reset(request.nonce, sum(1 << at for at, result in enumerate(results) if result.HasField("error")))


def _check_reset(
    group: Group, partition: PartitionId, reset: pb.OffsetReset, ends: commits.Ends, limits: GroupLimits
) -> None:
    """Check one reset. Raises InvalidRequest, OffsetOutOfRange, Unavailable, ResourceExhausted."""
    check_settled(group, partition)
    commits.check_space(group, partition, limits)
    if not reset.HasField("offset"):
        return
    if reset.offset > OFFSET_MAX:
        raise InvalidRequest(f"offset {reset.offset} is too large: at most {OFFSET_MAX} is allowed")
    stored = group.offset_of(partition)
    ends.check(partition, reset.offset, (stored.offset or 0) if stored is not None else 0)


def _apply_reset(group: Group, partition: PartitionId, topic: str, reset: pb.OffsetReset, now_ms: int) -> None:
    """Apply one reset. A reset without an offset keeps a record, whose epoch refuses delayed
    commits.
    """
    epoch = group.draw()
    holder = group.holders.get(partition)
    if holder is not None:
        group.renew(group.members[holder], partition)
    group.set_offset(
        partition, OffsetValue(reset.offset if reset.HasField("offset") else None, "", now_ms, epoch, 0, topic)
    )
