"""What differs for a member that speaks the Kafka protocol: how it is recognized, what its heartbeat says, and what
it may commit.

Such a client has one epoch for all its partitions: that of the last answer it got. A partition is its own under that
epoch if it was given to it no later. It names its partitions only when it has changed them, and takes time to begin
with a new one. So what it does not name counts as let go only if it was withdrawn, and the member knows that, or
does not know yet that it was given it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.errors import InvalidRequest, UnknownMember
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.assignors.choose import ASSIGNORS
from ledgermq_offsets.classic.values import FencedInstance, InconsistentProtocol
from ledgermq_offsets.consumer.epochs import meant_epoch, shown_epoch
from ledgermq_offsets.consumer.values import FencedEpoch, InvalidPattern, StaleEpoch, UnsupportedAssignor
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.membership.members import member_of, owned_by
from ledgermq_offsets.membership.reconcile import give_free
from ledgermq_offsets.membership.subscriptions import any_subscription, check_pattern
from ledgermq_offsets.names import kept_name, kept_text
from ledgermq_offsets.state.group import Group, Member
from ledgermq_offsets.state.records import Subscription


def speaks_kafka(member: Member) -> bool:
    return bool(member.subscription.kafka_host)


def member_named(group: Group | None, name: str, member_id: str, instance_id: str) -> Member:
    """Return a member that is present, by its id as the client says it, or as it is kept. Raises UnknownMember;
    FencedInstance if another one has its instance id; InconsistentProtocol for a member of our own protocol.
    """
    member_id = kept_name(kept_text(member_id))
    holder = group.statics.get(instance_id, "") if group is not None and instance_id else ""
    if holder and holder != member_id:
        raise FencedInstance(f"instance id {instance_id} of group {name} belongs to member {holder} now")
    member = member_of(group, name, member_id)
    if instance_id and not holder:
        raise UnknownMember(f"group {name} has no member with the instance id {instance_id}")
    if not speaks_kafka(member):
        raise InconsistentProtocol(f"member {member_id} of group {name} uses LedgerMQ's own protocol")
    return member


def seen_epoch(group: Group, member: Member, shown: int) -> int:
    """Return the group's epoch that a heartbeat names. Raises FencedEpoch for one that the group has not had, or from
    before the member's last heartbeat.
    """
    seen = meant_epoch(shown, group.epoch)
    if not seen or seen < member.seen_epoch:
        raise FencedEpoch(
            f"member {member.member_id} of group {group.name} names the epoch {shown}, the last one that it named is"
            f" {shown_epoch(member.seen_epoch)}, that of the group is {shown_epoch(group.epoch)}: join again"
        )
    return seen


def wished(request: pb.GroupHeartbeatRequest, known: Subscription | None, limits: GroupLimits) -> Subscription:
    """Return the subscription after a heartbeat, which says only what has changed. Raises InvalidPattern,
    UnsupportedAssignor, InvalidRequest, InvalidTopicName.
    """
    asked, kafka = pb.GroupSubscription(), request.kafka
    asked.CopyFrom(request.subscription)
    if known is not None:
        if not kafka.topics:
            asked.topics[:] = known.topics
        if not kafka.pattern:
            asked.topic_pattern = known.topic_pattern
        asked.assignor = asked.assignor or known.assignor
        asked.rack = asked.rack or known.rack
        asked.rebalance_timeout_ms = asked.rebalance_timeout_ms or known.rebalance_timeout_ms
        asked.instance_id, asked.client_id, asked.kafka_host = known.instance_id, known.client_id, known.kafka_host
        asked.session_timeout_ms = known.session_timeout_ms
    if asked.assignor and asked.assignor not in ASSIGNORS:
        raise UnsupportedAssignor(
            f"there is no assignor {asked.assignor[:100]!r}; choose one of {', '.join(ASSIGNORS)}"
        )
    if asked.topic_pattern and kafka.pattern:
        try:
            check_pattern(asked.topic_pattern, limits)
        except InvalidRequest as error:
            raise InvalidPattern(error.message) from error
    return any_subscription(asked, limits)


def note_heartbeat(group: Group, member: Member, request: pb.GroupHeartbeatRequest, seen: int, now_s: float) -> None:
    """Record a heartbeat: the member is alive, and has let go what was withdrawn and it no longer names."""
    member.heard_s = now_s
    member.seen_epoch = seen
    if request.kafka.owned:
        owned = owned_by(request)
        _let_go(
            group, member, [p for p in _withdrawn(member) if p not in owned and not _may_be_taking(member, p, seen)]
        )


def begin_again(group: Group, member: Member) -> None:
    """Note that a member which joins again has nothing: what was withdrawn is free."""
    member.seen_epoch = 0
    _let_go(group, member, _withdrawn(member))


def _withdrawn(member: Member) -> list[PartitionId]:
    return [partition for partition, held in member.held.items() if held.withdrawn]


def _may_be_taking(member: Member, partition: PartitionId, seen: int) -> bool:
    """Return whether the member knows that it was given the partition, and not that it has to let it go."""
    held = member.held[partition]
    return held.epoch <= seen < held.withdrawn_in


def _let_go(group: Group, member: Member, gone: Sequence[PartitionId]) -> None:
    for partition in gone:
        group.release(member, partition)
    if not group.dirty:
        give_free(group, gone)


def check_reader(group: Group, member_id: str, shown: int) -> None:
    """Check who reads committed offsets. Raises UnknownMember, StaleEpoch."""
    member = member_named(group, group.name, member_id, "")
    seen = meant_epoch(shown, group.epoch)
    if not seen or seen < member.seen_epoch:
        raise StaleEpoch(
            f"member {member_id} of group {group.name} names the epoch {shown}, and has named"
            f" {shown_epoch(member.seen_epoch)} since"
        )


def check_commit(group: Group, member: Member | None, seen: int, partition: PartitionId, topic: str) -> None:
    """Check that the offset of a partition is the committer's. `member`: None for a client that names none. `seen`:
    the epoch that it names.

    What no member holds, any member may commit: the group does not read it. Raises StaleEpoch.
    """
    holder = group.holders.get(partition)
    if holder is None:
        return
    held = group.members[holder].held[partition]
    if member is None:
        is_current = speaks_kafka(group.members[holder])
    else:
        is_current = holder == member.member_id and held.epoch <= seen
    if not is_current:
        raise StaleEpoch(
            f"partition {partition[1]} of {topic} was given to member {holder} of group {group.name} under the epoch"
            f" {shown_epoch(held.epoch)}: nothing was committed"
        )
