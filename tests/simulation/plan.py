"""What a seed decides before the run begins: how large, how faulty, how often something is paused
or killed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from ledgermq_ledger.cluster import ClusterSettings
from tests.simulation.ambush import NO_AMBUSH, Ambush, draw_ambush
from tests.stores.faulty import Faults


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A seed draws a few nuisances and leaves the others out: with all of them at once nothing
    would ever get done, and be undone.
    """

    brokers: int
    compactors: int
    seconds: float
    requests_max: int
    """After so many requests to the store the run is over earlier: a fast world does in a second
    what a slow one does in a minute.
    """
    faults: Faults
    slow: float
    slow_s: float
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
    """Share of store requests before which their process is paused: that is where a pause hurts
    most.
    """
    producer_states_max: int
    list_page: int
    ambush: Ambush
    parquet_min_age_ms: int
    full: float
    """Share of puts that the store refuses while it is full, which it is now and then; 0: never."""

    @property
    def cluster(self) -> ClusterSettings:
        return ClusterSettings(
            producer_states_max=self.producer_states_max,
            url_life_ms=self.parquet_min_age_ms // 4,
            parquet_min_age_ms=self.parquet_min_age_ms,
        )


def undisturbed(plan: RunPlan) -> RunPlan:
    """Return the plan without what keeps a process from its store: slow, full, standing still, or in ambush."""
    return replace(plan, slow=0.0, naps=0.0, stalls=0.0, full=0.0, ambush=NO_AMBUSH)


REQUESTS_MAX = (300, 1000, 1000, 3000)
"""Many short runs and some long ones, rather than all of one length.

Levels with more processes take twice as many.
"""

AMBUSHES_TAKE = 4
"""Who lies in ambush sleeps until much has happened: such a run is longer by that factor."""

NUISANCES = ("faults", "slow", "lost calls", "stalls", "naps", "short pages", "ambush", "ambush")


def plan_of(seed: int) -> RunPlan:
    r = random.Random(f"plan {seed}")
    nuisances = set(r.sample(NUISANCES, r.choice((0, 1, 2, 2, 3, 4))))

    def with_(nuisance: str, *shares: float) -> float:
        return r.choice(shares) if nuisance in nuisances else 0.0

    pause_s_max = r.choice((1.0, 10.0, 40.0))
    bad = with_("faults", 0.01, 0.05, 0.15, 0.5)
    return RunPlan(
        brokers=r.randint(2, 4),
        compactors=r.randint(2, 4),
        seconds=r.choice((15.0, 30.0, 60.0)),
        requests_max=random.Random(f"requests {seed}").choice(REQUESTS_MAX)
        * (AMBUSHES_TAKE if "ambush" in nuisances else 1),
        faults=Faults(
            before=bad * r.random(),
            after=bad * r.random(),
            late=bad * r.random(),
            throttle=bad * r.random() / 2,
            delay_s_max=r.choice((0.002, 0.01, 0.05, 0.2)),
        ),
        slow=with_("slow", 0.005, 0.05),
        slow_s=r.choice((3.0, 30.0)),
        lost_calls=with_("lost calls", 0.02, 0.1),
        net_delay_s_max=r.choice((0.001, 0.02, 0.2)),
        event_every_s=max(r.choice((1.0, 3.0, 10.0)), pause_s_max / 8),  # or else everybody is asleep most of the time
        pause_s_max=pause_s_max,
        patience_s=r.choice((0.2, 1.0, 5.0)),
        checkpoint_every_s=r.choice((0.5, 2.0)),
        compact_every_s=r.choice((0.05, 0.3, 1.0)),
        stalls=with_("stalls", 0.002, 0.01),
        naps=with_("naps", 0.002, 0.02),
        producer_states_max=r.choice((2, 4, 100)),
        list_page=r.choice((5, 50)) if "short pages" in nuisances else 1000,
        ambush=draw_ambush(r) if "ambush" in nuisances else NO_AMBUSH,
        parquet_min_age_ms=ClusterSettings().parquet_min_age_ms,
        full=random.Random(f"full {seed}").choice((0.0, 0.0, 0.3, 0.7, 1.0)),
    )
