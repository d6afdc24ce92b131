"""Ledgers for which plans are made, and what these name."""

from __future__ import annotations

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import genesis
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.history import History
from ledgermq_ledger.log.segments.segment import SlotIndex
from ledgermq_ledger.parquet.compacting.plan import make_plan
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.settings import parse_settings, parse_stored_settings
from ledgermq_ledger.topics.topic import Topic, encode_topic_record, topic_key

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


def ranges(plan: fmt.CompactionPlan | None) -> list[tuple[int, int, int, int]]:
    assert plan is not None
    return [(f.topic_id, f.partition, f.first_offset, f.last_offset) for f in plan.files]
