"""What a member subscribes to: names of topics, or a pattern that the coordinator matches against
the names of all user topics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ledgermq.client.descriptions import check_topic_text
from ledgermq.client.settings import GroupSettings
from ledgermq.errors import InvalidConfig, InvalidGroupName
from ledgermq.protocol import ledgermq_pb2 as pb

Topics = str | Iterable[str] | re.Pattern[str]
"""One name, several, or a pattern; text that begins with ^ is a pattern.

No topic has such a name.
"""

_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}


def check_group(group: object) -> str:
    """Only that it can be sent; what a good name is, coordinators know. Raises InvalidGroupName."""
    if not isinstance(group, str) or not group:
        raise InvalidGroupName(f"a group's name is text of one character or more, not {group!r}")
    try:
        group.encode()
    except UnicodeEncodeError as error:
        raise InvalidGroupName(f"a group's name is valid Unicode text: {error}") from error
    return group


def topics_of(topics: Topics) -> tuple[list[str], str]:
    """(names, pattern): one of them is empty. Raises InvalidConfig, InvalidTopicName."""
    if isinstance(topics, re.Pattern):
        return [], _re2(topics)
    if isinstance(topics, str):
        return ([], topics) if topics.startswith("^") else ([check_topic_text(topics)], "")
    names = [check_topic_text(name) for name in dict.fromkeys(topics)]
    if not names:
        raise InvalidConfig("a consumer needs the names of one topic or more, or a pattern")
    return names, ""


def _re2(pattern: re.Pattern[Any]) -> str:
    """The coordinator's syntax: RE2, which has no backward references and no look-around; it says
    so itself.
    """
    if not isinstance(pattern.pattern, str):
        raise InvalidConfig("a pattern for topics is text, not bytes")
    flags = re.RegexFlag(pattern.flags) & ~re.UNICODE
    letters = "".join(letter for flag, letter in _FLAGS.items() if flags & flag)
    if flags & ~(re.IGNORECASE | re.MULTILINE | re.DOTALL):
        raise InvalidConfig(f"a pattern for topics may have the flags IGNORECASE, MULTILINE and DOTALL, not {flags!r}")
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern


def subscription_of(names: list[str], pattern: str, settings: GroupSettings) -> pb.GroupSubscription:
    return pb.GroupSubscription(
        topics=names,
        topic_pattern=pattern,
        assignor=settings.assignor,
        instance_id=settings.instance_id,
        rack=settings.rack,
        client_id=settings.client_id,
        session_timeout_ms=round(settings.session_timeout_s * 1000),
        rebalance_timeout_ms=round(settings.max_poll_interval_s * 1000),
    )
