"""Send what a program says about leased messages: many words in one call, one call a partition at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ledgermq.client.connection.routing import AtOwners
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.queues.message import Reply
from ledgermq.errors import LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto

WORDS_MAX = 5000
"""Of one call."""


class NamesLease(Protocol):
    """What names the lease of a message."""

    @property
    def topic_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def number(self) -> int: ...


class Said(NamedTuple):
    """What is said about a message; `Word` is the same, with a reply."""

    offset: int
    lease: NamesLease
    word: pb.ShareWord
    time_ms: int


class Word(NamedTuple):
    offset: int
    lease: NamesLease
    word: pb.ShareWord
    time_ms: int
    reply: Reply


class WordLane:
    """The words about one partition, in the order in which they were said."""

    def __init__(
        self,
        context: ClientContext,
        group: str,
        member_id: str,
        at: TopicPartition,
        on_unsent: Callable[[LedgerMQError, int], None],
    ) -> None:
        """`on_unsent(error, number of words)` is called when words could not be sent in time, or were refused."""
        self._context = context
        self._group = group
        self._member_id = member_id
        self._at = at
        self._on_unsent = on_unsent
        self._waiting: list[Word] = []
        self.sending: asyncio.Task[None] | None = None

    def add(self, word: Word) -> None:
        self._waiting.append(word)
        if self.sending is None:
            self.sending = asyncio.create_task(self._send_all(), name=f"words about {self._at}")

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # the program may say more in this turn
                count = _count_of_call(self._waiting)
                words, self._waiting = self._waiting[:count], self._waiting[count:]
                try:
                    late = await self._send(words)
                except LedgerMQError as error:
                    self._on_unsent(error, len(words))
                    _fail(words, error)
                except BaseException:
                    _fail([*words, *self._waiting], Unavailable("the queue was closed before a broker answered"))
                    self._waiting = []
                    raise
                else:
                    for word in words:
                        word.reply.settle(word.offset not in late)
        finally:
            self.sending = None

    async def _send(self, words: Sequence[Word]) -> set[int]:
        """Return the offsets for which it does not count. Raises Unavailable, UnknownTopic, …"""
        part = pb.SharePartitionAnswer(
            topic=self._at.topic,
            topic_id=words[0].lease.topic_id,
            partition=self._at.partition,
            spans=spans_of(words),
        )
        request = pb.ShareAnswerRequest(group=self._group, member_id=self._member_id, partitions=[part])

        async def ask(
            at: BrokerApi, partitions: Sequence[TopicPartition]
        ) -> list[pb.SharePartitionResult | LedgerMQError]:
            found = await at.share_answer(request)
            return [error_from_proto(each.error) if each.HasField("error") else each for each in found.results]

        context = self._context
        owners = AtOwners(context.connections, context.routing, ask)
        answer = (await owners.find([self._at], context.connections.deadline()))[self._at]
        return {offset for span in answer.late for offset in range(span.first, span.last + 1)}


class Words:
    """What a member says about its messages, by partition, and what of it could not be sent."""

    def __init__(self, context: ClientContext, group: str, member_id: str) -> None:
        self._context = context
        self._group = group
        self._member_id = member_id
        self._lanes: dict[TopicPartition, WordLane] = {}
        self._unsent = 0
        self._unsent_error: LedgerMQError | None = None
        """What could not be sent since `raise_unsent`: of how many messages, and why."""

    def add(self, at: TopicPartition, word: Word) -> None:
        lane = self._lanes.get(at)
        if lane is None:
            lane = self._lanes[at] = WordLane(self._context, self._group, self._member_id, at, self.note_unsent)
        lane.add(word)

    @property
    def sending(self) -> list[asyncio.Task[None]]:
        """The tasks that send words now."""
        return [lane.sending for lane in self._lanes.values() if lane.sending is not None]

    def note_unsent(self, error: LedgerMQError, count: int) -> None:
        self._unsent += count
        self._unsent_error = error

    def raise_unsent(self) -> None:
        """Raise the last error of words that could not be sent since the call before."""
        count, error = self._unsent, self._unsent_error
        self._unsent, self._unsent_error = 0, None
        if error is not None:
            raise type(error)(f"what was said about {count} messages was not answered: {error.message}") from error


def _count_of_call(words: Sequence[Word]) -> int:
    """Return how many words go into one call: one about each message, because an answer names messages only."""
    offsets = set[int]()
    for count, word in enumerate(words[:WORDS_MAX]):
        if word.offset in offsets:
            return count
        offsets.add(word.offset)
    return len(offsets)


def spans_of(words: Sequence[Word] | Sequence[Said]) -> Iterator[pb.SharedSpan]:
    """Merge neighbours that say the same of consecutive messages; the order stays."""
    begin = 0
    for at in range(1, len(words) + 1):
        first = words[begin]
        if at < len(words) and words[at][1:4] == first[1:4] and words[at].offset == words[at - 1].offset + 1:
            continue
        yield pb.SharedSpan(
            first=first.offset,
            last=words[at - 1].offset,
            epoch=first.lease.epoch,
            lease=first.lease.number,
            word=first.word,
            time_ms=first.time_ms,
        )
        begin = at


def _fail(words: Sequence[Word], error: LedgerMQError) -> None:
    for word in words:
        word.reply.fail(error)
