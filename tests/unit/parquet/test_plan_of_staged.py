"""What plans do with internal topics, and with staged batches of transactions."""

from __future__ import annotations

import pytest

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.internal_topic import INTERNAL_SEGMENTS, INTERNAL_TARGET_BYTES, SNAPSHOT_BYTES_PER_SEGMENT
from ledgermq_ledger.parquet.compacting.plan import INTERNAL_LAG_MS
from ledgermq_ledger.topics.topic import removed
from tests.unit.parquet.planned_ledgers import STAGED, Ledger, catalog_of, ranges, topic


def test_internal_topics_join_every_plan_and_make_one_when_they_are_large_or_old() -> None:
    offsets = topic(3, "__consumer_offsets")
    ledger = Ledger().segment((1, 0, 1), (3, 2, 4)).segment((3, 2, 1))
    catalog = catalog_of(topic(1, parquet_max_lag_ms="0"), offsets)
    plan = ledger.plan(catalog)
    assert plan is not None
    assert [(p.topic_id, p.partition, p.end, list(p.slots)) for p in plan.internal] == [(3, 2, 5, [1, 2])]
    assert plan.trim_slot == 3
    assert ranges(plan) == [(1, 0, 0, 0)], "never to Parquet"

    ledger = Ledger().segment((3, 2, 4))
    assert ledger.plan(catalog) is None
    assert ledger.segment((3, 2, 4), bytes_each=INTERNAL_TARGET_BYTES).plan(catalog) is not None
    ledger = Ledger().segment((3, 2, 4))
    for _ in range(INTERNAL_LAG_MS // 60_000):
        assert ledger.plan(catalog) is None
        ledger.segment(kind=fmt.CLAIM)
    assert ledger.plan(catalog) is not None


def test_many_small_segments_of_internal_topics_make_a_plan_of_these_alone() -> None:
    ledger, catalog = Ledger().segment((1, 0, 5)), catalog_of(topic(1), topic(3, "__internal"))
    for _ in range(INTERNAL_SEGMENTS - 1):
        ledger.segment((3, 0, 1), (3, 1, 1), bytes_each=1)
    assert ledger.plan(catalog, only_internal=True) is None, "two partitions in one segment are one GET"
    ledger.segment((1, 0, 1)).segment((3, 1, 1))
    plan = ledger.plan(catalog, only_internal=True)
    assert plan is not None
    assert (list(plan.files), plan.trim_slot, plan.last_slot) == ([], 1, INTERNAL_SEGMENTS + 2), (
        "topic 1 is left to other plans, untrimmed"
    )
    assert [(part.partition, part.end) for part in plan.internal] == [
        (0, INTERNAL_SEGMENTS - 1),
        (1, INTERNAL_SEGMENTS),
    ]
    ledger.checkpoint.snapshot_bytes = 3 * SNAPSHOT_BYTES_PER_SEGMENT
    assert ledger.plan(catalog, only_internal=True) is None, "a large snapshot is worth a longer tail"
    ledger.segment((3, 0, 1)).segment((3, 0, 1)).segment((3, 0, 1))
    assert ledger.plan(catalog, only_internal=True) is not None


def test_a_plan_of_internal_topics_alone_goes_on_where_the_last_plan_ended_and_user_topics_stay_readable() -> None:
    ledger, catalog = (
        Ledger().segment((1, 0, 5)),
        catalog_of(topic(1, parquet_target_bytes="1024"), topic(3, "__internal")),
    )
    for _ in range(INTERNAL_SEGMENTS):
        ledger.segment((3, 0, 1), bytes_each=1)
    assert ledger.plan(catalog, only_internal=True) is not None
    ledger.checkpoint.MergeFrom(fmt.Checkpoint(finished_plan=1, planned_slot=ledger.slot, snapshot_plan=1, number=1))
    ledger.part(3, parquet_end=INTERNAL_SEGMENTS)
    ledger.segment((1, 0, 5), bytes_each=2000).segment((3, 0, 1), bytes_each=INTERNAL_TARGET_BYTES)
    alone = ledger.plan(catalog, only_internal=True)
    assert alone is not None
    assert ([s.slot for s in alone.slots], [list(p.slots) for p in alone.internal]) == (
        [ledger.slot - 1, ledger.slot],
        [[ledger.slot]],
    )
    whole = ledger.plan(catalog)
    assert ranges(whole) == [(1, 0, 0, 9)], "its first slot was named by a plan that did not write it"
    assert whole is not None
    assert [slot.slot for slot in whole.lagging] == [1]


def test_a_plan_that_would_lose_internal_records_is_a_bug() -> None:
    ledger, catalog = Ledger(), catalog_of(topic(3, "__internal"))
    for _ in range(INTERNAL_SEGMENTS + 1):
        ledger.segment((3, 0, 1))
    ledger.checkpoint.planned_slot = 1
    with pytest.raises(AssertionError, match="would lose records"):
        ledger.plan(catalog, only_internal=True)


def test_staged_batches_hold_the_trim_and_are_never_planned() -> None:
    catalog = catalog_of(topic(1), topic(3, "__transactions"), STAGED)
    ledger = Ledger().segment((1, 0, 1)).segment((4, 0, 2), (4, 1, 1)).segment((1, 0, 1), (3, 0, 1))
    plan = ledger.plan(catalog, everything=True)
    assert ranges(plan) == [(1, 0, 0, 1)]
    assert plan is not None
    assert [part.topic_id for part in plan.internal] == [3]
    assert plan.trim_slot == 2
    ledger = Ledger().segment((4, 0, 2))
    for everything in (False, True):
        assert ledger.plan(catalog, everything=everything) is None
    for _ in range(max(INTERNAL_SEGMENTS, INTERNAL_LAG_MS // 60_000) + 1):
        ledger.segment((4, 0, 1), bytes_each=INTERNAL_TARGET_BYTES)
    for only_internal in (False, True):
        assert ledger.plan(catalog, only_internal=only_internal) is None, "neither by age nor by number nor by size"


def test_staged_batches_below_the_log_start_are_dropped_and_the_rest_waits() -> None:
    catalog = catalog_of(topic(1), STAGED)
    ledger = Ledger().segment((4, 0, 2)).segment((1, 0, 1), (4, 0, 3)).segment((4, 0, 4)).segment((1, 0, 1))
    counters = ledger.part(4)
    for log_start, dropped, trim_slot in ((1, [], 1), (2, [(4, 0, 0, 1)], 2), (4, [(4, 0, 0, 1)], 2)):
        counters.log_start = log_start
        plan = ledger.plan(catalog, everything=True)
        assert ranges(plan) == [(1, 0, 0, 1), *dropped], "whole batches only"
        assert plan is not None
        assert (plan.trim_slot, [file.key for file in plan.files[1:]]) == (trim_slot, [""] * len(dropped))
        assert not any(file.slots for file in plan.files[1:]), "no task reads them"
    counters.log_start = 9
    plan = ledger.plan(catalog, everything=True)
    assert ranges(plan) == [(1, 0, 0, 1), (4, 0, 0, 8)]
    assert plan is not None
    assert plan.trim_slot == 5

    counters.log_start, counters.parquet_end, counters.parquet_start = 5, 5, 5
    plan = ledger.plan(catalog, everything=True)
    assert ranges(plan) == [(1, 0, 0, 1)], "nothing new to drop"
    assert plan is not None
    assert plan.trim_slot == 3


def test_a_plan_that_freezes_a_list_writes_no_file_and_drops_staged_batches_as_others_do() -> None:
    catalog = catalog_of(topic(1), topic(2), STAGED)
    ledger = Ledger().segment((4, 0, 2)).segment((2, 0, 1), (4, 0, 3)).segment((4, 0, 4))
    ledger.part(4, log_start=2)
    ledger.moves = [fmt.PartitionSeal(topic_id=1, partition=0, move=9, end=0, target=2)]
    plan = ledger.plan(catalog, everything=True)
    assert ranges(plan) == [(4, 0, 0, 1)]
    assert plan is not None
    assert ([freeze.topic_id for freeze in plan.freezes], plan.files[0].key, plan.trim_slot) == ([1], "", 2)


def test_dropping_staged_batches_alone_makes_a_plan_only_for_old_segments() -> None:
    """Else every look at the bundle would make a round."""
    ledger, catalog = Ledger().segment((4, 0, 2)).segment((4, 0, 1)), catalog_of(STAGED)
    ledger.part(4, log_start=2)
    for _ in range(INTERNAL_LAG_MS // 60_000 - 1):
        assert ledger.plan(catalog) is None
        ledger.segment(kind=fmt.CLAIM)
    plan = ledger.plan(catalog)
    assert ranges(plan) == [(4, 0, 0, 1)]
    assert plan is not None
    assert plan.trim_slot == 2


def test_segments_of_removed_topics_behind_staged_batches_are_not_worth_a_file() -> None:
    catalog = catalog_of(topic(1), removed(topic(2)), STAGED)
    ledger = Ledger().segment((1, 0, 1)).segment((2, 0, 1), bytes_each=5000)
    ledger.checkpoint.metadata_offset = 50
    ledger.checkpoint.removed_topics.add(topic_id=2)
    assert ranges(ledger.plan(catalog)) == [(1, 0, 0, 0)]
    staged = Ledger().segment((4, 0, 1)).segment((1, 0, 1)).segment((2, 0, 1), bytes_each=5000)
    staged.checkpoint.MergeFrom(ledger.checkpoint)
    assert staged.plan(catalog) is None, "the staged batch keeps these segments anyway"
    staged.part(4, log_start=1)
    assert ranges(staged.plan(catalog)) == [(1, 0, 0, 0), (4, 0, 0, 0)]


def test_a_plan_that_would_trim_staged_batches_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, catalog = Ledger().segment((4, 0, 1)).segment((1, 0, 1)), catalog_of(topic(1), STAGED)
    monkeypatch.setattr("ledgermq_ledger.parquet.compacting.plan._trim_slot", lambda history, plan, backlogs: 3)
    with pytest.raises(AssertionError, match="partition 4/0 still needs it"):
        ledger.plan(catalog, everything=True)
