"""A member's subscription, and the changes that an answer of its group requires. Pure, except for
`begin_at`.

 * Topics: names, or a pattern that the coordinator matches against the names of all user topics.
 * Start rule: where a group begins in a partition for which it has committed nothing.
 * Reconciliation: which partitions to take in and which to let go when the assignment changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from ledgermq.client.consuming.start import check_position
from ledgermq.client.messages.descriptions import TopicPartition, check_topic_text
from ledgermq.client.offsets import At, Offsets
from ledgermq.client.settings.values import GroupSettings
from ledgermq.errors import InvalidConfig, InvalidGroupName, LedgerMQError
from ledgermq.filters.filter import filter_text
from ledgermq.offset_stores.contract import GivenPartition
from ledgermq.protocol import ledgermq_pb2 as pb

StartRule = Literal["earliest", "latest", "error"] | datetime
"""error: calls raise OffsetOutOfRange until the program seeks."""
GivenRule = str | datetime | timedelta
"""A start as programs write it: a rule, or an age."""


def check_rule(start: object, now: datetime) -> StartRule:
    """Return the rule; an age becomes the time that long before `now`. Raises InvalidConfig."""
    if start == "error":
        return "error"
    if isinstance(start, str | datetime | timedelta):
        position = check_position(start, now)
        assert not isinstance(position, int), "the rule is text or a time"
        return position
    raise InvalidConfig(f"start must be 'earliest', 'latest', a time, an age like '15m', or 'error', not {start!r}")


async def begin_at(
    rule: At, partitions: Iterable[TopicPartition], offsets: Offsets, deadline: float
) -> tuple[dict[TopicPartition, int], LedgerMQError | None]:
    """Return the offsets that were found, and an error if others were not.

    Topics are looked up one by one, so that a deleted topic does not delay the others.
    """
    found: dict[TopicPartition, int] = {}
    failure: LedgerMQError | None = None
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    for asked in by_topic.values():
        try:
            found |= await offsets.find(dict.fromkeys(asked, rule), deadline)
        except LedgerMQError as error:
            failure = error
    return found, failure


Topics = str | Iterable[str] | re.Pattern[str]
"""Topics of a subscription: one name, several, or a pattern. Text that begins with ^ is a pattern,
because no topic name does.
"""

_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}


def check_group(group: object) -> str:
    """Return the name if it can be sent; the coordinator checks the rest. Raises InvalidGroupName."""
    if not isinstance(group, str) or not group:
        raise InvalidGroupName(f"a group's name must be text of at least one character, not {group!r}")
    try:
        group.encode()
    except UnicodeEncodeError as error:
        raise InvalidGroupName(f"a group's name must be valid Unicode text: {error}") from error
    return group


def topics_of(topics: Topics) -> tuple[list[str], str]:
    """Return (names, pattern), one of which is empty. Raises InvalidConfig, InvalidTopicName."""
    if isinstance(topics, re.Pattern):
        return [], _re2(topics)
    if isinstance(topics, str):
        return ([], topics) if topics.startswith("^") else ([check_topic_text(topics)], "")
    names = [check_topic_text(name) for name in dict.fromkeys(topics)]
    if not names:
        raise InvalidConfig("a consumer needs at least one topic name, or a pattern")
    return names, ""


def _re2(pattern: re.Pattern[Any]) -> str:
    """Return the pattern in the coordinator's syntax, RE2.

    RE2 has no backward references and no look-around; the coordinator refuses them.
    """
    if not isinstance(pattern.pattern, str):
        raise InvalidConfig("a pattern for topics must be text, not bytes")
    flags = re.RegexFlag(pattern.flags) & ~re.UNICODE
    letters = "".join(letter for flag, letter in _FLAGS.items() if flags & flag)
    if flags & ~(re.IGNORECASE | re.MULTILINE | re.DOTALL):
        raise InvalidConfig(f"a pattern for topics may have the flags IGNORECASE, MULTILINE and DOTALL, not {flags!r}")
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription that a member sends to its group. Either `names` or `pattern` is empty."""

    group: str
    names: tuple[str, ...]
    pattern: str
    rule: StartRule

    def to_proto(self, settings: GroupSettings) -> pb.GroupSubscription:
        return pb.GroupSubscription(
            topics=self.names,
            topic_pattern=self.pattern,
            assignor=settings.assignor,
            instance_id=settings.instance_id,
            rack=settings.rack,
            client_id=settings.client_id,
            session_timeout_ms=round(settings.session_timeout_s * 1000),
            rebalance_timeout_ms=round(settings.max_poll_interval_s * 1000),
            filter=filter_text(settings.filter),
        )


def subscription_of(group: object, topics: Topics, rule: StartRule) -> Subscription:
    """Check and build a subscription. Raises InvalidGroupName, InvalidConfig, InvalidTopicName."""
    checked = check_group(group)
    names, pattern = topics_of(topics)
    return Subscription(checked, tuple(names), pattern, rule)


@dataclass(frozen=True, slots=True)
class Changes:
    """Differences between the partitions that a member holds and those that its group assigns.

    `gained`: partitions to load and read. `renewed`: partitions that are held under another epoch;
    the old holding ends, and a new one begins. `unwanted`: partitions to let go.
    """

    gained: tuple[GivenPartition, ...]
    renewed: tuple[GivenPartition, ...]
    unwanted: tuple[TopicPartition, ...]


def reconcile(held: Mapping[TopicPartition, GivenPartition], assigned: Iterable[GivenPartition]) -> Changes:
    """Return the changes that turn `held` into `assigned`.

    The epoch of a partition is the fencing token: if it differs from the epoch of the holding, the
    partition must be taken in again.
    """
    gained, renewed = [], []
    wanted = {given.partition: given for given in assigned}
    for partition, given in wanted.items():
        before = held.get(partition)
        if before is None:
            gained.append(given)
        elif before != given:
            renewed.append(given)
    return Changes(tuple(gained), tuple(renewed), tuple(partition for partition in held if partition not in wanted))


def given_from_proto(given: pb.GivenPartition) -> GivenPartition:
    return GivenPartition(TopicPartition(given.topic, given.partition), given.topic_id, given.epoch)


def given_to_proto(given: GivenPartition) -> pb.GivenPartition:
    topic, partition = given.partition
    return pb.GivenPartition(topic=topic, topic_id=given.topic_id, partition=partition, epoch=given.epoch)
