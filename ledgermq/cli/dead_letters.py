"""Settle dead letters: send them to be handled again, or drop them.

Dead letters of a group lie in the topic `<group>.dlq`. What is settled is another record in the same
partition, a *settlement*, without a key:

    ledgermq.retry.group     the group
    ledgermq.retry.settled   redriven | dropped
    value                    the offsets that it is about, as a JSON list

Invariants: a dead letter is sent in the transaction that records its settlement, so it is sent once,
however often a command is repeated. All settlements of a group are made under one transactional id,
which has the topic's name. Its epoch begins before the topic is read: what an earlier command has
settled is then in the topic, and what it has not settled never will be. A settlement is younger than
its letters, so retention does not remove it before them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple

import ledgermq
from ledgermq.client.groups.retry_topics import (
    GROUP,
    HEADER_PREFIX,
    Failures,
    dead_letter_topic,
    due_ms_of,
    earlier_failures,
    failures_of,
    headers_of,
    retry_topic,
    without_failures,
)
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.transactions.transactions import Transactions
from ledgermq.errors import InvalidRequest, UnknownGroup, UnknownTopic
from ledgermq.protocol.names import DEAD_LETTER_SUFFIX, RETRY_SUFFIX

SETTLED = HEADER_PREFIX + "settled"
How = Literal["redriven", "dropped"]
RECORDS_MAX, BYTES_MAX = 500, 4 * 1024 * 1024
"""Dead letters of one transaction."""


class Place(NamedTuple):
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class DeadLetter(NamedTuple):
    place: Place
    message: ledgermq.Message
    failures: Failures

    @property
    def size_bytes(self) -> int:
        return len(self.message.key or b"") + len(self.message.value or b"")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters are meant. `since`, `before`: of the time at which they were moved to the
    topic. `error`: a part of the last error's text. `topic`: of the original message.
    """

    places: frozenset[Place] = frozenset()
    since: datetime | None = None
    before: datetime | None = None
    error: str = ""
    key: bytes | None = None
    topic: str = ""

    def takes(self, letter: DeadLetter) -> bool:
        moved_us = letter.message.timestamp_us or 0
        return (
            (not self.places or letter.place in self.places)
            and (self.since is None or moved_us >= self.since.timestamp() * 1_000_000)
            and (self.before is None or moved_us < self.before.timestamp() * 1_000_000)
            and self.error in letter.failures.error
            and (self.key is None or letter.message.key == self.key)
            and (not self.topic or letter.failures.origin.topic == self.topic)
        )


@dataclass(slots=True)
class Letters:
    """The dead letters of a group. `settled`: by place. `total`: all that are kept, settled or not."""

    settled: dict[Place, How] = field(default_factory=dict)
    total: int = 0
    oldest_us: int | None = None
    """When the oldest one was moved that is not settled."""

    @property
    def waiting(self) -> int:
        return self.total - len(self.settled)


@dataclass(slots=True)
class Copies:
    """Copies in a group's retry topic that are not committed. `by_attempts`: how many have failed so often."""

    waiting: int = 0
    due: int = 0
    by_attempts: dict[int, int] = field(default_factory=dict)
    longest_due_ms: int | None = None
    """When the one was due that is due for longest."""
    next_due_ms: int | None = None
    first_failure_ms: int | None = None


async def copies(client: ledgermq.Client, group: str, committed: Mapping[TopicPartition, int], now_ms: int) -> Copies:
    """Read the copies from the group's committed offsets on. Raises Unavailable, DataDamaged."""
    found = Copies()
    topic = retry_topic(group)
    start = {(at.topic, at.partition): offset for at, offset in committed.items() if at.topic == topic}
    try:
        async with client.consumer(topic, start=start, until_end=True, deliver_expired=True) as consumer:
            async for message in consumer:
                if (failures := earlier_failures(message)) is None:
                    continue
                due_ms = due_ms_of(message) or 0
                if due_ms > now_ms:
                    found.waiting += 1
                    found.next_due_ms = min(due_ms, found.next_due_ms or due_ms)
                else:
                    found.due += 1
                    since_ms = due_ms or (message.timestamp_us or 0) // 1000
                    found.longest_due_ms = min(since_ms, found.longest_due_ms or since_ms)
                found.by_attempts[failures.attempts] = found.by_attempts.get(failures.attempts, 0) + 1
                found.first_failure_ms = min(failures.first_ms, found.first_failure_ms or failures.first_ms)
    except UnknownTopic:
        pass
    return found


async def groups(client: ledgermq.Client) -> list[str]:
    """Return the groups that have a dead-letter topic. Raises Unavailable."""
    names = [topic.name for topic in await client.list_topics()]
    return sorted(
        name.removesuffix(DEAD_LETTER_SUFFIX)
        for name in names
        if name.endswith(DEAD_LETTER_SUFFIX) and name != DEAD_LETTER_SUFFIX
    )


async def survey(client: ledgermq.Client, group: str) -> Letters:
    """Count a group's dead letters, and find what is settled; none if it never had one.

    Raises Unavailable, DataDamaged.
    """
    found = Letters()
    moved: dict[Place, int] = {}
    async for message in _messages(client, group):
        place = Place(message.partition, message.offset)
        if (how := _settlement(message, group)) is not None:
            found.settled |= dict.fromkeys(_settled_places(message), how)
        elif (failures := failures_of(message.headers)) is not None and failures.group == group:
            moved[place] = message.timestamp_us or 0
    found.total = len(moved)
    found.settled = {place: how for place, how in found.settled.items() if place in moved}
    found.oldest_us = min((time_us for place, time_us in moved.items() if place not in found.settled), default=None)
    return found


