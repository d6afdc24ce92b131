"""Run `ledgermq inspect queues`: show the queue groups of a root, and damage in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ledgermq.cli.output.report import Report, Rows
from ledgermq.protocol.naming.names import DEAD_LETTER_SUFFIX
from ledgermq.sources import Sources
from ledgermq_broker.queues.state.records import Fate
from ledgermq_broker.queues.stored.check import check_shares
from ledgermq_broker.queues.stored.view import BundleView, read_shares
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.open_root import cluster_of
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_tools.ledger.inspect.findings import Findings

GROUP_COLUMNS = ("group", "topics", "partitions", "unfinished", "delivered", "dead_letters")
PARTITION_COLUMNS = (
    "group",
    "topic",
    "partition",
    "bundle",
    "start",
    "end",
    "log_end",
    "unfinished",
    "delivered",
    "accepted",
    "rejected",
    "gone",
    "deliveries_max",
)
MESSAGE_COLUMNS = ("group", "topic", "partition", "first", "last", "fate", "deliveries")


async def shares_report(store: ObjectStore, sources: Sources, *, every: bool) -> Report:
    """Return the report. `every`: also list what is known of messages behind the first that is not finished.
    Raises NoCluster and the store's errors; damage is a finding of the report.
    """
    findings, problems = Findings(), Problems()
    found, catalog = await read_shares(store, await cluster_of(store), sources, findings.collecting)
    check_shares(found, catalog, problems)
    findings.add_damage(problems)
    partitions = sorted(
        (row for one in found for row in _partitions(one, catalog)),
        key=lambda row: (row["group"], str(row["topic"]), row["partition"]),
    )
    groups = [_group(name, partitions, found, catalog) for name in sorted({row["group"] for row in partitions})]
    facts = {
        "groups": len(groups),
        "unfinished": sum(row["unfinished"] for row in partitions),
        "dead_letters": sum(row["dead_letters"] for row in groups),
    }
    tables = [Rows("groups", GROUP_COLUMNS, groups), Rows("partitions", PARTITION_COLUMNS, partitions)]
    if every:
        messages = [row for one in found for row in _messages(one, catalog)]
        tables.append(Rows("messages", MESSAGE_COLUMNS, messages))
    return Report(f"queues of {store.url}", facts, tables, findings.all)


def _group(
    name: str, partitions: Sequence[dict[str, Any]], found: Sequence[BundleView], catalog: Catalog
) -> dict[str, Any]:
    rows = [row for row in partitions if row["group"] == name]
    return {
        "group": name,
        "topics": sorted({row["topic"] for row in rows if row["topic"] is not None}),
        "partitions": len(rows),
        "unfinished": sum(row["unfinished"] for row in rows),
        "delivered": sum(row["delivered"] for row in rows),
        "dead_letters": _records(name + DEAD_LETTER_SUFFIX, found, catalog),
    }


def _records(topic_name: str, found: Sequence[BundleView], catalog: Catalog) -> int:
    """Return how many records a topic holds in the bundles that could be read; 0 if there is none.

    A partition that moves is in two: the new one has its end, and the one that lists its files its log start.
    """
    topic = catalog.topics_by_name.get(topic_name)
    places = [PartitionId(topic.id, number) for number in range(topic.partitions)] if topic is not None else []
    return sum(
        max((one.ends.get(place, 0) for one in found), default=0)
        - max((one.log_starts.get(place, 0) for one in found), default=0)
        for place in places
    )


def _partitions(one: BundleView, catalog: Catalog) -> Iterator[dict[str, Any]]:
    for key, state in one.state.partitions.items():
        topic = catalog.topics_by_id.get(key.topic_id)
        known = list(state.known())
        counts = {fate: sum(each.last - each.first + 1 for each in known if each.fate is fate) for fate in Fate}
        log_end = one.ends.get(PartitionId(key.topic_id, key.partition), 0)
        yield {
            "group": key.group,
            "topic": None if topic is None else topic.name,
            "topic_id": key.topic_id,
            "partition": key.partition,
            "bundle": one.bundle,
            "start": state.start,
            "end": state.end,
            "log_end": log_end,
            "unfinished": max(0, log_end - state.end) + counts[Fate.OPEN],
            "delivered": sum(
                each.last - each.first + 1 for each in known if each.fate is Fate.OPEN and each.deliveries
            ),
            "accepted": counts[Fate.ACCEPTED],
            "rejected": counts[Fate.REJECTED],
            "gone": counts[Fate.GONE],
            "deliveries_max": max((each.deliveries for each in known), default=0),
        }


def _messages(one: BundleView, catalog: Catalog) -> Iterator[dict[str, Any]]:
    for key, state in sorted(one.state.partitions.items()):
        topic = catalog.topics_by_id.get(key.topic_id)
        for known in state.known():
            yield {
                "group": key.group,
                "topic": None if topic is None else topic.name,
                "partition": key.partition,
                "first": known.first,
                "last": known.last,
                "fate": known.fate.name.lower(),
                "deliveries": known.deliveries,
            }
