"""Handle members: join, stay, leave, restart and removal.

The coordinator decides which partitions a member holds. Of the partitions that a heartbeat lists,
only missing ones count: a partition that was given under an epoch which the member has seen, and
which it no longer lists, was released.
"""

from __future__ import annotations

from collections.abc import Collection

from ledgermq.errors import FilterConflict, InvalidRequest, ResourceExhausted, StaticIdInUse, UnknownMember
from ledgermq.filters.filter import ALL
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.membership.reconcile import give_free
from ledgermq_offsets.membership.subscriptions import Meanings
from ledgermq_offsets.state.group import Group, Member
from ledgermq_offsets.state.records import Subscription

RETRY_MS = 1_000
FILTER_CHARS_SHOWN = 200
"""Characters of a filter that an error shows."""


def member_of(group: Group | None, name: str, member_id: str) -> Member:
    """Return a member that is present, not removed and not away. Raises UnknownMember."""
    member = None if group is None else group.members.get(member_id)
    if member is None or member.away:
        raise UnknownMember(
            f"group {name} has no member {member_id}: it left, its session timed out, or it never joined"
        )
    return member


def check_join(
    group: Group, member_id: str, subscription: Subscription, meanings: Meanings, limits: GroupLimits, now_s: float
) -> None:
    """Check that a member may join. Raises StaticIdInUse, FilterConflict, ResourceExhausted."""
    holder = group.statics.get(subscription.instance_id) if subscription.instance_id else None
    replaces = holder is not None and group.members[holder].away
    if holder is not None and holder != member_id and not replaces:
        other = group.members[holder]
        wait_ms = max(0, int((other.silent_at_s - now_s) * 1000))
        raise StaticIdInUse(
            f"instance id {subscription.instance_id} of group {group.name} belongs to member {holder}, which has not"
            " left the group",
            retry_after_ms=wait_ms,
        )
    if member_id not in group.members and not replaces and len(group.members) >= limits.members_max:
        raise ResourceExhausted(
            f"group {group.name} has {limits.members_max} members, which is the maximum", retry_after_ms=RETRY_MS
        )
    _check_filter(group, member_id, subscription)
    size = sum(m.subscription.size_bytes for m in group.members.values() if m.member_id != member_id)
    if size + subscription.size_bytes > limits.subscriptions_bytes_max:
        raise ResourceExhausted(
            f"the subscriptions of group {group.name} would take more than {limits.subscriptions_bytes_max} bytes",
            retry_after_ms=RETRY_MS,
        )
    wanted = {topic.topic_id: topic.partitions for topic in meanings.topics(subscription)}
    wanted |= {topic.topic_id: topic.partitions for topic in group.topics.values()}
    if sum(wanted.values()) > limits.partitions_max:
        raise ResourceExhausted(
            f"group {group.name} would have {sum(wanted.values())} partitions, but at most {limits.partitions_max} are"
            " allowed",
            retry_after_ms=RETRY_MS,
        )


def _check_filter(group: Group, member_id: str, subscription: Subscription) -> None:
    """Check that the members present have the same filter. With different ones, which messages the group gets
    would depend on the member to which their partition is given. Raises FilterConflict.
    """
    for other in group.members.values():
        known = other.subscription.filter
        if known and known != subscription.filter and other.member_id != member_id and not other.away:
            raise FilterConflict(
                f"group {group.name} has members with the filter {_shown(known)}, and this one has"
                f" {_shown(subscription.filter)}: give all the same, or stop the others first, or use another group"
            )


def _shown(text: str) -> str:
    if text == ALL:
        return "* (all messages)"
    return repr(text if len(text) <= FILTER_CHARS_SHOWN else text[:FILTER_CHARS_SHOWN] + "…")


