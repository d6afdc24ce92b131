"""Ask brokers for the records of a topic whose values compaction could not decode, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ledgermq.client.connection.connections import Connections
from ledgermq.client.messages.descriptions import check_topic_text
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi

UNDECODED_MAX = 1000
SEARCHES_MAX = 20
"""Calls of one page."""


@dataclass(frozen=True, slots=True)
class UndecodedValue:
    """A record whose value compaction could not decode; the record itself is there, with its value as bytes. `error`:
    why, in 200 characters at most. `schema_id`: the schema that the value names; None: it names none.
    """

    partition: int
    offset: int
    error: str
    schema_id: int | None


@dataclass(frozen=True, slots=True)
class UndecodedValues:
    """A page of records whose values could not be decoded, by partition and offset. It may be empty, and others come
    behind it. `next`: for `after` of the next page; "": all that is compacted was looked at.
    """

    values: Sequence[UndecodedValue]
    next: str


async def find_undecoded(connections: Connections, topic: str, after: str, limit: int) -> UndecodedValues:
    """Return a page: see `TableAdmin.errors`."""
    check_topic_text(topic)
    if not 0 < limit <= UNDECODED_MAX:
        raise InvalidRequest(f"limit must be 1 to {UNDECODED_MAX}, not {limit}")
    topic_id, partition, offset = _place_behind(after)
    found = list[UndecodedValue]()
    deadline = connections.deadline()
    for _ in range(SEARCHES_MAX):
        request = pb.ListUndecodedRequest(
            topic=topic, topic_id=topic_id, partition=partition, offset=offset, limit=limit - len(found)
        )
        answer = await connections.ask(partial(_list_undecoded, request), deadline)
        topic_id, offset = answer.topic_id, answer.next_offset
        found += [
            UndecodedValue(partition, each.offset, each.error, each.schema_id if each.HasField("schema_id") else None)
            for each in answer.records
        ]
        if answer.at_end:
            partition, offset = partition + 1, 0
            if partition >= answer.partitions:
                return UndecodedValues(found, "")
        if len(found) >= limit:
            break
    return UndecodedValues(found, f"{topic_id}-{partition}-{offset}")


async def _list_undecoded(request: pb.ListUndecodedRequest, at: BrokerApi) -> pb.ListUndecodedResponse:
    return await at.list_undecoded(request)


def _place_behind(after: str) -> tuple[int, int, int]:
    """Return topic id, partition and offset of where a page begins. Raises InvalidRequest."""
    if not after:
        return 0, 0, 0
    parts = after.split("-")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise InvalidRequest(f"after must be the `next` of a page, like 7-0-120, not {after!r}")
    topic_id, partition, offset = map(int, parts)
    if not topic_id or partition >= 2**31 or offset >= 2**63:
        raise InvalidRequest(f"after must be the `next` of a page, like 7-0-120, not {after!r}")
    return topic_id, partition, offset
