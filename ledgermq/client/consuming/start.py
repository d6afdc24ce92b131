"""Check the start and end that a program gave to a consumer, and resolve them into one position
for each partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, cast

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.offsets import At
from ledgermq.durations import find_duration_ms
from ledgermq.errors import InvalidConfig, UnknownPartition
from ledgermq.protocol.limits import OFFSET_MAX

Position = int | Literal["earliest", "latest"] | datetime
Wanted = int | str | datetime | timedelta
"""A start as programs write it: an offset, "earliest", "latest", a time, or an age, like "15m" or
a timedelta.
"""
Start = str | datetime | timedelta | Mapping[int, int] | Mapping[tuple[str, int], int]

_PLACES = "an offset, 'earliest', 'latest', a datetime, a timedelta, or an age like '15m'"


def moment_before(now: datetime, age: timedelta) -> datetime:
    """Return the time of an age; one that reaches beyond the calendar means the beginning of time."""
    try:
        return now - age
    except OverflowError:
        return datetime.fromtimestamp(0, UTC)


def check_position(wanted: object, now: datetime) -> Position:
    """Return the position; an age becomes the time that long before `now`. Raises InvalidConfig."""
    if isinstance(wanted, bool):
        raise InvalidConfig(f"a position must be {_PLACES}, not a truth value")
    if isinstance(wanted, int):
        if not 0 <= wanted <= OFFSET_MAX:
            raise InvalidConfig(f"an offset must be from 0 to {OFFSET_MAX}, not {wanted}")
        return wanted
    if isinstance(wanted, datetime):
        if wanted.tzinfo is None:
            raise InvalidConfig(f"{wanted.isoformat()} has no time zone; use datetime(…, tzinfo=UTC)")
        return wanted
    if isinstance(wanted, timedelta) and wanted >= timedelta(0):
        return moment_before(now, wanted)
    if isinstance(wanted, str):
        if wanted in ("earliest", "latest"):
            return cast(Position, wanted)
        if (age_ms := find_duration_ms(wanted)) is not None:
            return moment_before(now, timedelta(milliseconds=age_ms))
    raise InvalidConfig(f"a position must be {_PLACES}, not {wanted!r}")


def check_start(
    start: object, topics: list[str], now: datetime, name: str = "start"
) -> Mapping[TopicPartition, int] | At:
    """Return the positions that `start` gives. Raises InvalidConfig, naming `name`."""
    if not isinstance(start, Mapping):
        if isinstance(start, int):
            raise InvalidConfig(
                f"{name}={start!r} means a different record in each partition; use {{partition: offset}}"
            )
        return cast(At, check_position(start, now))
    offsets: dict[TopicPartition, int] = {}
    for key, offset in start.items():
        position = check_position(offset, now)
        if not isinstance(position, int):
            raise InvalidConfig(f"{name} must map partitions to offsets, not to {offset!r}")
        offsets[_partition(key, topics, name)] = position
    return offsets


def check_known(
    start: Mapping[TopicPartition, int] | At, partitions: Collection[TopicPartition], name: str = "start"
) -> None:
    """Raise UnknownPartition if `start` names a partition that is not read."""
    unknown = [at for at in start if at not in partitions] if isinstance(start, Mapping) else []
    if unknown:
        of_topic = sorted(at.partition for at in partitions if at.topic == unknown[0].topic)
        raise UnknownPartition(
            f"{name} names partition {unknown[0].partition} of topic {unknown[0].topic!r}; this consumer reads"
            f" {_span(of_topic)}"
        )


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return "no partition of it"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"partitions {numbers[0]} to {numbers[-1]}"
    return f"partitions {', '.join(map(str, numbers))}"


def _partition(key: object, topics: list[str], name: str) -> TopicPartition:
    if isinstance(key, tuple) and len(key) == 2 and key[0] in topics and isinstance(key[1], int):
        return TopicPartition(*key)
    if isinstance(key, int) and not isinstance(key, bool) and len(topics) == 1:
        return TopicPartition(topics[0], key)
    raise InvalidConfig(
        f"{name} names {key!r}; a partition number is needed, or (topic, partition) with several topics"
    )


def wishes(
    start: Mapping[TopicPartition, int] | At, partitions: Iterable[TopicPartition], otherwise: At = "earliest"
) -> dict[TopicPartition, Position]:
    """Return by partition an offset, or the position to request from its owner.

    `otherwise`: for partitions that `start` does not name.
    """
    if isinstance(start, Mapping):
        return {partition: start.get(partition, otherwise) for partition in partitions}
    return dict.fromkeys(partitions, start)
