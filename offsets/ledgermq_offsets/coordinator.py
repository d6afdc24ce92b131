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

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_offsets.committing.expiry import expire, forget_removed, is_due
from ledgermq_offsets.deadlines import Deadlines
from ledgermq_offsets.limits import MEMBER_BYTES, GroupLimits
from ledgermq_offsets.membership import members, reconcile
from ledgermq_offsets.membership.subscriptions import Meanings, read_subscription
from ledgermq_offsets.names import check_member_name
from ledgermq_offsets.served_offsets import ServedOffsets
from ledgermq_offsets.state.group import Group, Member
from ledgermq_offsets.state.records import Subscription
from ledgermq_offsets.topics import TopicsView


class GroupCoordinator(ServedOffsets):
    """`now_s`: monotonic seconds, for sessions. `now_ms`: wall clock, stamped on commits and on
    groups that become empty.
    """

    def __init__(self, limits: GroupLimits, topics: TopicsView) -> None:
        super().__init__(limits, topics)
        self._meanings = Meanings(topics, limits)
        self._deadlines = Deadlines()
        self._topics_version = -1
        self._expiry_s = 0.0

    # Replay

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
        check_owned(request, self._limits)
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
        return self._heard(group, member, now_s)

    def _heard(self, group: Group, member: Member, now_s: float) -> Decision[pb.GroupHeartbeatResponse]:
        """Do what the group's state needs after a heartbeat, and answer it."""
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
        return self._enter(joined, request, subscription, now_s, now_ms)

    def _check_growth(self, group: Group, member_id: str, subscription: Subscription) -> None:
        """Raises ResourceExhausted if the group may not grow by what a member states."""
        known = group.members.get(member_id)
        before = 0 if known is None else MEMBER_BYTES + known.subscription.size_bytes
        self.state.check_bytes(group, MEMBER_BYTES + subscription.size_bytes - before, self._limits)

    def _enter(
        self, joined: Group, request: pb.GroupHeartbeatRequest, subscription: Subscription, now_s: float, now_ms: int
    ) -> tuple[Group, Member]:
        """Have a member that may join. Raises ResourceExhausted."""
        self._check_growth(joined, request.member_id, subscription)
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


def check_owned(request: pb.GroupHeartbeatRequest, limits: GroupLimits) -> None:
    """Raises InvalidRequest if a heartbeat names more partitions than a group may have."""
    if len(request.owned) > limits.partitions_max:
        raise InvalidRequest(
            f"a member owns at most {limits.partitions_max} partitions, this one reports {len(request.owned)}"
        )
