"""What a seed decides about rounds of Parquet compaction, beside what `plan` decides about every
run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from ledgermq_ledger.cluster import ClusterDefaults
from tests.simulation.ambush import KINDS, NO_AMBUSH, Ambush, draw_ambush

BUNDLES = 3
SLEEPER_WITH_A_WRONG_CLOCK = Ambush({"parquet": 1.0}, seconds_max=80.0, whose="c0", before=("put",))
"""The compactor whose clock is ahead has signed, and sleeps until its file was put by another one and deleted. Its
URLs would still be in force then, if it could sign at all (T4).
"""
SLEEPER_OVER_A_REMOVAL = Ambush({"parquet": 1.0}, seconds_max=14.0, whose="c0", before=("put",), where="topic=temp/")
"""It has signed for a file of a topic that is deleted at once: while its URL is in force all steps of the removal
may be done, but for the one that waits until no URL is (T5).
"""
LATE_TWICE = Ambush(
    {"parquet": 1.0}, seconds_max=80.0, whose="c0", before=("put", "permission"), where="topic=brief/", late_s=3.0
)
"""Its URL has expired while its plan is still open, and once more it sleeps before it signs again (T3)."""

SLEEPER_BEFORE_A_LIST = Ambush({"merged": 1.0}, seconds_max=8.0, whose="c0", before=("put",), where="/lists/")
"""Its merged file is there. While it sleeps before the list that names the file, a rival brings a list of the same
number into force, and another one sweeps: what no list names goes (design Q11, Q13).
"""

SLEEPER_BEHIND_THE_FRONT = Ambush(
    {"merged": 1.0}, seconds_max=8.0, commits=3, whose="c0", before=("delete",), where="/files/"
)
"""It has deleted the first small file of a merged one, and sleeps before it deletes that one, while rivals put new
lists (design Q13).
"""
SLEEPERS_AMONG_MERGES = SLEEPER_BEFORE_A_LIST, SLEEPER_BEHIND_THE_FRONT


@dataclass(frozen=True, slots=True)
class RoundsPlan:
    is_s3: bool
    compactors: int
    seconds: float
    cluster: ClusterDefaults
    retention_ms: int
    records_s: float
    round_every_s: float
    """Mean pause of a compactor between two things that it does."""
    by_hand: float
    """Share of those that are compactions of the whole root; the others are rounds of one bundle,
    as a broker runs them.
    """
    stale_catalog: float
    """Share of rounds that are made with the catalog of the round before."""
    log_start_moves: float
    topic_every_s: float
    clock_jump_s_max: float
    ambush: Ambush
    holds: float
    """Share of a topic changer's steps that set or end a legal hold."""
    archives: bool
    """At some time the topic under retention is told to archive."""
    sweeps: float
    """Share of a compactor's steps that collect the garbage of the whole root."""
    merges: int = 0
    """Small files that get a merged one; 0: none do."""
    merger: str = ""
    """The one process that merges after its rounds; empty: all do."""
    clocks_wrong_s: tuple[float, ...] = ()
    """How far the clocks of the first processes are ahead from the beginning: compactors first."""


def rounds_plan_of(seed: int) -> RoundsPlan:
    """Every fourth seed is a storm: retention takes whatever it may, while one task after the other
    sleeps before its put.

    Nothing is held or archived in it: what stays longer gives late puts nothing to bring back.
    """
    plan = _drawn(seed)
    r = random.Random(f"storm {seed}")
    if r.random() >= 0.25:
        return plan
    ambush = Ambush({"parquet": r.choice((0.1, 0.5))}, seconds_max=80.0, sleepers_max=2)
    clocks_wrong_s: tuple[float, ...] = r.choice(((), (40.0,)))
    if plan.is_s3 and clocks_wrong_s and random.Random(f"sleeper {seed}").random() < 0.5:
        ambush, clocks_wrong_s = SLEEPER_WITH_A_WRONG_CLOCK, (300.0,)
    storm = replace(
        plan,
        compactors=4,
        seconds=160.0,
        retention_ms=500,
        round_every_s=1.0,
        records_s=1.0,
        ambush=ambush,
        clocks_wrong_s=clocks_wrong_s,
        holds=0.0,
        archives=False,
    )
    return _with_one_sleeper(storm, seed) if plan.is_s3 and ambush is not SLEEPER_WITH_A_WRONG_CLOCK else storm


