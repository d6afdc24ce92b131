"""What a seed decides about a topic with a Delta or Iceberg table, beside what `plan` and `rounds_plan` decide."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from ledgermq_ledger.cluster import ClusterDefaults
from tests.simulation.ambush import NO_AMBUSH, Ambush
from tests.simulation.plan import RunPlan, plan_of, undisturbed
from tests.simulation.rounds_plan import BUNDLES, RoundsPlan, rounds_plan_of
from tests.stores.faulty import Faults

CATALOG, NAMESPACE = "lake", "simulated"
SLOW = "r0"
"""The registrar that may sleep for long: its name sorts first among the registrars."""


@dataclass(frozen=True, slots=True)
class TablesPlan:
    """Shares of a step unless a unit is named."""

    is_keyed: bool
    """The topic keeps the latest record of each key, and the table is over its versions."""
    is_iceberg: bool
    """The table is Iceberg's, in a catalog; else Delta's, in the topic's folder."""
    is_typed: bool
    """The topic's values have schemas, and its files columns of them."""
    registrars: int
    keep_ms: int
    hold_max_bytes: int
    log_checkpoint_every: int
    """Versions between two checkpoints of the table's log: few, or no number ever becomes free again."""
    follow_every_s: float
    stale_catalog: float
    """Share of a registrar's steps that go by the catalog of the step before."""
    gates: float
    """Share of the steps of a registrar that works by itself which raise the gates."""
    moves: float
    changes: float
    """Of the table: it is rebuilt, unset, set again, dropped."""
    deletions: float
    """Of the topic: it is deleted, brought back, deleted for good, created again."""
    late_facts_s: float
    """So long at most the controller may take before it tells the bundles what it has recorded."""
    is_damaged: bool
    """An object of the table's log is cut for a while."""
    outage_s: float
    """For so long puts of versions get no answer, more than once: longer than they are tried. 0: never."""
    requests_max: int


def is_silent(seed: int) -> bool:
    """Return whether the store gives no answers for longer than a put is tried."""
    return random.Random(f"silent store {seed}").random() < 0.25


def is_keyed(seed: int) -> bool:
    return seed % 5 == 4


def is_iceberg(seed: int) -> bool:
    return seed % 10 in (3, 6)


def is_typed(seed: int) -> bool:
    return seed % 10 == 7 or seed % 20 == 13


def merges(seed: int) -> bool:
    return seed % 10 == 5


def merges_in_calm(seed: int) -> bool:
    """Return whether little but retention disturbs a table that names merged files, so that it reaches many of them."""
    return seed % 20 == 15


def tables_plan_of(seed: int) -> TablesPlan:
    r = random.Random(f"tables {seed}")
    plan = TablesPlan(
        is_keyed=is_keyed(seed),
        is_iceberg=is_iceberg(seed),
        is_typed=is_typed(seed),
        registrars=r.randint(2, 3),
        keep_ms=r.choice((5000, 20_000)),
        hold_max_bytes=r.choice((-1, -1, 1, 10_000)),
        log_checkpoint_every=r.choice((2, 5, 100)),
        follow_every_s=r.choice((1.0, 4.0)),
        stale_catalog=r.choice((0.0, 0.5, 0.9)),
        gates=r.choice((0.1, 0.4)),
        moves=r.choice((0.0, 0.2, 0.5)),
        changes=r.choice((0.0, 0.2, 0.5)),
        deletions=r.choice((0.0, 0.0, 0.1, 0.3)),
        late_facts_s=r.choice((0.0, 0.0, 20.0)),
        is_damaged=r.random() < 0.25,
        outage_s=300.0 if is_silent(seed) else 0.0,
        requests_max=7000 if is_silent(seed) else r.choice((4000, 4000, 7000)),
    )
    if is_iceberg(seed):
        return replace(plan, is_damaged=False, requests_max=2 * plan.requests_max)
    if merges_in_calm(seed):
        calm = replace(plan, keep_ms=20_000, hold_max_bytes=-1, follow_every_s=1.0, stale_catalog=0.0, gates=0.4)
        calm = replace(calm, moves=0.0, changes=0.0, deletions=0.0, late_facts_s=0.0, is_damaged=False, outage_s=0.0)
        return replace(calm, requests_max=14_000)
    return plan


def lake_rounds_of(seed: int) -> RoundsPlan:
    """Return the rounds beside the table: fewer than in level *rounds*, over a longer time."""
    r, plan = random.Random(f"rounds of tables {seed}"), rounds_plan_of(seed)
    url_life_ms = 3000 if plan.is_s3 else 1000
    plan = replace(
        plan,
        compactors=r.randint(1, 3),
        seconds=r.choice((200.0, 400.0)) + (400.0 if is_silent(seed) else 0.0),
        cluster=ClusterDefaults(BUNDLES, 100, url_life_ms, 4 * url_life_ms),
        retention_ms=r.choice((500, 5000, 30_000)),
        records_s=r.choice((0.5, 1.0)),
        round_every_s=r.choice((2.0, 4.0)),
        by_hand=0.05,
        stale_catalog=r.choice((0.0, 0.5)),
        log_start_moves=0.0 if is_keyed(seed) else r.choice((0.0, 0.2)),
        topic_every_s=r.choice((4.0, 10.0)),
        clock_jump_s_max=r.choice((1.0, 30.0)) if plan.is_s3 else 3600.0,
        ambush=_ambush(r),
        holds=0.0,
        archives=False,
        sweeps=r.choice((0.0, 0.1)),
        clocks_wrong_s=(),
    )
    if not merges(seed):
        return plan
    plan = replace(plan, merges=2, retention_ms=60_000, log_start_moves=min(plan.log_start_moves, 0.02))
    if not merges_in_calm(seed):
        return plan
    return replace(
        plan, compactors=2, retention_ms=20_000, records_s=1.0, round_every_s=2.0, stale_catalog=0.0, ambush=NO_AMBUSH
    )


def _ambush(r: random.Random) -> Ambush:
    """One in four is general; in half of all, the slow registrar sleeps before it puts a version, or writes into a
    checkpoint, until its number is free again.
    """
    chosen = r.random()
    if chosen < 0.25:
        return NO_AMBUSH
    if chosen < 0.5:
        kind = r.choice(("table logs", "parquet", "checkpoints"))
        return Ambush({kind: r.choice((0.1, 0.5))}, seconds_max=60.0, sleepers_max=2)
    return Ambush({"table logs": r.choice((0.3, 1.0))}, seconds_max=r.choice((60.0, 120.0)), whose=SLOW)


def lake_disturbances_of(seed: int) -> RunPlan:
    """Return the run's nuisances: in two of three, outcomes of puts are unknown now and then."""
    r, plan = random.Random(f"disturbances of tables {seed}"), plan_of(seed)
    bad = r.choice((0.0, 0.05, 0.15))
    faults = Faults(before=bad / 3, after=bad / 3, late=bad / 3, delay_s_max=plan.faults.delay_s_max)
    pause_s_max = r.choice((5.0, 60.0))
    if merges_in_calm(seed):
        plan, faults, pause_s_max = undisturbed(plan), replace(faults, before=0.0, after=0.0, late=0.0), 5.0
    return replace(plan, faults=faults, event_every_s=5.0 + pause_s_max / 3, pause_s_max=pause_s_max)
