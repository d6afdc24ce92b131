"""Who joins a plan, up to where, what it names and what it lets be trimmed: decisions by values
alone.
"""

from __future__ import annotations

import pytest

from ledgermq.errors import Unavailable
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.parquet.compacting.plan import needs_newer_catalog
from ledgermq_ledger.topics.topic import removed
from tests.unit.parquet.planned_ledgers import Ledger, catalog_of, ranges, topic


def test_a_partition_joins_at_its_target_size_and_the_others_wait() -> None:
    ledger = Ledger().segment((1, 0, 2), (1, 1, 1)).segment((1, 0, 3)).segment((1, 0, 1))
    plan = ledger.plan(catalog_of(topic(1, parquet_target_bytes="1024")))
    assert plan is None
    for _ in range(8):
        ledger.segment((1, 0, 1))
    plan = ledger.plan(catalog_of(topic(1, parquet_target_bytes="1024")))
    assert ranges(plan) == [(1, 0, 0, 13)]
    assert plan is not None
    assert plan.trim_slot == 1, "partition 1 still needs slot 1"
    assert [slot.slot for slot in plan.slots] == list(range(1, 12))
    assert [slot.tail_length for slot in plan.slots] == list(range(51, 62))
    assert plan.files[0].key == "parquet/topic=t1/partition=0/00000000000000000000-00000000000000000013-1-1.parquet"


def test_a_partition_joins_when_its_oldest_record_lags() -> None:
    ledger = Ledger().segment((1, 0, 2)).segment((2, 0, 1)).segment((1, 0, 1))
    catalog = catalog_of(topic(1, parquet_max_lag_ms="120000"), topic(2, parquet_max_lag_ms="120000"))
    plan = ledger.plan(catalog)
    assert ranges(plan) == [(1, 0, 0, 2)], "two minutes old, with what came later; topic 2 is one minute old"
    assert plan is not None
    assert plan.trim_slot == 2


def test_a_file_is_capped_at_the_target_size_and_the_rest_follows_from_older_slots() -> None:
    ledger = Ledger()
    for _ in range(5):
        ledger.segment((1, 0, 10), bytes_each=600)
    catalog = catalog_of(topic(1, parquet_target_bytes="1024"))
    plan = ledger.plan(catalog)
    assert ranges(plan) == [(1, 0, 0, 19)]
    assert plan is not None
    assert (plan.files[0].first_slot_after, plan.trim_slot, list(plan.files[0].slots)) == (3, 3, [1, 2])
    ledger.checkpoint.MergeFrom(fmt.Checkpoint(finished_plan=1, planned_slot=5, trim_slot=3, number=1))
    ledger.part(1, parquet_end=20, newest_page=1)
    plan = ledger.segment((1, 0, 1), bytes_each=600).plan(catalog)
    assert ranges(plan) == [(1, 0, 20, 39)]
    assert plan is not None
    assert [slot.slot for slot in plan.lagging] == [3, 4]
    assert [slot.slot for slot in plan.slots] == [6]
    assert plan.number == 2


def test_by_hand_everything_joins() -> None:
    ledger = Ledger().segment(kind=fmt.CLAIM).segment((1, 0, 1), (1, 2, 1)).segment((2, 1, 1)).segment(kind=fmt.RELEASE)
    plan = ledger.plan(catalog_of(topic(1), topic(2)), everything=True)
    assert ranges(plan) == [(1, 0, 0, 0), (1, 2, 0, 0), (2, 1, 0, 0)]
    assert plan is not None
    assert [(slot.slot, slot.kind) for slot in plan.slots] == [(2, fmt.DATA), (3, fmt.DATA), (4, fmt.RELEASE)], (
        "claims are never named"
    )
    assert plan.trim_slot == 5
    assert ledger.plan(catalog_of(topic(1), topic(2))) is None


def test_nothing_but_claims_and_releases_is_no_reason_for_a_plan() -> None:
    ledger = Ledger().segment(kind=fmt.CLAIM).segment(kind=fmt.RELEASE)
    assert ledger.plan(catalog_of(), everything=True) is None
    barrier = ledger.plan(catalog_of(), barrier=True)
    assert barrier is not None
    assert (len(barrier.files), barrier.trim_slot) == (0, 3)


def test_a_parked_partition_is_left_out_and_holds_the_trim() -> None:
    ledger = Ledger().segment((1, 0, 1), (1, 1, 1)).segment((1, 0, 1)).segment((1, 0, 1), (1, 1, 1))
    ledger.part(1, 1).parked.CopyFrom(fmt.Parked(plan=1, first_slot=1))
    plan = ledger.plan(catalog_of(topic(1)), everything=True)
    assert ranges(plan) == [(1, 0, 0, 2)]
    assert plan is not None
    assert plan.trim_slot == 1


