"""What a benchmark found: one value a round, of several subjects that took turns; curves to draw;
and the file that keeps it.

Values of one round were measured within the same minutes on the same machine, so ratios of a round
mean something where values do not.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Measure:
    """`row`: in the table of targets, such as P1. `values`: one per round, in `unit`."""

    row: str
    what: str
    subject: str
    unit: str
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points for a plot, (x, y), with a mark at each where `marks` are given."""

    row: str
    what: str
    subject: str
    points: list[tuple[float, float]]
    marks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """When and on which rows was measured."""

    rows: list[str]
    machine: str
    date: str
    commit: str
    load_before: float


@dataclass(slots=True)
class Results:
    machine: str = ""
    date: str = ""
    commit: str = ""
    load_before: float = 0.0
    """Processes that wanted to run in the minute before: above 0.5, other work was running."""
    measures: list[Measure] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Peers that were not measured, and why."""
    curves: list[Curve] = field(default_factory=list)
    kept: list[Run] = field(default_factory=list)
    """Earlier runs whose measures are among those of this run."""

    @classmethod
    def begin(cls) -> Results:
        return cls(_machine(), f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", _commit(), round(os.getloadavg()[0], 1))

    def of(self, row: str, what: str, subject: str) -> Measure | None:
        return next((m for m in self.measures if (m.row, m.what, m.subject) == (row, what, subject)), None)

    def add(self, row: str, what: str, subject: str, unit: str, value: float) -> None:
        """Add the value of one more round."""
        print(f"{row} {what:44} {subject:24} {value:14,.2f} {unit}", file=sys.stderr, flush=True)
        found = self.of(row, what, subject)
        if found is None:
            found = Measure(row, what, subject, unit, [])
            self.measures.append(found)
        found.values.append(value)

    def ratio(self, row: str, what: str, subject: str, to: str) -> float | None:
        """Return the median over the rounds of value / the other's value of the same round; None if
        there is no such round.
        """
        ours, theirs = self.of(row, what, subject), self.of(row, what, to)
        if ours is None or theirs is None:
            return None
        ratios = [a / b for a, b in zip(ours.values, theirs.values, strict=False) if b]
        return statistics.median(ratios) if ratios else None

    def keep(self, earlier: Results) -> None:
        """Copy the rows of an earlier run that this one has not measured."""
        measured = {measure.row for measure in self.measures}
        kept = [replace(run, rows=[row for row in run.rows if row not in measured]) for run in earlier.runs]
        self.kept = [run for run in kept if run.rows]
        rows = {row for run in self.kept for row in run.rows}
        self.measures = sorted(
            [*self.measures, *(m for m in earlier.measures if m.row in rows)], key=lambda m: _place(m.row)
        )
        self.curves += [curve for curve in earlier.curves if curve.row in rows]
        if not self.left_out:
            self.left_out = earlier.left_out

    @property
    def runs(self) -> list[Run]:
        """Return the kept runs, then this one."""
        return [*self.kept, Run(self.own_rows, self.machine, self.date, self.commit, self.load_before)]

    @property
    def own_rows(self) -> list[str]:
        """Return the rows that were not kept from an earlier run."""
        kept = {row for run in self.kept for row in run.rows}
        return [row for row in dict.fromkeys(measure.row for measure in self.measures) if row not in kept]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        given = json.loads(path.read_text())
        measures = [Measure(**each) for each in given["measures"]]
        curves = [Curve(**{**each, "points": [(x, y) for x, y in each["points"]]}) for each in given.get("curves", [])]
        kept = [Run(**each) for each in given.get("kept", [])]
        return cls(**{**given, "measures": measures, "curves": curves, "kept": kept})


def _place(row: str) -> tuple[int, int]:
    """Order: limits of the machine first, then P1, P2, …, then rows without a number."""
    number = row.removeprefix("P")
    return (0, 0) if row == "raw" else (1, int(number)) if number.isdigit() else (2, 0)


def alternate(
    results: Results, row: str, what: str, unit: str, subjects: Mapping[str, Callable[[], float]], rounds: int
) -> None:
    """Measure each subject once a round, in turn. The order is reversed every round, because the
    first subject finds a rested machine.
    """
    for number in range(rounds):
        order = list(subjects)[:: 1 if number % 2 == 0 else -1]
        for name in order:
            results.add(row, what, name, unit, subjects[name]())


def _machine() -> str:
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "?",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores ({cpu}), {memory:.0f} GiB, Linux {platform.release()}, Python"
        f" {platform.python_version()}"
    )


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
