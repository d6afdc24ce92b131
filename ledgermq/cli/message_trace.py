"""Find out where a message went: which groups have read beyond it, and its copies in the retry and dead-letter
topics of groups, by the headers in which each copy names its origin.

What is asked are the topics and groups that exist now. A part that was not searched to its end is named in
`Trace.unfinished`, so that "no copy" is never said of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

import ledgermq
from ledgermq.cli import dead_letters
from ledgermq.cli.dead_letters import Place
from ledgermq.client.groups.retry_topics import OFFSET, PARTITION, TOPIC, failures_of
from ledgermq.client.messages.record import datetime_of
from ledgermq.errors import SearchStopped, Unauthorized, UnknownGroup, UnknownTopic
from ledgermq.protocol.names import DEAD_LETTER_SUFFIX, RETRY_SUFFIX

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
class Copy:
    """A copy of the message in a group's retry topic, or its dead letter. `attempts`: calls that had failed
    when it was made. `settled`: of a dead letter, redriven or dropped; None: neither.
    """

    group: str
    kind: Literal["retry", "dead letter"]
    id: ledgermq.MessageId
    time: datetime | None
    attempts: int
    error: str
    settled: str | None = None


@dataclass(slots=True)
class Trace:
    """`unfinished`: what was not searched to its end, and why."""

    message: ledgermq.MessageDescription
    groups: list[GroupRead] = field(default_factory=list)
    queues: list[QueueRead] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)


async def trace(client: ledgermq.Client, message_id: ledgermq.MessageId, timeout_s: float, progress: Progress) -> Trace:
    """Trace a message. `timeout_s`: for the search of one retry or dead-letter topic.

    Raises what `client.describe_message` raises.
    """
    progress(str(message_id))
    found = Trace(await client.describe_message(message_id))
    topic_id = (await client.describe_topic(message_id.topic)).topic_id
    for summary in await client.groups.list():
        progress(f"group {summary.name}")
        with suppress(UnknownGroup):  # it was deleted since
            described = await client.groups.describe(summary.name)
            if (read := _read_by(described, message_id, topic_id)) is not None:
                found.groups.append(read)
    progress("queue groups")
    for queue in await client.queues.list():
        found.queues += [
            _queue_read(queue.group, part, message_id.offset)
            for part in queue.partitions
            if part.partition == message_id.at
        ]
    names = [topic.name for topic in await client.list_topics()]
    for name in sorted(name for name in names if name.endswith((RETRY_SUFFIX, DEAD_LETTER_SUFFIX))):
        progress(f"topic {name}")
        try:
            await _add_copies(client, found, name, timeout_s)
        except UnknownTopic:
            pass  # it was deleted since
        except Unauthorized as error:
            found.unfinished.append(f"{name} was not searched: {error.message}")
    return found


def _read_by(group: ledgermq.GroupDescription, message_id: ledgermq.MessageId, topic_id: int) -> GroupRead | None:
    """Return what a group has done; None if it does not read the topic."""
    committed = group.committed.get(message_id.at)
    if committed is None or committed.topic_id != topic_id:
        reads = any(message_id.topic in member.topics for member in group.members)
        return GroupRead(group.summary.name, "not read", None, None) if reads else None
    stored = committed.stored
    state: Literal["read", "not read"] = "read" if stored.offset > message_id.offset else "not read"
    return GroupRead(group.summary.name, state, stored.offset, stored.commit_ms)


def _queue_read(group: str, part: ledgermq.QueuePartition, offset: int) -> QueueRead:
    state: Literal["finished", "delivered", "not delivered"] = (
        "finished" if offset < part.start else "delivered" if offset < part.end else "not delivered"
    )
    return QueueRead(group, state, part.start, part.end)


async def _add_copies(client: ledgermq.Client, found: Trace, topic: str, timeout_s: float) -> None:
    origin = found.message.id
    is_dead = topic.endswith(DEAD_LETTER_SUFFIX)
    group = topic.removesuffix(DEAD_LETTER_SUFFIX if is_dead else RETRY_SUFFIX)
    copies: list[Copy] = []
    async for message in _candidates(client, found, topic, timeout_s):
        failures = failures_of(message.headers)
        if failures is None or failures.group != group or tuple(failures.origin) != tuple(origin):
            continue
        time = None if message.timestamp_us is None else datetime_of(message.timestamp_us)
        kind: Literal["retry", "dead letter"] = "dead letter" if is_dead else "retry"
        copies.append(Copy(group, kind, message.id, time, failures.attempts, failures.error))
    if copies and is_dead:
        settled = (await dead_letters.survey(client, group)).settled
        copies = [replace(copy, settled=settled.get(Place(copy.id.partition, copy.id.offset))) for copy in copies]
    found.copies += copies


async def _candidates(
    client: ledgermq.Client, found: Trace, topic: str, timeout_s: float
) -> AsyncIterator[ledgermq.Message]:
    """Yield the messages of a topic that may be copies: those with the same key, or, of a message without one,
    those whose headers name it.
    """
    key, origin = found.message.message.key, found.message.id
    if key is not None:
        search = client.find(topic, key=key, partitions="all", order="oldest", max=COPIES_MAX, timeout=timeout_s)
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
    wanted = f'"{TOPIC}" = \'{origin.topic}\' AND "{PARTITION}" = {origin.partition} AND "{OFFSET}" = {origin.offset}'
    async with client.consumer(topic, until_end=True, deliver_expired=True, filter=wanted) as consumer:
        await consumer.wait_ready()
        while not consumer.at_end:
            for message in await consumer.fetch(timeout=FETCH_S):
                yield message
            if loop.time() >= until_s and not consumer.at_end:
                found.unfinished.append(f"{topic} was not searched to its end within {timeout_s:g} s")
                return