def test_a_topic_that_the_checkpoint_names_as_removed_is_left_out() -> None:
    ledger = Ledger().segment((1, 0, 1), (2, 0, 1)).segment((2, 0, 1))
    ledger.checkpoint.metadata_offset = 50
    ledger.checkpoint.removed_topics.add(topic_id=2)
    for catalog in (catalog_of(topic(1), removed(topic(2))), catalog_of(topic(1))):
        plan = ledger.plan(catalog, everything=True)
        assert ranges(plan) == [(1, 0, 0, 0)]
        assert plan is not None
        assert plan.trim_slot == 3


def test_a_removed_topic_that_the_checkpoint_does_not_name_yet_waits() -> None:
    ledger = Ledger().segment((1, 0, 1), (2, 0, 1)).segment((1, 0, 1))
    plan = ledger.plan(catalog_of(topic(1), removed(topic(2))), everything=True)
    assert ranges(plan) == [(1, 0, 0, 1)]
    assert plan is not None
    assert plan.trim_slot == 1, "its records are kept until the fact is named"


def test_a_topic_that_the_catalog_does_not_know_yet_waits_and_asks_for_a_newer_catalog() -> None:
    ledger = Ledger().segment((1, 0, 1), (200, 0, 1)).segment((1, 0, 1))
    catalog = catalog_of(topic(1))
    assert needs_newer_catalog(ledger.history(), catalog)
    plan = ledger.plan(catalog, everything=True)
    assert ranges(plan) == [(1, 0, 0, 1)]
    assert plan is not None
    assert plan.trim_slot == 1


def test_a_topic_that_is_gone_from_the_catalog_counts_as_removed_only_below_the_checkpoints_view() -> None:
    ledger = Ledger().segment((2, 0, 1)).segment((1, 0, 1))
    plan = ledger.plan(catalog_of(topic(1)), everything=True)
    assert plan is not None
    assert plan.trim_slot == 1
    ledger.checkpoint.metadata_offset = 3
    plan = ledger.plan(catalog_of(topic(1)), everything=True)
    assert plan is not None
    assert plan.trim_slot == 3


def test_an_older_catalog_than_the_checkpoints_is_refused() -> None:
    ledger = Ledger().segment((1, 0, 1))
    ledger.checkpoint.metadata_offset = 101
    assert needs_newer_catalog(ledger.history(), catalog_of(topic(1)))
    with pytest.raises(Unavailable, match="older"):
        ledger.plan(catalog_of(topic(1)), everything=True)


def test_records_below_the_log_start_are_left_out_only_where_no_parquet_file_is_left() -> None:
    catalog = catalog_of(topic(1))
    ledger = Ledger().segment((1, 0, 10)).segment((1, 0, 10))
    counters = ledger.part(1, log_start=12)
    assert ranges(ledger.plan(catalog, everything=True)) == [(1, 0, 12, 19)]
    counters.log_start = 10
    plan = ledger.plan(catalog, everything=True)
    assert ranges(plan) == [(1, 0, 10, 19)]
    assert plan is not None
    assert list(plan.files[0].slots) == [2]
    counters.log_start = 25
    plan = ledger.plan(catalog, everything=True)
    assert plan is not None
    assert [(f.key, f.first_offset, f.last_offset) for f in plan.files] == [("", 0, 19)], (
        "no file: all of it is dropped"
    )
    assert plan.trim_slot == 3

    ledger = Ledger().segment((1, 0, 10)).segment((1, 0, 10))
    ledger.part(1, log_start=12, parquet_end=5, newest_page=1)
    assert ranges(ledger.plan(catalog, everything=True)) == [(1, 0, 5, 19)], "a gap behind a file would be seen"


def test_a_partition_that_has_left_joins_at_once_and_is_frozen_then() -> None:
    ledger = Ledger().segment((1, 1, 1)).segment((1, 0, 1)).segment((1, 1, 1))
    ledger.moves = [fmt.PartitionSeal(topic_id=1, move=21, end=1)]
    plan = ledger.plan(catalog_of(topic(1)))
    assert ranges(plan) == [(1, 0, 0, 0)]
    assert plan is not None
    assert not plan.freezes
    ledger.part(1, 0, parquet_end=1, newest_page=1)
    plan = ledger.plan(catalog_of(topic(1)))
    assert plan is not None
    assert list(plan.freezes) == [fmt.PlannedFreeze(topic_id=1, partition=0, move=21)]
    ledger.checkpoint.partitions[0].frozen = 21
    assert ledger.plan(catalog_of(topic(1))) is None


def test_a_partition_that_came_waits_for_its_files_and_holds_the_trim() -> None:
    ledger = Ledger().segment((1, 1, 1)).segment((1, 0, 1)).segment((1, 1, 1))
    ledger.moves = [fmt.PartitionOpen(topic_id=1, move=21)]
    plan = ledger.plan(catalog_of(topic(1)), everything=True)
    assert ranges(plan) == [(1, 1, 0, 1)]
    assert plan is not None
    assert plan.trim_slot == 2
    ledger.checkpoint.removed_topics.add(topic_id=1)
    plan = ledger.plan(catalog_of(), everything=True)
    assert plan is not None
    assert plan.trim_slot == 4, "a removed topic holds nothing"
