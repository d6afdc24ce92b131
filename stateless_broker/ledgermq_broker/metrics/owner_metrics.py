"""Measure the owners of bundles: flushes, group commit, reads, claims, upkeep, compaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram

from ledgermq.errors import LedgerMQError
from ledgermq_broker.bundle.shared.context import READ_SOURCES, BundleMetrics
from ledgermq_broker.metrics import names
from ledgermq_broker.metrics.store_metrics import SECONDS
from ledgermq_broker.metrics.topic_totals import TOPICS_MAX, TopicTotals
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.parquet.report import MergeReport, RoundReport
from ledgermq_ledger.view.partition_index import LeftOut

KIB = 1024
SIZES = tuple(KIB * 4**power for power in range(9))  # 1 KiB to 64 MiB
BATCHES = tuple(4**power for power in range(7))
LONG_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class OwnerMetrics(BundleMetrics):
    """`topics` is read at scrape time."""

    def __init__(self, registry: CollectorRegistry, topics_max: int = TOPICS_MAX) -> None:
        self.topics = TopicTotals(topics_max)
        histogram, counter = partial(Histogram, registry=registry), partial(Counter, registry=registry)
        self._declare_writes_and_reads(histogram, counter)
        self._declare_terms(histogram, counter)
        self._declare_upkeep(counter)

    def _declare_writes_and_reads(self, histogram: Callable[..., Histogram], counter: Callable[..., Counter]) -> None:
        self._flush_bytes = histogram(
            "ledgermq_flush_bytes", "Bytes of the segments that became durable", buckets=SIZES
        )
        self._flush_batches = histogram(
            "ledgermq_flush_batches", "Batches of the segments that became durable", buckets=BATCHES
        )
        self._flush_seconds = histogram(
            names.FLUSH_SECONDS, "Time from the start of a segment's put until it was durable", buckets=SECONDS
        )
        self._wait_seconds = histogram(
            "ledgermq_group_commit_wait_seconds",
            "Time that the oldest batch of a segment waited for its put",
            buckets=SECONDS,
        )
        self._refused = counter(
            "ledgermq_produce_refused",
            "Produce requests that were refused with RESOURCE_EXHAUSTED; the producer retries them",
        )
        self._refused_by_wait = counter(
            "ledgermq_produce_refused_by_wait",
            "Produce requests that were refused with RESOURCE_EXHAUSTED because records had waited for their put for"
            " longer than `produce_wait_ms_max`; the producer retries them",
        )
        self._duplicates = counter(
            "ledgermq_duplicate_records",
            "Records that were not stored, because their id had been stored within `dedup.window.ms` of their topic",
        )
        self._reads = counter(
            names.READS, "Reads of batches for consumers, by where the batches were found", ("source",)
        )
        self._read_bytes = counter(
            "ledgermq_read_bytes", "Bytes of batches read for consumers, by where the batches were found", ("source",)
        )
        self._sources = {
            source: (self._reads.labels(source), self._read_bytes.labels(source)) for source in READ_SOURCES
        }

    def _declare_terms(self, histogram: Callable[..., Histogram], counter: Callable[..., Counter]) -> None:
        self._claim_seconds = histogram(
            "ledgermq_claim_seconds", "Time that the takeover of a bundle took", buckets=LONG_SECONDS
        )
        self._claims = counter(
            "ledgermq_claims", "Claims of bundles: won, lost to another broker, or failed", ("outcome",)
        )
        self._terms = counter(
            "ledgermq_terms_ended", "Terms of ownership that ended: released, fenced or failed", ("why",)
        )
        self._takeovers = counter("ledgermq_takeovers", "Claims won of bundles that another term had owned before")
        self._moves_for_load = counter(
            "ledgermq_moves_for_load",
            "Bundles that this broker began to hand over because others had less to do",
        )
        self._moves_to_rack = counter(
            "ledgermq_moves_to_rack",
            "Bundles that this broker began to hand over because most of their bytes are of programs in another rack",
        )
        for outcome in ("won", "lost", "failed"):
            self._claims.labels(outcome)
        for why in ("released", "fenced", "failed"):
            self._terms.labels(why)

    def _declare_upkeep(self, counter: Callable[..., Counter]) -> None:
        self._checkpoints = counter("ledgermq_checkpoints", "Checkpoints that this broker wrote for its bundles")
        self._upkeep = counter("ledgermq_upkeep_failures", "Failures of background work, which is retried", ("work",))
        self._rounds = counter("ledgermq_compaction_rounds", "Rounds of Parquet compaction that this process finished")
        self._compacted_records = counter(
            "ledgermq_compacted_records", "Records that finished rounds of compaction wrote to Parquet"
        )
        self._merged_files = counter(
            "ledgermq_merged_files", "Small Parquet files for which this process has made merged ones"
        )
        self._compacted_bytes = counter(
            "ledgermq_compacted_bytes", "Bytes of segments that finished rounds of compaction read"
        )
        for work in ("checkpoint", "look", "compaction"):
            self._upkeep.labels(work)

    def flushed(self, bundle: int, batches: int, size_bytes: int, seconds: float) -> None:
        self._flush_bytes.observe(size_bytes)
        self._flush_batches.observe(batches)
        self._flush_seconds.observe(seconds)

    def waited(self, bundle: int, seconds: float) -> None:
        self._wait_seconds.observe(seconds)

    def stored(self, index: fmt.SegmentIndex) -> None:
        for entry in index.batches:
            totals = self.topics.of(entry.topic_id)
            totals.batches_in += 1
            totals.records_in += entry.record_count
            totals.bytes_in += entry.length

    def delivered(self, topic_id: int, records: int, size_bytes: int) -> None:
        totals = self.topics.of(topic_id)
        totals.records_out += records
        totals.bytes_out += size_bytes

    def left_out(self, topic_id: int, left_out: LeftOut) -> None:
        totals = self.topics.of(topic_id)
        totals.batches_left_out += left_out.batches
        totals.records_left_out += left_out.records
        totals.bytes_left_out += left_out.size_bytes

    def refused(self, bundle: int) -> None:
        self._refused.inc()

    def refused_by_wait(self, bundle: int) -> None:
        self._refused_by_wait.inc()

    def duplicates(self, topic_id: int, records: int) -> None:
        self._duplicates.inc(records)

    def fetched(self, bundle: int, source: str, size_bytes: int) -> None:
        reads, read_bytes = self._sources[source]
        reads.inc()
        read_bytes.inc(size_bytes)

    def claimed(self, bundle: int, epoch: int, seconds: float) -> None:
        self._claims.labels("won").inc()
        self._claim_seconds.observe(seconds)
        if epoch > 1:
            self._takeovers.inc()

    def claim_failed(self, bundle: int, error: LedgerMQError) -> None:
        self._claims.labels("lost" if error.code == "NOT_OWNER" else "failed").inc()

    def moved_for_load(self, bundle: int) -> None:
        self._moves_for_load.inc()

    def moved_to_rack(self, bundle: int) -> None:
        self._moves_to_rack.inc()

    def term_ended(self, bundle: int, why: str) -> None:
        self._terms.labels(why).inc()

    def checkpointed(self, bundle: int, number: int) -> None:
        self._checkpoints.inc()

    def upkeep_failed(self, bundle: int, work: str, error: BaseException) -> None:
        self._upkeep.labels(work).inc()

    def merged(self, report: MergeReport) -> None:
        self._merged_files.inc(report.files)

    def compacted(self, report: RoundReport) -> None:
        self._rounds.inc()
        self._compacted_records.inc(report.records)
        self._compacted_bytes.inc(report.source_bytes)
