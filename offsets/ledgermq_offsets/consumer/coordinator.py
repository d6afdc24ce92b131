"""Coordinate groups whose members speak our own protocol, Kafka's (KIP-848), or both.

There is one kind of group: one epoch, one target, one holder of each partition. What a client of the Kafka protocol
says is brought into that form here (`rules`).

    its heartbeat says      here
    member epoch            the group's epoch in the last answer (`epochs`); 0 joins
    owned partitions        what it has let go, of what it has to let go
    subscription            what has changed of it

Invariant: such a member commits a partition only under an epoch not below the one under which it holds it.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.errors import GroupNotEmpty, InvalidRequest, ResourceExhausted, StaticIdInUse, UnknownMember
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision
from ledgermq_offsets.classic.values import GroupFull, InconsistentProtocol
from ledgermq_offsets.consumer import rules
from ledgermq_offsets.consumer.epochs import meant_epoch, shown_epoch
from ledgermq_offsets.consumer.values import StaleEpoch, UnreleasedInstance
from ledgermq_offsets.coordinator import GroupCoordinator, check_owned
from ledgermq_offsets.membership import members
from ledgermq_offsets.names import check_member_name
from ledgermq_offsets.served_offsets import Ends
from ledgermq_offsets.state.group import Group, Member
from ledgermq_offsets.state.records import Subscription

RECONCILING_MS = 1_000
"""Pause between heartbeats while some member has to let go: its partitions are given out by answers to heartbeats."""

Fence = Callable[[PartitionId, str], None]
"""Raises unless the caller may commit the offset of a partition; the text names its topic."""


class ConsumerGroups(GroupCoordinator):
    def heartbeat(
        self, request: pb.GroupHeartbeatRequest, now_s: float, now_ms: int
    ) -> Decision[pb.GroupHeartbeatResponse]:
        """Also raises the refusals of `consumer.values` for a member that speaks the Kafka protocol."""
        group = self._group(request.group)
        if not request.HasField("kafka") or request.step == pb.LEAVE:
            return super().heartbeat(request, now_s, now_ms)
        check_member_name(request.member_id)
        check_owned(request, self._limits)
        if request.step == pb.JOIN:
            group, member = self._begin(group, request, now_s, now_ms)
        else:
            member = rules.member_named(group, request.group, request.member_id, request.kafka.instance_id)
            assert group is not None
            self._go_on(group, member, request, now_s)
        decision = self._heard(group, member, now_s)
        decision.answer.is_news = member.changed_epoch > member.seen_epoch
        if any(other.withdrawn for other in group.members.values()):
            decision.answer.heartbeat_interval_ms = min(decision.answer.heartbeat_interval_ms, RECONCILING_MS)
        return decision

    def _go_on(self, group: Group, member: Member, request: pb.GroupHeartbeatRequest, now_s: float) -> None:
        if request.step == pb.LEAVE_FOR_A_WHILE:
            members.leave_for_a_while(group, member, now_s)
        elif request.step == pb.STAY:
            seen = rules.seen_epoch(group, member, request.kafka.epoch)
            if request.HasField("subscription"):
                self._subscribe(group, member, request, now_s)
            rules.note_heartbeat(group, member, request, seen, now_s)
        else:
            raise InvalidRequest(f"step {request.step} of the heartbeat is unknown")

    def _begin(
        self, group: Group | None, request: pb.GroupHeartbeatRequest, now_s: float, now_ms: int
    ) -> tuple[Group, Member]:
        subscription = rules.wished(request, None, self._limits)
        joined = group or self._new_group(request.group, now_ms, request.caller)
        self._check(joined, request.member_id, subscription, now_s)
        _, member = self._enter(joined, request, subscription, now_s, now_ms)
        rules.begin_again(joined, member)
        return joined, member

    def _subscribe(self, group: Group, member: Member, request: pb.GroupHeartbeatRequest, now_s: float) -> None:
        subscription = rules.wished(request, member.subscription, self._limits)
        if subscription == member.subscription:
            return
        self._check(group, member.member_id, subscription, now_s)
        self._check_growth(group, member.member_id, subscription)
        group.subscribe(member, subscription)

    def _check(self, group: Group, member_id: str, subscription: Subscription, now_s: float) -> None:
        """Raises UnreleasedInstance, GroupFull, FilterConflict."""
        try:
            members.check_join(group, member_id, subscription, self._meanings, self._limits, now_s)
        except StaticIdInUse as error:
            raise UnreleasedInstance(error.message) from error
        except ResourceExhausted as error:
            raise GroupFull(error.message) from error

    # Offsets

    def reset(
        self, request: pb.ResetOffsetsRequest, ends: Ends, now_s: float, now_ms: int
    ) -> Decision[pb.ResetOffsetsResponse]:
        """Also raises GroupNotEmpty for a partition that a member holds which could not be told to begin again."""
        group = self._group(request.group)
        for reset in request.resets if group is not None and group.holders else ():
            assert group is not None
            topic = self._view.by_name(reset.topic)
            holder = None if topic is None else group.holders.get(PartitionId(topic.topic_id, reset.partition))
            if holder is not None and rules.speaks_kafka(group.members[holder]):
                raise GroupNotEmpty(
                    f"member {holder} of group {group.name!r} reads partition {reset.partition} of {reset.topic} by the"
                    " Kafka protocol, and its next commit would undo a reset: stop it first"
                )
        return super().reset(request, ends, now_s, now_ms)

    def committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        """Also raises UnknownMember, StaleEpoch for a member that speaks the Kafka protocol."""
        group = self._group(request.group)
        if request.member_id and group is not None and group.members:
            rules.check_reader(group, request.member_id, request.generation)
        return super().committed(request)

    def _fence_of_member(self, group: Group, member_id: str, shown: int, instance_id: str, *, staged: bool) -> Fence:
        """Return what judges each partition of a commit. `shown`: the member's epoch; below 0 without a member.
        `staged`: in a transaction, where clients may name no member.

        Raises InconsistentProtocol, UnknownMember, FencedInstance, StaleEpoch.
        """
        if not member_id and shown < 0:
            if not any(map(rules.speaks_kafka, group.members.values())):
                raise InconsistentProtocol(
                    f"group {group.name!r} has {len(group.members)} members that use LedgerMQ's own protocol: stop them"
                    " first, or use another group"
                )
            if not staged:
                raise UnknownMember(f"group {group.name!r} has members, so only they commit")
            return lambda partition, topic: rules.check_commit(group, None, 0, partition, topic)
        member = rules.member_named(group, group.name, member_id, instance_id)
        seen = meant_epoch(shown, group.epoch)
        if not seen:
            raise StaleEpoch(
                f"member {member_id} commits under the epoch {shown}, and group {group.name} is at"
                f" {shown_epoch(group.epoch)}"
            )
        return lambda partition, topic: rules.check_commit(group, member, seen, partition, topic)
