"""Names of the topics and headers in which a group keeps its failed messages, and the copies that
go there. Pure; the command line reads the same names.

A copy has the key, value, tag and headers of the original message, and the headers below. Each attempt
replaces them, so a copy does not grow. Its timestamp is the time of its last move, so that retention
counts from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ledgermq.client.consuming.message import Message, MessageHeaders
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.expiry import EXPIRES_MS, header_of
from ledgermq.client.messages.record import Outgoing
from ledgermq.errors import InvalidConfig
from ledgermq.protocol.limits import OFFSET_MAX
from ledgermq.protocol.naming.names import DEAD_LETTER_SUFFIX, NAME_CHARS_MAX, RETRY_SUFFIX

HEADER_PREFIX = "ledgermq.retry."
GROUP = HEADER_PREFIX + "group"
TOPIC = HEADER_PREFIX + "topic"
PARTITION = HEADER_PREFIX + "partition"
OFFSET = HEADER_PREFIX + "offset"
ATTEMPT = HEADER_PREFIX + "attempt"
"""Number of calls so far that failed."""
FIRST_MS = HEADER_PREFIX + "first-ms"
"""Time of the first failure, in milliseconds since the epoch."""
ERROR = HEADER_PREFIX + "error"
DUE_MS = HEADER_PREFIX + "due-ms"
"""Time of the next attempt, in milliseconds since the epoch; members hold the message until then."""
HEADERS = (GROUP, TOPIC, PARTITION, OFFSET, ATTEMPT, FIRST_MS, ERROR)

DEAD_EXPIRES_MS = HEADER_PREFIX + "expires-ms"
"""Of a dead letter: the time at which the message expired, or would have. Dead letters do not expire."""
EXPIRED = "expired"
"""The error of a message that was moved to the dead-letter topic because its time to live was over."""

TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999."""
ERROR_BYTES_MAX = 1024
"""Longest text of an error in a header, in UTF-8."""


class Origin(NamedTuple):
    """Where a message was first read."""

    topic: str
    partition: int
    offset: int

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.at}, offset {self.offset}"


class Failures(NamedTuple):
    """What the headers of a copy say. `attempts`: calls that failed so far. `first_ms`: time of the
    first failure. `error`: text of the latest.
    """

    group: str
    origin: Origin
    attempts: int
    first_ms: int
    error: str


def retry_topic(group: str) -> str:
    """Return the topic of the group's messages that wait for their next attempt. Raises InvalidConfig."""
    return _named(group, RETRY_SUFFIX)


def dead_letter_topic(group: str) -> str:
    """Return the topic of the group's messages that are not tried again. Raises InvalidConfig."""
    return _named(group, DEAD_LETTER_SUFFIX)


def _named(group: str, suffix: str) -> str:
    if len(group) + len(suffix) > NAME_CHARS_MAX:
        raise InvalidConfig(
            f"group {group!r} has {len(group)} characters, and topic {group + suffix!r} may have at most"
            f" {NAME_CHARS_MAX}: give the group a shorter name"
        )
    return group + suffix


def failures_of(headers: MessageHeaders) -> Failures | None:
    """Return what the headers say of earlier failures; None: it is no copy, or its headers are
    damaged.
    """
    found = {name: value for name, value in headers if name in HEADERS and value is not None}
    try:
        texts = {name: value.decode() for name, value in found.items()}
        origin = Origin(texts[TOPIC], _number(texts[PARTITION]), _number(texts[OFFSET], OFFSET_MAX))
        return Failures(texts[GROUP], origin, _number(texts[ATTEMPT]), _number(texts[FIRST_MS]), texts[ERROR])
    except (KeyError, ValueError):
        return None


def _number(text: str, largest: int = TIME_MS_MAX) -> int:
    """Raises ValueError, so that damaged headers stop no program that reads them."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(largest)) and int(text) <= largest):
        raise ValueError(text)
    return int(text)


def group_of(headers: MessageHeaders) -> str | None:
    """Return the group that a record of a retry or dead-letter topic belongs to; None: it names none."""
    found = dict(headers).get(GROUP)
    return None if found is None else found.decode(errors="replace")


def origin_of(message: Message) -> Origin:
    """Return where a message was first read: of a copy in a retry topic, the place of the original."""
    earlier = earlier_failures(message)
    return Origin(message.topic, message.partition, message.offset) if earlier is None else earlier.origin


def earlier_failures(message: Message) -> Failures | None:
    """Return what is known of a message's failures before this delivery. The headers count only in the
    retry topic of their group, because a program may send a dead letter to any other topic.
    """
    found = failures_of(message.headers) if message.topic.endswith(RETRY_SUFFIX) else None
    return found if found is not None and message.topic == found.group + RETRY_SUFFIX else None


def is_redriven(message: Message) -> bool:
    """Return whether a message in the retry topic of its group is a dead letter that is to be handled again."""
    earlier = earlier_failures(message)
    return earlier is not None and earlier.attempts == 0


def without_failures(headers: MessageHeaders) -> MessageHeaders:
    """Return the headers that the original message had."""
    return tuple(pair for pair in headers if not pair[0].startswith(HEADER_PREFIX))


def due_ms_of(message: Message) -> int | None:
    """Return when the next attempt of a message in a retry topic is due; None: at once."""
    due = dict(message.headers).get(DUE_MS) if message.topic.endswith(RETRY_SUFFIX) else None
    if due is None or earlier_failures(message) is None:
        return None
    try:
        return _number(due.decode())
    except ValueError:
        return None


def copy_of(
    message: Message,
    failures: Failures,
    topic: str,
    due_ms: int | None,
    error_bytes_max: int = ERROR_BYTES_MAX,
    expires_us: int | None = None,
) -> Outgoing:
    """Return the copy of a message to send to the retry or dead-letter topic. `expires_us`: when the message
    expires, which is noted even if only the settings of its topic say so.
    """
    message = message.stored
    due = () if due_ms is None else ((DUE_MS, str(due_ms).encode()),)
    expires: tuple[tuple[str, bytes], ...] = ()
    if expires_us is not None:
        name, value = header_of(expires_us)
        expires = ((DEAD_EXPIRES_MS if topic == dead_letter_topic(failures.group) else name, value),)
    own = tuple(pair for pair in without_failures(message.headers) if pair[0] != EXPIRES_MS)
    headers = (*own, *headers_of(failures, error_bytes_max), *due, *expires)
    return Outgoing(topic, message.value, message.key, headers, message.tag)


def headers_of(failures: Failures, error_bytes_max: int = ERROR_BYTES_MAX) -> Iterable[tuple[str, bytes]]:
    group, origin, attempts, first_ms, error = failures
    values = (group, origin.topic, origin.partition, origin.offset, attempts, first_ms, cut(error, error_bytes_max))
    return tuple((name, str(value).encode()) for name, value in zip(HEADERS, values, strict=True))


def cut(text: str, bytes_max: int) -> str:
    """Return the beginning of a text: at most so many bytes, and no broken character."""
    return text.encode(errors="backslashreplace")[:bytes_max].decode(errors="ignore")
