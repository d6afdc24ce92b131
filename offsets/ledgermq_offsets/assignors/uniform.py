"""uniform: spread each topic evenly over its subscribers; members get equally many partitions in
all where subscriptions are alike.

A topic of n partitions and m subscribers gives each member n

m partitions. The n % m members with the fewest so far get one more; among equals, members that
already hold one more come first, then the members' order decides. Within its share a member keeps
what it has, so an assignment in force is its own answer.

Members of a partition's rack are preferred: a free partition goes to one that has room, and a
member with too many keeps those of its rack.
"""

from __future__ import annotations

from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.assignors.loads import LeastLoaded, Loads
from ledgermq_offsets.assignors.problem import Candidate, Problem, SubscriberClass, Target
from ledgermq_offsets.topics import TopicSize


def assign(problem: Problem) -> Target:
    """Assign all partitions, in O(partitions × log members)."""
    loads: Loads = {member.member_id: 0 for member in problem.members}
    target: Target = {}
    for alike in problem.classes():
        least = LeastLoaded(loads, (member.member_id for member in alike.members))
        by_id = {member.member_id: member for member in alike.members}
        for topic in alike.topics:
            mine = _current(problem, topic, least)
            quotas, least = _quotas(topic, alike, mine, loads, least)
            _fill(problem, topic, mine, quotas, by_id, target)
    return target


def _current(problem: Problem, topic: TopicSize, members: LeastLoaded) -> dict[str, list[int]]:
    mine: dict[str, list[int]] = {}
    for number in range(topic.partitions):
        holder = problem.current.get(PartitionId(topic.topic_id, number))
        if holder is not None and holder in members:
            mine.setdefault(holder, []).append(number)
    return mine


def _quotas(
    topic: TopicSize, alike: SubscriberClass, mine: dict[str, list[int]], loads: Loads, least: LeastLoaded
) -> tuple[dict[str, int], LeastLoaded]:
    """Return how many of the topic's partitions each member gets; members that get none are left
    out.
    """
    share, more = divmod(topic.partitions, len(alike.members))
    quotas: dict[str, int] = {}
    if share:
        for member in alike.members:
            quotas[member.member_id] = share
            loads[member.member_id] += share
        least = LeastLoaded(loads, (member.member_id for member in alike.members))
    for member_id in _with_one_more(more, share, mine, loads, least):
        quotas[member_id] = share + 1
        loads[member_id] += 1
        least.changed(member_id)
    return quotas, least


def _with_one_more(more: int, share: int, mine: dict[str, list[int]], loads: Loads, least: LeastLoaded) -> list[str]:
    """Return the `more` least loaded members. Among equally loaded ones, those that hold more than
    `share` now come first.
    """
    if not more:
        return []
    popped = [least.pop() for _ in range(more)]
    limit = loads[popped[-1]]
    chosen = [member for member in popped if loads[member] < limit]
    holders = [member for member, partitions in mine.items() if len(partitions) > share and loads[member] == limit]
    last = dict.fromkeys(holders + [member for member in popped if loads[member] == limit])
    chosen += list(last)[: more - len(chosen)]
    for member in popped:
        least.changed(member)
    return chosen


def _fill(
    problem: Problem,
    topic: TopicSize,
    mine: dict[str, list[int]],
    quotas: dict[str, int],
    by_id: dict[str, Candidate],
    target: Target,
) -> None:
    room = dict(quotas)
    free = set(range(topic.partitions))
    for member_id, partitions in mine.items():
        if problem.rack is not None:
            rack = by_id[member_id].rack
            partitions = sorted(partitions, key=lambda number: problem.rack_of(topic, number) != rack)
        for number in partitions[: room.get(member_id, 0)]:
            target[PartitionId(topic.topic_id, number)] = member_id
            free.discard(number)
            room[member_id] -= 1
    if problem.rack is not None:
        _fill_near(problem, topic, room, free, by_id, target)
    takers = [member_id for member_id, left in room.items() for _ in range(left)]
    target |= {
        PartitionId(topic.topic_id, number): member_id for number, member_id in zip(sorted(free), takers, strict=True)
    }


def _fill_near(
    problem: Problem,
    topic: TopicSize,
    room: dict[str, int],
    free: set[int],
    by_id: dict[str, Candidate],
    target: Target,
) -> None:
    """Place free partitions with members of their rack that have room."""
    near: dict[str, list[str]] = {}
    for member_id, left in room.items():
        if left and by_id[member_id].rack:
            near.setdefault(by_id[member_id].rack, []).append(member_id)
    for number in sorted(free):
        members = near.get(problem.rack_of(topic, number))
        if not members:
            continue
        member_id = members[-1]
        target[PartitionId(topic.topic_id, number)] = member_id
        free.discard(number)
        room[member_id] -= 1
        if not room[member_id]:
            members.pop()
