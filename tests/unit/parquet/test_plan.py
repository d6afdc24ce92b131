"""Who joins a plan, up to where, what it names and what it lets be trimmed: decisions by values
alone.
"""

from __future__ import annotations

import pytest

from ledgermq.errors import Unavailable
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.checkpoint import genesis
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.history import History
from ledgermq_ledger.log.internal_topic import INTERNAL_SEGMENTS, INTERNAL_TARGET_BYTES, SNAPSHOT_BYTES_PER_SEGMENT
from ledgermq_ledger.log.segment import SlotIndex
from ledgermq_ledger.parquet.plan import (
    INTERNAL_LAG_MS,
    make_plan,
    needs_newer_catalog,
)
from ledgermq_ledger.topics.catalog import Catalog, Topic, encode_topic_record, removed, topic_key
from ledgermq_ledger.topics.settings import parse_settings, parse_stored_settings

NOW_MS = 10_000_000
PUT_ID = b"p" * 16


class Ledger:
    """Builds a History: one segment a call, a minute apart, the last one written now."""

    def __init__(self) -> None:
        self.checkpoint = genesis(1)
        self.segments: list[SlotIndex] = []
        self.ends: dict[tuple[int, int], int] = {}
        self.moves: list[fmt.PartitionSeal | fmt.PartitionOpen] = []
        self.slot = 0

    def segment(
        self, *batches: tuple[int, int, int], kind: fmt.SegmentKind.ValueType = fmt.DATA, bytes_each: int = 100
    ) -> Ledger:
        """`batches`: (topic id, partition, records)."""
        self.slot += 1
        index = fmt.SegmentIndex(bundle=1, slot=self.slot, kind=kind, put_id=self.slot.to_bytes(16, "big"))
        for topic_id, partition, records in batches:
            base = self.ends.get(PartitionId(topic_id, partition), 0)
            self.ends[PartitionId(topic_id, partition)] = base + records
            index.batches.append(
                fmt.BatchEntry(
                    topic_id=topic_id, partition=partition, base_offset=base, record_count=records, length=bytes_each
                )
            )
        self.segments.append(SlotIndex(index, 50 + self.slot))
        return self

    def part(self, topic_id: int, partition: int = 0, **counters: int) -> fmt.PartitionCheckpoint:
        self.checkpoint.partitions.append(fmt.PartitionCheckpoint(topic_id=topic_id, partition=partition, **counters))  # type: ignore[arg-type]
        return self.checkpoint.partitions[-1]

    def history(self) -> History:
        for segment in self.segments:
            segment.index.created_ms = NOW_MS - 60_000 * (self.slot - segment.index.slot)
        state = LedgerState(10)
        state.slot = self.slot
        state.moves.load(self.moves)
        kept = [s for s in self.segments if s.index.slot >= self.checkpoint.trim_slot]
        return History(1, self.checkpoint, state, kept)

    def plan(
        self, catalog: Catalog, *, everything: bool = False, barrier: bool = False, only_internal: bool = False
    ) -> fmt.CompactionPlan | None:
        history = self.history()
        if only_internal:
            history.segments = [s for s in history.segments if s.index.slot > self.checkpoint.planned_slot]
        return make_plan(
            history,
            catalog,
            everything=everything,
            now_ms=NOW_MS,
            put_id=PUT_ID,
            barrier=barrier,
            only_internal=only_internal,
        )


def catalog_of(*topics: Topic) -> Catalog:
    catalog = Catalog()
    for topic in topics:
        catalog.apply(topic.id, topic_key(topic.name), encode_topic_record(topic))
    catalog.offset = 100
    return catalog


def topic(topic_id: int, name: str = "", **settings: str) -> Topic:
    raw = {key.replace("_", "."): value for key, value in settings.items()}
    return Topic(topic_id, name or f"t{topic_id}", (1, 1, 1), raw, parse_settings(raw))


STAGED = Topic(
    4, "__staged", (1, 1, 1), {"internal.kind": "staged"}, parse_stored_settings({"internal.kind": "staged"})
)


def _ranges(plan: fmt.CompactionPlan | None) -> list[tuple[int, int, int, int]]:
    assert plan is not None
    return [(f.topic_id, f.partition, f.first_offset, f.last_offset) for f in plan.files]


