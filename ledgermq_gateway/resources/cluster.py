"""What brokers say of themselves, who is connected to them, and how far groups are behind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import Struct

from ledgermq_gateway.http.call import Answer, Call
from ledgermq_gateway.resources.parameters import whole

LIMIT, LIMIT_MAX = 100, 1_000
TABLES, TABLES_MAX = 50, 99
T = TypeVar("T")


class BrokerReport(Struct, kw_only=True):
    """`load`: bytes produced and fetched in a second. `settings`: in force, secrets as stars. `trouble`: why the
    broker has not answered; then only what others know of it is here.
    """

    id: str
    address: str
    alive: bool
    draining: bool
    version: str
    started: datetime | None
    bundles: list[int]
    load: int
    memory_bytes: int | None
    numbers: dict[str, float]
    settings: dict[str, str]
    trouble: str


class BrokerReports(Struct, kw_only=True):
    brokers: list[BrokerReport]


class Connection(Struct, kw_only=True):
    """`client`: name and version of the library, as it says itself. `produces`, `reads`: topics in its calls."""

    broker: str
    id: str
    address: str
    principal: str
    client_id: str
    client: str
    since: datetime
    last: datetime
    calls: int
    calls_now: int
    produces: list[str]
    reads: list[str]


class Connections(Struct, kw_only=True):
    connections: list[Connection]


class Lag(Struct, kw_only=True):
    """`records`: between the committed offsets and the ends of `partitions` partitions. `stuck_s`: for how many
    seconds a committed offset has not moved although there are records behind it.
    """

    group: str
    topic: str
    records: int
    partitions: int
    members: int
    stuck_s: int


class Lags(Struct, kw_only=True):
    """A page of lags, by group and topic. `after`: what to ask for next; null at the end."""

    lags: list[Lag]
    after: str | None


class TopicLoad(Struct, kw_only=True):
    """`load`: bytes produced and fetched in a second, each request counted as 64 KiB; topics below 1 KiB/s are left
    out.
    """

    topic: str
    load: int


class Loads(Struct, kw_only=True):
    topics: list[TopicLoad]


class TableSummary(Struct, kw_only=True):
    """The table of a topic, which other programs read. `version`: the newest one, null: there is none yet. `files`,
    `rows`, `size_bytes`: that it names. `missing`: offsets in Parquet files that it does not have yet, for `behind_s`
    seconds; `waits_for` says why. `held_bytes`: of files below log starts that stay because a version names them.
    `foreign_objects`: in its folder, that LedgerMQ did not put. `stopped`: partitions in which it stands still.
    `trouble`: why, or why the table cannot be described, and there are no numbers then.
    """

    topic: str
    format: str
    folder: str
    is_current: bool
    version: int | None
    changed: datetime | None
    files: int
    rows: int
    size_bytes: int
    missing: int
    behind_s: float
    waits_for: str
    held_bytes: int
    foreign_objects: int
    stopped: int
    trouble: str


class Tables(Struct, kw_only=True):
    """A page of tables, by topic. `after`: what to ask for next; null at the end."""

    tables: list[TableSummary]
    after: str | None


def _shown(found: Sequence[object], kind: type[T]) -> T:
    """Return what the SDK has found, as the answer names its fields."""
    return msgspec.convert(found, kind, from_attributes=True)


async def list_brokers(call: Call) -> Answer:
    found = await call.caller.client.describe_brokers()
    return Answer(msgspec.json.encode(BrokerReports(brokers=_shown(found, list[BrokerReport]))))


async def list_connections(call: Call) -> Answer:
    found = await call.caller.client.list_connections()
    return Answer(msgspec.json.encode(Connections(connections=_shown(found, list[Connection]))))


async def list_lags(call: Call) -> Answer:
    """A page has all topics of its groups. It is cut after brokers have left out what the caller may not see."""
    limit, query = whole(call.query, "limit", LIMIT, 1, LIMIT_MAX), call.query
    found = await call.caller.client.groups.lags(
        topic=query.get("topic", ""), group=query.get("group", ""), after=query.get("after", ""), limit=limit + 1
    )
    groups = list(dict.fromkeys(each.group for each in found))
    page = set(groups[:limit])
    lags = _shown([each for each in found if each.group in page], list[Lag])
    return Answer(msgspec.json.encode(Lags(lags=lags, after=groups[limit - 1] if len(groups) > limit else None)))


async def list_tables(call: Call) -> Answer:
    limit = whole(call.query, "limit", TABLES, 1, TABLES_MAX)
    found = await call.caller.client.tables.list(after=call.query.get("after", ""), limit=limit + 1)
    tables = _shown(found[:limit], list[TableSummary])
    return Answer(msgspec.json.encode(Tables(tables=tables, after=tables[-1].topic if len(found) > limit else None)))


async def list_loads(call: Call) -> Answer:
    by_topic: dict[str, int] = defaultdict(int)
    for bundle in await call.caller.client.describe_loads():
        for at, load in bundle.partitions.items():
            by_topic[at.topic] += load
    found = [TopicLoad(topic=topic, load=load) for topic, load in sorted(by_topic.items())]
    return Answer(msgspec.json.encode(Loads(topics=found)))
