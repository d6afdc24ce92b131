"""Decide which message may be handled next. Pure.

A lane holds messages that must be handled one by one: those of a partition, of one key of a
partition, or a single message. Invariants: at most one message of a lane, or one batch of its first
messages, is handled at a time, and only after all earlier ones have succeeded. Lanes do not wait for
each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Literal, TypeVar

from ledgermq.client.consuming.message import Message, partition_of
from ledgermq.client.messages.descriptions import TopicPartition

Ordering = Literal["partition", "key"] | None

M = TypeVar("M", bound=Message)


class Lane(Generic[M]):
    """`queue`: the first message is the next to handle, or is being handled. All are of one `partition`."""

    __slots__ = ("alone", "attempts", "busy", "is_ripe", "name", "partition", "queue", "running")

    def __init__(self, name: Hashable, partition: TopicPartition) -> None:
        self.name = name
        self.partition = partition
        self.queue: deque[M] = deque()
        self.busy = False
        """Whether its first message is being handled, or waits for its next attempt."""
        self.attempts = 0
        """Failed attempts of the first message."""
        self.running = 1
        """Number of messages, from the first on, that are handled while it is busy."""
        self.is_ripe = False
        """Whether its next batch has waited for more messages."""
        self.alone = 0
        """Number of messages, from the first on, that are handled alone, because their batch has failed."""


class Lanes(Generic[M]):
    def __init__(self, ordered_by: Ordering) -> None:
        self._name_of = _NAMES[ordered_by]
        self._lanes: dict[Hashable, Lane[M]] = {}
        self._ready: deque[Lane[M]] = deque()
        self.count = 0
        """Number of messages in all lanes, including those being handled."""
        self.by_partition: dict[TopicPartition, int] = {}

    def add(self, messages: Iterable[M]) -> None:
        for message in messages:
            name = self._name_of(message)
            lane = self._lanes.get(name)
            if lane is None:
                lane = self._lanes[name] = Lane(name, partition_of(message))
                self._ready.append(lane)
            lane.queue.append(message)
            self._count(lane.partition, 1)

    def take(self) -> tuple[Lane[M], M] | None:
        """Return a message to handle now. Its lane is busy until `succeeded` or `freed`."""
        while self._ready:
            lane = self._ready.popleft()
            if lane.queue and not lane.busy:
                lane.busy, lane.running = True, 1
                return lane, lane.queue[0]
        return None

    def succeeded(self, lane: Lane[M]) -> None:
        """Remove the messages of a lane that were handled, so that the next may follow."""
        for _ in range(lane.running):
            lane.queue.popleft()
        self._count(lane.partition, -lane.running)
        lane.alone = max(0, lane.alone - lane.running)
        lane.attempts = 0
        self.freed(lane)

    def failed(self, lane: Lane[M]) -> None:
        """Count a failed attempt. The message stays first, and the lane busy, until `freed`."""
        lane.attempts += 1

    def promote(self, lane: Lane[M], chosen: Callable[[M], bool]) -> None:
        """Put chosen messages of a lane first, in their order. None of its messages is being handled."""
        first = [message for message in lane.queue if chosen(message)]
        if first:
            lane.queue = deque([*first, *(message for message in lane.queue if not chosen(message))])
            lane.attempts = 0

    def freed(self, lane: Lane[M]) -> None:
        lane.busy = False
        if lane.queue:
            self._ready.append(lane)
        elif self._lanes.get(lane.name) is lane:
            del self._lanes[lane.name]

    def drop_waiting(self, partitions: Iterable[TopicPartition], *, busy_too: Callable[[Lane[M]], bool]) -> list[M]:
        """Remove, and return, all messages of these partitions that are not being handled.

        `busy_too` returns whether a busy lane only waits for its next attempt.
        """
        gone = set(partitions)
        dropped: list[M] = []
        for lane in list(self._lanes.values()):
            if not lane.queue or lane.partition not in gone:
                continue
            keep = lane.running if lane.busy and not busy_too(lane) else 0
            lane.alone = min(lane.alone, keep)
            while len(lane.queue) > keep:
                message = lane.queue.pop()
                self._count(lane.partition, -1)
                dropped.append(message)
            if not lane.queue and not lane.busy:
                self._lanes.pop(lane.name, None)
        return dropped

    def _count(self, partition: TopicPartition, change: int) -> None:
        self.count += change
        left = self.by_partition.get(partition, 0) + change
        if left:
            self.by_partition[partition] = left
        else:
            self.by_partition.pop(partition, None)


def _by_partition(message: Message) -> Hashable:
    return message.topic, message.partition


def _by_key(message: Message) -> Hashable:
    """Return the lane of a message. Messages without a key have no order among themselves."""
    return message.topic, message.partition, message.offset if message.key is None else message.key


def _by_nothing(message: Message) -> Hashable:
    return message.topic, message.partition, message.offset


_NAMES: dict[Ordering, Callable[[Message], Hashable]] = {"partition": _by_partition, "key": _by_key, None: _by_nothing}