async def letters(client: ledgermq.Client, group: str, wanted: Filter) -> AsyncIterator[DeadLetter]:
    """Yield the dead letters that a filter takes, settled ones too, in the order of each partition.

    Raises Unavailable, DataDamaged.
    """
    async for message in _messages(client, group):
        failures = failures_of(message.headers)
        if failures is not None and failures.group == group and _settlement(message, group) is None:
            letter = DeadLetter(Place(message.partition, message.offset), message, failures)
            if wanted.takes(letter):
                yield letter


async def settle(
    client: ledgermq.Client,
    group: str,
    wanted: Filter,
    how: How,
    to: str,
    maximum: int,
    progress: Callable[[int], None],
) -> int:
    """Settle the dead letters that a filter takes, at most `maximum` of them, and return how many.

    `to`: the topic that redriven letters go to; "": the group's retry topic. `progress` is called with
    the number that is settled so far. Raises InvalidRequest if a place has no dead letter, or the topic
    `to` does not exist, or is for failed messages; TransactionFenced if another command settles letters of
    the group at the same time, TransactionOutcomeUnknown, and what the topic refuses: repeat the command.
    """
    count = 0
    async with client.transactions(dead_letter_topic(group)) as transactions:
        known = await survey(client, group)
        target = await _target(client, group, to) if how == "redriven" else ""
        chosen: list[DeadLetter] = []
        unseen = set(wanted.places)
        async for letter in letters(client, group, wanted):
            unseen.discard(letter.place)
            if letter.place in known.settled or count + len(chosen) >= maximum:
                continue
            chosen.append(letter)
            if len(chosen) >= RECORDS_MAX or sum(each.size_bytes for each in chosen) >= BYTES_MAX:
                count += await _settle(transactions, group, chosen, how, target)
                progress(count)
                chosen = []
        if chosen:
            count += await _settle(transactions, group, chosen, how, target)
            progress(count)
    if unseen:
        raise InvalidRequest(
            f"{dead_letter_topic(group)} has no dead letter at {', '.join(map(str, sorted(unseen)[:5]))};"
            f" {count} others were settled"
        )
    return count


async def _settle(transactions: Transactions, group: str, chosen: Iterable[DeadLetter], how: How, target: str) -> int:
    places: dict[int, list[int]] = {}
    async with transactions.begin() as transaction:
        for letter in chosen:
            places.setdefault(letter.place.partition, []).append(letter.place.offset)
            if how == "redriven":
                message = letter.message
                headers = [*without_failures(message.headers)]
                if target == retry_topic(group):
                    headers += headers_of(letter.failures._replace(attempts=0))
                transaction.send(target, message.value, key=message.key, headers=headers, tag=message.tag)
        for partition, offsets in sorted(places.items()):
            transaction.send(
                dead_letter_topic(group),
                json.dumps(offsets),
                headers=[(GROUP, group.encode()), (SETTLED, how.encode())],
                partition=partition,
            )
    return sum(map(len, places.values()))


async def _target(client: ledgermq.Client, group: str, to: str) -> str:
    name = to or retry_topic(group)
    if name != retry_topic(group) and name.endswith((RETRY_SUFFIX, DEAD_LETTER_SUFFIX)):
        raise InvalidRequest(
            f"topic {name!r} has the name of a group's retry or dead-letter topic, and a message without the headers of"
            " that group is lost or refused there: name another topic with --to"
        )
    try:
        await client.describe_topic(name)
    except UnknownTopic:
        if to:
            raise InvalidRequest(f"topic {name!r} does not exist") from None
        raise InvalidRequest(
            f"group {group!r} has no retry topic, which only groups with retry=Retry.levels(…) have. --to TOPIC sends"
            " dead letters of a queue group to a topic that it reads, where every group that reads the topic gets them"
        ) from None
    return name


async def check_known(client: ledgermq.Client, group: str) -> None:
    """Raise UnknownGroup if there is neither a group of this name, nor a topic of its dead letters."""
    try:
        await client.describe_topic(dead_letter_topic(group))
        return
    except UnknownTopic:
        known = {each.name for each in await client.groups.list()} | {each.group for each in await client.queues.list()}
    if group not in known:
        raise UnknownGroup(
            f"there is no group {group!r}, and no topic {dead_letter_topic(group)!r} of its dead letters: `ledgermq dlq"
            " list` shows all dead letters"
        )


async def _messages(client: ledgermq.Client, group: str) -> AsyncIterator[ledgermq.Message]:
    try:
        async with client.consumer(dead_letter_topic(group), until_end=True, deliver_expired=True) as consumer:
            async for message in consumer:
                yield message
    except UnknownTopic:
        return


def _settlement(message: ledgermq.Message, group: str) -> How | None:
    """Return what a record settles its letters as; None: it is no settlement of this group."""
    headers = dict(message.headers)
    how = headers.get(SETTLED)
    if headers.get(GROUP) != group.encode() or how not in (b"redriven", b"dropped"):
        return None
    return "redriven" if how == b"redriven" else "dropped"


def _settled_places(message: ledgermq.Message) -> Iterable[Place]:
    try:
        offsets = json.loads(message.value or b"")
    except ValueError:
        return ()
    if not isinstance(offsets, list):
        return ()
    return (Place(message.partition, offset) for offset in offsets if isinstance(offset, int))
