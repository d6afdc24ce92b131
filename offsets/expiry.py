"""What goes by itself: the committed offsets of a group that was empty and silent for the retention time, then the group; offsets of
removed topics.

A group that goes leaves its epoch to the floor, from which the next group of any name begins: nothing that was told under an old epoch can
be in force again. Where only some offsets go, the bare epoch is drawn anew for the same reason.
"""

from __future__ import annotations

from offsets.group import Group
from offsets.limits import GroupLimits
from offsets.topics import TopicsView

NEVER_MS = 2**63


def expire(group: Group, limits: GroupLimits, now_ms: int) -> bool:
    """Forget what is due. True: nothing is left, the group itself is due. O(1) while nothing can be."""
    if group.members or now_ms < group.expiry_ms:
        return False
    next_ms = NEVER_MS
    due = []
    for topic_id, topic in group.offsets.items():
        for number, value in topic.items():
            due_ms = max(group.empty_since_ms, value.commit_ms) + limits.retention_ms
            if due_ms <= now_ms:
                due.append((topic_id, number))
            else:
                next_ms = min(next_ms, due_ms)
    group_due_ms = group.empty_since_ms + limits.retention_ms
    if len(due) == group.offset_count and group_due_ms <= now_ms:
        return True
    for partition in due:
        group.set_offset(partition, None)
    if due:
        group.renew_bare()
    group.expiry_ms = min(next_ms, group_due_ms) if not group.offset_count else next_ms
    return False


def forget_removed(group: Group, view: TopicsView) -> None:
    """A topic's id never comes back, so nothing has to fence what was committed of it."""
    for topic_id in [topic_id for topic_id in group.offsets if view.is_removed(topic_id)]:
        for number in list(group.offsets[topic_id]):
            group.set_offset((topic_id, number), None)
