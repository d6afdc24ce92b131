"""Coordinate the groups of one partition of `__consumer_offsets`, of both kinds.

A group has committed offsets, an epoch and an expiry (`GroupCoordinator`). Its members are of one kind at a
time: those that the coordinator assigns (`ConsumerGroups`: our own protocol and KIP-848), or classic ones
(`ClassicGroups`), whose commits a generation fences. A member of one kind is refused while the group has members of
the other; an empty group takes either.

Invariants: a group with classic members is one of `state.groups`, and knows their number. What a member of either
kind committed is read alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ledgermq.errors import GroupNotEmpty, InvalidRequest, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL
from ledgermq_offsets.classic.consumer_protocol import PROTOCOL_TYPE, assigned_partitions, subscribed_topics
from ledgermq_offsets.classic.coordinator import ClassicGroups
from ledgermq_offsets.classic.group import ClassicGroup
from ledgermq_offsets.classic.records import PREFIX
from ledgermq_offsets.classic.values import (
    ClassicLimits,
    InconsistentProtocol,
    JoinAnswer,
    JoinRequest,
    State,
    SyncAnswer,
)
from ledgermq_offsets.committing import commits, pending
from ledgermq_offsets.consumer.coordinator import ConsumerGroups, Fence
from ledgermq_offsets.limits import GROUP_BYTES, GroupLimits
from ledgermq_offsets.names import check_group_name
from ledgermq_offsets.served_offsets import Ends
from ledgermq_offsets.state.group import Group
from ledgermq_offsets.state.groups import check_room
from ledgermq_offsets.state.records import OffsetValue, PendingOffset, size_of
from ledgermq_offsets.topics import TopicsView

T = TypeVar("T")


class BothKinds(ConsumerGroups):
    """`new_id`: makes a new id for a classic member, of its client id or instance id."""

    def __init__(
        self, limits: GroupLimits, topics: TopicsView, classic: ClassicLimits, new_id: Callable[[str], str]
    ) -> None:
        super().__init__(limits, topics)
        self.classic = ClassicGroups(classic, new_id)

    def apply(self, key: bytes, value: bytes | None) -> None:
        if key.startswith(PREFIX):
            self.classic.apply(key, value)
        else:
            super().apply(key, value)

    def start(self, now_s: float) -> None:
        super().start(now_s)
        self.classic.start(now_s)
        for name, classic in self.classic.groups.items():
            if name in self.state.groups:
                self.state.groups[name].classic_members = len(classic.members)
                self.classic.count_to(classic, self.state.groups[name].principal)
            self._note_classic(name)

    # Members that the coordinator assigns

    def heartbeat(
        self, request: pb.GroupHeartbeatRequest, now_s: float, now_ms: int
    ) -> Decision[pb.GroupHeartbeatResponse]:
        group = self.state.groups.get(request.group)
        if request.step == pb.JOIN and group is not None and group.classic_members:
            if request.HasField("kafka"):
                raise InconsistentProtocol(
                    f"group {group.name!r} has {group.classic_members} members with group.protocol=classic: stop them"
                    " first, or use another group"
                )
            raise InvalidRequest(
                f"group {group.name!r} has {group.classic_members} members that use the Kafka protocol: stop them"
                " first, or use another group"
            )
        return super().heartbeat(request, now_s, now_ms)

    def reset(
        self, request: pb.ResetOffsetsRequest, ends: Ends, now_s: float, now_ms: int
    ) -> Decision[pb.ResetOffsetsResponse]:
        group = self.state.groups.get(request.group)
        if group is not None and group.classic_members:
            raise GroupNotEmpty(
                f"group {group.name!r} has {group.classic_members} members that use the Kafka protocol, whose next"
                " commits would undo a reset: stop them first"
            )
        return super().reset(request, ends, now_s, now_ms)

    def committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        answer = super().committed(request)
        group = self.state.groups.get(request.group)
        if request.without_staged and group is not None and group.pending:
            for at, found in enumerate(answer.partitions):
                if found.error.code == Unavailable.code:
                    partition = PartitionId(found.topic_id, found.partition)
                    answer.partitions[at].CopyFrom(commits.committed(group, partition, found.topic))
        return answer

    # Classic members

    def join(self, request: JoinRequest, now_s: float, now_ms: int) -> Decision[JoinAnswer | str]:
        """Let a member join; the answer is the id of the member whose call is held, if there is none yet.

        Raises InvalidGroupName, ResourceExhausted, and what `ClassicGroups.join` raises.
        """
        group = self._group_for_classic(request.group)
        if request.group not in self.classic.groups:  # also those whose first member has an id, and has not joined yet
            check_room(self.classic.shares, len(self.classic.groups), request.principal, self._limits)
        if group is None:
            group = self._new_group(request.group, now_ms, request.principal)
        before = self._classic_ids(request.group)
        classic = self.classic.groups.get(group.name)
        begun = 0 if classic is not None else GROUP_BYTES
        begun += 0 if group.name in self.state.groups else group.size_bytes
        more = begun + (classic or ClassicGroup(group.name)).growth_by(request)
        self._check_classic(group.name, group.principal, more)
        try:
            decision = self.classic.join(request, now_s, now_ms)
        finally:
            self._note_classic(request.group)  # also one that has got its id only
        joined = self._noted(group, decision, now_ms)
        if decision.answer is not None:
            return Decision(joined.records, decision.answer, joined.woken)
        new = self._classic_ids(request.group) - before
        return Decision(joined.records, next(iter(new), request.member_id), joined.woken)

    def sync(self, request: pb.SyncClassicGroupRequest, now_s: float) -> Decision[SyncAnswer | None]:
        """Raises ResourceExhausted, and what `ClassicGroups.sync` raises."""
        name = check_group_name(request.group)
        group = self.state.groups.get(name)
        principal = NO_PRINCIPAL if group is None else group.principal
        classic = self.classic.groups.get(name) or ClassicGroup(name)
        more = sum(len(each.assignment) for each in request.assignments) - classic.assigned_bytes
        self._check_classic(name, principal, more)
        decision = self.classic.sync(
            name,
            request.member_id,
            request.generation,
            now_s,
            instance_id=request.instance_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol,
            assignments={each.member_id: each.assignment for each in request.assignments},
        )
        if request.assignments:
            self._note_classic(name)
        return decision

    def leave(self, request: pb.LeaveClassicGroupRequest, now_s: float, now_ms: int) -> Decision[tuple[object, ...]]:
        """Return an error, or None, for each member."""
        leaving = [(member.member_id, member.instance_id) for member in request.members]
        decision = self.classic.leave(check_group_name(request.group), leaving, now_s, now_ms)
        self._note_classic(request.group)
        group = self.state.groups.get(request.group)
        return decision if group is None else self._noted(group, decision, now_ms)

    def commit_for_generation(
        self, request: pb.CommitForGenerationRequest, now_s: float, now_ms: int
    ) -> Decision[pb.CommitForGenerationResponse]:
        """Commit what members of the present generation say, or, with `outside`, a program while there are no members.
        Of a group whose members the coordinator assigns, `generation` is the member's epoch.

        An offset may go back, which draws a new epoch as a reset does, and may lie beyond the end of its partition.

        For the whole request, raises InvalidGroupName, ResourceExhausted, and what `ClassicGroups.check_commit` and
        `_fence_of_member` raise. Each result has UnknownTopic, UnknownPartition, InvalidRequest, ResourceExhausted,
        StaleAssignment for a partition that is not the member's, or Unavailable while a transaction has staged an
        offset of the partition.
        """
        group, fence = self._committer(request, request, now_s, now_ms, staged=False)
        commits.check_count(len(request.commits), self._limits)

        def one(commit: pb.GenerationCommit) -> bool:
            self._apply_commit(group, commit, fence, now_ms)
            return True

        results, applied = commits.each_result(one, request.commits)
        return self._decided(group, pb.CommitForGenerationResponse(results=results), applied)

    def _committer(
        self,
        request: pb.CommitForGenerationRequest | pb.StageOffsetsRequest,
        by: pb.CommitForGenerationRequest | pb.ClassicCommitter,
        now_s: float,
        now_ms: int,
        *,
        staged: bool,
    ) -> tuple[Group, Fence]:
        """Return the group of a commit, and what judges each partition of it."""
        group = self._group(request.group)
        generation = -1 if by.outside else by.generation
        member_id, instance_id = request.member_id, by.instance_id
        if group is not None and group.members:
            return group, self._fence_of_member(group, member_id, generation, instance_id, staged=staged)
        group = group or self._new_group(request.group, now_ms, request.caller)
        self.classic.check_commit(request.group, member_id, generation, now_s, instance_id=instance_id, staged=staged)
        return group, _any_partition

    def _apply_commit(self, group: Group, commit: pb.GenerationCommit, fence: Fence, now_ms: int) -> None:
        commits.check_values(commit)
        named = pb.OffsetCommit(topic=commit.topic, partition=commit.partition)
        partition, topic = commits.resolve(self._view, named)
        fence(partition, topic)
        commits.check_settled(group, partition)
        commits.check_space(group, partition, self._limits)
        self._check_offset(group, partition, OffsetValue(commit.offset, commit.metadata, now_ms, 0, 0, topic))
        epoch, counter = commits.turn(group, partition, commit.offset)
        group.set_offset(partition, OffsetValue(commit.offset, commit.metadata, now_ms, epoch, counter, topic))

    def stage_for_generation(
        self, request: pb.StageOffsetsRequest, now_s: float, now_ms: int
    ) -> Decision[pb.StageOffsetsResponse]:
        """Stage offsets of a transaction, as `stage_offsets`; who may is judged as by `commit_for_generation`, but a
        client that names no member may, also beside members: old clients name none.

        Raises and results: as these two.
        """
        key = pending.check_transaction(request)
        group, fence = self._committer(request, request.added, now_s, now_ms, staged=True)
        commits.check_count(len(request.commits), self._limits)
        staged = pending.staged_by(group, key)
        wanted: dict[PartitionId, tuple[pb.OffsetCommit, str]] = {}

        def one(commit: pb.OffsetCommit) -> bool:
            commits.check_values(commit)
            partition, topic = commits.resolve(self._view, commit)
            fence(partition, topic)
            if group.pending_in.get(partition, key) != key:
                commits.check_settled(group, partition)
            before = staged.get(partition)
            if before is not None and (before.offset, before.metadata) == (commit.offset, commit.metadata):
                return False
            wanted[partition] = commit, topic
            return True

        results, changed = commits.each_result(one, request.commits)
        stages = changed and not any(result.HasField("error") for result in results)
        if stages:
            for partition, (commit, topic) in wanted.items():
                epoch, counter = commits.turn(group, partition, commit.offset)
                staged[partition] = PendingOffset(commit.offset, commit.metadata, epoch, counter, topic)
            more = sum(each.size_bytes for each in staged.values()) - size_of(group.pending.get(key))
            self.state.check_bytes(group, more, self._limits)
            pending.stage(group, key, request.transaction, staged, now_ms, self._limits)
            self.state.note_pending(group, key)
        return self._decided(group, pb.StageOffsetsResponse(results=results), stages)

    def pending_number(self, group: str, producer_id: bytes, epoch: int) -> int:
        """Return the number of the transaction of this epoch that has staged offsets of the group; 0: none."""
        found = self.state.groups.get(group)
        keys = () if found is None else found.pending
        return max((key.number for key in keys if key[:2] == (producer_id, epoch)), default=0)

    def _group_for_classic(self, name: str) -> Group | None:
        group = self._group(name)
        if group is not None and group.members:
            raise InconsistentProtocol(
                f"group {name!r} has {len(group.members)} members that use LedgerMQ's own protocol: stop them first, or"
                " use another group"
            )
        return group

    def _classic_ids(self, name: str) -> set[str]:
        group = self.classic.groups.get(name)
        return set() if group is None else set(group.members)

    def _check_classic(self, name: str, principal: int, more: int) -> None:
        """Check that classic members may take so many bytes more. Raises ResourceExhausted."""
        if more > 0:  # most calls add nothing, and to count goes through all members
            self.state.sizes.check(_classic(name), principal, self._classic_bytes(name), more, self._limits)

    def _classic_bytes(self, name: str) -> int:
        classic = self.classic.groups.get(name)
        return 0 if classic is None else classic.size_bytes

    def _note_classic(self, name: str) -> None:
        """Note what the classic members of a group take."""
        classic, group = self.classic.groups.get(name), self.state.groups.get(name)
        began = group.principal if group is not None else classic.principal if classic is not None else NO_PRINCIPAL
        self.state.sizes.note(_classic(name), began, self._classic_bytes(name))

    def _noted(self, group: Group, decision: Decision[T], now_ms: int) -> Decision[T]:
        """Keep the number of classic members with their group, which begins with the first of them."""
        classic = self.classic.groups.get(group.name)
        count = 0 if classic is None else len(classic.members)
        if not count and group.name not in self.state.groups:
            return decision
        self.state.put(group)
        group.note_classic(count, now_ms)
        return Decision([*self.state.drain(group), *decision.records], decision.answer, decision.woken)

    # Groups

    def groups(self) -> list[pb.GroupInfo]:
        return [self._with_classic(info, details=False) for info in super().groups()]

    def readers(self, topic: str) -> list[pb.GroupInfo]:
        return [self._with_classic(info, details=False) for info in super().readers(topic)]

    def _subscribes(self, group: Group, topic: str) -> bool:
        found = None if group.members else self.classic.describe(group.name)
        if found is None or found.protocol_type != PROTOCOL_TYPE:
            return super()._subscribes(group, topic)
        return any(topic in subscribed_topics(member.metadata) for member in found.members)

    def describe(self, group: str, now_s: float) -> pb.GroupInfo:
        return self._with_classic(super().describe(group, now_s), details=True)

    def _with_classic(self, info: pb.GroupInfo, *, details: bool) -> pb.GroupInfo:
        found = None if info.member_count else self.classic.describe(info.group)
        if found is None:
            return info
        info.member_count = len(found.members)
        info.state = {State.EMPTY: pb.EMPTY, State.STABLE: pb.STABLE}.get(found.state, pb.RECONCILING)
        info.classic.state, info.classic.protocol_type = found.state.value, found.protocol_type
        info.classic.protocol = found.protocol
        info.classic.generation = self.classic.groups[info.group].generation
        if not info.assignor:
            info.assignor = found.protocol
        if details:
            self._add_members(info, found.protocol_type)
        return info

    def _add_members(self, info: pb.GroupInfo, protocol_type: str) -> None:
        found = self.classic.describe(info.group)
        assert found is not None
        for member in found.members:
            info.classic.members.add(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata,
                assignment=member.assignment,
            )
            shown = info.members.add(member_id=member.member_id)
            shown.subscription.client_id = member.client_id
            shown.subscription.instance_id = member.instance_id
            if protocol_type == PROTOCOL_TYPE:
                shown.subscription.topics.extend(subscribed_topics(member.metadata))
                given = [
                    pb.GivenPartition(topic=topic, topic_id=self._topic_id(topic), partition=max(0, number))
                    for topic, numbers in assigned_partitions(member.assignment).items()
                    for number in numbers
                ]
                shown.assigned.extend(given)
                shown.owned.extend(given)

    def _topic_id(self, name: str) -> int:
        topic = self._view.by_name(name)
        return 0 if topic is None else topic.topic_id

    def _remove(self, group: Group) -> list[LogRecord]:
        records = [*super()._remove(group), *self.classic.forget(group.name)]
        self._note_classic(group.name)
        return records

    # Time

    def tick(self, now_s: float, now_ms: int) -> Decision[None]:
        own = super().tick(now_s, now_ms)
        records, woken = list(own.records), list(own.woken)
        while len(records) < self._limits.records_max and (due := self.classic.tick(now_s, now_ms)) is not None:
            self._note_classic(due.answer)
            group = self.state.groups.get(due.answer)
            decision = due if group is None else self._noted(group, due, now_ms)
            records += decision.records
            woken += decision.woken
        return Decision(records, None, tuple(woken))

    def next_tick_s(self) -> float:
        return min(super().next_tick_s(), self.classic.next_due_s())


def _any_partition(partition: PartitionId, topic: str) -> None:
    """Fence nothing: the generation was judged."""


def _classic(name: str) -> str:
    """Return the name by which the classic members of a group are counted; no group has it."""
    return f"classic/{name}"
