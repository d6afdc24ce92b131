"""Describe the input of an assignor. Each partition of a topic with subscribers goes to exactly one
of them.

`current` says where each partition is now, or where it is going. Partitions stay there where an
assignor's rule allows it. The same problem always has the same answer, so a coordinator that takes
over computes what the previous one computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.topics import TopicSize

Target = dict[PartitionId, str]
Rack = Callable[[TopicSize, int], str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """`identity`: the instance id of a static member, else its member id; it orders members, so
    that a restart changes nothing.
    """

    member_id: str
    identity: str
    topics: frozenset[int]
    rack: str = ""


@dataclass(frozen=True, slots=True)
class SubscriberClass:
    """Topics that the same members subscribe to, ascending by id; members in their order."""

    members: list[Candidate]
    topics: list[TopicSize]


@dataclass(frozen=True)
class Problem:
    """`rack(topic, partition)`: the rack that serves it best, "" if unknown; only a hint for
    partitions that have to be placed.
    """

    members: list[Candidate]
    topics: list[TopicSize]
    current: Mapping[PartitionId, str] = field(default_factory=dict)
    rack: Rack | None = None

    def classes(self) -> list[SubscriberClass]:
        """Return the classes of members that subscribe to the same topics; nearly always there is
        one.

        O(distinct subscriptions × topics).
        """
        by_subscription: dict[frozenset[int], list[Candidate]] = {}
        for candidate in sorted(self.members, key=lambda c: (c.identity, c.member_id)):
            by_subscription.setdefault(candidate.topics, []).append(candidate)
        subscribers: dict[int, list[int]] = {}
        for number, topics in enumerate(by_subscription):
            for topic_id in topics:
                subscribers.setdefault(topic_id, []).append(number)
        alike: dict[tuple[int, ...], list[TopicSize]] = {}
        for topic in sorted(self.topics):
            if topic.topic_id in subscribers:
                alike.setdefault(tuple(subscribers[topic.topic_id]), []).append(topic)
        members = list(by_subscription.values())
        return [
            SubscriberClass(_merged([members[number] for number in numbers]), topics)
            for numbers, topics in alike.items()
        ]

    def rack_of(self, topic: TopicSize, partition: int) -> str:
        return "" if self.rack is None else self.rack(topic, partition)


def _merged(lists: list[list[Candidate]]) -> list[Candidate]:
    if len(lists) == 1:
        return lists[0]
    return sorted((candidate for members in lists for candidate in members), key=lambda c: (c.identity, c.member_id))
