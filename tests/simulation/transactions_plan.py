"""How the transactions of one simulated run are, by its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from ledgermq_broker.transactions.state.limits import TransactionLimits

LIFE_MS_MAX = 3_600_000
"""A run is over sooner: ids that are kept for longer are kept for all of it."""
FIRST_REPEATING = 30
"""Seeds below it were recorded for mutants before there were such programs; they stay as they were."""


@dataclass(frozen=True, slots=True)
class TransactionsPlan:
    timeout_ms: int
    deadline_s: float
    """of one commit"""
    processors: int
    session_timeout_s: float
    aborts: float
    dies: float
    """share of the transactions that are left open, as by a process that stands still"""
    limits: TransactionLimits
    carry_slots: int
    outlives: bool
    """Now and then a broker stands still until another has claimed its bundles."""
    stages_stale: bool
    """Processors now and then stage offsets under an assignment of before they lost a partition and got it again."""
    twins: bool
    """Two programs at a time use one xid."""
    thief: bool
    """A program that has learned producer ids of others stages under them."""
    far_clocks: bool
    """When all has healed, the clocks of the brokers are a day ahead for some seconds."""
    repeats: bool
    """Two programs repeat transactions of one call."""


def transactions_plan_of(seed: int) -> TransactionsPlan:
    r = random.Random(f"transactions plan {seed}")
    half = random.Random(f"half messages plan {seed}")
    plan = TransactionsPlan(
        timeout_ms=r.choice((1000, 3000, 10_000)),
        deadline_s=r.choice((2.0, 10.0, 30.0)),
        processors=r.randint(1, 3),
        session_timeout_s=r.choice((2.0, 5.0)),
        aborts=r.choice((0.0, 0.2)),
        dies=r.choice((0.0, 0.1)),
        limits=TransactionLimits(
            chunk_bytes=r.choice((1, 500, 4 * 1024 * 1024)),
            ask_after_ms=r.choice((500, 2000)),
            carry_after_ms=r.choice((100, 1000, 300_000)),
            expiry_ms=r.choice((60_000, 7 * 24 * 3_600_000)),
            expiry_look_ms=1000,
            note_asked_ms=500,
            log_start_ms=r.choice((200, 5000)),
            check_after_ms=half.choice((300, 2000)),
            check_every_ms=half.choice((200, 1000)),
            checks_max=half.choice((2, 3, 15)),
            half_expiry_ms=half.choice((1000, 120_000)),
        ),
        carry_slots=r.choice((1, 20)),
        outlives=r.random() < 0.5,
        stages_stale=random.Random(f"stale stages plan {seed}").random() < 0.5,
        twins=random.Random(f"twins plan {seed}").random() < 0.4,
        thief=random.Random(f"thief plan {seed}").random() < 0.4,
        far_clocks=random.Random(f"far clocks plan {seed}").random() < 0.3,
        repeats=False,
    )
    drawn = seed >= FIRST_REPEATING and random.Random(f"repeated calls plan {seed}").random() < 0.9
    return replace(plan, repeats=drawn and plan.limits.expiry_ms > LIFE_MS_MAX)