def test_a_partition_joins_at_its_target_size_and_the_others_wait() -> None:
    ledger = Ledger().segment((1, 0, 2), (1, 1, 1)).segment((1, 0, 3)).segment((1, 0, 1))
    plan = ledger.plan(catalog_of(topic(1, parquet_target_bytes="1024")))
    assert plan is None
    for _ in range(8):
        ledger.segment((1, 0, 1))
    plan = ledger.plan(catalog_of(topic(1, parquet_target_bytes="1024")))
    assert _ranges(plan) == [(1, 0, 0, 13)]
    assert plan is not None
    assert plan.trim_slot == 1, "partition 1 still needs slot 1"
    assert [slot.slot for slot in plan.slots] == list(range(1, 12))
    assert [slot.tail_length for slot in plan.slots] == list(range(51, 62))
    assert plan.files[0].key == "parquet/topic=t1/partition=0/00000000000000000000-00000000000000000013-1-1.parquet"


def test_a_partition_joins_when_its_oldest_record_lags() -> None:
    ledger = Ledger().segment((1, 0, 2)).segment((2, 0, 1)).segment((1, 0, 1))
    catalog = catalog_of(topic(1, parquet_max_lag_ms="120000"), topic(2, parquet_max_lag_ms="120000"))
    plan = ledger.plan(catalog)
    assert _ranges(plan) == [(1, 0, 0, 2)], "two minutes old, with what came later; topic 2 is one minute old"
    assert plan is not None
    assert plan.trim_slot == 2


def test_a_file_is_capped_at_the_target_size_and_the_rest_follows_from_older_slots() -> None:
    ledger = Ledger()
    for _ in range(5):
        ledger.segment((1, 0, 10), bytes_each=600)
    catalog = catalog_of(topic(1, parquet_target_bytes="1024"))
    plan = ledger.plan(catalog)
    assert _ranges(plan) == [(1, 0, 0, 19)]
    assert plan is not None
    assert (plan.files[0].first_slot_after, plan.trim_slot, list(plan.files[0].slots)) == (3, 3, [1, 2])
    ledger.checkpoint.MergeFrom(fmt.Checkpoint(finished_plan=1, planned_slot=5, trim_slot=3, number=1))
    ledger.part(1, parquet_end=20, newest_page=1)
    plan = ledger.segment((1, 0, 1), bytes_each=600).plan(catalog)
    assert _ranges(plan) == [(1, 0, 20, 39)]
    assert plan is not None
    assert [slot.slot for slot in plan.lagging] == [3, 4]
    assert [slot.slot for slot in plan.slots] == [6]
    assert plan.number == 2


def test_by_hand_everything_joins() -> None:
    ledger = Ledger().segment(kind=fmt.CLAIM).segment((1, 0, 1), (1, 2, 1)).segment((2, 1, 1)).segment(kind=fmt.RELEASE)
    plan = ledger.plan(catalog_of(topic(1), topic(2)), everything=True)
    assert _ranges(plan) == [(1, 0, 0, 0), (1, 2, 0, 0), (2, 1, 0, 0)]
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
    assert _ranges(plan) == [(1, 0, 0, 2)]
    assert plan is not None
    assert plan.trim_slot == 1


def test_internal_topics_join_every_plan_and_make_one_when_they_are_large_or_old() -> None:
    offsets = topic(3, "__consumer_offsets")
    ledger = Ledger().segment((1, 0, 1), (3, 2, 4)).segment((3, 2, 1))
    catalog = catalog_of(topic(1, parquet_max_lag_ms="0"), offsets)
    plan = ledger.plan(catalog)
    assert plan is not None
    assert [(p.topic_id, p.partition, p.end, list(p.slots)) for p in plan.internal] == [(3, 2, 5, [1, 2])]
    assert plan.trim_slot == 3
    assert _ranges(plan) == [(1, 0, 0, 0)], "never to Parquet"

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
    assert _ranges(whole) == [(1, 0, 0, 9)], "its first slot was named by a plan that did not write it"
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
    assert _ranges(plan) == [(1, 0, 0, 1)]
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
        assert _ranges(plan) == [(1, 0, 0, 1), *dropped], "whole batches only"
        assert plan is not None
        assert (plan.trim_slot, [file.key for file in plan.files[1:]]) == (trim_slot, [""] * len(dropped))
        assert not any(file.slots for file in plan.files[1:]), "no task reads them"
    counters.log_start = 9
    plan = ledger.plan(catalog, everything=True)
    assert _ranges(plan) == [(1, 0, 0, 1), (4, 0, 0, 8)]
    assert plan is not None
    assert plan.trim_slot == 5

    counters.log_start, counters.parquet_end, counters.parquet_start = 5, 5, 5
    plan = ledger.plan(catalog, everything=True)
    assert _ranges(plan) == [(1, 0, 0, 1)], "nothing new to drop"
    assert plan is not None
    assert plan.trim_slot == 3


