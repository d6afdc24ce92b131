"""What the model of docs/sizing.md predicts for a week, beside what brokers count in it. In virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest

from bench.distant import DISTANCES, FAR
from bench.runs import VALUE_BYTES, send_runs
from bench.sizing.distant_brokers import DistantBrokers
from bench.sizing.observe import Load, observe
from ledgermq_broker.costs.counted import CLUSTER, REST
from ledgermq_ledger.object_store.prices import PICO, S3_PRICES
from tests.simulation import loop
from tests.simulation.loop import SimulatedLoop, run_simulated

HOUR_S = 3600
PARTITIONS, BUNDLES = 4, 2
HEARTBEAT_MS = 60_000
"""Twenty times that of S3, so that heartbeats are not nearly the whole bill of so small a load."""
RUNS_PER_S = {"night": 0.01, "day": 0.06, "evening": 0.03, "weekend": 0.02}
"""Sent runs of one record of 1000 B."""
WORKDAY = (("night", 8), ("day", 12), ("evening", 4))
WEEK = (*WORKDAY * 5, *(("night", 8), ("weekend", 16)) * 2)
"""Hours of each part, one after the other."""
OBSERVED_S = 3 * HOUR_S
TURNS_MAX = 30_000_000
BUSY_SHARE = 0.75
"""Of the runs, those of topic `busy`; the others go to `calm`."""


def load_of(part: str, share: float = 1.0) -> float:
    """Megabytes a second."""
    return share * RUNS_PER_S[part] * VALUE_BYTES / 1e6


def predicted_dollars() -> float:
    """By the model: what one broker was seen to ask for in a part of a week, for as long as the part lasts."""
    dollars = 0.0
    for part in RUNS_PER_S:
        load = Load(load_of(part), PARTITIONS, BUNDLES, OBSERVED_S, run_records=1, heartbeat_ms=HEARTBEAT_MS)
        dollars += observe(load).dollars_per_s * HOUR_S * sum(hours for name, hours in WEEK if name == part)
    return dollars


@dataclass(frozen=True, slots=True)
class Counted:
    """Dollars: of the week, and by topic; "" is the cluster's. `priced`: the same total, by operations alone."""

    total: float
    by_topic: dict[str, float]
    priced: float


class Week:
    def __init__(self, own: SimulatedLoop) -> None:
        self._brokers = DistantBrokers(own, BUNDLES, DISTANCES[FAR], HEARTBEAT_MS)

    async def run(self) -> Counted:
        await self._brokers.start()
        return await self._brokers.process("client").spawn(self._count())

    async def _count(self) -> Counted:
        for topic in ("busy", "calm"):
            await self._brokers.create_topic(topic, PARTITIONS)
        async with self._brokers.client("client") as client, client.producer(compression="none") as producer:
            await send_runs(producer, "busy", PARTITIONS, load_of("day"), 600, 1)
            total, by_topic, priced = self._spent()
            for part, hours in WEEK:
                async with asyncio.TaskGroup() as group:
                    for topic, share in (("busy", BUSY_SHARE), ("calm", 1 - BUSY_SHARE)):
                        seconds, rate = hours * HOUR_S, load_of(part, share)
                        group.create_task(send_runs(producer, topic, PARTITIONS, rate, seconds, 1))
            end_total, end_by_topic, end_priced = self._spent()
        spent = {name: (amount - by_topic[name]) / PICO for name, amount in end_by_topic.items()}
        return Counted((end_total - total) / PICO, spent, end_priced - priced)

    def _spent(self) -> tuple[int, Counter[str], float]:
        costs, [broker] = self._brokers.costs, self._brokers.brokers.values()
        names = {topic.id: topic.name for topic in broker.metadata.catalog.topics_by_id.values()}
        names |= {CLUSTER.topic_id: "", REST.topic_id: ""}
        by_topic: Counter[str] = Counter()
        for payer, spent in costs.by_payer(names).items():
            by_topic[names[payer.topic_id]] += spent.total
        priced = sum(S3_PRICES.of(name) * count for name, count in self._brokers.meter.by_operation().items())
        return costs.total, by_topic, priced


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_week_costs_what_the_model_predicts_and_topics_pay_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "TURNS_MAX", TURNS_MAX)
    counted = run_simulated(lambda own: Week(own).run())

    assert counted.total == pytest.approx(counted.priced, rel=1e-9)
    assert sum(counted.by_topic.values()) == pytest.approx(counted.total, rel=1e-12)
    assert counted.by_topic["busy"] > 0.02
    assert counted.by_topic["busy"] / counted.by_topic["calm"] == pytest.approx(BUSY_SHARE / (1 - BUSY_SHARE), rel=0.02)
    assert predicted_dollars() == pytest.approx(counted.total, rel=0.03)
