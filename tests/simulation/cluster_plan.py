"""Draw from a seed the plan of a whole cluster, in addition to what `plan` draws for every run."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ledgermq.buffers import KIB
from ledgermq_broker.bundle.loads import LoadTimes
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.constants import BrokerConstants


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    brokers: int
    compactors: int
    seconds: float
    resets: float
    named_brokers: bool
    """A restarted broker has the id of the one before it; else it draws a new one."""
    settings: BrokerSettings
    constants: BrokerConstants
    topic_settings: dict[str, dict[str, int | str]]
    linger_ms: float | None
    compression: str
    records_s: float
    """Records that one producer sends a second, on the average."""
    request_timeout_s: float
    delivery_timeout_s: float
    is_s3: bool
    direct_reads: bool
    """Brokers say where segments are, and readers read them from the store."""


def cluster_plan_of(seed: int) -> ClusterPlan:
    r = random.Random(f"cluster plan {seed}")
    answer_memory = random.Random(f"memory for answers {seed}").choice((1024 * 1024, 256 * 1024 * 1024))
    direct_reads = random.Random(f"direct reads {seed}").random() < 0.5
    is_s3 = random.Random(f"cluster on S3 {seed}").random() < 0.3
    target = r.choice((4096, 65536, 128 * 1024 * 1024))
    lag = r.choice((500, 5000, 30_000))
    brokers, compactors = r.randint(2, 5), r.randint(0, 3)
    seconds, resets = r.choice((15.0, 30.0, 60.0)), r.choice((0.0, 0.0, 0.002, 0.01))
    named_brokers = r.random() < 0.5
    spacing_ms, heartbeat_ms = r.choice((0, 20, 100)), r.choice((200, 500, 2000))
    holding_ms, ownership_wait_s = r.choice((0, 1000, 10_000)), r.choice((0.1, 3.0))
    return ClusterPlan(
        brokers=brokers,
        compactors=compactors,
        seconds=seconds,
        resets=resets,
        named_brokers=named_brokers,
        settings=BrokerSettings(
            topic_delete_grace_ms=0,
            flush_spacing_ms=spacing_ms,
            heartbeat_interval_ms=heartbeat_ms,
            holding_ms=holding_ms,
            cache_bytes_max=r.choice((0, 20_000, 256 * 1024 * 1024)),
            produce_memory_bytes_max=r.choice((1024 * 1024, 256 * 1024 * 1024)),
            answer_memory_bytes_max=answer_memory,
            checkpoint_slots=r.choice((3, 20, 256)),
            background_compaction=r.random() < 0.8,
            bundles=r.randint(2, 4),
            producer_states_max=r.choice((3, 10, 100_000)),
            direct_reads=direct_reads,
        ),
        constants=BrokerConstants(
            damaged_retry_s=5,
            ownership_wait_s=ownership_wait_s,
            url_life_ms=3000 if is_s3 else 1000,
            parquet_min_age_ms=12_000 if is_s3 else 4000,
            loads=load_times_of(seed),
        ),
        topic_settings={
            "main": {"parquet.target.bytes": target, "parquet.max.lag.ms": lag},
            "brief": {
                "parquet.target.bytes": 4096,
                "parquet.max.lag.ms": 500,
                "retention.ms": r.choice((2000, 10_000)),
            },
        },
        linger_ms=r.choice((0.0, None, 50.0)),
        compression=r.choice(("none", "none", "none", "lz4", "zstd")),
        records_s=r.choice((1.0, 3.0, 8.0)),
        request_timeout_s=r.choice((2.0, 10.0, 30.0)),
        delivery_timeout_s=r.choice((5.0, 30.0, 120.0)),
        is_s3=is_s3,
        direct_reads=direct_reads,
    )


def load_times_of(seed: int) -> LoadTimes:
    """Return times that are short enough for moves for load within a run."""
    wait_s = random.Random(f"waits before moves for load {seed}").choice((1.0, 10.0))
    return LoadTimes(half_life_s=10.0, sample_s=2.0, quiet=8 * KIB, wait_s=wait_s)


def added_bundles_of(seed: int) -> int:
    """Return how many bundles are added in the middle of a run; 0: none."""
    return random.Random(f"added bundles {seed}").choice((0, 0, 1, 3))


def batch_by_of(seed: int) -> str:
    """Return how a producer whose records have no order makes its batches."""
    return random.Random(f"batches by tag {seed}").choice(("partition", "tag"))
