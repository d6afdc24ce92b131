"""Draw from a seed what level *timers* needs in addition: limits of timed messages, and how long their
units of time are.

The product's ranges are a minute to 30 days wide. Here they are a fraction of that, in the same proportions
of lead and margin, so that messages pass through all widths within a minute or an hour.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

import ledgermq_broker.timed.state.limits
import ledgermq_broker.timed.state.places
from ledgermq_broker.timed.delivering import deliverer, mover
from ledgermq_broker.timed.state.limits import TimerLimits
from ledgermq_broker.timed.timers import TIMED
from ledgermq_ledger import keys

SECOND_US = 1_000_000
UNITS_OF_WIDTHS = (144, 36, 12, 4, 1)
"""Widths of ranges, the widest first, in units: the narrowest width."""
MARGINS = (3.0, 3.0, 2.0, 1.0, 0.5)
HORIZON_LEAD, LOAD_LEAD = 1.5, 1 / 3
FAR_RESERVED = 144 // 36 + 36 // 12 + 12 // 4
NEAR_RESERVED = 4


@dataclass(frozen=True, slots=True)
class Geometry:
    """`unit_us`: the narrowest width. `near`, `far`: places for ranges in each bundle."""

    unit_us: int
    near: int
    far: int

    @property
    def widths_us(self) -> tuple[int, ...]:
        return tuple(units * self.unit_us for units in UNITS_OF_WIDTHS)


@dataclass(frozen=True, slots=True)
class TimersPlan:
    """`far_s`: how far ahead messages are due at most. `batch`: records that are sent at once, at most.
    `skew_s`: how wrong clocks are from the beginning, at most. `outlives`: now and then a broker stands still until
    another has claimed its bundles. `file_lag_ms`: of the hidden topic.
    """

    geometry: Geometry
    limits: TimerLimits
    far_s: float
    batch: int
    recalls_s: float
    skew_s: float
    outlives: bool
    file_lag_ms: int
    senders: int
    transactors: int
    """Processes that send timed messages in transactions; with any, others prepare and end branches."""
    storms: bool
    """Now and then the store is slow and full at once."""


def timers_plan_of(seed: int) -> TimersPlan:
    r = random.Random(f"timers plan {seed}")
    more = random.Random(f"more of the timers plan {seed}")
    unit_s = r.choice((0.2, 0.5, 0.5, 2.0))
    geometry = Geometry(
        round(unit_s * SECOND_US), NEAR_RESERVED + r.choice((1, 3, 12)), FAR_RESERVED + r.choice((1, 4, 20))
    )
    return TimersPlan(
        geometry=geometry,
        limits=TimerLimits(
            body_bytes=r.choice((1, 2000, 32 * 1024 * 1024)),
            flush_after_ms=r.choice((200, 1000, 5000)),
            chunk_bytes=r.choice((1, 300, 1024 * 1024)),
            recalls_max=r.choice((3, 100_000)),
            recall_kept_ms=r.choice((500, 5000, 20_000)),
            due_soon_ms=r.choice((100, 5000)),
            clock_reading_ms=r.choice((500, 3_600_000)),
            log_start_ms=r.choice((200, 3000)),
        ),
        far_s=min(150.0, unit_s * r.choice((3, 30, 300))),
        batch=r.choice((1, 5, 30)),
        recalls_s=r.choice((0.3, 2.0)),
        skew_s=r.choice((0.0, 3600.0, 5 * 86400.0)),
        outlives=r.random() < 0.5,
        file_lag_ms=r.choice((300, 3000, 3_600_000)),
        senders=r.randint(1, 3),
        transactors=more.choice((0, 0, 1, 2)),
        storms=more.random() < 0.3,
    )


def ahead_s_of(r: random.Random, plan: TimersPlan, now_us: int) -> float:
    """Draw how far ahead of the store's time a message is due; one that may be sent."""
    unit_s = plan.geometry.unit_us / SECOND_US
    kind = r.random()
    if kind < 0.05:
        return -r.choice((0.0, 0.1, 3.0, 86400.0, 40 * 86400.0))
    if kind < 0.2:
        return 0.0
    if kind < 0.4:
        return r.uniform(0, 3.0)
    ahead_s = min(unit_s * 2 ** r.uniform(0, 8.5), plan.far_s)
    return _to_edge(r, plan, now_us, ahead_s) if r.random() < 0.3 else ahead_s


def _to_edge(r: random.Random, plan: TimersPlan, now_us: int, ahead_s: float) -> float:
    """Many are due at one moment, at an edge between ranges."""
    width_us = r.choice(plan.geometry.widths_us)
    due_us = now_us + round(ahead_s * SECOND_US)
    edge_us = due_us - due_us % width_us + r.choice((0, 0, -1))
    return (edge_us - now_us) / SECOND_US


@contextmanager
def scaled(plan: TimersPlan) -> Iterator[None]:
    """Let the product allocate ranges of these widths."""
    geometry = plan.geometry
    widths = geometry.widths_us
    near_places, far_places = range(1, 1 + geometry.near), range(geometry.far)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in (
            (ledgermq_broker.timed.state.limits, "HORIZON_LEAD_US", round(HORIZON_LEAD * geometry.unit_us)),
            (ledgermq_broker.timed.state.limits, "LOAD_LEAD_US", round(LOAD_LEAD * geometry.unit_us)),
            (ledgermq_broker.timed.state.places, "WIDTHS_US", widths),
            (ledgermq_broker.timed.state.places, "NEAR_WIDTH_US", geometry.unit_us),
            (
                ledgermq_broker.timed.state.places,
                "MARGINS_US",
                {width: round(margin * geometry.unit_us) for width, margin in zip(widths, MARGINS, strict=True)},
            ),
            (ledgermq_broker.timed.state.places, "NEAR_PLACES", near_places),
            (ledgermq_broker.timed.state.places, "FAR_PLACES", far_places),
            (ledgermq_broker.timed.state.places, "PLACES", (near_places, far_places)),
            (ledgermq_broker.timed.state.places, "RESERVED", (NEAR_RESERVED, FAR_RESERVED)),
        ):
            _replace_everywhere(patch, getattr(owner, name), name, value)
        patch.setattr(mover, "FLUSH_LOOK_S", 0.1)
        patch.setattr(deliverer, "RECALLS_LOOK_S", 0.5)
        patch.setattr(keys, "NEAR_PARTITIONS", 1 + geometry.near)
        patch.setattr(keys, "FAR_PARTITIONS", geometry.far)
        files = {"parquet.max.lag.ms": str(plan.file_lag_ms), "parquet.target.bytes": "4096"}
        near, far, log = TIMED.topics
        topics = (
            replace(near, in_each_bundle=1 + geometry.near),
            replace(far, in_each_bundle=geometry.far, settings={**far.settings, **files}),
            log,
        )
        patch.setitem(vars(TIMED), "topics", topics)
        yield


def _replace_everywhere(patch: pytest.MonkeyPatch, constant: Any, name: str, value: Any) -> None:
    """In each module that has imported the constant."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith(("timers.", "ledgermq_broker.timed.")) and (
            getattr(module, name, None) is constant
        ):
            patch.setattr(module, name, value)
