"""What a cluster needs: rules of the model, and that the simulated broker behind it answers as its
settings say.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.distant import DISTANCES, FAR
from bench.sizing import page
from bench.sizing.crowded import crowded
from bench.sizing.model import BROKERS_MIN, BUSY, Costs, Demand, Prices, cluster_for, monthly_bill
from bench.sizing.observe import Load, observe

MEDIAN_S = DISTANCES[FAR].write.median_s
COSTS = Costs(
    produce_ms_per_mb={8: 10.0, 1000: 20.0},
    memory_mib={8: 400.0, 1000: 500.0},
    read_ms_per_mb=5.0,
    compaction_mb_per_core_s=100.0,
    compaction_dollars_per_tb=2.0,
)
DEMAND = Demand("some", 100, 24, readers=1, kept_tb=10)


def test_a_small_load_has_the_fewest_brokers_that_survive_one() -> None:
    cluster = cluster_for(replace(DEMAND, megabytes_per_s=1), COSTS)

    assert cluster.brokers == BROKERS_MIN
    assert cluster.memory_mib == 400.0


def test_brokers_are_never_planned_busier_than_said() -> None:
    cluster = cluster_for(replace(DEMAND, megabytes_per_s=1000, partitions=5000), COSTS)

    assert cluster.broker_cores == pytest.approx(1000 * 25 / 1000)
    assert cluster.broker_cores <= BUSY * cluster.brokers
    assert cluster.broker_cores > BUSY * (cluster.brokers - 1)


def test_no_broker_gets_more_partitions_than_were_measured() -> None:
    cluster = cluster_for(replace(DEMAND, megabytes_per_s=1, partitions=100_000), COSTS)

    assert cluster.brokers == 100
    assert cluster.partitions_a_broker == 1000


def test_a_bill_counts_idle_cores_too() -> None:
    cluster = cluster_for(DEMAND, COSTS)
    bill = monthly_bill(DEMAND, cluster, COSTS, 0.0, Prices(core_hour=1.0, tb_month=1.0))

    assert bill.cores == 730 * (cluster.brokers + 2)  # one core of compaction, at work for 0.6 of the time
    assert bill.storage == 10
    assert bill.total == bill.cores + bill.storage + bill.compaction_requests


def test_small_tables_that_wait_for_a_distant_store_do_not_fall_behind() -> None:
    slow, fast = (observe(Load(rate, partitions=8, bundles=4, seconds=3)) for rate in (5, 20))

    assert fast.acknowledged_ms_p50 < 1.5 * slow.acknowledged_ms_p50
    assert fast.acknowledged_ms_p99 < 1.5 * slow.acknowledged_ms_p99


def test_an_observation_is_the_same_each_time_and_waits_for_the_store_once() -> None:
    load = Load(megabytes_per_s=0.2, partitions=1, bundles=1, seconds=5)
    seen = observe(load)

    assert observe(load) == seen
    assert 0.8 * MEDIAN_S < seen.acknowledged_ms_p50 / 1000 < 1.3 * MEDIAN_S
    assert seen.requests_per_s["put_if_absent"] == seen.puts_per_s > 0
    assert seen.dollars_per_s > seen.segment_dollars_per_s


def test_more_bundles_need_more_requests_for_the_same_load() -> None:
    one, four = (observe(Load(4.0, 8, bundles, 2)) for bundles in (1, 4))

    assert four.puts_per_s > 2 * one.puts_per_s


def test_greedy_producers_leave_room_for_a_small_one() -> None:
    seen = crowded(2, sends=10, flooded_s=1.0)

    assert min(seen.greedy_megabytes) > 0.5 * max(seen.greedy_megabytes) > 0
    assert seen.acknowledged_ms_longest / 1000 < 5 * MEDIAN_S


def test_the_page_answers_for_a_load_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    page.main(["--megabytes-per-s", "1", "--partitions", "8", "--kept-tb", "2", "--tb-month", "10"])

    told = capsys.readouterr().out
    assert "| **broker processes**, a core each | **3** |" in told
    assert "| storage, $ a month | 20 |" in told


@pytest.mark.parametrize("load", [["--megabytes-per-s", "0"], ["--megabytes-per-s", "1", "--partitions", "0"]])
def test_a_load_of_nothing_is_refused(load: list[str]) -> None:
    with pytest.raises(SystemExit):
        page.main(load)
