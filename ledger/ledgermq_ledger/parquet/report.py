"""Report what Parquet compaction does while it runs and when it is done.

Plain values for operators, metrics and JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ledgermq.errors import LedgerMQError


@dataclass(frozen=True, slots=True)
class ParkedFile:
    """A partition with a batch that cannot be read: it waits for a repair, and holds the trim of
    its bundle.
    """

    topic: str
    partition: int
    object_key: str
    reason: str


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One finished plan. `source_bytes` in segments, `stored_bytes` in Parquet files.

    `seconds`: of this process, for its part.
    """

    bundle: int
    plan: int
    files: int = 0
    records: int = 0
    source_bytes: int = 0
    stored_bytes: int = 0
    parked: tuple[ParkedFile, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CleaningReport:
    """A version that a cleaning round published. `read`: records read.

    `dirty_bytes`: size of the log files that were cleaned; `stored_bytes`: size of the version's
    files.
    """

    bundle: int
    topic: str
    partition: int
    number: int
    end: int
    read: int
    records: int
    dirty_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class MergeReport:
    """A run of small files that got a merged one. `files`: how many they were."""

    bundle: int
    topic: str
    partition: int
    files: int
    source_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Lag:
    """The records of user topics that are in segments only.

    `written_ms`: when the oldest of them was written, by its writer's clock; None: there are none.
    """

    records: int = 0
    bytes: int = 0
    written_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the running round: `files_done` of `files_total` files, and so on."""

    bundle: int
    plan: int
    files_done: int
    files_total: int
    records_done: int
    records_total: int
    source_bytes_done: int
    source_bytes_total: int


OnProgress = Callable[[Progress], None]


@dataclass(slots=True)
class CompactionReport:
    """A run over a root: finished rounds, and bundles that could not be compacted with the reason.

    `cleaned`: published versions of keyed topics. `merged`: small files that got a merged one.
    `lags`: by bundle, the records that were not in
    Parquet at the end: produced meanwhile, or of a parked partition. `collected`: keys of deleted
    garbage; `not_collected`: why not all of it could be found or deleted.
    """

    rounds: list[RoundReport] = field(default_factory=list)
    cleaned: list[CleaningReport] = field(default_factory=list)
    merged: list[MergeReport] = field(default_factory=list)
    failures: dict[int, LedgerMQError] = field(default_factory=dict)
    lags: dict[int, Lag] = field(default_factory=dict)
    collected: list[str] = field(default_factory=list)
    not_collected: list[LedgerMQError] = field(default_factory=list)

    @property
    def files(self) -> int:
        return sum(round_.files for round_ in self.rounds)

    @property
    def records(self) -> int:
        return sum(round_.records for round_ in self.rounds)

    @property
    def source_bytes(self) -> int:
        return sum(round_.source_bytes for round_ in self.rounds)

    @property
    def stored_bytes(self) -> int:
        return sum(round_.stored_bytes for round_ in self.rounds)

    @property
    def lag_in_all(self) -> Lag:
        lags = self.lags.values()
        written = [lag.written_ms for lag in lags if lag.written_ms is not None]
        return Lag(sum(lag.records for lag in lags), sum(lag.bytes for lag in lags), min(written, default=None))

    @property
    def parked(self) -> list[ParkedFile]:
        return [parked for round_ in self.rounds for parked in round_.parked]