def join(
    group: Group, member_id: str, subscription: Subscription, owned: Collection[PartitionId], now_s: float, now_ms: int
) -> Member:
    """Add a member, after `check_join`. A present member changes its subscription; partitions that
    it does not list begin again, with counters from 1.
    """
    member = group.members.get(member_id)
    if member is not None and not member.away:
        member.heard_s = now_s
        if member.subscription != subscription:
            group.subscribe(member, subscription)
        for partition in member.held.keys() - owned:
            group.renew(member, partition)
        return member
    before = (
        group.members.get(group.statics.get(subscription.instance_id, ""), member)
        if subscription.instance_id
        else member
    )
    if before is not None:
        return _come_back(group, before, member_id, subscription, now_s, now_ms)
    member = Member(member_id, subscription, now_s, group.draw())
    group.add(member)
    group.notify(member)
    return member


def _come_back(
    group: Group, before: Member, member_id: str, subscription: Subscription, now_s: float, now_ms: int
) -> Member:
    """Take back a static member after its restart: it gets the partitions reserved for it, under a
    new epoch, and no other member is affected.
    """
    waited = [(partition, group.names[partition[0]]) for partition, held in before.held.items() if not held.withdrawn]
    asks_the_same = (before.subscription.topics, before.subscription.topic_pattern, before.subscription.assignor) == (
        subscription.topics,
        subscription.topic_pattern,
        subscription.assignor,
    )
    had_to_compute, target, topics, names = group.dirty, group.target, group.topics, group.names
    group.remove(before, now_ms)
    member = Member(member_id, subscription, now_s, group.draw())
    group.add(member)
    group.target = {partition: member_id if name == before.member_id else name for partition, name in target.items()}
    group.topics, group.names = topics, names
    for partition, topic in waited:
        group.give(member, partition, topic)
    group.notify(member)
    group.dirty = had_to_compute or not asks_the_same
    return member


def note_heartbeat(group: Group, member: Member, request: pb.GroupHeartbeatRequest, now_s: float) -> None:
    """Record a heartbeat: the member is alive, and has released the partitions that it does not
    list. O(its partitions).
    """
    member.heard_s = now_s
    member.seen_epoch = seen(group, request.seen_epoch)
    owned = owned_by(request)
    gone = [
        partition
        for partition, held in member.held.items()
        if partition not in owned and held.epoch <= member.seen_epoch
    ]
    for partition in gone:
        group.release(member, partition)
    if not group.dirty:
        give_free(group, gone)


def owned_by(request: pb.GroupHeartbeatRequest) -> set[PartitionId]:
    return {PartitionId(given.topic_id, given.partition) for given in request.owned}


def seen(group: Group, seen_epoch: int) -> int:
    """Return the epoch that the member has seen. An epoch that the group has not had yet counts as
    never seen.
    """
    return seen_epoch if seen_epoch <= group.epoch else 0


def leave_for_a_while(group: Group, member: Member, now_s: float) -> None:
    """Let a static member leave for a while. Raises InvalidRequest."""
    if not member.subscription.instance_id:
        raise InvalidRequest(f"member {member.member_id} has no instance id: without one it can only leave for good")
    member.heard_s = now_s
    group.set_away(member, True)
    gone = [partition for partition, held in member.held.items() if held.withdrawn]
    for partition in gone:
        group.release(member, partition)
    if not group.dirty:
        give_free(group, gone)


def put_out(group: Group, now_s: float, now_ms: int) -> list[str]:
    """Remove members whose session timed out, or that did not release partitions in time, and
    return their ids.

    Their partitions are free at once.
    """
    late = [
        m
        for m in group.members.values()
        if m.silent_at_s <= now_s or (m.late_at_s is not None and m.late_at_s <= now_s)
    ]
    for member in late:
        group.remove(member, now_ms)
    return [member.member_id for member in late]


def answer(group: Group, member: Member, limits: GroupLimits) -> pb.GroupHeartbeatResponse:
    if member.given is None:
        member.given = [
            pb.GivenPartition(topic=group.names[topic_id], topic_id=topic_id, partition=number, epoch=held.epoch)
            for (topic_id, number), held in sorted(member.held.items())
            if not held.withdrawn
        ]
    return pb.GroupHeartbeatResponse(
        group_epoch=group.epoch,
        assigned=member.given,
        session_timeout_ms=member.subscription.session_timeout_ms,
        heartbeat_interval_ms=min(limits.heartbeat_interval_ms, member.subscription.session_timeout_ms // 3),
    )
