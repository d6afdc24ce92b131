"""Consume without asyncio: messages cross to this thread many at a time; those that the program
has not received yet wait here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Generic, TypeVar

import pyarrow as pa

from ledgermq.client.consuming.consumer import Consumer as AsyncConsumer
from ledgermq.client.consuming.message import Message
from ledgermq.client.consuming.start import Wanted
from ledgermq.client.groups.group_consumer import GroupConsumer as AsyncGroupConsumer
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.settings.serializers import V
from ledgermq.sync.background import Background, OneThread, as_coroutine
from ledgermq.sync.generated.consuming import ConsumerCalls, GroupConsumerCalls

M = TypeVar("M", bound=Message)

FETCH_RECORDS = 1000
GROUP_FETCH_RECORDS = 100
"""Messages that cross at once in a group: fewer, because waiting ones delay a partition that is to
be let go.
"""
FETCH_WAIT_S = 1.0


class _Ahead(Generic[M]):
    """Messages that the consumer has returned, but the program has not received yet."""

    def __init__(self) -> None:
        self.messages: deque[M] = deque()

    def take(self, count: int, is_over: Callable[[M], bool]) -> list[M]:
        """Return up to `count` messages. `is_over`: whether one has expired since it came; it is left out."""
        taken: list[M] = []
        while self.messages and len(taken) < count:
            message = self.messages.popleft()
            if not is_over(message):
                taken.append(message)
        return taken

    def first(self) -> dict[TopicPartition, M]:
        """By partition."""
        first: dict[TopicPartition, M] = {}
        for message in self.messages:
            first.setdefault(TopicPartition(message.topic, message.partition), message)
        return first

    def offsets(self) -> dict[TopicPartition, int]:
        return {partition: message.offset for partition, message in self.first().items()}

    def drop(self, partition: int | None, topic: str | None) -> None:
        self.messages = deque(
            m for m in self.messages if partition not in (None, m.partition) or topic not in (None, m.topic)
        )


class Consumer(ConsumerCalls[V]):
    """See `ledgermq.Consumer`.

    Messages cross to this thread many at a time; `position` counts only those that the program has
    received.
    """

    def __init__(self, background: Background, inner: AsyncConsumer[V]) -> None:
        super().__init__(background, inner)
        self._ahead: _Ahead[Message[V]] = _Ahead()
        self._reading = OneThread("consumer")

    def __iter__(self) -> Iterator[Message[V]]:
        return self

    def __next__(self) -> Message[V]:
        """Return the next message, waiting without limit; the iteration ends at `end`, and when the consumer is
        drained.
        """
        self._background.home.check_process()
        with self._reading:
            while True:
                while not self._ahead.messages:
                    if self._inner.at_end or self._inner.state == "draining":
                        raise StopIteration
                    self._ahead.messages.extend(self._background.run(self._inner.fetch(FETCH_RECORDS, FETCH_WAIT_S)))
                message = self._ahead.messages.popleft()
                if not self._inner.expire(message):
                    return message

    def fetch(self, max_records: int = 500, timeout: float = 1.0) -> list[Message[V]]:
        """See `ledgermq.Consumer.fetch`."""
        self._background.home.check_process()
        with self._reading:
            ahead = self._ahead.take(max_records, self._inner.expire)
            return ahead or self._background.run(self._inner.fetch(max_records, timeout), timeout)

    def fetch_arrow(self, max_records: int = 100_000, timeout: float = 1.0) -> pa.Table:
        """See `ledgermq.Consumer.fetch_arrow`."""
        with self._reading:
            self._hand_back()
            return self._background.run(self._inner.fetch_arrow(max_records, timeout), timeout)

    def _hand_back(self) -> None:
        """Put back messages that the program has not received."""
        for partition, offset in self._ahead.offsets().items():
            self.seek(offset, partition.partition, partition.topic)

    def drain(self, timeout: float = 30.0) -> None:
        """See `ledgermq.Consumer.drain`: messages that the program has received count as finished."""
        self._hand_back()
        self._background.run(self._inner.drain(timeout), timeout)

    def seek(self, position: Wanted, partition: int | None = None, topic: str | None = None) -> None:
        """See `ledgermq.Consumer.seek`."""
        self._background.run(self._inner.seek(position, partition, topic))
        self._ahead.drop(partition, topic)

    def position(self, partition: int, topic: str | None = None) -> int:
        """See `ledgermq.Consumer.position`."""
        position = self._inner.position(partition, topic)
        name = topic if topic is not None else self._inner.assignment[0].topic
        return self._ahead.offsets().get(TopicPartition(name, partition), position)

    def positions(self) -> dict[TopicPartition, int]:
        return self._inner.positions() | self._ahead.offsets()

    @property
    def at_end(self) -> bool:
        """See `ledgermq.Consumer.at_end`; messages that wait in this thread count as not returned
        yet.
        """
        return self._inner.at_end and not self._ahead.messages


class GroupConsumer(GroupConsumerCalls[V]):
    """See `ledgermq.GroupConsumer`.

    A message counts as returned when the program has received it; callbacks run in separate
    threads.
    """

    def __init__(self, background: Background, inner: AsyncGroupConsumer[V]) -> None:
        super().__init__(background, inner)
        self._ahead: _Ahead[GroupMessage[V]] = _Ahead()
        self._reading = OneThread("consumer")

    def __iter__(self) -> Iterator[GroupMessage[V]]:
        return self

    def __next__(self) -> GroupMessage[V]:
        """Return the next message, waiting without limit; the iteration ends when the consumer is
        drained.
        """
        self._background.home.check_process()
        fetch = self._inner.fetch
        with self._reading:
            while True:
                while not self._ahead.messages:
                    if self._inner.state == "draining":
                        raise StopIteration
                    self._ahead.messages.extend(self._background.run(fetch(GROUP_FETCH_RECORDS, FETCH_WAIT_S)))
                message = self._ahead.messages.popleft()
                if not self._expire(message):
                    return message

    def _expire(self, message: GroupMessage) -> bool:
        """Return whether a message has expired while it waited here; it is finished then."""
        inner = self._inner
        return inner.member.handing_out.is_over(message) and self._background.run(
            as_coroutine(lambda: inner.expire(message))
        )

    def fetch(self, max_records: int = 500, timeout: float = 1.0) -> list[GroupMessage[V]]:
        """See `ledgermq.GroupConsumer.fetch`."""
        self._background.home.check_process()
        with self._reading:
            ahead = self._ahead.take(max_records, self._expire)
            return ahead or self._background.run(self._inner.fetch(max_records, timeout), timeout)

    def fetch_arrow(self, max_records: int = 100_000, timeout: float = 1.0) -> pa.Table:
        """See `ledgermq.GroupConsumer.fetch_arrow`."""
        with self._reading:
            self._hand_back()
            return self._background.run(self._inner.fetch_arrow(max_records, timeout), timeout)

    def _hand_back(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Put back messages that the program has not received, so that they are delivered again.
        With commit="before" they are committed, so they stay here.
        """
        first = self._ahead.first()
        chosen = list(first if partitions is None else first.keys() & set(partitions))
        kept = self._background.run(
            as_coroutine(
                lambda: [not first[at].handout.roll_back(first[at].offset) and first[at].ack() for at in chosen]
            )
        )
        for partition, is_kept in zip(chosen, kept, strict=True):
            if not is_kept:
                self._ahead.drop(partition.partition, partition.topic)

    @property
    def inner(self) -> AsyncGroupConsumer[V]:
        """Return the asynchronous consumer, which runs in the background thread."""
        return self._inner

    def rewind(self) -> None:
        """See `ledgermq.GroupConsumer.rewind`."""
        self._background.run(as_coroutine(self._inner.rewind))
        self.drop_rewound()

    def drop_rewound(self) -> None:
        """Drop messages that the program has not received, and that will be delivered again."""
        commits, ahead = self._inner.member.commits, self._ahead
        ahead.messages = deque(
            self._background.run(as_coroutine(lambda: [each for each in ahead.messages if commits.counts(each)]))
        )

    def drain(self, timeout: float = 30.0) -> None:
        """See `ledgermq.GroupConsumer.drain`: messages that the program has received count as
        finished (with commit="auto").
        """
        self._hand_back()

        async def drain() -> None:
            self._inner.member.polling.asking = asyncio.current_task()
            await self._inner.drain(timeout)

        self._background.run(drain())

    def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """See `ledgermq.GroupConsumer.pause`."""
        named = None if partitions is None else list(partitions)
        self._background.run(as_coroutine(lambda: self._inner.pause(named)))
        self._hand_back(named)

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """See `ledgermq.GroupConsumer.resume`."""
        named = None if partitions is None else list(partitions)
        self._background.run(as_coroutine(lambda: self._inner.resume(named)))

    def seek(self, position: Wanted, partition: int | None = None, topic: str | None = None) -> None:
        """See `ledgermq.GroupConsumer.seek`."""
        self._background.run(self._inner.seek(position, partition, topic))
        self._ahead.drop(partition, topic)

    def seek_to_time(self, moment: datetime | int, partition: int | None = None, topic: str | None = None) -> None:
        """See `ledgermq.GroupConsumer.seek_to_time`."""
        self._background.run(self._inner.seek_to_time(moment, partition, topic))
        self._ahead.drop(partition, topic)

    def position(self, partition: int, topic: str | None = None) -> int:
        """See `ledgermq.GroupConsumer.position`."""
        position = self._inner.position(partition, topic)
        name = topic if topic is not None else self._inner.assignment[0].topic
        return self._ahead.offsets().get(TopicPartition(name, partition), position)

    def positions(self) -> dict[TopicPartition, int]:
        return self._inner.positions() | self._ahead.offsets()
