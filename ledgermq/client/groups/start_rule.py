"""Where a group begins in a partition for which it has committed nothing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

from ledgermq.client.consuming.start import check_position
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.offsets import At, Offsets
from ledgermq.errors import InvalidConfig, LedgerMQError

StartRule = Literal["earliest", "latest", "error"] | datetime
"""error: the program is told (OffsetOutOfRange) and seeks."""
GivenRule = str | datetime | timedelta
"""As a program says it: a rule, or an age."""


def check_rule(start: object, now: datetime) -> StartRule:
    """An age becomes the moment so long before `now`. Raises InvalidConfig."""
    if start == "error":
        return "error"
    if isinstance(start, str | datetime | timedelta):
        position = check_position(start, now)
        assert not isinstance(position, int), "it is text or a moment"
        return position
    raise InvalidConfig(
        f"a group starts at 'earliest', 'latest', a time, an age as '15m', or with 'error', not at {start!r}"
    )


async def begin_at(
    rule: At, partitions: Iterable[TopicPartition], offsets: Offsets, deadline: float
) -> tuple[dict[TopicPartition, int], LedgerMQError | None]:
    """The offsets that could be told, and why others could not: a topic that goes away does not
    hold up the others.
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
