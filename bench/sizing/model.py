"""Compute brokers, cores and dollars from a demand and measured costs. Pure.

A broker process uses one core, and is planned to be busy for only a part of the time. Nothing is
extrapolated: a broker gets no more partitions than were measured, and the cost of the next larger
measured number of partitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ledgermq_ledger.object_store.prices import HOURS_A_MONTH, S3_PRICES

BUSY = 0.6
"""Share of a core that a broker is planned to use: the rest is for takeovers, bursts and slow
consumers.
"""
BROKERS_MIN = 3
BUNDLES_A_BROKER = 2


@dataclass(frozen=True, slots=True)
class Demand:
    """`readers`: consumers of everything, each at the tail. `kept_tb`: after compaction."""

    name: str
    megabytes_per_s: float
    partitions: int
    readers: int
    kept_tb: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs. By number of partitions: CPU of a broker per megabyte produced, and its
    memory at the end.
    """

    produce_ms_per_mb: Mapping[int, float]
    memory_mib: Mapping[int, float]
    read_ms_per_mb: float
    compaction_mb_per_core_s: float
    compaction_dollars_per_tb: float


@dataclass(frozen=True, slots=True)
class Prices:
    """List prices, us-east-1, November 2026 as far as known. Look them up again before relying on
    them.
    """

    core_hour: float = 0.04
    tb_month: float = S3_PRICES.tb_month


@dataclass(frozen=True, slots=True)
class Cluster:
    """`memory_mib`: of one broker.

    Cores: those that are kept busy by all brokers and by compaction.
    """

    brokers: int
    bundles: int
    megabytes_per_s_a_broker: float
    partitions_a_broker: int
    memory_mib: float
    broker_cores: float
    compaction_cores: float

    @property
    def megabytes_per_s_a_bundle(self) -> float:
        return self.megabytes_per_s_a_broker * self.brokers / self.bundles


@dataclass(frozen=True, slots=True)
class MonthlyBill:
    """Dollars."""

    write_requests: float
    compaction_requests: float
    cores: float
    storage: float

    @property
    def total(self) -> float:
        return self.write_requests + self.compaction_requests + self.cores + self.storage


def cluster_for(demand: Demand, costs: Costs) -> Cluster:
    brokers = max(BROKERS_MIN, math.ceil(demand.partitions / max(costs.produce_ms_per_mb)))
    while _cores(demand, costs, brokers) > BUSY * brokers:
        brokers += 1
    each = math.ceil(demand.partitions / brokers)
    return Cluster(
        brokers=brokers,
        bundles=brokers * BUNDLES_A_BROKER,
        megabytes_per_s_a_broker=demand.megabytes_per_s / brokers,
        partitions_a_broker=each,
        memory_mib=_at(costs.memory_mib, each),
        broker_cores=_cores(demand, costs, brokers),
        compaction_cores=demand.megabytes_per_s / costs.compaction_mb_per_core_s,
    )


def monthly_bill(
    demand: Demand, cluster: Cluster, costs: Costs, request_dollars_per_s_a_broker: float, prices: Prices
) -> MonthlyBill:
    """Return the bill. `request_dollars_per_s_a_broker`: cost of one broker's requests to the
    store, as observed.

    Cores are paid for whether they are busy or not.
    """
    seconds = HOURS_A_MONTH * 3600
    terabytes = demand.megabytes_per_s * seconds / 1e6
    cores = cluster.brokers + math.ceil(cluster.compaction_cores / BUSY)
    return MonthlyBill(
        write_requests=request_dollars_per_s_a_broker * cluster.brokers * seconds,
        compaction_requests=costs.compaction_dollars_per_tb * terabytes,
        cores=cores * prices.core_hour * HOURS_A_MONTH,
        storage=demand.kept_tb * prices.tb_month,
    )


def _cores(demand: Demand, costs: Costs, brokers: int) -> float:
    each_ms = (
        _at(costs.produce_ms_per_mb, math.ceil(demand.partitions / brokers)) + demand.readers * costs.read_ms_per_mb
    )
    return demand.megabytes_per_s * each_ms / 1000


def _at(measured: Mapping[int, float], partitions: int) -> float:
    """Return the value for the next larger number of partitions that was measured."""
    return measured[min(number for number in measured if number >= partitions)]
