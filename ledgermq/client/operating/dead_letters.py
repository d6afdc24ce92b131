"""Settle dead letters (`client.dead_letters`): send them to be handled again, or drop them.

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

import builtins
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from sys import maxsize
from typing import Literal, NamedTuple

from ledgermq.client.admin.topics import Admin
from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import Message
from ledgermq.client.context import ClientContext
from ledgermq.client.groups.admin.group_admin import GroupAdmin
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
from ledgermq.client.queues.admin import QueueAdmin
from ledgermq.client.settings.values import ConsumerSettings
from ledgermq.client.transactions.transactions import TransactionClient, Transactions
from ledgermq.errors import InvalidRequest, UnknownGroup, UnknownTopic
from ledgermq.protocol.naming.names import DEAD_LETTER_SUFFIX, RETRY_SUFFIX

SETTLED = HEADER_PREFIX + "settled"
How = Literal["redriven", "dropped"]
RECORDS_MAX, BYTES_MAX = 500, 4 * 1024 * 1024
"""Dead letters of one transaction."""
LISTED_MAX = 1000
LISTED_BYTES_MAX = 64 * 1024 * 1024
WHOLE_TOPIC = ConsumerSettings(deliver_expired=True)


class LetterPlace(NamedTuple):
    """Where a dead letter is, in the dead-letter topic of its group."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class DeadLetter(NamedTuple):
    """`failures`: where the message came from, and how it failed. `settled`: redriven or dropped; None: it waits."""

    place: LetterPlace
    message: Message
    failures: Failures
    settled: How | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.message.key or b"") + len(self.message.value or b"")


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are meant; all, if nothing is given. `since`, `before`: of the time at which they were moved
    to the topic. `error`: a part of the last error's text. `topic`: of the original message.
    """

    places: frozenset[LetterPlace] = frozenset()
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
class DeadLetterCounts:
    """The dead letters of a group. `settled`: by place. `total`: all that are kept, settled or not."""

    settled: dict[LetterPlace, How] = field(default_factory=dict)
    total: int = 0
    oldest_us: int | None = None
    """When the oldest one was moved that is not settled."""

    @property
    def waiting(self) -> int:
        return self.total - len(self.settled)


@dataclass(slots=True)
class RetryCopies:
    """Copies in a group's retry topic that are not committed, at the time `now_ms`. `by_attempts`: how many have failed
    so often. Times are in milliseconds since the epoch.
    """

    now_ms: int
    waiting: int = 0
    due: int = 0
    by_attempts: dict[int, int] = field(default_factory=dict)
    longest_due_ms: int | None = None
    """When the one was due that is due for longest."""
    next_due_ms: int | None = None
    first_failure_ms: int | None = None

    def add(self, message: Message) -> None:
        if (failures := earlier_failures(message)) is None:
            return
        due_ms = due_ms_of(message) or 0
        if due_ms > self.now_ms:
            self.waiting += 1
            self.next_due_ms = min(due_ms, self.next_due_ms or due_ms)
        else:
            self.due += 1
            since_ms = due_ms or (message.timestamp_us or 0) // 1000
            self.longest_due_ms = min(since_ms, self.longest_due_ms or since_ms)
        self.by_attempts[failures.attempts] = self.by_attempts.get(failures.attempts, 0) + 1
        self.first_failure_ms = min(failures.first_ms, self.first_failure_ms or failures.first_ms)


@dataclass(frozen=True, slots=True)
class DeadLetterList:
    """`letters`: in the order of each partition. `more`: how many others there are that were asked for."""

    letters: Sequence[DeadLetter]
    more: int


class DeadLetterAdmin:
    """Dead letters of consumer groups and queue groups, as `client.dead_letters`: list, redrive, drop. A look at them
    reads the dead-letter topic of the group from its beginning to its end.
    """

    def __init__(
        self,
        context: ClientContext,
        admin: Admin,
        transactions: TransactionClient,
        groups: GroupAdmin,
        queues: QueueAdmin,
    ) -> None:
        self._context = context
        self._admin = admin
        self._transactions = transactions
        self._groups = groups
        self._queues = queues

    async def groups(self) -> builtins.list[str]:
        """Return the groups that have a dead-letter topic. Raises Unavailable."""
        names = await self._admin.topic_names()
        return sorted(
            name.removesuffix(DEAD_LETTER_SUFFIX)
            for name in names
            if name.endswith(DEAD_LETTER_SUFFIX) and name != DEAD_LETTER_SUFFIX
        )

    async def count(self, group: str) -> DeadLetterCounts:
        """Count a group's dead letters, and find what is settled; none if it never had one. Raises Unavailable,
        DataDamaged.
        """
        found = DeadLetterCounts()
        moved: dict[LetterPlace, int] = {}
        async for message in self._messages(group):
            place = LetterPlace(message.partition, message.offset)
            if (how := _settlement(message, group)) is not None:
                found.settled |= dict.fromkeys(_settled_places(message), how)
            elif (failures := failures_of(message.headers)) is not None and failures.group == group:
                moved[place] = message.timestamp_us or 0
        found.total = len(moved)
        found.settled = {place: how for place, how in found.settled.items() if place in moved}
        waiting = (time_us for place, time_us in moved.items() if place not in found.settled)
        found.oldest_us = min(waiting, default=None)
        return found

    async def list(
        self,
        group: str,
        wanted: DeadLetterFilter | None = None,
        *,
        settled: bool = False,
        letters_max: int = LISTED_MAX,
        bytes_max: int = LISTED_BYTES_MAX,
    ) -> DeadLetterList:
        """Return dead letters of a group that are not redriven or dropped yet; with `settled`, also those that are.
        After `letters_max` of them, or `bytes_max` bytes of keys and values, the rest is only counted; one is returned
        in any case. Raises UnknownGroup, Unavailable, DataDamaged.
        """
        await self.check_known(group)
        known = await self.count(group)
        found: builtins.list[DeadLetter] = []
        size_bytes = more = 0
        async for letter in self._letters(group, wanted or DeadLetterFilter()):
            how = known.settled.get(letter.place)
            if how is not None and not settled:
                continue
            size_bytes += letter.size_bytes
            if more or len(found) >= letters_max or (found and size_bytes > bytes_max):
                more += 1
            else:
                found.append(letter._replace(settled=how))
        return DeadLetterList(found, more)

    async def redrive(
        self, group: str, wanted: DeadLetterFilter, *, to: str = "", letters_max: int | None = None
    ) -> int:
        """Send dead letters to be handled again, and return how many: those that `wanted` takes, at most `letters_max`.

        They go to the group's retry topic, which only this group reads, and their attempts count from 1 again. A queue
        group gets one at its first redrive, and its members look for it twice a minute. `to`: another topic, for every
        group that reads it. A letter is sent once, however often this is repeated; it stays readable in the dead-letter
        topic. Raises InvalidRequest if a place has no dead letter, or `to` is for failed messages or does not exist;
        TransactionFenced if another call settles letters of the group at the same time; TransactionOutcomeUnknown, and
        what the topic refuses: repeat the call. Raises UnknownGroup, Unavailable, DataDamaged.
        """
        await self.check_known(group)
        return await self.settle(group, wanted, "redriven", to=to, letters_max=letters_max)

    async def drop(self, group: str, wanted: DeadLetterFilter, *, letters_max: int | None = None) -> int:
        """Drop dead letters, and return how many: `list` and `redrive` leave them out from now on. They stay readable
        in the dead-letter topic. Raises as `redrive` does.
        """
        await self.check_known(group)
        return await self.settle(group, wanted, "dropped", letters_max=letters_max)

    async def settle(
        self,
        group: str,
        wanted: DeadLetterFilter,
        how: How,
        *,
        to: str = "",
        letters_max: int | None = None,
        on_progress: Callable[[int], None] = lambda count: None,
    ) -> int:
        """Redrive or drop. `on_progress` is called with the number that is settled so far."""
        count, most = 0, maxsize if letters_max is None else letters_max
        async with self._transactions(dead_letter_topic(group)) as transactions:
            known = await self.count(group)
            target = await self._target(group, to) if how == "redriven" else ""
            chosen: builtins.list[DeadLetter] = []
            unseen = set(wanted.places)
            async for letter in self._letters(group, wanted):
                unseen.discard(letter.place)
                if letter.place in known.settled or count + len(chosen) >= most:
                    continue
                chosen.append(letter)
                if len(chosen) >= RECORDS_MAX or sum(each.size_bytes for each in chosen) >= BYTES_MAX:
                    count += await _settle(transactions, group, chosen, how, target)
                    on_progress(count)
                    chosen = []
            if chosen:
                count += await _settle(transactions, group, chosen, how, target)
                on_progress(count)
        if unseen:
            raise InvalidRequest(
                f"{dead_letter_topic(group)} has no dead letter at {', '.join(map(str, sorted(unseen)[:5]))};"
                f" {count} others were settled"
            )
        return count

    async def retries(self, group: str) -> RetryCopies:
        """Count what a group has not finished in its retry topic; nothing if it has none. Raises UnknownGroup,
        Unavailable, DataDamaged.
        """
        described, topic = await self._groups.describe(group), retry_topic(group)
        committed = ((at, known.stored.offset) for at, known in described.committed.items() if at.topic == topic)
        start = {(at.topic, at.partition): offset for at, offset in committed}
        found = RetryCopies(self._context.sources.now_ms())
        try:
            async with Consumer(self._context, [topic], None, start, "latest", WHOLE_TOPIC) as consumer:
                async for message in consumer:
                    found.add(message)
        except UnknownTopic:
            pass
        return found

    async def check_known(self, group: str) -> None:
        """Raise UnknownGroup if there is neither a group of this name, nor a topic of its dead letters."""
        try:
            await self._admin.describe_topic(dead_letter_topic(group))
            return
        except UnknownTopic:
            known = {each.name for each in await self._groups.list()} | {
                each.group for each in await self._queues.list()
            }
        if group not in known:
            raise UnknownGroup(
                f"there is no group {group!r}, and no topic {dead_letter_topic(group)!r} of its dead letters: `ledgermq"
                " dlq list` shows all dead letters"
            )

    async def _letters(self, group: str, wanted: DeadLetterFilter) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters that a filter takes, settled ones too, in the order of each partition."""
        async for message in self._messages(group):
            failures = failures_of(message.headers)
            if failures is not None and failures.group == group and _settlement(message, group) is None:
                letter = DeadLetter(LetterPlace(message.partition, message.offset), message, failures)
                if wanted.takes(letter):
                    yield letter

    async def _messages(self, group: str) -> AsyncIterator[Message]:
        try:
            topics = [dead_letter_topic(group)]
            async with Consumer(self._context, topics, None, "earliest", "latest", WHOLE_TOPIC) as consumer:
                async for message in consumer:
                    yield message
        except UnknownTopic:
            return

    async def _target(self, group: str, to: str) -> str:
        name = to or retry_topic(group)
        if name != retry_topic(group) and name.endswith((RETRY_SUFFIX, DEAD_LETTER_SUFFIX)):
            raise InvalidRequest(
                f"topic {name!r} has the name of a group's retry or dead-letter topic, and a message without the"
                " headers of that group is lost or refused there: name another topic with --to"
            )
        try:
            await self._admin.describe_topic(name)
        except UnknownTopic:
            if to:
                raise InvalidRequest(f"topic {name!r} does not exist") from None
            if group not in {each.group for each in await self._queues.list()}:
                raise InvalidRequest(
                    f"group {group!r} has no retry topic, which only queue groups and groups with"
                    " retry=Retry.levels(…) have. --to TOPIC names another topic, for all groups that read it"
                ) from None
            dead = await self._admin.describe_topic(dead_letter_topic(group))
            settings = {setting: size for setting, size in dead.settings.items() if setting == "max.message.bytes"}
            await self._admin.create_topic(name, len(dead.partitions), settings, if_not_exists=True)
        return name


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


def _settlement(message: Message, group: str) -> How | None:
    """Return what a record settles its letters as; None: it is no settlement of this group."""
    headers = dict(message.headers)
    how = headers.get(SETTLED)
    if headers.get(GROUP) != group.encode() or how not in (b"redriven", b"dropped"):
        return None
    return "redriven" if how == b"redriven" else "dropped"


def _settled_places(message: Message) -> Iterable[LetterPlace]:
    try:
        offsets = json.loads(message.value or b"")
    except ValueError:
        return ()
    if not isinstance(offsets, list):
        return ()
    return (LetterPlace(message.partition, offset) for offset in offsets if isinstance(offset, int))
