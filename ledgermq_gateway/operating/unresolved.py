"""Half messages whose producers never answered: list them, look at one, publish or drop them. The rules are those of
`client.unresolved`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ledgermq.client.operating.unresolved import UnresolvedMessage
from ledgermq.protocol.naming.unresolved import SUFFIX
from ledgermq_gateway.http.call import Answer, Call
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.records.bodies import decode
from ledgermq_gateway.records.forms import FORMS, record_json
from ledgermq_gateway.records.reading import READ_BYTES, RecordOut
from ledgermq_gateway.resources.parameters import choice, flag, whole

LISTED, LISTED_MAX = 100, 1_000


class CheckGroups(Struct, kw_only=True):
    """Check groups that have, or had, unresolved messages."""

    groups: list[str]


class Unresolved(Struct, kw_only=True):
    """`topic`, `partition`: what the message is meant for. `checks`: how often producers were asked. `offset`: of its
    first record in `<group>.unresolved`. `decision`: commit or rollback; null: it waits.
    """

    id: str
    topic: str
    partition: int
    checks: int
    offset: int
    size_bytes: int
    decision: str | None


class UnresolvedList(Struct, kw_only=True):
    """`left`: how many more there are; give the last id as `after`."""

    messages: list[Unresolved]
    left: int


class UnresolvedContents(Unresolved, kw_only=True):
    """A message with its records, as they lie in `<group>.unresolved`."""

    records: list[RecordOut]


Ids = Annotated[list[str], Meta(min_length=1, max_length=LISTED_MAX)]


class RollbackIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """`ids`: transactional ids of messages."""

    ids: Ids


class CommitIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """`unverified`: also what the coordinator of an id no longer knows; then only the message itself says what it was
    meant for.
    """

    ids: Ids
    unverified: bool = False


class Decided(Struct, kw_only=True):
    messages: list[Unresolved]


_commit_in = msgspec.json.Decoder(CommitIn)
_rollback_in = msgspec.json.Decoder(RollbackIn)


async def list_check_groups(call: Call) -> Answer:
    return Answer(msgspec.json.encode(CheckGroups(groups=await call.caller.client.unresolved.groups())))


async def list_unresolved(call: Call) -> Answer:
    """By id, because that order stays the same from page to page."""
    limit, after = whole(call.query, "limit", LISTED, 1, LISTED_MAX), call.query.get("after", "")
    decided = flag(call.query, "decided")
    with call.service.streams.one(call.caller.principal):
        found = await call.caller.client.unresolved.list(call.names["group"], decided=decided)
    rows = sorted((each for each in found if each.transactional_id > after), key=lambda each: each.transactional_id)
    shown = [Unresolved(**_row(each)) for each in rows[:limit]]
    return Answer(msgspec.json.encode(UnresolvedList(messages=shown, left=len(rows) - len(shown))))


async def get_unresolved(call: Call) -> Answer:
    group, name, form = call.names["group"], call.query["id"], choice(call.query, "values", FORMS)
    await _check_known(call, group, [name])
    call.share.take(READ_BYTES)
    with call.service.streams.one(call.caller.principal):
        found = await call.caller.client.unresolved.get(group, name)
    call.share.take(2 * found.bytes)
    records = [msgspec.Raw(record_json(message, form)) for message in found.messages]
    return Answer(msgspec.json.encode(_row(found) | {"records": records}))


async def commit(call: Call) -> Answer:
    given, group = decode(_commit_in, call.body), call.names["group"]
    await _check_known(call, group, given.ids)
    call.share.take(READ_BYTES)
    with call.service.streams.one(call.caller.principal):
        found = await call.caller.client.unresolved.commit(group, given.ids, unverified=given.unverified)
    return _decided(found)


async def rollback(call: Call) -> Answer:
    given, group = decode(_rollback_in, call.body), call.names["group"]
    await _check_known(call, group, given.ids)
    call.share.take(READ_BYTES)
    with call.service.streams.one(call.caller.principal):
        found = await call.caller.client.unresolved.rollback(group, given.ids)
    return _decided(found)


def _decided(found: list[UnresolvedMessage]) -> Answer:
    return Answer(msgspec.json.encode(Decided(messages=[Unresolved(**_row(each)) for each in found])))


async def _check_known(call: Call, group: str, names: list[str]) -> None:
    """Raise Problem (404) for an id that is not there; nothing was changed then."""
    with call.service.streams.one(call.caller.principal):
        known = {each.transactional_id for each in await call.caller.client.unresolved.list(group, decided=True)}
    if missing := sorted(set(names) - known):
        shown = ", ".join(name[:80] for name in missing[:5])
        raise Problem("NO_SUCH_MESSAGE", f"{group}{SUFFIX} has no unresolved message {shown}; nothing was done")


def _row(found: UnresolvedMessage) -> dict[str, Any]:
    return {
        "id": found.transactional_id,
        "topic": found.topic,
        "partition": found.partition,
        "checks": found.checks,
        "offset": found.offset,
        "size_bytes": found.bytes,
        "decision": found.decision,
    }
