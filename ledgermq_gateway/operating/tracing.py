"""Where a message went (`client.trace`): the groups that have read it, and its copies in the retry and dead-letter
topics of groups.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from ledgermq.client.messages.message_id import MessageId
from ledgermq.client.operating.tracing import MessageTrace
from ledgermq_gateway.http.call import Answer, Call
from ledgermq_gateway.records.forms import FORMS, record_json
from ledgermq_gateway.records.reading import READ_BYTES, RecordOut
from ledgermq_gateway.resources.parameters import choice, whole

TIMEOUT_MS, TIMEOUT_MS_MAX = 5_000, 20_000


class GroupReadOut(Struct, kw_only=True):
    """`state`: read, or not read. `committed`: the group's offset."""

    group: str
    state: str
    committed: int | None
    committed_ms: int | None


class QueueReadOut(Struct, kw_only=True):
    """`state`: finished, delivered (at least once, or messages behind it were), or not delivered."""

    group: str
    state: str
    start: int
    end: int


class CopyOut(Struct, kw_only=True):
    """`kind`: retry, or dead letter. `settled`: redriven, dropped, or null."""

    group: str
    kind: str
    id: str
    time: datetime | None
    attempts: int
    error: str
    settled: str | None


class Trace(Struct, kw_only=True):
    """`segment`, `parquet_file`: objects that hold the record, below the cluster's root. `unfinished`: what was not
    searched to its end, and why.
    """

    id: str
    record: RecordOut
    stored_at: datetime | None
    segment: str | None
    parquet_file: str | None
    groups: list[GroupReadOut]
    queues: list[QueueReadOut]
    copies: list[CopyOut]
    unfinished: list[str]


async def get_trace(call: Call) -> Answer:
    """206 where something was not searched to its end."""
    wanted, form = MessageId.parse(call.query["id"]), choice(call.query, "values", FORMS)
    timeout_s = whole(call.query, "timeout_ms", TIMEOUT_MS, 1, TIMEOUT_MS_MAX) / 1000
    call.share.take(READ_BYTES)
    with call.service.streams.one(call.caller.principal):
        found = await call.caller.client.trace(wanted, timeout=timeout_s)
    return Answer(msgspec.json.encode(_trace(found, form)), status=206 if found.unfinished else 200)


def _trace(found: MessageTrace, form: str) -> dict[str, Any]:
    message = found.message
    return {
        "id": str(message.id),
        "record": msgspec.Raw(record_json(message.message, form)),
        "stored_at": message.stored_at,
        "segment": message.segment,
        "parquet_file": message.parquet_file,
        "groups": [
            GroupReadOut(group=each.group, state=each.state, committed=each.committed, committed_ms=each.committed_ms)
            for each in found.groups
        ],
        "queues": [
            QueueReadOut(group=each.group, state=each.state, start=each.start, end=each.end) for each in found.queues
        ],
        "copies": [
            CopyOut(
                group=each.group,
                kind=each.kind,
                id=str(each.id),
                time=each.time,
                attempts=each.attempts,
                error=each.error,
                settled=each.settled,
            )
            for each in found.copies
        ],
        "unfinished": found.unfinished,
    }
