"""Plan a reset of committed offsets. Pure: takes bounds, committed offsets and a target, and
returns one planned change for each partition.

"earliest", "latest"    the first offset that is kept; the end: the backlog is skipped
datetime                the first record at or after it, forwards or backwards; the end when there is none
int                     this offset, which has to lie between the two
Shift(n)                n records on, or back when below 0, as far as there are any
Like(group)             the offsets that another group has committed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import InvalidConfig, InvalidRequest, OffsetOutOfRange


@dataclass(frozen=True, slots=True)
class Shift:
    records: int


@dataclass(frozen=True, slots=True)
class Like:
    group: str


Where = Literal["earliest", "latest"] | datetime | int | Shift | Like


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a partition when the reset was planned.

    `at_time`: the offset of the requested time.
    """

    topic_id: int
    log_start: int
    end: int
    at_time: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedReset:
    """`before` None: no offset was committed. `after`: the next offset to read."""

    partition: TopicPartition
    topic_id: int
    before: int | None
    after: int

    @property
    def records(self) -> int | None:
        """Return the number of records to skip; below 0 when the reset goes back."""
        return None if self.before is None else self.after - self.before


def check_where(where: object) -> Where:
    """Return `where` if it is valid. Raises InvalidConfig."""
    if isinstance(where, bool) or (
        not isinstance(where, int | datetime | Shift | Like) and where not in ("earliest", "latest")
    ):
        raise InvalidConfig(
            "the target of a reset must be 'earliest', 'latest', a datetime, an offset, Shift(n) or Like(group), not"
            f" {where!r}"
        )
    if isinstance(where, datetime) and where.tzinfo is None:
        raise InvalidConfig("a time needs a time zone; use datetime(…, tzinfo=UTC)")
    return where


def plan(
    where: Where,
    bounds: Mapping[TopicPartition, Bounds],
    committed: Mapping[TopicPartition, int],
    other: Mapping[TopicPartition, int],
) -> list[PlannedReset]:
    """Return the changes. `committed`: offsets of the group; `other`: offsets of the group in
    `Like`. Partitions for which the other group has no committed offset stay unchanged.

    Raises OffsetOutOfRange, naming the partition; InvalidRequest when there is no partition to
    reset.
    """
    planned = []
    for partition, bound in sorted(bounds.items()):
        after = _after(where, partition, bound, committed, other)
        if after is not None:
            planned.append(PlannedReset(partition, bound.topic_id, committed.get(partition), after))
    if not planned:
        raise InvalidRequest("no partition to reset: name a topic, or commit an offset first")
    return planned


def _after(
    where: Where,
    partition: TopicPartition,
    bound: Bounds,
    committed: Mapping[TopicPartition, int],
    other: Mapping[TopicPartition, int],
) -> int | None:
    if where == "earliest":
        return bound.log_start
    if where == "latest":
        return bound.end
    if isinstance(where, datetime):
        return bound.end if bound.at_time is None else bound.at_time
    if isinstance(where, Shift):
        before = committed.get(partition)
        return None if before is None else _within(before + where.records, bound)
    if isinstance(where, Like):
        found = other.get(partition)
        return None if found is None else _within(found, bound)
    assert isinstance(where, int)
    if not bound.log_start <= where <= bound.end:
        raise OffsetOutOfRange(
            f"{partition} holds offsets {bound.log_start} to {bound.end - 1}, so {where} is out of range"
        )
    return where


def _within(offset: int, bound: Bounds) -> int:
    return min(max(offset, bound.log_start), bound.end)
