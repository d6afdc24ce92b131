"""Find out where a message went (`client.trace`): which groups have read beyond it, and its copies in the retry and
dead-letter topics of groups, by the headers in which each copy names its origin.

What is asked are the topics and groups that exist now. A part that was not searched to its end is named in
`MessageTrace.unfinished`, so that "no copy" is never said of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from ledgermq.client.admin.topics import Admin
from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.described import MessageDescription
from ledgermq.client.consuming.message import Message
from ledgermq.client.context import ClientContext
from ledgermq.client.finding import BYTES_MAX, Finding
from ledgermq.client.groups.admin.descriptions import CommittedOffset, committed_offsets
from ledgermq.client.groups.admin.group_admin import GroupAdmin, listed_groups
from ledgermq.client.groups.retry_topics import OFFSET, PARTITION, TOPIC, failures_of
from ledgermq.client.messages.message_id import MessageId
from ledgermq.client.messages.record import datetime_of
from ledgermq.client.operating.dead_letters import DeadLetterAdmin, LetterPlace
from ledgermq.client.queues.admin import QueueAdmin, QueuePartition
from ledgermq.client.settings.values import ConsumerSettings
from ledgermq.errors import SearchStopped, Unauthorized, UnknownGroup, UnknownTopic
from ledgermq.protocol.naming.names import DEAD_LETTER_SUFFIX, RETRY_SUFFIX

COPIES_MAX = 1000
"""Copies of one topic with the message's key that are looked at."""
FETCH_S = 1.0

Progress = Callable[[str], object]
"""Called with what is asked next."""


@dataclass(frozen=True, slots=True)
class GroupRead:
    """What a group has done with the message. read: it has committed an offset beyond it. not read: it has
    committed a lower one, or none although its members read the topic.
    """

    group: str
    state: Literal["read", "not read"]
    committed: int | None
    committed_ms: int | None


@dataclass(frozen=True, slots=True)
class QueueRead:
    """What a queue group has done with the message. finished: it, and everything before it. delivered: it was
    delivered at least once, or messages behind it were; it may be leased, waiting, or finished.
    """

    group: str
    state: Literal["finished", "delivered", "not delivered"]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """A copy of the message in a group's retry topic, or its dead letter. `attempts`: calls that had failed
    when it was made. `settled`: of a dead letter, redriven or dropped; None: neither.
    """

    group: str
    kind: Literal["retry", "dead letter"]
    id: MessageId
    time: datetime | None
    attempts: int
    error: str
    settled: str | None = None


@dataclass(slots=True)
class MessageTrace:
    """Where a message went. `unfinished`: what was not searched to its end, and why."""

    message: MessageDescription
    groups: list[GroupRead] = field(default_factory=list)
    queues: list[QueueRead] = field(default_factory=list)
    copies: list[MessageCopy] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)


