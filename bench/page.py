"""From results to a table in the terminal, docs/performance.md and its plots. Every figure in them comes from the results.

python -m bench.page        writes the page again
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from rich.console import Console
from rich.table import Table

from bench.measures import Measure, Results
from bench.throughput import KAFKA, OURS

RESULTS = Path("bench/results.json")
PAGE = Path("docs/performance.md")
PLOTS = Path("docs/images")


@dataclass(frozen=True, slots=True)
class Target:
    """`ratio`: value of `subject` / value of `to`; met when at least (or, with `most`, at most) `wanted`."""

    row: str
    what: str
    subject: str
    to: str
    wanted: float
    most: bool = False

    def met(self, ratio: float) -> bool:
        return ratio <= self.wanted if self.most else ratio >= self.wanted


TARGETS = (
    Target("P1", "produce 1000 B", f"{OURS} send", KAFKA, 2.5),
    Target("P1", "produce 1000 B", f"{OURS} send_batch", KAFKA, 2.5),
    Target("P2", "produce 100 B", f"{OURS} send", KAFKA, 2.5),
    Target("P2", "produce 100 B", f"{OURS} send_many", KAFKA, 5.0),
    Target("P2", "produce 100 B", f"{OURS} send_batch", KAFKA, 5.0),
    Target("P3", "consume 100 B", f"{OURS} messages", KAFKA, 1.5),
    Target("P3", "consume 100 B", f"{OURS} arrow", KAFKA, 10.0),
    *(
        Target("P4", f"acknowledgement at 100/s, {store}, {part}", OURS, "raw PUT", wanted, most=True)
        for store in ("file, fsync", "MinIO")
        for part, wanted in (("p50", 1.3), ("p99", 3.0))
    ),
)


def write(results: Results, *, page: bool) -> None:
    console = Console()
    table = Table("row", "measure", "subject", "median", "lowest to highest", "unit", title=f"LedgerMQ {results.commit}, {results.date}")
    for measure in results.measures:
        table.add_row(measure.row, measure.what, measure.subject, _number(measure.median), _spread(measure), measure.unit)
    console.print(table)
    ratios = Table("row", "measure", "ratio", "target", "met", title="Ratios, median of those of each round")
    for target, ratio in _ratios(results):
        sign = "≤" if target.most else "≥"
        name = f"{target.what}: {target.subject} / {target.to}"
        ratios.add_row(target.row, name, f"{ratio:.2f}", f"{sign} {target.wanted}", "yes" if target.met(ratio) else "no")
    console.print(ratios)
    if page:
        PAGE.write_text(markdown(results))
        PLOTS.mkdir(exist_ok=True)
        bars(results, PLOTS / "throughput.png")


def _ratios(results: Results) -> list[tuple[Target, float]]:
    found = ((target, results.ratio(target.row, target.what, target.subject, target.to)) for target in TARGETS)
    return [(target, ratio) for target, ratio in found if ratio is not None]


def markdown(results: Results) -> str:
    lines = [
        "# Performance",
        "Written by `make bench` from `bench/results.json`; every figure was measured by that one run. Peers took turns with LedgerMQ,",
        'on the same machine, with the same payloads and with acknowledgements that mean "on disk"; `bench/` says how each was set up.',
        "",
        f"{results.machine}; {results.date}; commit {results.commit}; load before the run {results.load_before}"
        + (" (others were at work: values are lower than they could be, ratios less certain)." if results.load_before > 0.7 else "."),
        "",
        "## Against the targets",
        "| | measure | ratio | target | met |",
        "|---|---|---|---|---|",
    ]
    for target, ratio in _ratios(results):
        sign = "≤" if target.most else "≥"
        met = "yes" if target.met(ratio) else "**no**"
        lines.append(f"| {target.row} | {target.what}: {target.subject} / {target.to} | {ratio:.2f} | {sign} {target.wanted} | {met} |")
    lines += ["", "![records a second](images/throughput.png)", "", "## Everything measured"]
    lines += ["| | measure | subject | median | lowest to highest | unit |", "|---|---|---|---|---|---|"]
    for m in results.measures:
        lines.append(f"| {m.row} | {m.what} | {m.subject} | {_number(m.median)} | {_spread(m)} | {m.unit} |")
    return "\n".join(lines) + "\n"


def bars(results: Results, path: Path) -> None:
    """Records a second by subject, one panel for each measure of throughput; the line is from the lowest to the highest round."""
    panels = list(dict.fromkeys(m.what for m in results.measures if m.unit == "records/s"))
    if not panels:
        return
    figure, axes = plt.subplots(len(panels), 1, figsize=(9, 1.1 + 1.5 * len(panels)), squeeze=False, constrained_layout=True)
    for axis, what in zip(axes[:, 0], panels, strict=True):
        measures = [m for m in results.measures if m.what == what][::-1]
        medians = [m.median for m in measures]
        errors = [[m.median - min(m.values) for m in measures], [max(m.values) - m.median for m in measures]]
        colours = ["#2b6cb0" if m.subject.startswith(OURS) else "#a0aec0" for m in measures]
        axis.barh([m.subject for m in measures], medians, xerr=errors, color=colours, ecolor="#4a5568")
        axis.set_title(what, loc="left", fontsize=10)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("records a second")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def _spread(measure: Measure) -> str:
    if len(measure.values) == 1:
        return "one run"
    return f"{_number(min(measure.values))} to {_number(max(measure.values))}"


if __name__ == "__main__":
    write(Results.load(RESULTS), page=True)
