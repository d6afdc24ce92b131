"""Decide when the controller takes a cut by itself, and for how long that one is kept. Pure.

`cut_keep` has tiers: "24h, then hourly 7d" keeps every automatic cut for a day, and one of each hour for a week. How
long a cut is kept is decided when it begins, by the cuts that the catalog has then. So nothing thins cuts later: each
goes when its time is over, as the others do, whatever settings the controller has by then.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from ledgermq.durations import find_duration_ms
from ledgermq.errors import InvalidConfig, ResourceExhausted
from ledgermq_ledger.cuts.record import LIVE, cuts_in
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.topics.catalog import Catalog

KEEP = "24h, then hourly 7d"
KEEP_MS_MAX = 100 * 366 * 24 * 3600 * 1000
EVERY_MS_MIN = 1000
CUTS_MAX = 500
"""Automatic cuts at a time: half of the pins that a bundle may have."""
TIERS_MAX = 4
PERIODS = {"hourly": "1h", "daily": "1d", "weekly": "7d"}
_TIER = re.compile(r"then\s+(?:(hourly|daily|weekly)|every\s+(\S+))\s+(\S+)", re.IGNORECASE)
_HINT = 'give a time, and after it one cut of each period for longer: "24h, then hourly 7d, then daily 90d"'


@dataclass(frozen=True, slots=True)
class Tier:
    """One cut of each `period_ms` is kept for `keep_ms`; 0: every cut."""

    period_ms: int
    keep_ms: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """`every_ms`: time between two automatic cuts; 0: none is taken."""

    every_ms: int
    tiers: tuple[Tier, ...]

    @property
    def cuts(self) -> int:
        """Return how many cuts there are once it has run for long, at most."""
        return sum(tier.keep_ms // max(tier.period_ms, self.every_ms) + 1 for tier in self.tiers)


def parse_schedule(every_ms: int, keep: str) -> Schedule:
    """Return the schedule of two settings. Raises InvalidConfig, naming the one that is wrong."""
    first, *rest = [part.strip() for part in keep.split(",")]
    tiers = [Tier(0, _ms(first, keep)), *(_tier(part, keep) for part in rest)]
    if len(tiers) > TIERS_MAX:
        raise InvalidConfig(f"cut_keep {keep!r}: at most {TIERS_MAX} times, not {len(tiers)}")
    for before, after in pairwise(tiers):
        if after.period_ms <= before.period_ms or after.keep_ms <= before.keep_ms:
            raise InvalidConfig(f"cut_keep {keep!r}: each period, and each time, has to be longer than the one before")
    if every_ms and every_ms < EVERY_MS_MIN:
        raise InvalidConfig(f"cut_every_ms is {every_ms}: the minimum is {EVERY_MS_MIN}, and 0 takes no cuts")
    schedule = Schedule(every_ms, tuple(tiers))
    if every_ms and schedule.cuts > CUTS_MAX:
        raise InvalidConfig(
            f"cut_every_ms {every_ms} and cut_keep {keep!r} would keep {schedule.cuts} cuts, more than {CUTS_MAX}: take"
            " them less often, or keep them for a shorter time"
        )
    return schedule


def _tier(text: str, keep: str) -> Tier:
    found = _TIER.fullmatch(text)
    if found is None:
        raise InvalidConfig(f"cut_keep {keep!r}: {text[:100]!r} is no part of it; {_HINT}")
    period = PERIODS[found[1].lower()] if found[1] else found[2]
    return Tier(_ms(period, keep), _ms(found[3], keep))


def _ms(text: str, keep: str) -> int:
    ms = find_duration_ms(text)
    if ms is None or not 1000 <= ms <= KEEP_MS_MAX:
        raise InvalidConfig(f"cut_keep {keep!r}: {text[:100]!r} is no time from 1s to 100 years; {_HINT}")
    return ms


def automatic_in(catalog: Catalog) -> list[fmt.CutRecord]:
    """Return the automatic cuts that are pending or taken, in the order in which they began."""
    found = [record for record in cuts_in(catalog).values() if record.automatic and record.state in LIVE]
    return sorted(found, key=lambda record: record.id)


def is_due(catalog: Catalog, schedule: Schedule, now_ms: int) -> bool:
    """Return True if the newest automatic cut is old enough, or if a clock that was ahead has dated it."""
    cuts = automatic_in(catalog)
    return not cuts or abs(now_ms - cuts[-1].begun_ms) >= schedule.every_ms


def keep_ms_of(catalog: Catalog, schedule: Schedule, now_ms: int) -> int:
    """Return for how long the cut that begins now is kept: the longest time of a tier of whose period it is the first
    cut. Raises ResourceExhausted at the bound of automatic cuts.
    """
    cuts = automatic_in(catalog)
    if len(cuts) >= CUTS_MAX:
        raise ResourceExhausted(
            f"there are {CUTS_MAX} automatic cuts, which is the bound: drop those that are no longer needed"
            " (`ledgermq cut list`)"
        )

    def is_first(tier: Tier) -> bool:
        if not tier.period_ms:
            return True
        period = now_ms // tier.period_ms
        return not any(
            record.begun_ms // tier.period_ms == period and _keeps_ms(record) >= tier.keep_ms
            for record in cuts
            if record.state == fmt.TAKEN
        )

    return max(tier.keep_ms for tier in schedule.tiers if is_first(tier))


def _keeps_ms(record: fmt.CutRecord) -> float:
    return record.until_ms - record.begun_ms if record.until_ms else math.inf


def name_at(now_ms: int) -> str:
    """Return the name of an automatic cut that begins at this time."""
    return f"auto-{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}"