class Tracing:
    """What `client.trace` does. `on_progress` is called with what is asked next."""

    def __init__(
        self,
        context: ClientContext,
        admin: Admin,
        finding: Finding,
        groups: GroupAdmin,
        queues: QueueAdmin,
        dead_letters: DeadLetterAdmin,
    ) -> None:
        self._context = context
        self._admin = admin
        self._finding = finding
        self._groups = groups
        self._queues = queues
        self._dead_letters = dead_letters

    async def trace(self, message_id: MessageId, timeout_s: float, on_progress: Progress) -> MessageTrace:
        """Trace a message. `timeout_s`: for the search of one retry or dead-letter topic.

        Raises what `client.describe_message` raises.
        """
        on_progress(str(message_id))
        found = MessageTrace(await self._finding.describe(message_id))
        topic_id = (await self._admin.describe_topic(message_id.topic)).topic_id
        on_progress("groups")
        for info, is_of_topic in await listed_groups(self._context.connections, message_id.topic):
            with suppress(UnknownGroup):  # it was deleted since
                committed, subscribed = committed_offsets(info.committed), info.subscribed
                if not is_of_topic:
                    described = await self._groups.describe(info.group)
                    committed = dict(described.committed)
                    subscribed = any(message_id.topic in member.topics for member in described.members)
                read = _read_by(info.group, committed.get(message_id.at), subscribed, message_id, topic_id)
                if read is not None:
                    found.groups.append(read)
        on_progress("queue groups")
        for queue in await self._queues.list():
            found.queues += [
                _queue_read(queue.group, part, message_id.offset)
                for part in queue.partitions
                if part.partition == message_id.at
            ]
        names = await self._admin.topic_names()
        for name in sorted(name for name in names if name.endswith((RETRY_SUFFIX, DEAD_LETTER_SUFFIX))):
            on_progress(f"topic {name}")
            try:
                await self._add_copies(found, name, timeout_s)
            except UnknownTopic:
                pass  # it was deleted since
            except Unauthorized as error:
                found.unfinished.append(f"{name} was not searched: {error.message}")
        return found

    async def _add_copies(self, found: MessageTrace, topic: str, timeout_s: float) -> None:
        origin = found.message.id
        is_dead = topic.endswith(DEAD_LETTER_SUFFIX)
        group = topic.removesuffix(DEAD_LETTER_SUFFIX if is_dead else RETRY_SUFFIX)
        copies: list[MessageCopy] = []
        async for message in self._candidates(found, topic, timeout_s):
            failures = failures_of(message.headers)
            if failures is None or failures.group != group or tuple(failures.origin) != tuple(origin):
                continue
            time = None if message.timestamp_us is None else datetime_of(message.timestamp_us)
            kind: Literal["retry", "dead letter"] = "dead letter" if is_dead else "retry"
            copies.append(MessageCopy(group, kind, message.id, time, failures.attempts, failures.error))
        if copies and is_dead:
            settled = (await self._dead_letters.count(group)).settled
            copies = [
                replace(copy, settled=settled.get(LetterPlace(copy.id.partition, copy.id.offset))) for copy in copies
            ]
        found.copies += copies

    async def _candidates(self, found: MessageTrace, topic: str, timeout_s: float) -> AsyncIterator[Message]:
        """Yield the messages of a topic that may be copies: those with the same key, or, of a message without one,
        those whose headers name it.
        """
        key, origin = found.message.message.key, found.message.id
        if key is not None:
            search = self._finding.search(
                topic, key, None, "earliest", "latest", COPIES_MAX, "all", "oldest", BYTES_MAX, timeout_s
            )
            try:
                async for message in search:
                    yield message
            except SearchStopped as stopped:
                found.unfinished.append(stopped.message)
            else:
                if search.stopped:
                    found.unfinished.append(f"{topic} has more than {COPIES_MAX} messages with this key")
            return
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        wanted = (
            f'"{TOPIC}" = \'{origin.topic}\' AND "{PARTITION}" = {origin.partition} AND "{OFFSET}" = {origin.offset}'
        )
        settings = ConsumerSettings(deliver_expired=True, filter=wanted)
        async with Consumer(self._context, [topic], None, "earliest", "latest", settings) as consumer:
            await consumer.wait_ready()
            while not consumer.at_end:
                for message in await consumer.fetch(timeout=FETCH_S):
                    yield message
                if loop.time() >= until_s and not consumer.at_end:
                    found.unfinished.append(f"{topic} was not searched to its end within {timeout_s:g} s")
                    return


def _read_by(
    group: str, committed: CommittedOffset | None, subscribed: bool, message_id: MessageId, topic_id: int
) -> GroupRead | None:
    """Return what a group has done; None if it does not read the topic."""
    if committed is None or committed.topic_id != topic_id:
        return GroupRead(group, "not read", None, None) if subscribed else None
    stored = committed.stored
    state: Literal["read", "not read"] = "read" if stored.offset > message_id.offset else "not read"
    return GroupRead(group, state, stored.offset, stored.commit_ms)


def _queue_read(group: str, part: QueuePartition, offset: int) -> QueueRead:
    state: Literal["finished", "delivered", "not delivered"] = (
        "finished" if offset < part.start else "delivered" if offset < part.end else "not delivered"
    )
    return QueueRead(group, state, part.start, part.end)
