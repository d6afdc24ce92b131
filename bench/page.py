"""From results to a table in the terminal, docs/performance.md and its plots. Every figure in them
comes from the results.

python -m bench.page        writes the page again
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import (
    backlog,
    group_commit,
    latency,
    limits,
    many,
    parquet,
    plots,
    processes,
    requests,
    slow,
    takeover,
    throughput,
    visibility,
)
from bench.measures import Measure, Results, Run
from bench.peers import DURABILITY
from bench.targets import TARGETS, reached
from bench.throughput import OURS

RESULTS = Path("bench/results.json")
PAGE = Path("docs/performance.md")
PLOTS = Path("docs/images")
BUSY_LOAD = 0.7
FILE_CHARS = 160
"""Width of the tables if the terminal reports none."""
MEASURES = (
    limits,
    throughput,
    latency,
    requests,
    takeover,
    parquet,
    visibility,
    many,
    backlog,
    processes,
    slow,
    group_commit,
)
"""Their docstrings begin with the rows that they are about, and are part of the page."""
HEAD = """\
Written by `make bench` from `bench/results.json`; every figure of a row was measured by one run. Peers took turns with LedgerMQ,
on the same machine, with the same payloads; `bench/peers/` says how each was set up.
A ratio is the median of the ratios of each round, whose values were measured within the same minutes.
`python -m bench.run --only P9` measures the rows of one number again, and writes nothing; with `--keep` it writes them here.
[Profiles](profiles.md) say where the time goes in rows that miss their targets.
"""


def write(results: Results, *, page: bool) -> None:
    """Write the results to the terminal; with `page` also the page and its plots."""
    console = Console(width=None if sys.stdout.isatty() else FILE_CHARS)
    table = Table(
        "row",
        "measure",
        "subject",
        "median",
        "lowest to highest",
        "unit",
        title=f"LedgerMQ {results.commit}, {results.date}",
    )
    for measure in results.measures:
        table.add_row(
            measure.row, measure.what, measure.subject, _number(measure.median), _spread(measure), measure.unit
        )
    console.print(table)
    targets = Table("row", "measure", "value", "target", "met", title="Targets")
    for found in reached(results, TARGETS):
        targets.add_row(found.target.row, found.target.name(), found.value, found.bound, "yes" if found.met else "no")
    console.print(targets)
    if page:
        PAGE.write_text(markdown(results, plots.draw(results, PLOTS)))


def markdown(results: Results, images: list[str]) -> str:
    """Return the page. `images`: names of the existing plots."""
    lines = [
        "# Performance",
        "",
        HEAD,
        *_runs(results),
        "",
        "## Against the targets",
        "",
        "| | measure | value | target | met |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {found.target.row} | {found.target.name()} | {found.value} | {found.bound} | {'yes' if found.met else '**no**'} |"
        for found in reached(results, TARGETS)
    ]
    unmeasured = dict.fromkeys(
        target.row for target in TARGETS if results.of(target.row, target.what, target.subject) is None
    )
    if unmeasured:
        lines += ["", f"Targets that this run did not measure, or not all: {', '.join(unmeasured)}."]
    for name, (title, _) in plots.PLOTS.items():
        if name in images:
            lines += ["", f"## {title}", "", f"![{title}](images/{name})"]
    lines += ["", *_peers(results), "## How", ""]
    measured = {m.row for m in results.measures}
    for module in MEASURES:
        rows, _, said = (inspect.getdoc(module) or "").partition(":")
        if measured & set(rows.split()):
            lines += [f"**{rows}**:{said}", ""]
    lines += ["## Everything measured", ""]
    lines += ["| | measure | subject | median | lowest to highest | unit |", "|---|---|---|---|---|---|"]
    for m in results.measures:
        lines.append(f"| {m.row} | {m.what} | {m.subject} | {_number(m.median)} | {_spread(m)} | {m.unit} |")
    return "\n".join(lines) + "\n"


def _runs(results: Results) -> list[str]:
    """Return which rows were measured when, and on what."""
    runs = results.runs
    return [f"{_run(runs[0])}."] if len(runs) == 1 else [f"* {', '.join(run.rows)}: {_run(run)}" for run in runs]


def _run(run: Run) -> str:
    busy = (
        " (others were at work: values are lower than they could be, ratios less certain)"
        if run.load_before > BUSY_LOAD
        else ""
    )
    return f"{run.machine}; {run.date}; commit {run.commit}; load before the run {run.load_before}{busy}"


def _peers(results: Results) -> list[str]:
    """Return what the peers' acknowledgements mean, and which peers are missing, with the reason."""
    subjects = {m.subject for m in results.measures}
    lines = [f"| {subject} | {words} |" for subject, words in DURABILITY.items() if subject in subjects]
    lines += [f"| {subject} | not measured: {why} |" for subject, why in results.left_out.items()]
    return (
        ["## Peers", "", "| | an acknowledgement means |", "|---|---|", *lines, "", *_faster(results)] if lines else []
    )


def _faster(results: Results) -> list[str]:
    """Return the peers that were faster than the best of LedgerMQ's own ways, by measure."""
    lines = []
    for what, found in throughput.rates(results).items():
        best = max((m.median for m in found if m.subject.startswith(OURS)), default=0.0)
        better = [
            f"{m.subject} ({_number(m.median)})" for m in found if m.median > best and not m.subject.startswith(OURS)
        ]
        if better:
            lines.append(f"* {what}, records a second: {', '.join(better)}; LedgerMQ at best {_number(best)}")
    return (
        ["Faster than LedgerMQ:", "", *lines, ""]
        if lines
        else ["None of them was faster than the fastest way of LedgerMQ.", ""]
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def _spread(measure: Measure) -> str:
    if len(measure.values) == 1:
        return "one run"
    return f"{_number(min(measure.values))} to {_number(max(measure.values))}"


if __name__ == "__main__":
    write(Results.load(RESULTS), page=True)
