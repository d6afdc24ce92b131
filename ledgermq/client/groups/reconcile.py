"""What changes for a member when its coordinator says what it may hold. Pure.

The epoch of a partition is the fencing token: another one means that what was held is over, though
the same member goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.offset_store import GivenPartition
from ledgermq.protocol import ledgermq_pb2 as pb


@dataclass(frozen=True, slots=True)
class Changes:
    """`gained`: to load and read.

    `renewed`: the same with a new epoch; what is held of them is dropped. `unwanted`: to let go.
    """

    gained: tuple[GivenPartition, ...]
    renewed: tuple[GivenPartition, ...]
    unwanted: tuple[TopicPartition, ...]

    @property
    def nothing(self) -> bool:
        return not (self.gained or self.renewed or self.unwanted)


def reconcile(held: Mapping[TopicPartition, GivenPartition], assigned: Iterable[GivenPartition]) -> Changes:
    gained, renewed = [], []
    wanted = {given.partition: given for given in assigned}
    for partition, given in wanted.items():
        before = held.get(partition)
        if before is None:
            gained.append(given)
        elif before != given:
            renewed.append(given)
    return Changes(tuple(gained), tuple(renewed), tuple(partition for partition in held if partition not in wanted))


def given_from_proto(given: pb.GivenPartition) -> GivenPartition:
    return GivenPartition(TopicPartition(given.topic, given.partition), given.topic_id, given.epoch)


def given_to_proto(given: GivenPartition) -> pb.GivenPartition:
    topic, partition = given.partition
    return pb.GivenPartition(topic=topic, topic_id=given.topic_id, partition=partition, epoch=given.epoch)
