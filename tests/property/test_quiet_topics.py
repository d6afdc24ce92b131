"""Quiet partitions wait for a larger file: what plain readers may rely on holds all the same, and a day of quiet
topics makes few files. Plans alone, which are pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq_broker.bundle.upkeep.compaction_due import next_compaction_ms
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import genesis
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.history import History
from ledgermq_ledger.log.segments.segment import SlotIndex
from ledgermq_ledger.parquet.compacting import plan as plans
from ledgermq_ledger.parquet.compacting.commit import commit_move
from ledgermq_ledger.parquet.compacting.plan import make_plan
from ledgermq_ledger.parquet.files.columns import note_of_file
from ledgermq_ledger.parquet.files.stored_file import StoredFile
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic, encode_topic_record, topic_key
from ledgermq_ledger.view.fetch_index import FetchIndex

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
BEGIN_MS = 10**12


@dataclass
class World:
    """One bundle: segments that are put, and rounds that are run when its owner finds that one is due."""

    topics: list[dict[str, str]]
    checkpoint: fmt.Checkpoint = field(default_factory=lambda: genesis(1))
    segments: list[SlotIndex] = field(default_factory=list)
    index: FetchIndex = field(default_factory=lambda: FetchIndex(10**6, 1))
    ends: dict[int, int] = field(default_factory=dict)
    slot: int = 0
    now_ms: int = BEGIN_MS
    files: int = 0

    def __post_init__(self) -> None:
        self.catalog = Catalog()
        for number, raw in enumerate(self.topics, 1):
            topic = Topic(0, f"t{number}", (1,), raw)
            self.catalog.apply(number, topic_key(topic.name), encode_topic_record(topic, creation=True))
        self.catalog.offset = 10**6

    def put(self, sizes: dict[int, int]) -> None:
        """Put a segment with a record of each topic in `sizes`, of so many bytes."""
        self.slot += 1
        index = fmt.SegmentIndex(
            bundle=1, slot=self.slot, kind=fmt.DATA, put_id=self.slot.to_bytes(16, "big"), created_ms=self.now_ms
        )
        for topic, size in sorted(sizes.items()):
            base = self.ends.get(topic, 0)
            self.ends[topic] = base + 1
            index.batches.append(fmt.BatchEntry(topic_id=topic, base_offset=base, record_count=1, length=size))
        self.segments.append(SlotIndex(index, 50, self.now_ms))
        self.index.add(index)

    def parquet_end(self, key: PartitionId) -> int:
        return next((part.parquet_end for part in self.checkpoint.partitions if part.topic_id == key.topic_id), 0)

    def due_ms(self) -> int | None:
        counters = {PartitionId(part.topic_id, part.partition): part for part in self.checkpoint.partitions}
        view = SimpleNamespace(
            index=self.index,
            checkpoint=self.checkpoint,
            parked=[],
            counters=counters,
            is_partial=False,
            parquet_end=self.parquet_end,
        )
        return next_compaction_ms(view, self.catalog)  # type: ignore[arg-type]

    def run_round(self) -> fmt.CompactionPlan | None:
        state = LedgerState(10)
        state.slot = self.slot
        history = History(1, self.checkpoint, state, self.segments)
        plan = make_plan(history, self.catalog, everything=False, now_ms=self.now_ms, put_id=bytes(16))
        if plan is not None:
            stored = [
                StoredFile(file.key, note_of_file(file, plan, "c"), 1, 1, 0, 0) for file in plan.files if file.key
            ]
            draft = fmt.Checkpoint()
            draft.CopyFrom(self.checkpoint)
            draft.state.slot = self.slot
            assert commit_move(plan, stored)(draft)
            self.checkpoint = draft
            self.segments = [segment for segment in self.segments if segment.index.slot >= draft.trim_slot]
            self.index.drop_below(draft.trim_slot)
            self.files += len(stored)
        return plan

    def waiting(self) -> dict[int, tuple[int, int, int]]:
        """Return what is not in Parquet, by topic: bytes, age of the oldest in ms, and slots behind it."""
        found: dict[int, tuple[int, int, int]] = {}
        for segment in self.segments:
            for entry in segment.index.batches:
                if entry.base_offset >= self.parquet_end(PartitionId(entry.topic_id, 0)):
                    size, age, slots = found.get(entry.topic_id, (0, 0, 0))
                    age = max(age, self.now_ms - segment.index.created_ms)
                    found[entry.topic_id] = size + entry.length, age, max(slots, self.slot - segment.index.slot)
        return found


def run(world: World, minutes: int, put: dict[int, int], every: int) -> None:
    for minute in range(minutes):
        if minute % every == 0:
            world.put(put)
        world.now_ms += MINUTE_MS
        while (due_ms := world.due_ms()) is not None and due_ms <= world.now_ms:
            assert world.run_round() is not None, "the owner reads the store for nothing"


@pytest.mark.slow
def test_a_day_of_two_hundred_quiet_topics_makes_a_file_of_each() -> None:
    """A record every five minutes in each of them, in one bundle: 4,800 files by the hour."""
    put = dict.fromkeys(range(1, 201), 70)
    world = World([{}] * 200)
    run(world, 25 * 60, put, 5)
    assert world.files == 200
    by_the_hour = World([{"parquet.file.min.bytes": "0"}] * 20)
    run(by_the_hour, 25 * 60, dict.fromkeys(range(1, 21), 70), 5)
    assert by_the_hour.files >= 20 * 22


_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "parquet.max.lag.ms": st.sampled_from(["600000", str(HOUR_MS), str(2 * HOUR_MS)]),
        "parquet.file.min.bytes": st.sampled_from(["0", "5000", str(2**22)]),
        "parquet.file.max.lag.ms": st.sampled_from(["0", str(3 * HOUR_MS), str(DAY_MS)]),
        "parquet.target.bytes": st.sampled_from(["2000", str(2**20)]),
        "retention.ms": st.sampled_from([str(8 * HOUR_MS), str(7 * DAY_MS)]),
    },
)


@settings(max_examples=60, deadline=None)
@given(
    topics=st.lists(_SETTINGS, min_size=1, max_size=4),
    puts=st.lists(
        st.tuples(st.integers(1, 180), st.dictionaries(st.integers(1, 4), st.integers(50, 4000), min_size=1)),
        max_size=40,
    ),
    slots_max=st.sampled_from([3, 8192]),
)
def test_no_record_waits_for_longer_than_its_topic_says(
    topics: list[dict[str, str]], puts: list[tuple[int, dict[int, int]]], slots_max: int
) -> None:
    """After each round: a partition with enough bytes waits for its first bound at most, any other for its second
    one, and for the first again if it holds many segments. The owner's look and the plan agree.
    """
    before = plans.QUIET_SLOTS_MAX
    plans.QUIET_SLOTS_MAX = slots_max
    import ledgermq_broker.bundle.upkeep.compaction_due as due

    due.QUIET_SLOTS_MAX = slots_max  # type: ignore[misc]
    try:
        world = World(topics)
        for minutes, sizes in puts:
            world.put({topic: size for topic, size in sizes.items() if topic <= len(topics)} or {1: 100})
            world.now_ms += minutes * MINUTE_MS
            due_ms = world.due_ms()
            is_due = due_ms is not None and due_ms <= world.now_ms
            assert (world.run_round() is not None) <= is_due, "a round was due, and the owner did not look"
            while world.run_round() is not None:
                pass
            for topic, (size, age_ms, slots) in world.waiting().items():
                found = world.catalog.topics_by_id[topic].settings
                longest_ms = found.parquet_lag_ms(size) if slots < slots_max else found.parquet_max_lag_ms
                assert age_ms < longest_ms, (topic, size, age_ms, slots)
                if size >= found.parquet_file_min_bytes:
                    assert age_ms < found.parquet_max_lag_ms
                if found.retention_ms >= 0:
                    assert age_ms < max(found.parquet_max_lag_ms, found.retention_ms // 4)
    finally:
        plans.QUIET_SLOTS_MAX = due.QUIET_SLOTS_MAX = before  # type: ignore[misc]


def test_records_of_a_removed_topic_and_deleted_ones_are_not_held_by_quiet_topics() -> None:
    world = World([{}, {}])
    world.put({1: 100, 2: 100})
    world.now_ms += 2 * HOUR_MS
    assert world.run_round() is None, "both are quiet"
    gone = world.catalog.topics_by_id[2]
    world.checkpoint.removed_topics.add(topic_id=2, topic=gone.name)
    plan = world.run_round()
    assert plan is not None
    assert [file.topic_id for file in plan.files] == [1]
    assert world.checkpoint.trim_slot == 2, "the segment with the removed records can go"
    world.put({1: 100})
    world.put({1: 100})
    world.now_ms += 2 * HOUR_MS
    assert world.run_round() is None
    world.checkpoint.partitions[0].log_start = 2
    assert world.run_round() is not None, "a deletion on demand reaches the segments as soon as it did"