def with_merges(plan: RoundsPlan, seed: int) -> RoundsPlan:
    """One seed in six merges small files, beside rivals. In half of these a process sleeps before its put for a merge,
    while others merge the same files, and collect garbage; or collect garbage alone.
    """
    if seed % 20 == 9 and seed > 10:
        return _with_sleeper_behind_the_front(plan)
    is_ambushed = plan.ambush in (SLEEPER_WITH_A_WRONG_CLOCK, SLEEPER_OVER_A_REMOVAL, LATE_TWICE)
    if is_ambushed or (seed % 10 != 7 and not (seed % 10 == 3 and seed > 10)):
        return plan
    r = random.Random(f"merges {seed}")
    plan = replace(plan, merges=r.choice((2, 3)), compactors=max(2, plan.compactors), holds=r.choice((0.0, plan.holds)))
    if r.random() < 0.5:
        return _with_sleeper_before_lists(plan) if random.Random(f"lists {seed}").random() < 0.5 else plan
    ambush = Ambush({"merged": r.choice((0.1, 0.4))}, seconds_max=r.choice((10.0, 40.0)), before=("put",))
    plan = replace(plan, compactors=3, seconds=160.0, round_every_s=1.0, sweeps=0.3)
    if r.random() < 0.5:
        return replace(plan, ambush=ambush)
    return replace(plan, by_hand=0.0, merger="c0", ambush=replace(ambush, whose="c0"))


def _with_sleeper_before_lists(plan: RoundsPlan) -> RoundsPlan:
    """Little else happens, and merges take so many files that few rivals bring two lists into force meanwhile."""
    return replace(
        plan,
        merges=4,
        compactors=3,
        seconds=160.0,
        retention_ms=20_000,
        records_s=3.0,
        round_every_s=1.0,
        by_hand=0.0,
        stale_catalog=0.0,
        log_start_moves=0.0,
        topic_every_s=5.0,
        ambush=SLEEPER_BEFORE_A_LIST,
        holds=0.0,
        archives=False,
        sweeps=0.5,
    )


def _with_sleeper_behind_the_front(plan: RoundsPlan) -> RoundsPlan:
    """Merged files are made and go all the time, and what sweeps the root comes seldom."""
    return replace(
        _with_sleeper_before_lists(plan),
        merges=2,
        retention_ms=15_000,
        records_s=1.0,
        ambush=SLEEPER_BEHIND_THE_FRONT,
        clocks_wrong_s=(),
        log_start_moves=0.3,
        sweeps=0.0,
    )


def _with_one_sleeper(storm: RoundsPlan, seed: int) -> RoundsPlan:
    """In half of these storms one compactor alone sleeps, just where one rule protects."""
    r = random.Random(f"one sleeper {seed}")
    kind = r.choice((SLEEPER_OVER_A_REMOVAL, LATE_TWICE, None, None))
    if kind is SLEEPER_OVER_A_REMOVAL:
        cluster = replace(storm.cluster, url_life_ms=15_000, parquet_min_age_ms=60_000)
        storm = replace(storm, cluster=cluster, topic_every_s=1.0, round_every_s=0.5, records_s=3.0)
        return replace(storm, ambush=kind, clocks_wrong_s=())
    if kind is LATE_TWICE:  # few rounds, or its plan is not open any more
        cluster = replace(storm.cluster, url_life_ms=3000, parquet_min_age_ms=12_000)
        storm = replace(storm, cluster=cluster, compactors=3, round_every_s=5.0, by_hand=0.6)
        return replace(storm, ambush=kind, clocks_wrong_s=())
    return storm


def _drawn(seed: int) -> RoundsPlan:
    r = random.Random(f"rounds plan {seed}")
    is_s3 = r.random() < 0.5
    keeping = random.Random(f"holds and archives {seed}")
    url_life_ms = r.choice((3000, 5000)) if is_s3 else 1000
    return RoundsPlan(
        is_s3=is_s3,
        compactors=r.randint(1, 4),
        seconds=r.choice((40.0, 80.0, 160.0)),
        cluster=ClusterDefaults(BUNDLES, r.choice((3, 100)), url_life_ms, 4 * url_life_ms),
        retention_ms=r.choice((500, 500, 5000, 20_000)),
        records_s=r.choice((1.0, 3.0)),
        round_every_s=r.choice((0.2, 1.0, 3.0)),
        by_hand=r.choice((0.2, 0.5, 1.0)),
        stale_catalog=r.choice((0.0, 0.5)),
        log_start_moves=r.choice((0.0, 0.05, 0.3)),
        topic_every_s=r.choice((1.0, 5.0)),
        clock_jump_s_max=r.choice((1.0, 30.0)) if is_s3 else 3600.0,
        ambush=replace(draw_ambush(r, (*KINDS, "parquet", "parquet", "parquet")), seconds_max=80.0)
        if r.random() < 0.5
        else NO_AMBUSH,
        holds=keeping.choice((0.0, 0.3, 0.6)),
        archives=keeping.random() < 0.5,
        sweeps=keeping.choice((0.0, 0.1, 0.3)),
    )
