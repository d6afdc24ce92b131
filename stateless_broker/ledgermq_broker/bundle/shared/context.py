"""Hold what all bundles of one broker share: clocks, store and catalog, limits, and the memory and
requests that they divide.

There is one `BundleContext` per broker. The budgets below bound the whole broker, however many
bundles it owns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ledgermq.buffers import MIB
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from ledgermq_broker.bundle.shared.background_rounds import BackgroundRounds
from ledgermq_broker.bundle.shared.budgets import AnswerBudget
from ledgermq_broker.bundle.shared.byte_budget import ByteBudget
from ledgermq_broker.bundle.shared.fair_queue import SharedRoom
from ledgermq_broker.bundle.shared.write_gate import WriteGate
from ledgermq_broker.settings.processes import default_of
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keyed.reader import KeyedReader
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.log.writing.in_flight import Append
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.reader import ParquetCache
from ledgermq_ledger.parquet.report import MergeReport, RoundReport
from ledgermq_ledger.tables.follower import TableState
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.held_bytes import TailCache
from ledgermq_ledger.view.partition_index import LeftOut

INTERNAL_READS_MAX = 16
SEGMENT_INDEX_BYTES_MAX = 16 * MIB
"""Size as stored; in memory about four times as much."""


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """Settings of the broker that bundles need, by name (`from_settings`), and constants.

    Limits of memory, cache and cold reads hold for the whole broker, all others for each bundle.
    """

    flush_spacing_s: float = 0.0
    """From `flush_spacing_ms` and the kind of store."""
    flush_bytes: int = default_of("flush_bytes")
    produce_memory_bytes_max: int = default_of("produce_memory_bytes_max")
    produce_wait_ms_max: int | None = default_of("produce_wait_ms_max")
    cache_bytes_max: int = default_of("cache_bytes_max")
    answer_memory_bytes_max: int = default_of("answer_memory_bytes_max")
    checkpoint_slots: int = default_of("checkpoint_slots")
    background_compaction: bool = default_of("background_compaction")
    compaction_memory_bytes_max: int = default_of("compaction_memory_bytes_max")

    flush_batches: int = 4096
    """Batches of one segment. This field and those below are constants."""
    puts_in_flight_max: int = 4
    queue_batches_max: int = 50_000
    """Batches of a bundle that are admitted and not yet durable."""
    cold_reads_max: int = 16
    """Concurrent range GETs for readers that are not near the end."""
    index_batches_max: int = 500_000
    """Batches that the fetch index holds (52 bytes each); older ones are looked up in the store
    again.
    """
    far_batches_max: int = 160_000
    """Room in each bundle for batches that were looked up again (8 MB). It is smaller than the
    index because a broker owns many bundles, and readers that far behind continue from one lookup.
    """
    checkpoint_bytes: int = 64 * MIB
    """Bytes of segments after which a checkpoint is written at the latest."""
    look_interval_s: float = 15.0
    """Interval at which a bundle that is written or read looks for checkpoints of other processes.
    """
    cleaning_bytes_max: int = 256 * MIB
    """Keyed partitions with larger files are left to the compaction service."""
    compaction_interval_s: float = 10.0
    """Interval at which the owner checks, without a request, whether a round is due."""
    retention_interval_s: float = 600.0
    """Interval at which old Parquet files are looked for, in bundles whose topics have a retention.
    """
    parked_slots_max: int = 20_000
    """Slots that a parked partition may keep from being trimmed before the bundle refuses produce
    requests.
    """


READ_SOURCES = ("cache", "segment", "parquet", "keyed", "direct")
"""Where batches for consumers were found; keyed: in a version of a keyed topic; direct: in segments
that the consumer reads itself.
"""


class BundleMetrics:
    """What an owner reports about itself; every method may be overridden.

    Methods are called on the event loop and must return at once.
    """

    def flushed(self, bundle: int, batches: int, size_bytes: int, seconds: float) -> None:
        """A segment became durable `seconds` after its put began."""

    def waited(self, bundle: int, seconds: float) -> None:
        """The oldest batch of a segment waited this long for the put that begins now."""

    def stored(self, index: fmt.SegmentIndex) -> None:
        """A segment with these batches became durable."""

    def delivered(self, topic_id: int, records: int, size_bytes: int) -> None:
        """Batches of a partition went to a consumer."""

    def left_out(self, topic_id: int, left_out: LeftOut) -> None:
        """Batches of a partition were not sent to a consumer, because its filter leaves them out."""

    def refused(self, bundle: int) -> None:
        """A produce request was answered with ResourceExhausted."""

    def refused_by_wait(self, bundle: int) -> None:
        """A produce request was answered with ResourceExhausted, because the bundle's queue has waited for too
        long.
        """

    def duplicates(self, topic_id: int, records: int) -> None:
        """Records were not stored, because their ids were within the window of their topic."""

    def fetched(self, bundle: int, source: str, size_bytes: int) -> None:
        """`source`: one of `READ_SOURCES`."""

    def claimed(self, bundle: int, epoch: int, seconds: float) -> None:
        """This broker owns the bundle now; the claim took `seconds`."""

    def claim_failed(self, bundle: int, error: LedgerMQError) -> None:
        """NotOwner: another broker claimed it first."""

    def moved_for_load(self, bundle: int) -> None:
        """This broker begins to hand the bundle over, because it has more to do than others."""

    def moved_to_rack(self, bundle: int) -> None:
        """This broker begins to hand the bundle over, because most of its bytes are of another rack."""

    def term_ended(self, bundle: int, why: str) -> None:
        """`why`: released (handed over), fenced (another broker has claimed it) or failed."""

    def checkpointed(self, bundle: int, number: int) -> None: ...

    def upkeep_failed(self, bundle: int, work: str, error: BaseException) -> None:
        """`work`: checkpoint, look, compaction, cleaning, merging, table or move. It is retried."""

    def parked(self, bundle: int, partitions: int) -> None: ...

    def compacted(self, report: RoundReport) -> None:
        """A round of Parquet compaction was finished here."""

    def merged(self, report: MergeReport) -> None:
        """Small files of a partition got a merged one here."""


async def _nothing_to_bring(source: int, target: int, places: Collection[PartitionId]) -> None:
    """Of a bundle without internal topics."""


async def _keep_table(topic: Topic, held_bytes: int) -> None:
    """Without a controller."""


@dataclass(eq=False)
class BundleContext:
    """`catalog`: this broker's copy of `__metadata`. `run_blocking`: threads, or `run_inline` in a
    simulation.

    Only `limits` is ever replaced, by `take_limits`: read limits where they are needed, and keep no
    copy.
    """

    store: ObjectStore
    sources: Sources
    cluster: ClusterSettings
    broker_id: str
    catalog: Callable[[], Catalog]
    limits: BundleLimits = field(default_factory=BundleLimits)
    metrics: BundleMetrics = field(default_factory=BundleMetrics)
    run_blocking: RunBlocking = asyncio.to_thread
    store_us: Callable[[], int | None] = lambda: None
    """Returns a time in microseconds that the store's clock has reached; None: it is not known yet."""
    kept: Callable[[int, PartitionId], Sequence[str]] = lambda bundle, place: ()
    """Returns why a partition may not leave a bundle that this broker owns, for each feature that keeps it there.
    Raises NotOwner, Unavailable, and the error of damaged data.
    """
    bring: Callable[[int, int, Collection[PartitionId]], Awaitable[None]] = _nothing_to_bring
    """Brings what features know of partitions from the first bundle into the second one, which this broker owns,
    durably. Raises NotOwner, Unavailable, the error of damaged data, and the store's errors.
    """

    let_go_of_table: Callable[[Topic, int], Awaitable[None]] = _keep_table
    """Asks the controller to unset the table of a topic, which holds back so many bytes. Raises Unavailable and its
    like.
    """

    putting: Callable[[int, Sequence[Append]], None] | None = None
    """Called with a bundle, and the batches of a segment whose put has just begun there; None: nothing asks."""

    def append_now_us(self) -> int:
        """Return the store's time; this machine's until the first heartbeat has shown the store's."""
        store_us = self.store_us()
        return self.sources.now_us() if store_us is None else store_us

    def take_limits(self, limits: BundleLimits) -> None:
        """Set the limits from now on. What is already held above a smaller bound is freed in the
        usual way.
        """
        self.limits = limits
        self.produce_memory.bytes_max = limits.produce_memory_bytes_max
        self.tail_cache.take_bound(limits.cache_bytes_max)
        self.answers.take_bound(limits.answer_memory_bytes_max)
        self.engine.memory_bytes = limits.compaction_memory_bytes_max
        self.background_rounds.allow(limits.background_compaction)

    @cached_property
    def produce_memory(self) -> ByteBudget:
        return ByteBudget(self.limits.produce_memory_bytes_max)

    @cached_property
    def produce_senders(self) -> SharedRoom:
        """Who holds what of `produce_memory`."""
        return SharedRoom()

    @cached_property
    def answers(self) -> AnswerBudget:
        return AnswerBudget(self.limits.answer_memory_bytes_max)

    @cached_property
    def background_rounds(self) -> BackgroundRounds:
        return BackgroundRounds(self.limits.background_compaction)

    @cached_property
    def tail_cache(self) -> TailCache:
        return TailCache(self.limits.cache_bytes_max)

    @cached_property
    def write_gate(self) -> WriteGate:
        return WriteGate(self.store, self.sources)

    @cached_property
    def cold_reads(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self.limits.cold_reads_max)

    @cached_property
    def internal_reads(self) -> asyncio.Semaphore:
        """GETs of internal topics at a takeover. They are not in the pool of cold reads, where
        groups would wait behind reads of old data.
        """
        return asyncio.Semaphore(INTERNAL_READS_MAX)

    @cached_property
    def parquet_cache(self) -> ParquetCache:
        return ParquetCache(self.store, self.run_blocking)

    @cached_property
    def segment_indexes(self) -> SegmentIndexes:
        """Indexes of untrimmed segments that one look leaves to the next, including looks of a
        later term.
        """
        return SegmentIndexes(SEGMENT_INDEX_BYTES_MAX)

    def ledger(self, bundle: int) -> LedgerRef:
        return self.compaction.ledger(bundle)

    @cached_property
    def tables(self) -> dict[tuple[int, str], TableState]:
        """The tables that this broker keeps up to date, by bundle and topic."""
        return {}

    def topics_with_tables(self) -> list[Topic]:
        """Return the living topics with a table."""
        return list(self.catalog().tabled.values())

    def topics_let_go(self) -> list[Topic]:
        """Return the living topics whose tables were unset because of what they held back."""
        return list(self.catalog().let_go.values())

    def table_alarms(self) -> list[str]:
        """Return what an operator has to do about tables."""
        return [alarm for _, state in sorted(self.tables.items(), key=lambda each: each[0]) for alarm in state.alarms()]

    @cached_property
    def keyed_reader(self) -> KeyedReader:
        return KeyedReader(self.store, self.run_blocking)

    @cached_property
    def engine(self) -> LocalEngine:
        return LocalEngine(self.sources, self.run_blocking, 1, self.limits.compaction_memory_bytes_max)

    @cached_property
    def compaction(self) -> Compaction:
        return Compaction(self.store, self.cluster, self.sources, self.engine, self.segment_indexes)

    @cached_property
    def compaction_turn(self) -> asyncio.Lock:
        """One bundle of a broker is compacted at a time, so that compaction stays in the
        background.
        """
        return asyncio.Lock()
