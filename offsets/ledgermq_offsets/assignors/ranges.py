"""range: cut each topic into as many neighbouring runs as it has subscribers.

Topics with as many partitions and the same subscribers are cut alike, so a member gets the same
partition numbers of each. Joins of topics by key need this (Kafka's range assignor). The assignment
depends only on the members' order, so a member that joins or leaves moves the partitions of others.
"""

from __future__ import annotations

from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.assignors.problem import Problem, Target


def assign(problem: Problem) -> Target:
    """Assign all partitions, in O(partitions + classes × members)."""
    target: Target = {}
    for alike in problem.classes():
        for topic in alike.topics:
            size, more = divmod(topic.partitions, len(alike.members))
            first = 0
            for number, member in enumerate(alike.members):
                if first == topic.partitions:
                    break
                end = first + size + (number < more)
                target |= {PartitionId(topic.topic_id, p): member.member_id for p in range(first, end)}
                first = end
    return target
