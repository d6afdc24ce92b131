"""Create the retry topic and the dead-letter topic of a group when its first member begins, and let its
members read the retry topic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ledgermq.client.admin.topics import Admin
from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import Message
from ledgermq.client.context import ClientContext
from ledgermq.client.groups.assignment import Subscription
from ledgermq.client.groups.retry_topics import dead_letter_topic, group_of, retry_topic
from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.client.settings.values import ConsumerSettings
from ledgermq.errors import InvalidConfig, UnknownTopic

SIZE = "max.message.bytes"
RECORD_BYTES_DEFAULT = 1024 * 1024
RECORD_BYTES_MAX = 32 * 1024 * 1024
HEADERS_BYTES_MAX = 64 * 1024
"""Room for the headers that a copy has more than its original."""


class RetryTopics:
    """`asked`: the subscription that the program has given. Raises InvalidConfig if it names the retry
    topic of its group, if it takes in the dead-letter topic, or if the names of the topics are too long.
    `retries`: False for a queue group, which needs no retry topic until dead letters are redriven.
    """

    def __init__(self, context: ClientContext, admin: Admin, asked: Subscription, *, retries: bool = True) -> None:
        self._context = context
        self._admin = admin
        self._asked = asked
        self._retry, self._dead = retry_topic(asked.group), dead_letter_topic(asked.group)
        self._made = (self._retry, self._dead) if retries else (self._dead,)
        taken = {self._retry, self._dead} & set(asked.names)
        if taken:
            raise InvalidConfig(
                f"group {asked.group!r} keeps its failed messages in topic {taken.pop()!r}, and reads its retry topic"
                " itself: leave it out, or read it with another group"
            )
        if asked.pattern and _matches(asked.pattern, self._dead):
            raise InvalidConfig(
                f"the pattern {asked.pattern!r} matches {self._dead!r}, and group {asked.group!r} would handle its dead"
                " letters again without end: give a pattern that does not match it"
            )

    @property
    def subscription(self) -> Subscription:
        """Return the subscription that includes the retry topic."""
        if self._asked.pattern:
            return replace(self._asked, pattern=f"(?:{self._asked.pattern})|^{re.escape(self._retry)}$")
        return replace(self._asked, names=(*self._asked.names, self._retry))

    async def create(self) -> None:
        """Create what is missing, and let both topics have messages as large as the group's topics have now.

        Raises InvalidConfig if a topic with such a name has other records; UnknownTopic, Unavailable, …
        """
        known = {topic.name: topic for topic in await self._admin.list_topics()}
        sources = self._sources(known)
        for name in self._asked.names:
            if name not in known:
                raise UnknownTopic(f"topic {name!r} does not exist")
        settings = settings_for_failed(topic.settings for topic in sources)
        partitions = max((len(topic.partitions) for topic in sources), default=0)
        for name in self._made:
            if name in known:
                await self._check(name)
                if not takes(known[name].settings, settings):
                    await self._admin.alter_topic(name, 0, settings, ())
            else:
                await self._admin.create_topic(name, partitions, settings, if_not_exists=True)

    def _sources(self, known: dict[str, TopicDescription]) -> list[TopicDescription]:
        if self._asked.names:
            return [known[name] for name in self._asked.names if name in known]
        own = (self._retry, self._dead)
        return [topic for name, topic in known.items() if _matches(self._asked.pattern, name) and name not in own]

    async def _check(self, name: str) -> None:
        """Check that the first record of an existing topic is of this group."""
        settings = ConsumerSettings(deliver_expired=True)
        consumer = Consumer(self._context, [name], None, "earliest", "latest", settings)
        try:
            await consumer.wait_ready()
            messages = [] if consumer.at_end else await consumer.fetch(1, timeout=settings.request_timeout_s)
        finally:
            await consumer.close()
        for message in messages:
            check_first(name, self._asked.group, message)


def settings_for_failed(sources: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the settings of a topic for failed messages: it takes copies of the largest messages of topics with these
    settings.
    """
    largest = max(map(_record_bytes, sources), default=RECORD_BYTES_DEFAULT)
    return {SIZE: str(min(RECORD_BYTES_MAX, largest + HEADERS_BYTES_MAX))}


def takes(settings: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Return whether a topic with these settings takes messages as large as one with the wanted settings."""
    return _record_bytes(settings) >= _record_bytes(wanted)


def check_first(name: str, group: str, message: Message) -> None:
    """Check that the first record of a topic for failed messages is of the group. Raises InvalidConfig."""
    if group_of(message.headers) != group:
        raise InvalidConfig(
            f"topic {name!r} has records that group {group!r} did not put there, and its failed messages would go to a"
            " topic of this name: rename the group, or that topic"
        )


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern takes in a topic. The coordinator judges by RE2, whose patterns Python
    understands but for rare ones.
    """
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def _record_bytes(settings: Mapping[str, str]) -> int:
    given = settings.get(SIZE, "")
    return int(given) if given.isdigit() else RECORD_BYTES_DEFAULT
