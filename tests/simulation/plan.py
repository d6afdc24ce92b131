"""What a seed decides before the run begins: how large, how faulty, how often something is paused or killed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.faulty_store import Faults


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Some seeds are calm in one respect and wild in another: that finds more than the same mixture everywhere."""

    brokers: int
    compactors: int
    seconds: float
    faults: Faults
    slow: float
    lost_calls: float
    net_delay_s_max: float
    event_every_s: float
    """Mean time between two pauses, kills or clock jumps."""
    pause_s_max: float
    patience_s: float
    """How long a broker without a term waits before it claims, at most."""
    checkpoint_every_s: float
    compact_every_s: float
    stalls: float
    naps: float
    """Share of store requests before which their process is paused: that is where a pause hurts most."""
    producer_states_max: int
    list_page: int


def plan_of(seed: int) -> RunPlan:
    r = random.Random(f"plan {seed}")
    bad = r.choice((0.0, 0.01, 0.05, 0.15, 0.5))
    return RunPlan(
        brokers=r.randint(2, 4),
        compactors=r.randint(2, 4),
        seconds=r.choice((15.0, 30.0, 60.0)),
        faults=Faults(
            before=bad * r.random(),
            after=bad * r.random(),
            late=bad * r.random(),
            throttle=bad * r.random() / 2,
            delay_s_max=r.choice((0.002, 0.01, 0.05, 0.5)),
        ),
        slow=r.choice((0.0, 0.005, 0.05)),
        lost_calls=r.choice((0.0, 0.02, 0.1)),
        net_delay_s_max=r.choice((0.001, 0.02, 0.2)),
        event_every_s=r.choice((1.0, 3.0, 10.0)),
        pause_s_max=r.choice((1.0, 10.0, 40.0)),
        patience_s=r.choice((0.2, 1.0, 5.0)),
        checkpoint_every_s=r.choice((0.5, 2.0)),
        compact_every_s=r.choice((0.05, 0.3, 1.0)),
        stalls=r.choice((0.0, 0.002, 0.01)),
        naps=r.choice((0.0, 0.002, 0.02)),
        producer_states_max=r.choice((2, 4, 100)),
        list_page=r.choice((5, 50, 1000)),
    )
