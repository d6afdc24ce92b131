"""Expire committed offsets of groups that were empty and silent for the retention time, then the
groups; remove offsets of removed topics.

Committed offsets are the only copy of a group's progress, so a wrong clock must not remove them.
The caller stamps by the later of two clocks and judges by the earlier (`ledgermq_ledger.root.two_clocks`).

A group that is removed leaves its epoch to the floor, from which the next group of any name begins.
So no epoch that a former member received can be in force again. Where only some offsets are
removed, the epoch outside of membership is drawn again for the same reason.
"""

from __future__ import annotations

from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.state.group import Group
from ledgermq_offsets.topics import TopicsView


def is_due(group: Group, limits: GroupLimits, now_ms: int) -> bool:
    """Return True if something of the group expires at `now_ms`. O(1) while nothing can.

    Nothing expires while an open transaction has staged offsets: its end may commit them.
    """
    if group.member_count or group.pending or now_ms < group.expiry_ms:
        return False
    oldest_ms = min((value.commit_ms for topic in group.offsets.values() for value in topic.values()), default=0)
    group.expiry_ms = max(group.empty_since_ms, oldest_ms) + limits.retention_ms
    return group.expiry_ms <= now_ms


def expire(group: Group, limits: GroupLimits, now_ms: int, view: TopicsView) -> bool:
    """Remove what is due. Return True if nothing is left, so that the group itself is due.

    Offsets of a topic that can be brought back stay, and begin to age again when it was.
    """
    if not is_due(group, limits, now_ms):
        return False
    latest_ms = now_ms - limits.retention_ms
    due = [
        PartitionId(topic_id, number)
        for topic_id, topic in group.offsets.items()
        if view.kept_until_ms(topic_id, now_ms) <= latest_ms
        for number, value in topic.items()
        if value.commit_ms <= latest_ms
    ]
    if len(due) == group.offset_count:
        return True
    if not due:
        return False
    for partition in due:
        group.set_offset(partition, None)
    group.renew_bare()
    return False


def forget_removed(group: Group, view: TopicsView) -> None:
    """Remove committed offsets of removed topics. A topic id is never reused, so no epoch has to
    fence them.
    """
    for topic_id in [topic_id for topic_id in group.offsets if view.is_removed(topic_id)]:
        for number in list(group.offsets[topic_id]):
            group.set_offset(PartitionId(topic_id, number), None)
