"""What is known of the timed messages of a run: what was sent, where it was staged, and where it was seen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ledgermq.client.delayed import RecallOutcome
from ledgermq_ledger.keys import PartitionId
from tests.judges.violation import Violation
from tests.simulation.history import Outcome, Partition
from tests.simulation.timers_homes import Home

PREFIX = "late/"
"""Of the values of timed messages."""
Key = tuple[int, int, int]
"""(effective due time in µs, offset in the intake, row)."""
LEARNT_US = 5_000_000


class Seen(NamedTuple):
    """`moment`: the place of its segment among all objects that were ever stored. `at_us`: when it was put,
    by the store's clock.
    """

    partition: Partition
    offset: int
    moment: int
    at_us: int


@dataclass
class Recall:
    """What a client was told. `moment`: number of objects that were stored by then."""

    outcome: RecallOutcome
    moment: int
    at_us: int


@dataclass
class Sent:
    """A message as its client knows it."""

    value: str
    partition: Partition
    op: int
    told: Outcome | None = None
    told_moment: int = 0
    due_us: int = 0
    handle: str = ""
    recalls: list[Recall] = field(default_factory=list)


@dataclass
class Row:
    """A message as it was staged. `due_us`: as the sender said."""

    value: str
    topic_id: int
    partition: int
    due_us: int
    key: Key
    moment: int
    at_us: int
    homes: list[Home] = field(default_factory=list)
    delivered: list[Seen] = field(default_factory=list)
    recalled: int | None = None
    """Moment of its tombstone."""
    passed: int | None = None
    """Moment at which the watermark passed it."""

    @property
    def is_late(self) -> bool:
        return self.key[0] > self.due_us


class LogStarts(NamedTuple):
    """What a checkpoint of a bundle has put in force."""

    moment: int
    starts: Mapping[PartitionId, int]


@dataclass
class Topics:
    """All topics that there ever were, by id. `removed`: moments."""

    names: dict[int, str] = field(default_factory=dict)
    removed: dict[int, int] = field(default_factory=dict)
    freed: dict[int, int] = field(default_factory=dict)
    """When the name of a removed topic became free, in µs of the store's clock."""


@dataclass
class TimersTruth:
    topics: Topics
    rows: dict[str, Row] = field(default_factory=dict)
    """By value."""
    visible: defaultdict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    waiting: list[str] = field(default_factory=list)
    """What is not over yet, as text."""
    waits_until_us: int = 0
    """Until something of it is due."""
    coverage: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def report(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))
