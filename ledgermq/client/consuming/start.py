"""Where a consumer begins: what the program said, turned into one wish for each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, cast

from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.offsets import At
from ledgermq.errors import InvalidConfig

OFFSET_MAX = 2**63 - 1

Position = int | Literal["earliest", "latest"] | datetime
Start = Literal["earliest", "latest"] | datetime | Mapping[int, int] | Mapping[tuple[str, int], int]


def check_position(wanted: object) -> Position:
    """Raises InvalidConfig."""
    if isinstance(wanted, bool):
        raise InvalidConfig("a position is an offset, 'earliest', 'latest' or a datetime, not a truth value")
    if isinstance(wanted, int):
        if not 0 <= wanted <= OFFSET_MAX:
            raise InvalidConfig(f"an offset is from 0 to {OFFSET_MAX}, not {wanted}")
        return wanted
    if isinstance(wanted, datetime):
        if wanted.tzinfo is None:
            raise InvalidConfig(f"{wanted.isoformat()} has no time zone; use datetime(…, tzinfo=UTC)")
        return wanted
    if wanted in ("earliest", "latest"):
        return wanted
    raise InvalidConfig(f"a position is an offset, 'earliest', 'latest' or a datetime, not {wanted!r}")


def check_start(start: object, topics: list[str]) -> Mapping[TopicPartition, int] | At:
    """Raises InvalidConfig."""
    if not isinstance(start, Mapping):
        if isinstance(start, int):
            raise InvalidConfig("start is 'earliest', 'latest', a datetime or {partition: offset}")
        return cast(At, check_position(start))
    offsets: dict[TopicPartition, int] = {}
    for key, offset in start.items():
        position = check_position(offset)
        if not isinstance(position, int):
            raise InvalidConfig(f"start maps partitions to offsets, not to {offset!r}")
        offsets[_partition(key, topics)] = position
    return offsets


def _partition(key: object, topics: list[str]) -> TopicPartition:
    if isinstance(key, tuple) and len(key) == 2 and key[0] in topics and isinstance(key[1], int):
        return TopicPartition(*key)
    if isinstance(key, int) and not isinstance(key, bool) and len(topics) == 1:
        return TopicPartition(topics[0], key)
    raise InvalidConfig(f"start names {key!r}; a partition number is needed, or (topic, partition) with several topics")


def wishes(start: Mapping[TopicPartition, int] | At, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
    """By partition: an offset, or what to ask the brokers for."""
    if isinstance(start, Mapping):
        return {partition: start.get(partition, "earliest") for partition in partitions}
    return dict.fromkeys(partitions, start)
