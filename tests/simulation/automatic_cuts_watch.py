"""Judge the cuts that controllers take by themselves (I13, I14), by the records of `__metadata` alone.

automatic cut too soon      one began sooner after the one before than the schedule says
too many automatic cuts     more are kept than the schedule says
automatic cut of a period   all automatic cuts of a period went, though one of them is to be kept for longer
no automatic cuts           none is taken though all is well
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from ledgermq_ledger import keys
from ledgermq_ledger.cuts.automatic import Schedule
from ledgermq_ledger.cuts.record import LIVE, PREFIX
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from tests.judges.violation import Violation
from tests.simulation.world import World

SHARE = 0.4
MORE = 6
WAITS_S = 180.0
"""Retries come once a minute at the latest."""


def cuts_by_themselves(seed: int) -> bool:
    """Return whether brokers take cuts by themselves in this run."""
    return random.Random(f"automatic cuts {seed}").random() < SHARE


def schedule_of(seed: int) -> dict[str, object]:
    """Return the settings of such a run."""
    draw = random.Random(f"schedule of cuts {seed}")
    return {"cut_every_ms": draw.choice((2000, 4000)), "cut_keep": "6s, then every 10s 40s"}


@dataclass(slots=True)
class Seen:
    """Automatic cuts by id, and which of them are pending or taken."""

    all: dict[int, fmt.CutRecord] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    live: set[int] = field(default_factory=set)
    ids: dict[bytes, int] = field(default_factory=dict)

    def add(self, offset: int, key: bytes, value: bytes | None) -> fmt.CutRecord | None:
        """Note a record; return it if it begins an automatic cut."""
        if value is None:
            self.live.discard(self.ids.pop(key, -1))
            return None
        record = fmt.CutRecord.FromString(value)
        begins = not record.id
        record.id = record.id or offset
        if not record.automatic:
            return None
        self.ids[key] = record.id
        self.all[record.id] = record
        (self.live.add if record.state in LIVE else self.live.discard)(record.id)
        if record.state == fmt.TAKEN:
            self.taken.add(record.id)
        return record if begins else None

    def newest(self) -> fmt.CutRecord | None:
        return self.all[max(self.live)] if self.live else None


class AutomaticWatch:
    def __init__(self, world: World, schedule: Schedule) -> None:
        self._world = world
        self._schedule = schedule

    def _records(self) -> Iterator[tuple[int, bytes, bytes | None]]:
        for segment in self._world.store.history(keys.METADATA_BUNDLE):
            for offset, key, value in segment.records() if segment.valid else ():
                if key is not None and key.startswith(PREFIX):
                    yield offset, key, value

    def _seen(self) -> Seen:
        seen = Seen()
        for each in self._records():
            seen.add(*each)
        return seen

    async def expect_more(self) -> None:
        """Wait until some more automatic cuts are taken."""
        before = len(self._seen().taken)
        for _ in range(round(WAITS_S)):
            if len(self._seen().taken) >= before + MORE:
                return
            await asyncio.sleep(1.0)
        found = len(self._seen().taken) - before
        self._report("no automatic cuts", f"only {found} were taken within {WAITS_S:.0f} s of health, {before} before")

    async def judge(self) -> None:
        seen = Seen()
        for each in self._records():
            before, record = seen.newest(), seen.add(*each)
            if record is None:
                continue
            self._world.coverage.saw("an automatic cut began")
            if before is not None and abs(record.begun_ms - before.begun_ms) < self._schedule.every_ms:
                apart = record.begun_ms - before.begun_ms
                self._report("automatic cut too soon", f"{record.name} began {apart} ms after {before.name}")
            kept = [one for one in seen.live if _is_kept(seen.all[one], record.begun_ms)]
            if len(kept) > self._schedule.cuts + 1:
                self._report("too many automatic cuts", f"{len(kept)} are kept when {record.name} begins")
        self._judge_periods(seen, await self._world.line("last").store_time_ms())

    def _judge_periods(self, seen: Seen, now_ms: int) -> None:
        """`now_ms`: by the store's clock, since no cut may have begun for long, or one by a clock that was ahead."""
        for tier in self._schedule.tiers[1:]:
            times = [record.begun_ms for one, record in seen.all.items() if one in seen.taken]
            had = {at // tier.period_ms for at in times if now_ms - tier.keep_ms + tier.period_ms < at <= now_ms}
            left = {seen.all[one].begun_ms // tier.period_ms for one in seen.live}
            for period in sorted(had - left):
                at_s = period * tier.period_ms / 1000
                self._report("automatic cut of a period", f"none is left of the {tier.period_ms} ms from {at_s:.0f} on")

    def _report(self, kind: str, text: str) -> None:
        self._world.violations.append(Violation(kind, text))


def _is_kept(record: fmt.CutRecord, now_ms: int) -> bool:
    """Return whether a cut counts for what is kept at this time; not if a clock that was ahead has dated it."""
    return record.begun_ms <= now_ms < record.until_ms
