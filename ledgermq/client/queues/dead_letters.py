"""Move messages of a queue group to its dead-letter topic: the copy is stored first, then the message is
finished. A process that dies between the two leaves a copy, and its successor makes another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq.client.admin.topics import Admin
from ledgermq.client.consuming.message import Message, partition_of
from ledgermq.client.context import ClientContext
from ledgermq.client.groups.assignment import Subscription
from ledgermq.client.groups.retries.retry_creation import RetryTopics
from ledgermq.client.groups.retry_topics import ERROR_BYTES_MAX, Failures, copy_of, cut, dead_letter_topic, origin_of
from ledgermq.client.messages.expiry import Expiry
from ledgermq.client.producing.producer import Producer
from ledgermq.client.queues.message import QueueMessage, Reply
from ledgermq.client.queues.words import Word, Words
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.errors import InvalidRecord, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.process.log import get_log

REFUSED_PAUSE_MS = 5000
"""Wait before a message comes again whose dead letter could not be stored."""

_log = get_log("ledgermq.queues")


class DeadLetters:
    """`topics`: creates the topic at the first dead letter."""

    def __init__(self, context: ClientContext, group: str, topics: RetryTopics) -> None:
        self._context = context
        self._topic = dead_letter_topic(group)
        self._group = group
        self._producer = Producer(context, ProducerSettings())
        self._topics = topics
        self._creating = asyncio.Lock()
        self._is_created = False
        self._expiry = Expiry(context.routing.ttl_of, context.sources.now_us)

    async def put(self, message: Message, attempt: int, error: str) -> None:
        """Store a copy. `attempt`: the number of its last delivery. Raises InvalidConfig if others use the topic,
        InvalidRecord (also if the copy cannot be made), Unavailable, …
        """
        try:
            await self._put(message, attempt, error)
        except LedgerMQError:
            raise
        except Exception as unexpected:  # a task that ended so would leave the caller without an answer
            raise InvalidRecord(
                f"its dead letter cannot be made: {type(unexpected).__name__}: {unexpected}"
            ) from unexpected

    async def _put(self, message: Message, attempt: int, error: str) -> None:
        async with self._creating:
            if not self._is_created:
                await self._topics.create()
                self._is_created = True
        now_ms = self._context.sources.now_ms()
        text = cut(error or "no error was given", ERROR_BYTES_MAX)
        failures = Failures(self._group, origin_of(message), attempt, now_ms, text)
        expires_us = self._expiry.expires_us(message.topic, message.headers, message.timestamp_us)
        copy = copy_of(message, failures, self._topic, None, expires_us=expires_us)
        await self._producer.send(copy.topic, copy.value, key=copy.key, headers=copy.headers, tag=copy.tag)

    async def close(self) -> None:
        await self._producer.close()


def dead_letters_of(context: ClientContext, admin: Admin, subscription: Subscription) -> DeadLetters:
    """Return the dead letters of a queue group that reads these topics. Raises InvalidConfig."""
    return DeadLetters(context, subscription.group, RetryTopics(context, admin, subscription, retries=False))


class Burials:
    """The messages of one member that had their last attempt: each is finished when its copy is stored.
    `dead_letters`: None drops them. `on_stored`: called for each copy.
    """

    def __init__(
        self, group: str, dead_letters: DeadLetters | None, words: Words, on_stored: Callable[[], None]
    ) -> None:
        self._group = group
        self._dead_letters = dead_letters
        self._words = words
        self._on_stored = on_stored
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, message: QueueMessage, error: str, reply: Reply) -> None:
        burying = asyncio.create_task(self._bury(message, error, reply), name=f"dead letter of {self._group}")
        self.tasks.add(burying)
        burying.add_done_callback(self.tasks.discard)

    async def _bury(self, message: QueueMessage, error: str, reply: Reply) -> None:
        at = partition_of(message)
        if self._dead_letters is None:
            _log.error("queue %s drops the message at %s, offset %d: %s", self._group, at, message.offset, error)
            self._words.add(at, Word(message.offset, message.lease, pb.REJECT, 0, reply))
            return
        try:
            await self._dead_letters.put(message, message.attempt, error)
        except LedgerMQError as failure:
            _log.warning(
                "queue %s could not store the dead letter of %s, offset %d: %s",
                self._group,
                at,
                message.offset,
                failure,
            )
            self._words.add(at, Word(message.offset, message.lease, pb.RELEASE_SHARE, REFUSED_PAUSE_MS, Reply()))
            self._words.note_unsent(failure, 1)
            reply.fail(failure)
            return
        self._on_stored()
        self._words.add(at, Word(message.offset, message.lease, pb.REJECT, 0, reply))

    async def close(self) -> None:
        if self._dead_letters is not None:
            await self._dead_letters.close()
