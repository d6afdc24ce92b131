"""Look records up by key or id, and list and recall delayed ones. Keys and ids are any bytes, so they are never part of
a path.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from ledgermq.client.delayed import RecallOutcome
from ledgermq.errors import SearchStopped
from ledgermq_gateway.http.call import Answer, Call
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.records.forms import FORMS, record_json
from ledgermq_gateway.records.reading import READ_BYTES, RecordOut, size_of
from ledgermq_gateway.resources.parameters import choice, position_of, text_bytes, whole

FOUND, FOUND_MAX = 100, 1_000
TIMEOUT_S = 20.0
LISTED_MAX = 1_000
_OUTCOMES = {
    RecallOutcome.RECALLED: "recalled",
    RecallOutcome.TOO_LATE: "too_late",
    RecallOutcome.FORGOTTEN: "forgotten",
}


class Rest(Struct, kw_only=True):
    """Offsets of a partition that were not searched: from `start` up to `end`, without it."""

    partition: int
    start: int
    end: int


class FoundRecords(Struct, kw_only=True):
    """`rest`: what is left to search; empty: everything was searched."""

    records: list[RecordOut]
    rest: list[Rest]


class DelayedRecord(Struct, kw_only=True):
    """A record that waits until it is due. `handle`: recalls it."""

    topic: str | None
    partition: int
    due: datetime
    size_bytes: int
    handle: str | None


class DelayedRecords(Struct, kw_only=True):
    """`left`: how many more are at hand. `unanswered`: bundles that do not answer."""

    records: list[DelayedRecord]
    left: int
    unanswered: list[int]


class Recalled(Struct, kw_only=True):
    """`recalled`: it is never delivered; `too_late`: it is; `forgotten`: nothing is known any more."""

    outcome: str


async def find(call: Call) -> Answer:
    """206 where the search has stopped before its end, or the answer is as large as a page may be."""
    key = text_bytes(call.query, "key")
    if key is None:
        raise Problem("INVALID_REQUEST", "give key, or key_base64")
    now_us = call.service.sources.now_us()
    start, end = (_place(call, name, default, now_us) for name, default in (("from", "earliest"), ("to", "latest")))
    search = call.caller.client.find(
        call.names["topic"],
        key=key,
        start=start,
        end=end,
        max=whole(call.query, "limit", FOUND, 1, FOUND_MAX),
        order="oldest" if choice(call.query, "order", ("newest", "oldest")) == "oldest" else "newest",
        timeout=TIMEOUT_S,
    )
    call.share.take(READ_BYTES)
    with call.service.streams.one(call.caller.principal):
        try:
            messages = await search._some(call.service.settings.page_bytes_max)
            rest = search.rest
        except SearchStopped as error:
            messages, rest = list(error.found), error.rest
    call.share.take(2 * sum(map(size_of, messages)))
    form = choice(call.query, "values", FORMS)
    left = [
        Rest(partition=partition, start=rest["start"][partition], end=rest["end"][partition])
        for partition in rest["partitions"]
    ]
    lines = b",".join(record_json(message, form) for message in messages)
    body = b'{"records":[%s],"rest":%s}' % (lines, msgspec.json.encode(left))
    return Answer(body, status=206 if left else 200)


def _place(call: Call, name: str, default: str, now_us: int) -> Any:
    found = position_of(name, call.query.get(name, default), now_us)
    if isinstance(found, int):
        raise Problem("INVALID_REQUEST", f"the parameter {name} is earliest, latest, a time or an age")
    return found


async def list_delayed(call: Call) -> Answer:
    partition = whole(call.query, "partition", 0, 0, 2**31 - 1) if "partition" in call.query else None
    found = await call.caller.client.list_delayed(
        call.query.get("topic"), partition, messages_max=whole(call.query, "limit", FOUND, 1, LISTED_MAX)
    )
    records = [
        DelayedRecord(
            topic=each.topic, partition=each.partition, due=each.due, size_bytes=each.size_bytes, handle=each.handle
        )
        for each in found.messages
    ]
    listed = DelayedRecords(records=records, left=found.left, unanswered=sorted(found.unanswered))
    return Answer(msgspec.json.encode(listed))


async def recall(call: Call) -> Answer:
    outcome = await call.caller.client.recall(call.names["handle"])
    return Answer(msgspec.json.encode(Recalled(outcome=_OUTCOMES[outcome])))
