"""When an owner asks the store whether something of its bundle is to be deleted or cleaned."""

from __future__ import annotations

import pytest

from ledger.catalog import Catalog, Topic, encode_topic_record, topic_key
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.keyed.settled import SettledPartitions
from stateless_broker.bundle.compaction_due import wants_retention

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
def test_what_may_have_to_go(settings: dict[str, str], altered: bool, counters: dict[str, int], settled: bool, expected: bool) -> None:
    """A topic that was altered may have been keyed: versions hold what its log no longer does, unless it is known that they do not."""
    catalog = Catalog()
    catalog.apply(1, topic_key("t"), encode_topic_record(Topic(0, "t", (1,), settings), creation=True))
    if altered:
        catalog.apply(2, topic_key("t"), encode_topic_record(Topic(1, "t", (1,), settings)))
    checkpoint = fmt.Checkpoint(bundle=1, partitions=[fmt.PartitionCheckpoint(topic_id=1, partition=0, **counters)])
    known = SettledPartitions()
    if settled:
        known.add(catalog.topics_by_id[1], 0)
    assert wants_retention(checkpoint, catalog, known) is expected
    known.forget_removed(Catalog())
    assert (catalog.topics_by_id[1], 0) not in known
