"""How the Kafka clients of one simulated run are, by its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_offsets.classic.values import ClassicLimits
from ledgermq_offsets.limits import GroupLimits

FAMILIES = (
    ("transactions",),
    ("processors",),
    ("classic",),
    ("consumers",),
    ("transactions", "consumers"),
    ("processors", "classic"),
    ("consumers", "classic"),
)
"""What a run has beside an idempotent producer and a reader."""
SHARED = 7
"""Each run of so many has members of a share group, too. Their draws are apart, so that other runs stay as they are."""


@dataclass(frozen=True, slots=True)
class KafkaPlan:
    families: tuple[str, ...]
    members: int
    """of each group"""
    isolation: int
    """of the reader: 0 uncommitted, 1 committed"""
    timeout_ms: int
    """of transactions"""
    aborts: float
    dies: float
    """share of the transactions whose programs stand still until the time-out is over, and then go on"""
    doubles: float
    """share of the batches that arrive a second time, late"""
    loses: float
    """share of the heartbeats whose answers are lost"""
    slow_s: float
    """how long a member takes to begin with what it was given, at most"""
    session_ms: int
    stale: float
    """share of the former assignments under which a member commits once more"""
    is_ambush: bool
    """Coordinators are killed when they have stored what members have not heard yet."""
    kills_at_withdrawals: bool
    """In ambush: also when that is a withdrawal. In other runs the answer alone is lost."""
    outlives: bool
    """Now and then a broker stands still until another has claimed its bundles."""
    is_second: bool
    """Its transactions are of Kafka's second protocol, in which each has an epoch of its own (KIP-890)."""
    is_shared: bool
    """A share group reads the input, too."""
    limits: tuple[object, ...]

    def has(self, family: str) -> bool:
        return family in self.families

    @property
    def withdraws(self) -> bool:
        """Whether members of KIP-848 lie in wait for withdrawals, and cause them."""
        return self.is_ambush and self.has("consumers")


def kafka_plan_of(seed: int) -> KafkaPlan:
    r = random.Random(f"kafka plan {seed}")
    families = r.choice(FAMILIES)
    return KafkaPlan(
        families=families,
        members=r.choice((2, 2, 3)),
        isolation=r.choice((0, 1)),
        timeout_ms=r.choice((1500, 4000, 10_000)),
        aborts=r.choice((0.0, 0.3)),
        dies=r.choice((0.0, 0.1)),
        doubles=r.choice((0.0, 0.1, 0.3)),
        loses=r.choice((0.0, 0.1, 0.4)),
        slow_s=r.choice((0.0, 1.0, 4.0)),
        session_ms=r.choice((3000, 8000)),
        stale=r.choice((0.0, 0.8)),
        is_ambush=r.random() < 0.6,
        kills_at_withdrawals=seed % 2 == 0,
        outlives=r.random() < 0.4,
        is_second=random.Random(f"kafka protocol {seed}").random() < 0.5,
        is_shared=seed % SHARED == SHARED - 1,
        limits=(
            TransactionLimits(
                chunk_bytes=r.choice((1, 500, 4 * 1024 * 1024)),
                ask_after_ms=r.choice((500, 2000)),
                carry_after_ms=r.choice((100, 1000, 300_000)),
                expiry_look_ms=1000,
                note_asked_ms=500,
                log_start_ms=r.choice((200, 5000)),
            ),
            ClassicLimits(session_timeout_ms_min=1000, initial_delay_ms=300),
            GroupLimits(heartbeat_interval_ms=500),
        ),
    )
