"""Commit offsets of groups with a transaction, without a member of the group.

    read what is committed ──> is it what the program has read from? ──> stage, under the epoch that was read

A program that keeps no member, such as one that reads over HTTP, commits its place together with what it has made of
the records. The group's coordinator judges the offsets when they are staged, as commits without a member: a group with
members refuses them, and an offset that was committed meanwhile fences them by its epoch and counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from ledgermq.client.connection.connections import Connections
from ledgermq.client.groups.assignment import check_group
from ledgermq.client.groups.membership.coordinator import Coordinator
from ledgermq.client.groups.membership.staged_offsets import stage_entries
from ledgermq.client.messages.descriptions import TopicPartition, check_topic_text
from ledgermq.errors import (
    CommitGoesBack,
    InvalidRequest,
    StaleAssignment,
    TransactionAborted,
    Unavailable,
)
from ledgermq.offset_stores.contract import GivenPartition, OffsetEntry
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import OFFSET_MAX
from ledgermq.protocol.status import error_from_proto

PARTITION_MAX = 2**31 - 1
OFFSETS_MAX = 1000
"""Largest number of offsets in one transaction without a member."""


class GroupOffset(NamedTuple):
    """An offset that is committed with a transaction. `offset`: the next one to read.

    `expect`: the committed offset from which the program has read, 0 if there was none. Then of two programs that have
    read the same records only one commits. None: whatever is committed, if it is not higher.
    """

    group: str
    topic: str
    partition: int
    offset: int
    expect: int | None = None


def checked_offsets(given: Sequence[GroupOffset]) -> list[GroupOffset]:
    """Return the offsets, sorted. Raises InvalidGroupName, InvalidTopicName, InvalidRequest."""
    if len(given) > OFFSETS_MAX:
        raise InvalidRequest(f"a transaction takes {OFFSETS_MAX} offsets of groups at most, not {len(given)}")
    for each in given:
        check_group(each.group)
        check_topic_text(each.topic)
        _check_number("partition", each.group, each.partition, PARTITION_MAX)
        _check_number("offset", each.group, each.offset, OFFSET_MAX)
        _check_number("expect", each.group, each.expect or 0, OFFSET_MAX)
    places = {(each.group, each.topic, each.partition) for each in given}
    if len(places) < len(given):
        raise InvalidRequest("the offsets name a partition of a group twice: give each once")
    return sorted(given, key=lambda each: each[:4])


def _check_number(what: str, group: str, number: object, most: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= most:
        raise InvalidRequest(f"the {what} of group {group!r} is a number from 0 to {most}, not {number!r:.100}")


class GroupEntries(NamedTuple):
    """Offsets of one group, as they can be staged."""

    coordinator: Coordinator
    entries: list[OffsetEntry]


async def read_groups(connections: Connections, offsets: Sequence[GroupOffset], deadline: float) -> list[GroupEntries]:
    """Return the offsets with the epochs and counters that are in force now. `offsets`: as `checked_offsets` returns
    them. This waits while another transaction has staged an offset of the same partition.

    Raises StaleAssignment if another offset is committed than is expected, CommitGoesBack, UnknownTopic,
    UnknownPartition, Unauthorized; Unavailable at the deadline.
    """
    found = []
    for group, some in groupby(offsets, attrgetter("group")):
        coordinator = Coordinator(connections, group)
        found.append(GroupEntries(coordinator, await _read(coordinator, list(some), deadline)))
    return found


async def _read(coordinator: Coordinator, offsets: Sequence[GroupOffset], deadline: float) -> list[OffsetEntry]:
    asked = [pb.TopicPartition(topic=each.topic, partition=each.partition) for each in offsets]
    request = pb.FetchCommittedRequest(group=coordinator.group, partitions=asked)
    backoff = coordinator.connections.backoff()
    while True:
        answer = await coordinator.ask(lambda at: at.fetch_committed(request), deadline)
        if len(answer.partitions) != len(offsets):
            raise Unavailable(
                f"the coordinator of group {coordinator.group!r} answered for {len(answer.partitions)} of"
                f" {len(offsets)} partitions"
            )
        errors = [error_from_proto(known.error) for known in answer.partitions if known.HasField("error")]
        for error in errors:
            if not error.retriable:
                raise error
        if not errors:
            return [_entry(each, known) for each, known in zip(offsets, answer.partitions, strict=True)]
        if not await backoff.pause(errors[0].retry_after_ms, deadline):
            raise errors[0]


def _entry(wanted: GroupOffset, known: pb.CommittedPartition) -> OffsetEntry:
    at = TopicPartition(wanted.topic, wanted.partition)
    committed = known.offset if known.HasField("offset") else 0
    if wanted.expect not in (None, committed):
        raise StaleAssignment(
            f"group {wanted.group!r} has committed offset {committed} of {at}, not {wanted.expect}: another program has"
            " read on from there; nothing was written, so read again from the committed offset"
        )
    if wanted.offset < committed:
        raise CommitGoesBack(
            f"group {wanted.group!r} has committed offset {committed} of {at}, and {wanted.offset} is before it:"
            " nothing was written"
        )
    return OffsetEntry(GivenPartition(at, known.topic_id, known.epoch), known.counter + 1, wanted.offset)


async def stage_groups(
    reference: pb.TransactionRef, read: Sequence[GroupEntries], deadline: float
) -> list[tuple[int, str]]:
    """Stage what `read_groups` returned, and return (bundle, group) of each group.

    Raises GroupNotEmpty, OffsetOutOfRange, TransactionFenced, …; TransactionAborted if another offset was committed
    since they were read; Unavailable at the deadline. After an error the transaction must abort.
    """
    staged = []
    for coordinator, entries in read:
        try:
            staged.append((await stage_entries(coordinator, "", reference, entries, deadline), coordinator.group))
        except (StaleAssignment, CommitGoesBack) as error:
            raise TransactionAborted(
                f"offsets of group {coordinator.group!r} have changed since they were read, so nothing was written:"
                f" repeat the call ({error.message})"
            ) from error
    return staged
