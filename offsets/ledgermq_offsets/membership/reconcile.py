"""Move partitions from their holders to the target, without stopping the others (KIP-848's idea).

The target names the member for each partition. A member that holds a partition of another one has
to release it. A free partition is given to the member that the target names, under a new epoch. So
a partition has one holder at every moment, and reading of partitions that do not move continues.

A partition that returns to a member which was asked to release it also gets a new epoch: the member
may have released it already, and its heartbeat may still be on its way.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.assignors.choose import ASSIGNORS, chosen
from ledgermq_offsets.assignors.problem import Candidate, Problem
from ledgermq_offsets.membership.subscriptions import Meanings
from ledgermq_offsets.state.group import Group, Member
from ledgermq_offsets.topics import TopicSize, TopicsView

PAUSE_FREE_PARTITIONS = 500
PAUSE_S_PER_PARTITION = 100e-6
"""Pause between two targets of one large group, for each partition. Computing a target costs some 5
µs a partition, so a storm of joins takes a twentieth of a core. It also ends where the machine is
so busy that each takes ten times as long; without the pause, five hundred joins computed it five
hundred times.
"""


def refresh(group: Group, meanings: Meanings, view: TopicsView) -> None:
    """Update what the group's subscriptions mean after a change of the catalog."""
    if group.topics_version == view.version or not group.members:
        return
    group.topics_version = view.version
    if not group.dirty and _topics(group, meanings) != group.topics:
        group.dirty = True


def settle(group: Group, meanings: Meanings, view: TopicsView, now_s: float) -> None:
    """Start every change that the group's state needs now; at the latest at `due_s` there is more
    to do.
    """
    if not group.members or not group.dirty:
        return
    if now_s < settle_due_s(group):
        return
    compute(group, meanings, view)
    group.computed_s = now_s
    _withdraw(group, view, now_s)
    give_free(group, group.target)


def settle_due_s(group: Group) -> float:
    """Return when the target may be computed again."""
    if group.computed_s is None:
        return float("-inf")
    return group.computed_s + max(0, len(group.target) - PAUSE_FREE_PARTITIONS) * PAUSE_S_PER_PARTITION


def compute(group: Group, meanings: Meanings, view: TopicsView) -> None:
    group.use_assignor(chosen(member.subscription.assignor for member in group.members.values()))
    group.topics = _topics(group, meanings)
    group.topics_version = view.version
    candidates = [
        Candidate(
            member.member_id,
            member.subscription.instance_id or member.member_id,
            frozenset(topic.topic_id for topic in meanings.topics(member.subscription)),
            member.subscription.rack,
        )
        for member in group.members.values()
    ]
    rack = view.rack if any(candidate.rack for candidate in candidates) else None
    problem = Problem(candidates, list(group.topics.values()), _current(group), rack)
    group.target = ASSIGNORS[group.assignor](problem)
    group.keep_names()
    group.dirty = False


def _topics(group: Group, meanings: Meanings) -> dict[int, TopicSize]:
    asked = {
        (member.subscription.topics, member.subscription.topic_pattern): member.subscription
        for member in group.members.values()
    }
    return {topic.topic_id: topic for subscription in asked.values() for topic in meanings.topics(subscription)}


def _current(group: Group) -> dict[PartitionId, str]:
    """Return where each partition is going, or where it is: an unfinished move continues and does
    not turn round.
    """
    current = {
        partition: m.member_id
        for m in group.members.values()
        for partition, held in m.held.items()
        if not held.withdrawn
    }
    return current | {partition: member for partition, member in group.target.items() if member in group.members}


def _withdraw(group: Group, view: TopicsView, now_s: float) -> None:
    for member in group.members.values():
        for partition in list(member.held):
            if group.target.get(partition) == member.member_id:
                continue
            if member.away or view.is_removed(partition[0]):
                group.release(member, partition)  # no member reads it any longer
                group.notify(member)
            elif partition in group.target or _is_known(view, partition):
                group.withdraw(member, partition, now_s)


def _is_known(view: TopicsView, partition: PartitionId) -> bool:
    """Return True if the partition may exist: a catalog that is behind must not remove what a newer
    one gave.
    """
    topic = view.by_id(partition[0])
    return topic is not None and partition[1] < topic.partitions


def give_free(group: Group, partitions: Iterable[PartitionId]) -> None:
    """Give those of the partitions that are free to the members that the target names, and give
    back those that their holder was asked to release.
    """
    for partition in partitions:
        member = _wanted(group, partition)
        if member is None:
            continue
        held = member.held.get(partition)
        if partition not in group.holders or (held is not None and held.withdrawn):
            topic = group.topics.get(partition[0])
            group.give(member, partition, topic.name if topic is not None else "")


def _wanted(group: Group, partition: PartitionId) -> Member | None:
    name = group.target.get(partition)
    return None if name is None else group.members.get(name)
