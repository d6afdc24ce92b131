"""sticky: members get equally many partitions in all, and as few partitions as possible move.

A partition stays with its holder if the holder still subscribes to its topic. A partition without a
holder goes to the least loaded member. Then the most loaded members give to the least loaded ones
while their loads differ by two or more.

With one class of subscribers this makes the fewest moves possible. With several, it works class by
class until nothing moves any longer. Topics are not balanced separately: one member may hold all of
one topic. Among equally loaded members, one in the partition's rack is preferred.
"""

from __future__ import annotations

from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.assignors.loads import LeastLoaded, Loads, MostLoaded
from ledgermq_offsets.assignors.problem import Problem, SubscriberClass, Target

PASSES_MAX = 16
"""Passes over all classes; only overlapping subscriptions of an unusual kind reach this bound."""


def assign(problem: Problem) -> Target:
    """Assign all partitions, in O(partitions × log members) for each pass."""
    classes = problem.classes()
    loads: Loads = {member.member_id: 0 for member in problem.members}
    held = [_keep(problem, alike, loads) for alike in classes]
    for alike, mine in zip(classes, held, strict=True):
        _place(problem, alike, mine, loads)
    for _ in range(PASSES_MAX):
        if not sum(_balance(alike, mine, loads) for alike, mine in zip(classes, held, strict=True)):
            break
    return {partition: member for mine in held for member, partitions in mine.items() for partition in partitions}


def _keep(problem: Problem, alike: SubscriberClass, loads: Loads) -> dict[str, list[PartitionId]]:
    mine: dict[str, list[PartitionId]] = {member.member_id: [] for member in alike.members}
    for topic in alike.topics:
        for number in range(topic.partitions):
            holder = problem.current.get(PartitionId(topic.topic_id, number))
            if holder is not None and holder in mine:
                mine[holder].append(PartitionId(topic.topic_id, number))
                loads[holder] += 1
    return mine


def _place(problem: Problem, alike: SubscriberClass, mine: dict[str, list[PartitionId]], loads: Loads) -> None:
    least = LeastLoaded(loads, mine)
    racks: dict[str, list[str]] = {}
    for candidate in alike.members:
        racks.setdefault(candidate.rack, []).append(candidate.member_id)
    near = {rack: LeastLoaded(loads, members) for rack, members in racks.items() if rack}
    rack_of = {candidate.member_id: candidate.rack for candidate in alike.members}
    kept = {partition for partitions in mine.values() for partition in partitions}
    for topic in alike.topics:
        for number in range(topic.partitions):
            partition = PartitionId(topic.topic_id, number)
            if partition in kept:
                continue
            member = least.first()
            nearby = near.get(problem.rack_of(topic, number)) if near else None
            if nearby is not None and loads[nearby.first()] == loads[member]:
                member = nearby.first()
            mine[member].append(partition)
            loads[member] += 1
            least.changed(member)
            if rack_of[member]:
                near[rack_of[member]].changed(member)


def _balance(alike: SubscriberClass, mine: dict[str, list[PartitionId]], loads: Loads) -> int:
    """Balance one class and return the number of partitions that moved.

    The last partitions of a member move first, so that the same problem has the same answer.
    """
    least, most = (
        LeastLoaded(loads, mine),
        MostLoaded(loads, (member for member, partitions in mine.items() if partitions)),
    )
    moves = 0
    while (giver := most.first()) is not None:
        taker = least.first()
        if loads[giver] - loads[taker] < 2:
            break
        mine[taker].append(mine[giver].pop())
        loads[giver] -= 1
        loads[taker] += 1
        moves += 1
        most.drop_first()
        if mine[giver]:
            most.changed(giver)
        for member in (giver, taker):
            least.changed(member)
    return moves