def test_a_plan_that_freezes_a_list_writes_no_file_and_drops_staged_batches_as_others_do() -> None:
    catalog = catalog_of(topic(1), topic(2), STAGED)
    ledger = Ledger().segment((4, 0, 2)).segment((2, 0, 1), (4, 0, 3)).segment((4, 0, 4))
    ledger.part(4, log_start=2)
    ledger.moves = [fmt.PartitionSeal(topic_id=1, partition=0, move=9, end=0, target=2)]
    plan = ledger.plan(catalog, everything=True)
    assert _ranges(plan) == [(4, 0, 0, 1)]
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
    assert _ranges(plan) == [(4, 0, 0, 1)]
    assert plan is not None
    assert plan.trim_slot == 2


def test_segments_of_removed_topics_behind_staged_batches_are_not_worth_a_file() -> None:
    catalog = catalog_of(topic(1), removed(topic(2)), STAGED)
    ledger = Ledger().segment((1, 0, 1)).segment((2, 0, 1), bytes_each=5000)
    ledger.checkpoint.metadata_offset = 50
    ledger.checkpoint.removed_topics.add(topic_id=2)
    assert _ranges(ledger.plan(catalog)) == [(1, 0, 0, 0)]
    staged = Ledger().segment((4, 0, 1)).segment((1, 0, 1)).segment((2, 0, 1), bytes_each=5000)
    staged.checkpoint.MergeFrom(ledger.checkpoint)
    assert staged.plan(catalog) is None, "the staged batch keeps these segments anyway"
    staged.part(4, log_start=1)
    assert _ranges(staged.plan(catalog)) == [(1, 0, 0, 0), (4, 0, 0, 0)]


def test_a_plan_that_would_trim_staged_batches_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, catalog = Ledger().segment((4, 0, 1)).segment((1, 0, 1)), catalog_of(topic(1), STAGED)
    monkeypatch.setattr("ledgermq_ledger.parquet.plan._trim_slot", lambda history, plan, backlogs: 3)
    with pytest.raises(AssertionError, match="partition 4/0 still needs it"):
        ledger.plan(catalog, everything=True)


def test_a_topic_that_the_checkpoint_names_as_removed_is_left_out() -> None:
    ledger = Ledger().segment((1, 0, 1), (2, 0, 1)).segment((2, 0, 1))
    ledger.checkpoint.metadata_offset = 50
    ledger.checkpoint.removed_topics.add(topic_id=2)
    for catalog in (catalog_of(topic(1), removed(topic(2))), catalog_of(topic(1))):
        plan = ledger.plan(catalog, everything=True)
        assert _ranges(plan) == [(1, 0, 0, 0)]
        assert plan is not None
        assert plan.trim_slot == 3


def test_a_removed_topic_that_the_checkpoint_does_not_name_yet_waits() -> None:
    ledger = Ledger().segment((1, 0, 1), (2, 0, 1)).segment((1, 0, 1))
    plan = ledger.plan(catalog_of(topic(1), removed(topic(2))), everything=True)
    assert _ranges(plan) == [(1, 0, 0, 1)]
    assert plan is not None
    assert plan.trim_slot == 1, "its records are kept until the fact is named"


def test_a_topic_that_the_catalog_does_not_know_yet_waits_and_asks_for_a_newer_catalog() -> None:
    ledger = Ledger().segment((1, 0, 1), (200, 0, 1)).segment((1, 0, 1))
    catalog = catalog_of(topic(1))
    assert needs_newer_catalog(ledger.history(), catalog)
    plan = ledger.plan(catalog, everything=True)
    assert _ranges(plan) == [(1, 0, 0, 1)]
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
    assert _ranges(ledger.plan(catalog, everything=True)) == [(1, 0, 12, 19)]
    counters.log_start = 10
    plan = ledger.plan(catalog, everything=True)
    assert _ranges(plan) == [(1, 0, 10, 19)]
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
    assert _ranges(ledger.plan(catalog, everything=True)) == [(1, 0, 5, 19)], "a gap behind a file would be seen"


def test_a_partition_that_has_left_joins_at_once_and_is_frozen_then() -> None:
    ledger = Ledger().segment((1, 1, 1)).segment((1, 0, 1)).segment((1, 1, 1))
    ledger.moves = [fmt.PartitionSeal(topic_id=1, move=21, end=1)]
    plan = ledger.plan(catalog_of(topic(1)))
    assert _ranges(plan) == [(1, 0, 0, 0)]
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
    assert _ranges(plan) == [(1, 1, 0, 1)]
    assert plan is not None
    assert plan.trim_slot == 2
    ledger.checkpoint.removed_topics.add(topic_id=1)
    plan = ledger.plan(catalog_of(), everything=True)
    assert plan is not None
    assert plan.trim_slot == 4, "a removed topic holds nothing"
