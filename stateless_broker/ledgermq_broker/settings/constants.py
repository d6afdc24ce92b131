"""Constants of brokers: what no operator sets."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq_broker.bundle.loads import LoadTimes
from ledgermq_ledger.cluster import ClusterDefaults


@dataclass(frozen=True, slots=True)
class BrokerConstants:
    """Constants that no operator sets; tests and simulations inject other values.

    `damaged_retry_s`: pause before a bundle with damaged data is opened again. `ownership_wait_s`:
    how long a request waits for a bundle that this broker is taking over. `carry_slots`: how many
    slots staged batches may be behind before they are carried forward. `url_life_ms` and
    `parquet_min_age_ms` go into the `cluster.json` of a new cluster. `limits`: those of features that are not the
    defaults of their types (`BrokerParts.limits_of`). `loads`: how loads are measured, and when bundles move.
    """

    damaged_retry_s: float = 30.0
    ownership_wait_s: float = 3.0
    url_life_ms: int = ClusterDefaults().url_life_ms
    parquet_min_age_ms: int = ClusterDefaults().parquet_min_age_ms
    limits: tuple[object, ...] = ()
    carry_slots: int = 2048
    loads: LoadTimes = field(default_factory=LoadTimes)
