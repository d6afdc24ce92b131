"""Measure a run: progress, its longest pauses, and how long partitions stood still after their
broker was hit.

Times are of the event loop, in seconds. A gap of a partition lasts from the trouble to the first
record that was sent after it and acknowledged; it includes the effect of any other trouble in
between.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from tests.simulation.history import Partition


@dataclass(slots=True)
class _Waiting:
    kind: str
    since_s: float


@dataclass(slots=True)
class Measures:
    begun_s: float
    acknowledged: int = 0
    acknowledged_bytes: int = 0
    read: int = 0
    pause_s_max: float = 0.0
    pause_at_s: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    gaps_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    read_pauses: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By reader: the longest time without a record, and when it began."""
    _last_ack_s: float = 0.0
    _last_poll_s: dict[str, float] = field(default_factory=dict)
    _waiting: dict[Partition, list[_Waiting]] = field(default_factory=lambda: defaultdict(list))

    def ack(self, partition: Partition, sent_s: float, now_s: float, size: int) -> None:
        self.acknowledged += 1
        self.acknowledged_bytes += size
        since = self._last_ack_s or now_s
        if now_s - since > self.pause_s_max:
            self.pause_s_max, self.pause_at_s = now_s - since, since - self.begun_s
        self._last_ack_s = now_s
        if waiting := self._waiting.get(partition):
            for each in waiting:
                if sent_s > each.since_s:
                    self.gaps_s[each.kind].append(now_s - each.since_s)
            self._waiting[partition] = [each for each in waiting if sent_s <= each.since_s]

    def polled(self, reader: str, count: int, now_s: float) -> None:
        if count:
            self.read += count
            since = self._last_poll_s.get(reader, now_s)
            self.read_pauses[reader] = max(
                self.read_pauses.get(reader, (0.0, 0.0)), (now_s - since, since - self.begun_s)
            )
            self._last_poll_s[reader] = now_s

    def hit(self, kind: str, partitions: Iterable[Partition], now_s: float) -> None:
        """The owner of these partitions is in trouble from now on."""
        for partition in partitions:
            self._waiting[partition].append(_Waiting(kind, now_s))

    def report(self) -> list[str]:
        lines = ["events by kind:"]
        lines += [f"  {count:5} {kind}" for kind, count in sorted(self.events.items(), key=lambda item: -item[1])]
        lines += ["clients were told:"] + [f"  {count:7} {what}" for what, count in sorted(self.told.items())]
        lines.append(
            f"{self.acknowledged} records acknowledged ({self.acknowledged_bytes / 1e6:.1f} MB), {self.read} read; "
            f"longest time without an acknowledgement {self.pause_s_max:.1f} s, from {self.pause_at_s:.0f} s on"
        )
        pauses = [
            f"{reader} {pause:.1f} s from {at:.0f} s on" for reader, (pause, at) in sorted(self.read_pauses.items())
        ]
        lines.append("longest time without a record of each reader: " + ", ".join(pauses))
        lines.append(
            "seconds until a partition of the broker that was hit acknowledged again (median, ninetieth of a hundred,"
            " longest):"
        )
        for kind, gaps in sorted(self.gaps_s.items()):
            gaps = sorted(gaps)
            lines.append(
                f"  {median(gaps):6.1f} {gaps[len(gaps) * 9 // 10]:6.1f} {gaps[-1]:6.1f}  {kind} ({len(gaps)}"
                " partitions)"
            )
        return lines
