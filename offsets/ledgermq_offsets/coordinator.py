"""Coordinate groups: one `GroupCoordinator` for each partition of `__consumer_offsets` that this
broker owns.

How a broker uses it (one term, one partition; no call waits):

    c = GroupCoordinator(limits, topics)
    for record in snapshot + tail: c.apply(record.key, record.value)
    c.start(now_s)                                   # session clocks restart
    decision = c.heartbeat(request, now_s, now_ms)   # typed errors are raised before anything has changed
    append decision.records as ONE batch, in the order of the decisions; when it is durable:
        wake the held heartbeats of decision.woken; send decision.answer

If a call raises anything other than a LedgerMQError, the state may be half changed: end the term.

Invariants: a decision's records, applied to a copy of the previous state, give the current one. A
prefix of batches is a state that a coordinator can continue from. The records of this decision and
those before it contain everything that an answer says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ledgermq.errors import GroupNotEmpty, InvalidRequest, LedgerMQError, UnknownGroup
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL
from ledgermq_offsets import describe
from ledgermq_offsets.committing import commits, pending, resets
from ledgermq_offsets.committing.expiry import expire, forget_removed, is_due
from ledgermq_offsets.deadlines import Deadlines
from ledgermq_offsets.limits import MEMBER_BYTES, GroupLimits
from ledgermq_offsets.membership import members, reconcile
from ledgermq_offsets.membership.subscriptions import Meanings, read_subscription
from ledgermq_offsets.names import check_group_name, check_member_name, check_new_group_name
from ledgermq_offsets.state.group import Group, Member
from ledgermq_offsets.state.groups import OffsetsState, check_room
from ledgermq_offsets.state.records import (
    Entry,
    FloorEntry,
    GroupEntry,
    OffsetEntry,
    OffsetValue,
    PendingKey,
    encode,
    size_of,
)
from ledgermq_offsets.topics import TopicsView

T = TypeVar("T")

Ends = Mapping[PartitionId, int]
"""(topic id, partition) -> a durable end of it: the high watermark or a lower bound of it."""


@dataclass(frozen=True, slots=True)
class EndWanted:
    topic: str
    topic_id: int
    partition: int


class GroupCoordinator:
    """`now_s`: monotonic seconds, for sessions. `now_ms`: wall clock, stamped on commits and on
    groups that become empty.
    """

    def __init__(self, limits: GroupLimits, topics: TopicsView) -> None:
        self.state = OffsetsState()
        self._limits = limits
        self._view = topics
        self._meanings = Meanings(topics, limits)
        self._ends = commits.Ends()
        self._deadlines = Deadlines()
        self._topics_version = -1
        self._expiry_s = 0.0

    # Replay

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log, in order. Raises DataDamaged, FormatNotSupported."""
        self.state.apply(key, value)

    def start(self, now_s: float) -> None:
        """Start the clocks, once, after the last record was applied: each member gets its full
        session time-out, and its full time to release partitions.
        """
        self._expiry_s = now_s + self._limits.expiry_check_s
        for group in self.state.groups.values():
            for member in group.members.values():
                member.heard_s = now_s
                member.changed_epoch = group.epoch
                member.letting_go_s = now_s if member.withdrawn else None
            if group.members:
                self._deadlines.note(group, now_s)

    # Members

    def heartbeat(
        self, request: pb.GroupHeartbeatRequest, now_s: float, now_ms: int
    ) -> Decision[pb.GroupHeartbeatResponse]:
        """Handle all steps of a heartbeat.

        Raises InvalidGroupName, InvalidRequest, UnknownMember, StaticIdInUse, FilterConflict, ResourceExhausted.

        To hold a long poll: while not `changed_for(…)`, keep the request. When the member is in
        some decision's `woken`, or the wait is over, answer `assignment(…)`.
        """
        group = self._group(request.group)
        check_member_name(request.member_id)
        if len(request.owned) > self._limits.partitions_max:
            raise InvalidRequest(
                f"a member owns at most {self._limits.partitions_max} partitions, this one reports {len(request.owned)}"
            )
        if request.step == pb.LEAVE:
            return self._leave(group, request.member_id, now_s, now_ms)
        if request.step == pb.JOIN:
            group, member = self._join(group, request, now_s, now_ms)
        else:
            member = members.member_of(group, request.group, request.member_id)
            assert group is not None
        if request.step == pb.LEAVE_FOR_A_WHILE:
            members.leave_for_a_while(group, member, now_s)
        elif request.step in (pb.JOIN, pb.STAY):
            members.note_heartbeat(group, member, request, now_s)
        else:
            raise InvalidRequest(f"step {request.step} of the heartbeat is unknown")
        reconcile.refresh(group, self._meanings, self._view)
        self._settle(group, now_s)
        return self._decided(group, members.answer(group, member, self._limits))

    def changed_for(self, group: str, member_id: str, seen_epoch: int) -> bool:
        """Return True if the assignment changed since this group epoch, or if the member is no
        longer in the group.
        """
        found = self.state.groups.get(group)
        member = None if found is None else found.members.get(member_id)
        return found is None or member is None or member.away or member.changed_epoch > members.seen(found, seen_epoch)

    def assignment(self, group: str, member_id: str) -> pb.GroupHeartbeatResponse:
        """Return the current answer to a heartbeat; it is durable when all records of earlier
        decisions are.

        Raises UnknownMember.
        """
        found = self.state.groups.get(group)
        member = members.member_of(found, group, member_id)
        assert found is not None
        return members.answer(found, member, self._limits)

    def _join(
        self, group: Group | None, request: pb.GroupHeartbeatRequest, now_s: float, now_ms: int
    ) -> tuple[Group, Member]:
        if request.owned and (
            group is None or request.member_id not in group.members or group.members[request.member_id].away
        ):
            members.member_of(
                group, request.group, request.member_id
            )  # it was removed, and has to learn that before it rejoins
        subscription = read_subscription(request.subscription, self._limits)
        joined = group or self._new_group(request.group, now_ms, request.caller)
        members.check_join(joined, request.member_id, subscription, self._meanings, self._limits, now_s)
        known = joined.members.get(request.member_id)
        before = 0 if known is None else MEMBER_BYTES + known.subscription.size_bytes
        self.state.check_bytes(joined, MEMBER_BYTES + subscription.size_bytes - before, self._limits)
        self.state.put(joined)
        member = members.join(joined, request.member_id, subscription, members.owned_by(request), now_s, now_ms)
        self._deadlines.note(joined, member.silent_at_s)
        return joined, member

    def _leave(
        self, group: Group | None, member_id: str, now_s: float, now_ms: int
    ) -> Decision[pb.GroupHeartbeatResponse]:
        """Remove a member. A member that has left may repeat the request, because its first answer
        may have been lost.
        """
        if group is None or member_id not in group.members:
            return Decision([], pb.GroupHeartbeatResponse())
        group.remove(group.members[member_id], now_ms)
        self._settle(group, now_s)
        return self._decided(group, pb.GroupHeartbeatResponse(group_epoch=group.epoch))

    def _settle(self, group: Group, now_s: float) -> None:
        """Settle the group, and schedule the next look at it: for work that has to wait, and for
        members that are late to release partitions.
        """
        reconcile.settle(group, self._meanings, self._view, now_s)
        if not group.members:
            return
        if group.dirty:
            self._deadlines.note(group, reconcile.settle_due_s(group))
        for member_id in group.woken:
            member = group.members.get(member_id)
            if member is not None and member.late_at_s is not None:
                self._deadlines.note(group, member.late_at_s)

    # Committed offsets

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

        left = resets.left_of(group, request)

        def one(asked: tuple[int, pb.OffsetReset]) -> bool:
            at, reset = asked
            if not left >> at & 1:
                return False
            partition, topic = commits.resolve(self._view, reset)
            resets.check(group, partition, reset, self._ends, self._limits)
            self._check_offset(group, partition, OffsetValue(0, "", now_ms, 0, 0, topic))
            resets.apply(group, partition, topic, reset, now_ms)
            return True

        results, applied = commits.each_result(one, [*enumerate(request.resets)])
        if applied:
            resets.note(group, request, results)
        return self._decided(group, pb.ResetOffsetsResponse(results=results), applied)

    def _check_offset(self, group: Group, partition: PartitionId, value: OffsetValue) -> None:
        """Raises ResourceExhausted if the group may not grow so much."""
        more = value.size_bytes - size_of(group.offset_of(partition))
        self.state.check_bytes(group, more, self._limits)

    # Offsets of transactions

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

    # Groups

    def groups(self) -> list[pb.GroupInfo]:
        """Return the groups without members and offsets, sorted by name."""
        return [describe.group_info(self.state.groups[name]) for name in sorted(self.state.groups)]

    def describe(self, group: str, now_s: float) -> pb.GroupInfo:
        """Describe a group. Raises InvalidGroupName, UnknownGroup."""
        return describe.group_details(self._existing(group), now_s)

    def delete(self, group: str, now_ms: int, epoch: int = 0) -> Decision[pb.DeleteGroupResponse]:
        """Delete a group. `epoch`: the one that the caller has seen, so that a later group of the name stays, which
        begins above it; 0: whatever group has the name now.

        Raises InvalidGroupName, GroupNotEmpty; UnknownGroup, also for another epoch; Unavailable while an open
        transaction has staged offsets of it.
        """
        found = self._existing(group)
        if epoch not in (0, found.epoch):
            raise UnknownGroup(
                f"group {group} with the epoch {epoch} does not exist; the group of that name has {found.epoch}"
            )
        if found.member_count:
            raise GroupNotEmpty(f"group {group} has {found.member_count} members; stop them first")
        for partition in found.pending_in:
            commits.check_settled(found, partition)
        return Decision(self._remove(found), pb.DeleteGroupResponse())

    def _existing(self, name: str) -> Group:
        group = self._group(name)
        if group is None:
            raise UnknownGroup(f"there is no group {name}")
        return group

    def _group(self, name: str) -> Group | None:
        return self.state.groups.get(check_group_name(name))

    def _new_group(self, name: str, now_ms: int, principal: int = NO_PRINCIPAL, *, checked: bool = True) -> Group:
        """Return a new group, which joins the groups when it has something to persist.

        It begins above every epoch of any deleted group. Raises ResourceExhausted; QuotaExceeded if the principal has
        its share of the groups.
        """
        if checked:
            check_room(self.state.shares, len(self.state.groups), principal, self._limits)
        group = Group(check_new_group_name(name) if checked else name)
        group.begin(self.state.floor + 1, now_ms)
        group.principal = principal
        return group

    def _remove(self, group: Group) -> list[LogRecord]:
        """Remove a group with all its records. The floor keeps the highest epoch that it drew."""
        assert not group.pending, f"group {group.name} has staged offsets"
        offsets: list[Entry] = [
            OffsetEntry(group.name, PartitionId(t, p), None) for t, topic in group.offsets.items() for p in topic
        ]
        self.state.floor = max(self.state.floor, group.epoch)
        self.state.drop(group)
        entries: list[Entry] = [FloorEntry(self.state.floor), *offsets, GroupEntry(group.name, None)]
        return [encode(entry) for entry in entries]

    def _decided(self, group: Group, answer: T, worth_keeping: bool = True) -> Decision[T]:
        if not worth_keeping and group.name not in self.state.groups:
            return Decision([], answer)
        self.state.put(group)
        woken = tuple((group.name, member_id) for member_id in group.woken)
        group.woken = {}
        return Decision(self.state.drain(group), answer, woken)

    # Time

    def tick(self, now_s: float, now_ms: int) -> Decision[None]:
        """Handle everything that is due: sessions that timed out, members that are late to release,
        targets that wait, topics that changed. `wants_expiry` handles the expiry of offsets.

        Call it at `next_tick_s()`, and when the catalog has changed.
        """
        records: list[LogRecord] = []
        woken: list[tuple[str, str]] = []
        if self._topics_version != self._view.version:
            self._look_at_topics(records, now_s)
        while (
            len(records) < self._limits.records_max
            and (group := self._deadlines.pop(self.state.groups, now_s)) is not None
        ):
            self._look_at(group, now_s, now_ms)
            decision = self._decided(group, None)
            records += decision.records
            woken += decision.woken
        return Decision(records, None, tuple(woken))

    def wants_expiry(self, now_s: float, now_ms: int) -> bool:
        """Return True if something has expired by the caller's clock: read a trusted time, and call
        `expire` with it.

        It looks only every `expiry_check_s`. Call it after `tick`, because `next_tick_s` stays in
        the past otherwise.
        """
        if now_s < self._expiry_s:
            return False
        self._expiry_s = now_s + self._limits.expiry_check_s
        return any(is_due(group, self._limits, now_ms) for group in self.state.groups.values())

    def expire(self, now_s: float, judged_ms: int) -> Decision[None]:
        """Remove what has expired at `judged_ms`, a time that never depends on a single clock."""
        records: list[LogRecord] = []
        for group in list(self.state.groups.values()):
            if len(records) >= self._limits.records_max:
                self._expiry_s = now_s
                break
            if expire(group, self._limits, judged_ms, self._view):
                records += self._remove(group)
            else:
                records += self.state.drain(group)
        return Decision(records, None)

    def next_tick_s(self) -> float:
        """Return the latest monotonic time at which `tick` has work to do."""
        if self._topics_version != self._view.version:
            return float("-inf")
        return min(self._deadlines.next_s(), self._expiry_s)

    def _look_at(self, group: Group, now_s: float, now_ms: int) -> None:
        members.put_out(group, now_s, now_ms)
        reconcile.refresh(group, self._meanings, self._view)
        self._settle(group, now_s)
        for member in group.members.values():
            self._deadlines.note(group, member.silent_at_s)
            if member.late_at_s is not None:
                self._deadlines.note(group, member.late_at_s)

    def _look_at_topics(self, records: list[LogRecord], now_s: float) -> None:
        """Make groups whose topics have changed due now, and remove committed offsets of removed
        topics.
        """
        version = self._view.version
        for group in self.state.groups.values():
            if len(records) >= self._limits.records_max:
                return  # the next tick still sees the version as new
            forget_removed(group, self._view)
            records += self.state.drain(group)
            if group.members and group.topics_version != version:
                self._deadlines.note(group, now_s)
        self._ends.forget(self._view.is_removed)
        self._topics_version = version
