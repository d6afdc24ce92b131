"""The breakdown of the time of batches: in virtual time, before a store that always takes as long, each stage is what
it has to be.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.distant import Distance, Late
from bench.journey.loads import Load
from bench.journey.run import real, simulated, table
from bench.journey.watch import STAGES, watching
from ledgermq.client.producing.partition.ordered_batches import OrderedBatches

PUT_S = 0.05
ALWAYS = Distance(Late(PUT_S, PUT_S), Late(PUT_S, PUT_S))
NETWORK_MS = 2.5
"""Two ways of the simulated network, and some turns of the event loop."""


def test_records_that_come_one_by_one_wait_for_their_own_put_alone() -> None:
    found = simulated(Load(seconds=3, records_per_s=5), ALWAYS)

    assert len(found.journeys) == 15
    assert found.of("put") == pytest.approx([1000 * PUT_S] * 15)
    assert max(found.of("request")) < NETWORK_MS
    for stage in ("linger", "window", "spacing", "order"):
        assert max(found.of(stage)) == pytest.approx(0, abs=0.01)
    assert max(found.of("answer")) < NETWORK_MS
    assert len(found.seen()) == 15
    assert max(found.seen()) < 2 * NETWORK_MS
    whole = [sum(found.of(stage)[at] for stage in STAGES) for at in (0, -1)]
    assert whole[0] <= found.whole()[0] <= found.whole()[-1] <= whole[1]


def test_the_stages_are_all_of_what_the_program_feels() -> None:
    found = simulated(Load(seconds=2, records_per_s=100, partitions=2), ALWAYS)

    felt_ms, whole_ms = 1000 * found.felt.acknowledged_s[-1], found.whole()[-1]
    assert felt_ms == pytest.approx(whole_ms, abs=1.0)
    assert len(table(found)) == 4 + len(STAGES)


def test_runs_of_records_are_watched_too() -> None:
    found = simulated(Load(seconds=1, megabytes_per_s=2), ALWAYS)

    assert sum(journey.records for journey in found.journeys) == 64 * len(found.felt.acknowledged_s)


def test_a_real_broker_is_watched_by_the_same_stages(tmp_path: Path) -> None:
    found = asyncio.run(real(Load(seconds=0.5, records_per_s=20), tmp_path.as_uri()))

    assert sum(journey.records for journey in found.journeys) == 10
    assert all(min(found.of(stage)) >= 0 for stage in STAGES)
    assert min(found.of("put")) > 0
    assert len(found.felt.seen_s) == 10


def test_watching_leaves_no_trace() -> None:
    plain = OrderedBatches.sent
    with watching():
        assert OrderedBatches.sent is not plain
    assert OrderedBatches.sent is plain
