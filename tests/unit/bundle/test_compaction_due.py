"""When an owner asks the store whether something of its bundle is to be deleted or cleaned."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from ledgermq_broker.bundle.upkeep.compaction_due import (
    first_staged_slot,
    next_compaction_ms,
    wants_retention,
    wants_snapshot,
)
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.internal_topic import INTERNAL_SEGMENTS, INTERNAL_TARGET_BYTES
from ledgermq_ledger.parquet.compacting.plan import INTERNAL_LAG_MS
from ledgermq_ledger.parquet.compaction import NoStaleVersions
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic, encode_topic_record, topic_key
from ledgermq_ledger.view.fetch_index import FetchIndex

GONE = {"parquet_start": 9, "parquet_end": 9}


@pytest.mark.parametrize(
    ("settings", "altered", "counters", "settled", "expected"),
    [
        ({}, False, {"parquet_end": 9}, False, False),
        ({"retention.ms": "1"}, False, {"parquet_end": 9}, False, True),
        ({"retention.ms": "1"}, False, GONE, False, False),
        ({"cleanup.policy": "compact"}, False, GONE, False, True),
        ({}, True, GONE, False, True),
        ({}, True, {}, False, False),
        ({"retention.ms": "1"}, True, GONE | {"log_start": 9}, True, False),
        ({"retention.ms": "1"}, True, {"parquet_end": 9}, True, True),
        ({"cleanup.policy": "compact"}, True, GONE, True, True),
    ],
)
def test_what_may_have_to_go(
    settings: dict[str, str], altered: bool, counters: dict[str, int], settled: bool, expected: bool
) -> None:
    """A topic that was altered may have been keyed: versions hold what its log no longer does,
    unless it is known that they do not.
    """
    catalog = Catalog()
    catalog.apply(1, topic_key("t"), encode_topic_record(Topic(0, "t", (1,), settings), creation=True))
    if altered:
        catalog.apply(2, topic_key("t"), encode_topic_record(Topic(1, "t", (1,), settings)))
    checkpoint = fmt.Checkpoint(bundle=1, partitions=[fmt.PartitionCheckpoint(topic_id=1, partition=0, **counters)])
    known = NoStaleVersions()
    if settled:
        known.add(catalog.topics_by_id[1], 0)
    assert wants_retention(checkpoint, catalog, known) is expected
    known.forget_removed(Catalog())
    assert (catalog.topics_by_id[1], 0) not in known


@pytest.mark.parametrize(
    ("removed", "others_bytes", "due_at_once"),
    [("", 0, False), ("removed", 0, True), ("forgotten", 0, True), ("removed", 500, True), ("removed", 5000, False)],
)
def test_segments_of_removed_topics_go_at_once_where_little_has_to_be_written(
    removed: str, others_bytes: int, due_at_once: bool
) -> None:
    """The checkpoint that the owner knows is older than the removal.

    Others' records stand in the same segments, before the removed.
    """
    catalog = Catalog()
    catalog.apply(1, topic_key("other"), encode_topic_record(Topic(1, "other", (1,)), creation=True))
    catalog.apply(2, topic_key("gone"), encode_topic_record(Topic(2, "gone", (1,)), creation=True))
    if removed:
        catalog.apply(3, topic_key("gone"), encode_topic_record(replace(catalog.topics_by_id[2], removed=True)))
    if removed == "forgotten":
        catalog.apply(4, topic_key("gone"), None)
    index = FetchIndex(100, 1)
    batches = [fmt.BatchEntry(topic_id=2, record_count=1, length=1000)]
    if others_bytes:
        batches.insert(0, fmt.BatchEntry(topic_id=1, record_count=1, length=others_bytes))
    index.add(fmt.SegmentIndex(slot=2, created_ms=10**12, batches=batches))
    known = SimpleNamespace(
        index=index,
        checkpoint=fmt.Checkpoint(bundle=1, trim_slot=1),
        parked=[],
        counters={},
        is_partial=False,
        parquet_end=lambda key: 0,
    )
    assert (next_compaction_ms(known, catalog) == 0) is due_at_once  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("log_start", "due_ms"), [(0, None), (1, 10**12 + INTERNAL_LAG_MS), (600, 10**12 + INTERNAL_LAG_MS)]
)
def test_staged_batches_are_never_late_and_their_segments_go_once_the_log_start_has_passed_them(
    log_start: int, due_ms: int | None
) -> None:
    """Neither by number nor by size do they ask for a snapshot."""
    catalog = Catalog()
    staged = Topic(1, "__staged", (1,), {"internal.kind": "staged"})
    catalog.apply(1, topic_key(staged.name), encode_topic_record(staged, creation=True))
    index = FetchIndex(10_000, 1)
    for slot in range(1, INTERNAL_SEGMENTS + 2):
        entry = fmt.BatchEntry(topic_id=1, base_offset=slot - 1, record_count=1, length=INTERNAL_TARGET_BYTES)
        index.add(fmt.SegmentIndex(slot=slot, created_ms=10**12, batches=[entry]))
    known = SimpleNamespace(
        index=index,
        checkpoint=fmt.Checkpoint(bundle=1, trim_slot=1),
        parked=[],
        counters={},
        is_partial=False,
        parquet_end=lambda key: 0,
        log_start=lambda key, topic: log_start,
        durable_end=lambda key: INTERNAL_SEGMENTS + 1,
    )
    assert next_compaction_ms(known, catalog) == due_ms  # type: ignore[arg-type]
    assert not wants_snapshot(known, catalog)  # type: ignore[arg-type]
    key = PartitionId(1, 0)
    first = first_staged_slot(known, key, catalog.topics_by_id[1])  # type: ignore[arg-type]
    assert first == (log_start + 1 if log_start <= INTERNAL_SEGMENTS else None)
    index.drop_below(5)
    assert first_staged_slot(known, key, catalog.topics_by_id[1]) == (  # type: ignore[arg-type]
        1 if log_start < 4 else None
    ), "not known: what comes before the index may hold some"
