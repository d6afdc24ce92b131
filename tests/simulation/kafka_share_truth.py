"""Judge what members of a share group were given, said and were told.

acknowledged message came again   a message was leased by a request that was sent after its acceptance was answered
message accepted twice            two members were told that their acceptance counts
share group lost a message        no member has accepted it, and it is not among the dead letters of the group
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tests.broker.kafka_sharers import Got
from tests.judges.violation import Violation
from tests.simulation.history import FinalLog

Offset = tuple[int, int]
"""A partition, and an offset."""


@dataclass
class SharesTruth:
    accepted: Counter[Offset] = field(default_factory=Counter)
    told_s: dict[Offset, float] = field(default_factory=dict)
    """When an acceptance was answered first."""
    unsure: set[Offset] = field(default_factory=set)
    """Messages whose acceptance was sent, and never answered."""
    violations: list[Violation] = field(default_factory=list)

    def granted(self, got: Got, asked_s: float) -> None:
        place = got.partition, got.offset
        if self.told_s.get(place, asked_s) < asked_s:
            text = f"{place}: accepted at {self.told_s[place]:.3f}, leased by a request of {asked_s:.3f}"
            self.violations.append(Violation("acknowledged message came again", text))

    def counts(self, place: Offset, now_s: float) -> None:
        self.accepted[place] += 1
        self.told_s.setdefault(place, now_s)

    def judge(self, logs: Mapping[int, FinalLog], letters: Collection[str]) -> Iterator[Violation]:
        """`logs`: of the topic, by partition. `letters`: values of the dead letters."""
        yield from self.violations
        for place, count in self.accepted.items():
            if count > 1:
                yield Violation("message accepted twice", f"{place}: {count} members were told that they have")
        for partition, log in logs.items():
            lost = [
                offset
                for offset, value in log.records.items()
                if offset >= log.log_start
                and not ({(partition, offset)} & (self.accepted.keys() | self.unsure))
                and value not in letters
            ]
            if lost:
                yield Violation("share group lost a message", f"partition {partition}: {lost[:10]}")
