"""consistent_hash: members and partitions are points on a ring; a partition belongs to the next
member's point (Karger et al., 1997).

A member that joins or leaves moves only the partitions that it takes or leaves, whatever was
assigned before. The price is that members get unequal shares.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from hashlib import blake2b

from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.assignors.problem import Problem, Target

POINTS = 128
"""Points of one member on the ring; with this number, shares differ from the mean by about a tenth.
"""

_POINT_BYTES = 8
_POINTS_PER_HASH = 64 // _POINT_BYTES


def assign(problem: Problem) -> Target:
    """Assign all partitions, in O(members × POINTS × log + partitions × log).

    If not all members subscribe to a topic, its search goes a few steps further along the ring.
    """
    members = sorted(problem.members, key=lambda c: (c.identity, c.member_id))
    ring = sorted((point, number) for number, member in enumerate(members) for point in _member_points(member.identity))
    points = [point for point, _ in ring]
    target: Target = {}
    subscribed = frozenset[int]().union(*(member.topics for member in members))
    for topic in problem.topics:
        if topic.topic_id not in subscribed:
            continue
        for partition in range(topic.partitions):
            at = bisect_left(points, _partition_point(topic.topic_id, partition))
            while topic.topic_id not in members[ring[at % len(ring)][1]].topics:
                at += 1
            target[PartitionId(topic.topic_id, partition)] = members[ring[at % len(ring)][1]].member_id
    return target


@lru_cache(maxsize=4096)
def _member_points(identity: str) -> tuple[int, ...]:
    points: list[int] = []
    for number in range(POINTS // _POINTS_PER_HASH):
        digest = blake2b(f"{number}/{identity}".encode(), digest_size=64).digest()
        points += [int.from_bytes(digest[i : i + _POINT_BYTES], "big") for i in range(0, 64, _POINT_BYTES)]
    return tuple(points)


def _partition_point(topic_id: int, partition: int) -> int:
    return int.from_bytes(blake2b(f"{topic_id}/{partition}".encode(), digest_size=_POINT_BYTES).digest(), "big")
