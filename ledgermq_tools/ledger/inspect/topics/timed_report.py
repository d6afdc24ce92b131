"""Run `ledgermq inspect timers`: show the timed messages that wait in a root, and damage in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ledgermq.cli.output.report import Report, Rows
from ledgermq.sources import Sources
from ledgermq_broker.timed.stored.check import check_timers
from ledgermq_broker.timed.stored.view import BundleView, read_timers
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.open_root import cluster_of
from ledgermq_ledger.timestamps import from_us
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_tools.ledger.inspect.findings import Findings

BUNDLE_COLUMNS = ("bundle", "delivered_to", "intake_begin", "intake_end", "flushed", "ranges", "recalls")
RANGE_COLUMNS = ("bundle", "topic", "partition", "from", "to", "turning", "messages", "bytes", "begin", "end")
PIECE_COLUMNS = ("bundle", "end_offset", "moved_after")
RECALL_COLUMNS = ("bundle", "offset", "row", "due")
BLOCK_COLUMNS = (
    "bundle",
    "place",
    "offset",
    "slot",
    "topic",
    "partition",
    "messages",
    "first_due",
    "last_due",
    "floor",
)


async def timers_report(store: ObjectStore, sources: Sources, *, every: bool) -> Report:
    """Return the report. `every`: also list each recall, and each block in segments. Raises NoCluster and
    the store's errors; damage is a finding of the report.
    """
    findings, problems = Findings(), Problems()
    found, catalog = await read_timers(store, await cluster_of(store), sources, findings.collecting, blocks=every)
    check_timers(found, problems, sources.now_ms())
    findings.add_damage(problems)
    facts = {
        "messages_in_ranges": sum(each.records for one in found for each in one.state.ranges.values()),
        "bytes_in_ranges": sum(one.state.waiting_bytes for one in found),
        "recalls": sum(len(one.state.recalls) for one in found),
    }
    tables = [
        Rows("bundles", BUNDLE_COLUMNS, [_bundle(one) for one in found]),
        Rows("ranges", RANGE_COLUMNS, [row for one in found for row in _ranges(one)]),
        Rows("flushed", PIECE_COLUMNS, [row for one in found for row in _pieces(one)], if_any=True),
    ]
    if every:
        tables.append(Rows("recalled", RECALL_COLUMNS, [row for one in found for row in _recalls(one)], if_any=True))
        tables.append(Rows("blocks", BLOCK_COLUMNS, [row for one in found for row in _blocks(one, catalog)]))
    return Report(f"timed messages of {store.url}", facts, tables, findings.all)


def _bundle(one: BundleView) -> dict[str, Any]:
    return {
        "bundle": one.bundle,
        "delivered_to": from_us(one.state.watermark.due_us),
        "intake_begin": one.intake.begin_offset,
        "intake_end": one.intake.end,
        "flushed": one.state.flushed.end_offset,
        "ranges": len(one.state.ranges),
        "recalls": len(one.state.recalls),
    }


def _ranges(one: BundleView) -> Iterator[dict[str, Any]]:
    for hidden in one.hidden:
        if hidden.range_id is not None:
            found = one.state.ranges[hidden.range_id]
            yield {
                "bundle": one.bundle,
                "topic": hidden.name,
                "partition": hidden.place.partition,
                "from": from_us(found.from_us),
                "to": from_us(found.to_us),
                "turning": found.turning,
                "messages": found.records,
                "bytes": found.size_bytes,
                "begin": hidden.begin_offset,
                "end": hidden.end,
            }


def _pieces(one: BundleView) -> Iterator[dict[str, Any]]:
    for piece in one.state.flushed.pieces:
        yield {"bundle": one.bundle, "end_offset": piece.end_offset, "moved_after": from_us(piece.horizon_us)}


def _recalls(one: BundleView) -> Iterator[dict[str, Any]]:
    for message, recalled in sorted(one.state.recalls.items()):
        yield {"bundle": one.bundle, "offset": message.offset, "row": message.row, "due": from_us(recalled.due_us)}


def _blocks(one: BundleView, catalog: Catalog) -> Iterator[dict[str, Any]]:
    for hidden in one.hidden:
        for block in hidden.blocks:
            topic = catalog.topics_by_id.get(block.target.topic_id)
            yield {
                "bundle": one.bundle,
                "place": f"{hidden.name}/{hidden.place.partition}",
                "offset": block.offset,
                "slot": block.slot,
                "topic": None if topic is None else topic.name,
                "topic_id": block.target.topic_id,
                "partition": block.target.partition,
                "messages": block.messages,
                "first_due": from_us(block.first_due_us),
                "last_due": from_us(block.last_due_us),
                "floor": from_us(block.floor_us),
            }
