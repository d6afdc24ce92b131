"""Write results as a table to the terminal, and as docs/performance.md with its plots. Every figure
in them comes from the results.

python -m bench.page        writes the page again
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from pathlib import Path

from rich.console import Console as Terminal
from rich.table import Table

from bench import (
    afar,
    attacks,
    backlog,
    console,
    distances,
    fairness,
    gateway,
    group_commit,
    growing,
    kafka_port,
    keyed,
    latency,
    limits,
    long_runs,
    many,
    many_topics,
    parquet,
    plots,
    processes,
    requests,
    security,
    slow,
    streams_beside,
    takeover,
    throughput,
    timed,
    transactions,
    visibility,
)
from bench.measures import Measure, Results, Run
from bench.openmessaging import row
from bench.peers import DURABILITY
from bench.targets import TARGETS, reached
from bench.throughput import OURS

RESULTS = Path("bench/results.json")
PAGE = Path("docs/performance.md")
PLOTS = Path("docs/images")
BUSY_LOAD = 0.7
PROSE_COLUMNS = 100
FILE_CHARS = 160
"""Width of the tables if the output is not a terminal."""
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
    long_runs,
    kafka_port,
    keyed,
    group_commit,
    transactions,
    timed,
    security,
    fairness,
    attacks,
    growing,
    afar,
    many_topics,
    row,
    gateway,
    console,
    streams_beside,
)
"""Their docstrings begin with the names of their rows, and are part of the page."""
HEAD = """\
`make bench` writes this page from `bench/results.json`. One run measured every figure of a row. Peers took turns with
LedgerMQ, on the same machine, with the same payloads; `bench/peers/` says how each was set up. A ratio is the median of
the ratios of each round, whose values were measured within the same minutes. `python -m bench.run --only P9` measures
the rows of one number again without writing them; with `--keep` it writes them here. [Profiles](profiles.md) says where
the time goes in rows that miss their targets.
"""


def write(results: Results, *, page: bool) -> None:
    """Write to the terminal; with `page`, write the page and its plots, too."""
    terminal = Terminal(width=None if sys.stdout.isatty() else FILE_CHARS)
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
    terminal.print(table)
    targets = Table("row", "measure", "value", "target", "met", title="Targets")
    for found in reached(results, TARGETS):
        targets.add_row(found.target.row, found.target.name(), found.value, found.bound, "yes" if found.met else "no")
    terminal.print(targets)
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
        f"| {found.target.row} | {found.target.name()} | {found.value} | {found.bound} |"
        f" {'yes' if found.met else '**no**'} |"
        for found in reached(results, TARGETS)
    ]
    unmeasured = dict.fromkeys(
        target.row for target in TARGETS if results.of(target.row, target.what, target.subject) is None
    )
    if unmeasured:
        lines += ["", f"Rows with targets that this run did not measure, or not completely: {', '.join(unmeasured)}."]
    lines += _distances(results)
    for name, (title, _) in plots.PLOTS.items():
        if name in images:
            lines += ["", f"## {title}", "", f"![{title}](images/{name})"]
    lines += ["", *_peers(results), "## How", ""]
    measured = {m.row for m in results.measures}
    for module in MEASURES:
        rows, _, said = (inspect.getdoc(module) or "").partition(":")
        if measured & named(rows):
            lines += [f"**{rows}**:{said}", ""]
    lines += ["## Everything measured", ""]
    lines += ["| | measure | subject | median | lowest to highest | unit |", "|---|---|---|---|---|---|"]
    for m in results.measures:
        lines.append(f"| {m.row} | {m.what} | {m.subject} | {_number(m.median)} | {_spread(m)} | {m.unit} |")
    return wrapped("\n".join(lines) + "\n")


def named(rows: str) -> set[str]:
    """Return the rows that a module's docstring names, such as `P4` or `D1 to D6`."""
    first, _, last = rows.partition(" to ")
    if not last:
        return {first}
    letter = first.rstrip("0123456789")
    return {f"{letter}{number}" for number in range(int(first[len(letter) :]), int(last[len(letter) :]) + 1)}


def wrapped(page: str) -> str:
    """Wrap the prose of a page of Markdown; headings, tables and images stay as they are."""
    lines: list[str] = []
    for line in page.split("\n"):
        prose = bool(line) and not line.startswith(("|", "#", "!["))
        goes_on = (
            prose and not line.startswith("* ") and lines and lines[-1] and not lines[-1].startswith(("|", "#", "!["))
        )
        if goes_on:
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return "\n".join(
        (
            line
            if not line or line.startswith(("|", "#", "!["))
            else textwrap.fill(
                line,
                PROSE_COLUMNS,
                subsequent_indent="  " if line.startswith("* ") else "",
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
        for line in lines
    )


def _runs(results: Results) -> list[str]:
    """Return which rows were measured when, and on which machine."""
    runs = results.runs
    return [f"{_run(runs[0])}."] if len(runs) == 1 else [f"* {', '.join(run.rows)}: {_run(run)}" for run in runs]


def _run(run: Run) -> str:
    busy = (
        " (other processes were busy: values are lower than they could be, ratios less certain)"
        if run.load_before > BUSY_LOAD
        else ""
    )
    return f"{run.machine}; {run.date}; commit {run.commit}; load before the run {run.load_before}{busy}"


def _distances(results: Results) -> list[str]:
    """Return how far rows are from limits of the machine, and which rows none bounds."""
    rows = [
        f"| {at.row} | {at.what}: {at.subject} | {_number(measure.median)} {measure.unit} | {named} |"
        f" {_number(limit)} {measure.unit} | {times:.1f} |"
        for at, measure, named, limit, times in distances.measured(results)
    ]
    if not rows:
        return []
    measured = {measure.row for measure in results.measures}
    unbound = [f"* {row}: {why}" for row, why in distances.UNBOUND.items() if row in measured]
    return [
        "",
        "## Distance to the limits of the machine",
        "",
        (inspect.getdoc(distances) or "").partition("\n\n")[2],
        "",
        "| | measure | value | limit | its value | times better |",
        "|---|---|---|---|---|---|",
        *rows,
        *(["", "No limit of the machine bounds these rows:", "", *unbound] if unbound else []),
    ]


def _peers(results: Results) -> list[str]:
    """Return what the acknowledgements of peers mean, and which peers are missing and why."""
    subjects = {m.subject for m in results.measures}
    rows = [f"| {subject} | {words} |" for subject, words in DURABILITY.items() if subject in subjects]
    rows += [f"| {subject} | not measured: {why} |" for subject, why in results.left_out.items()]
    return ["## Peers", "", "| | an acknowledgement means |", "|---|---|", *rows, "", *_faster(results)] if rows else []


def _faster(results: Results) -> list[str]:
    """Return the peers with a higher rate than the fastest subject of LedgerMQ, by measure."""
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
        else ["None of them was faster than the fastest subject of LedgerMQ.", ""]
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def _spread(measure: Measure) -> str:
    if len(measure.values) == 1:
        return "one run"
    return f"{_number(min(measure.values))} to {_number(max(measure.values))}"


if __name__ == "__main__":
    write(Results.load(RESULTS), page=True)
