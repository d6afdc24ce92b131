"""What all bundles of one broker share: their surroundings, their limits, and the memory and
requests that they divide among them.

One `BundleContext` per broker; the budgets below are bounds of the whole broker, however many
bundles it owns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ledger.blocking import RunBlocking
from ledger.cluster import ClusterSettings
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.keyed.reader import KeyedReader
from ledger.log.ledger_ref import LedgerRef
from ledger.log.segment_indexes import SegmentIndexes
from ledger.object_store.contract import ObjectStore
from ledger.parquet.compaction import Compaction
from ledger.parquet.engine import LocalEngine
from ledger.parquet.reader import ParquetCache
from ledger.parquet.report import RoundReport
from ledger.topics.catalog import Catalog
from ledger.view.held_bytes import TailCache
from ledgermq.buffers import MIB
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from stateless_broker.bundle.background_rounds import BackgroundRounds
from stateless_broker.bundle.budgets import AnswerBudget, ByteBudget
from stateless_broker.bundle.write_gate import WriteGate
from stateless_broker.settings import default_of

INTERNAL_READS_MAX = 16
SEGMENT_INDEX_BYTES_MAX = 16 * MIB
"""As stored; in memory some four times as much."""


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """The broker's settings that bundles need, by name (`from_settings`), and constants.

    Limits of memory, cache and cold reads hold for the whole broker, all others for each bundle.
    """

    flush_spacing_s: float = 0.0
    """Of `flush_spacing_ms` and the kind of store."""
    flush_bytes: int = default_of("flush_bytes")
    produce_memory_bytes_max: int = default_of("produce_memory_bytes_max")
    cache_bytes_max: int = default_of("cache_bytes_max")
    answer_memory_bytes_max: int = default_of("answer_memory_bytes_max")
    checkpoint_slots: int = default_of("checkpoint_slots")
    background_compaction: bool = default_of("background_compaction")
    compaction_memory_bytes_max: int = default_of("compaction_memory_bytes_max")

    flush_batches: int = 4096
    """Constants from here on. Batches of one segment."""
    puts_in_flight_max: int = 4
    queue_batches_max: int = 50_000
    """Batches of a bundle that are admitted and not yet durable."""
    cold_reads_max: int = 16
    """Range GETs at the same time for readers that are not near the end."""
    index_batches_max: int = 500_000
    """Batches that the fetch index holds (52 bytes each); older ones are looked up in the store
    again.
    """
    far_batches_max: int = 160_000
    """Room, for each bundle, for batches that were looked up again (8 MB). Less than the index has:
    a broker owns many bundles, and readers that are so far behind read on from what a look brings.
    """
    checkpoint_bytes: int = 64 * MIB
    """Bytes of segments after which a checkpoint is written, at the latest."""
    look_interval_s: float = 15.0
    """How often a bundle that is written to or read looks for checkpoints that others made."""
    cleaning_bytes_max: int = 256 * MIB
    """Keyed partitions with larger files are left to the compaction service."""
    compaction_interval_s: float = 10.0
    """How often the owner considers, without a request, whether a round is due."""
    retention_interval_s: float = 600.0
    """How often old Parquet files are looked for, in bundles whose topics have a retention."""
    parked_slots_max: int = 20_000
    """Slots that a parked partition may keep from being trimmed before produce to the bundle is
    refused.
    """


READ_SOURCES = ("cache", "segment", "parquet", "keyed", "direct")
"""Where batches for consumers were found; keyed: in a version of a keyed topic, direct: in
segments, which the consumer reads itself.
"""


class BundleMetrics:
    """What an owner tells about itself; every method may be overridden.

    Called on the event loop, must return at once.
    """

    def flushed(self, bundle: int, batches: int, size_bytes: int, seconds: float) -> None:
        """A segment became durable `seconds` after its put began."""

    def waited(self, bundle: int, seconds: float) -> None:
        """The oldest batch of a segment that is put now has waited this long for it."""

    def stored(self, index: fmt.SegmentIndex) -> None:
        """A segment with these batches became durable."""

    def delivered(self, topic_id: int, records: int, size_bytes: int) -> None:
        """Batches of a partition went to a consumer."""

    def refused(self, bundle: int) -> None:
        """Produce was answered with ResourceExhausted."""

    def fetched(self, bundle: int, source: str, size_bytes: int) -> None:
        """`source`: of `READ_SOURCES`."""

    def claimed(self, bundle: int, epoch: int, seconds: float) -> None:
        """This broker owns the bundle now; the claim took `seconds`."""

    def claim_failed(self, bundle: int, error: LedgerMQError) -> None:
        """NotOwner: somebody else was faster."""

    def term_ended(self, bundle: int, why: str) -> None:
        """`why`: released (handed over), fenced (somebody else has claimed) or failed."""

    def checkpointed(self, bundle: int, number: int) -> None: ...

    def upkeep_failed(self, bundle: int, work: str, error: BaseException) -> None:
        """`work`: checkpoint, look or compaction. It is tried again."""

    def parked(self, bundle: int, partitions: int) -> None: ...

    def compacted(self, report: RoundReport) -> None:
        """A round of Parquet compaction was finished here."""


@dataclass(eq=False)
class BundleContext:
    """`catalog`: what this broker knows of `__metadata` at present. `run_blocking`: threads, or
    `run_inline` in a simulation.

    Nothing of it is ever replaced but `limits`, by `take_limits`: read them where they are needed,
    keep no copy.
    """

    store: ObjectStore
    sources: Sources
    cluster: ClusterSettings
    broker_id: str
    catalog: Callable[[], Catalog]
    limits: BundleLimits = field(default_factory=BundleLimits)
    metrics: BundleMetrics = field(default_factory=BundleMetrics)
    run_blocking: RunBlocking = asyncio.to_thread

    def take_limits(self, limits: BundleLimits) -> None:
        """From now on; what is already held above a smaller bound goes as it would have gone."""
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
        """GETs of internal topics at a takeover: not in the pool of cold reads, behind which groups
        would wait for old data.
        """
        return asyncio.Semaphore(INTERNAL_READS_MAX)

    @cached_property
    def parquet_cache(self) -> ParquetCache:
        return ParquetCache(self.store, self.run_blocking)

    @cached_property
    def segment_indexes(self) -> SegmentIndexes:
        """What one look at untrimmed segments leaves to the next, that of a later term included."""
        return SegmentIndexes(SEGMENT_INDEX_BYTES_MAX)

    def ledger(self, bundle: int) -> LedgerRef:
        return self.compaction.ledger(bundle)

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
        """One bundle of a broker is compacted at a time, so that it stays in the background."""
        return asyncio.Lock()
