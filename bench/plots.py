"""Draw the plots of the page, from results alone.

Each function writes one file, or none if nothing was measured for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.measures import Results
from bench.throughput import OURS, rates

OWN, OTHERS, SECOND = "#2b6cb0", "#a0aec0", "#dd6b20"
BAR_INCHES, TITLE_INCHES = 0.28, 0.62
COLOURS = (OTHERS, OWN, SECOND, "#38a169", "#805ad5")


def throughput(results: Results, path: Path) -> bool:
    """Draw records per second by subject, one panel per measure; the line is from the lowest to the
    highest round.
    """
    panels = rates(results)
    if not panels:
        return False
    by_panel = [measures[::-1] for measures in panels.values()]
    heights = [BAR_INCHES * len(measures) for measures in by_panel]
    size = (9, sum(heights) + TITLE_INCHES * len(panels))
    figure, axes = plt.subplots(
        len(panels), 1, figsize=size, height_ratios=heights, squeeze=False, constrained_layout=True
    )
    for axis, what, measures in zip(axes[:, 0], panels, by_panel, strict=True):
        medians = [m.median for m in measures]
        errors = [[m.median - min(m.values) for m in measures], [max(m.values) - m.median for m in measures]]
        colours = [OWN if m.subject.startswith(OURS) else OTHERS for m in measures]
        axis.barh([m.subject for m in measures], medians, xerr=errors, color=colours, ecolor="#4a5568", height=0.7)
        axis.set_ylim(-0.5, len(measures) - 0.5)
        axis.xaxis.set_major_formatter(_plain)
        _dress(axis, what)
    axes[-1, 0].set_xlabel("records a second", fontsize=9)
    return _save(figure, path)


def latency(results: Results, path: Path) -> bool:
    """Draw the share of the records that were acknowledged within a time, a panel per store."""
    stores = list(dict.fromkeys(curve.what for curve in results.curves if curve.row == "P4"))
    if not stores:
        return False
    figure, axes = plt.subplots(
        1, len(stores), figsize=(1 + 3.3 * len(stores), 3.4), squeeze=False, sharey=True, constrained_layout=True
    )
    for axis, store in zip(axes[0], stores, strict=True):
        curves = [curve for curve in results.curves if curve.row == "P4" and curve.what == store]
        for curve, colour in zip(curves, COLOURS, strict=False):
            axis.plot(
                [x for x, _ in curve.points],
                [100 * y for _, y in curve.points],
                color=colour,
                label=curve.subject,
                linewidth=1.8,
            )
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(_plain)
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("ms", fontsize=9)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, frameon=False, loc="best")
        _dress(axis, store)
    axes[0, 0].set_ylabel("% acknowledged, at 100 records a second", fontsize=9)
    return _save(figure, path)


def group_commit(results: Results, path: Path) -> bool:
    """Draw throughput at full speed against median latency at low load, a point for each setting of
    `flush_spacing_ms`.
    """
    curves = [curve for curve in results.curves if curve.row == "GC"]
    if not curves:
        return False
    figure, axes = plt.subplots(
        1, len(curves), figsize=(2.4 + 3.3 * len(curves), 3.4), squeeze=False, constrained_layout=True
    )
    for axis, curve in zip(axes[0], curves, strict=True):
        xs, ys = [x for x, _ in curve.points], [y for _, y in curve.points]
        axis.plot(xs, ys, color=OTHERS, linewidth=1)
        for (x, y), mark, colour in zip(
            curve.points, curve.marks, plt.get_cmap("viridis_r")(_even(len(xs))), strict=True
        ):
            axis.plot([x], [y], color=colour, marker="o", linestyle="none", label=mark, markersize=7)
        axis.set_xlim(0, max(xs) * 1.15)
        axis.set_ylim(0, max(ys) * 1.15)
        axis.set_xlabel("median acknowledgement, ms", fontsize=9)
        axis.grid(alpha=0.3)
        _dress(axis, curve.subject)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        fontsize=8,
        frameon=False,
        loc="outside right center",
        title="flush_spacing_ms",
    )
    axes[0, 0].set_ylabel("MB/s at full speed", fontsize=9)
    return _save(figure, path)


def scaling(results: Results, path: Path) -> bool:
    """Draw records per second by number of broker processes, beside a straight line from one of
    them.
    """
    curve = next((curve for curve in results.curves if curve.row == "P11"), None)
    if curve is None:
        return False
    figure, axis = plt.subplots(figsize=(5.5, 3.4), constrained_layout=True)
    xs, ys = [x for x, _ in curve.points], [y for _, y in curve.points]
    axis.plot(xs, [ys[0] * x / xs[0] for x in xs], color=OTHERS, linestyle="--", label="N times one process")
    axis.plot(xs, ys, color=OWN, marker="o", label=curve.subject)
    axis.set_xticks(xs, [f"{x:.0f}" for x in xs])
    axis.set_ylim(0, ys[0] * xs[-1] / xs[0] * 1.1)
    axis.yaxis.set_major_formatter(_plain)
    axis.set_xlabel("broker processes", fontsize=9)
    axis.set_ylabel("records a second, 1000 B", fontsize=9)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, frameon=False, loc="upper left")
    _dress(axis, "Two clients and N brokers on one machine")
    return _save(figure, path)


def cost(results: Results, path: Path) -> bool:
    """Draw dollars per terabyte by number of partitions."""
    curve = next((curve for curve in results.curves if curve.row == "P5"), None)
    if curve is None:
        return False
    figure, axis = plt.subplots(figsize=(5.5, 3.4), constrained_layout=True)
    xs, ys = [x for x, _ in curve.points], [y for _, y in curve.points]
    axis.plot(xs, ys, color=OWN, marker="o")
    for x, y in curve.points:
        axis.annotate(f"{y:.2f}", (x, y), textcoords="offset points", xytext=(0, 8), ha="center", fontsize=8)
    axis.set_xscale("log")
    axis.set_xlim(min(xs) / 2, max(xs) * 2)
    axis.set_ylim(0, max(ys) * 1.25)
    axis.xaxis.set_major_formatter(_plain)
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("partitions", fontsize=9)
    axis.set_ylabel("dollars a TB, requests on S3", fontsize=9)
    axis.grid(alpha=0.3)
    _dress(axis, "One broker at 20 MB/s")
    return _save(figure, path)


def bundle(points: Sequence[tuple[float, float, float, float]], path: Path) -> bool:
    """Draw MB per second of one bundle, median and 99th percentile of acknowledgements in ms, and
    dollars of segments per TB.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), constrained_layout=True)
    xs, p50s, p99s, dollars = zip(*points, strict=True)
    left.plot(xs, dollars, color=OWN, marker="o")
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(_plain)
    left.yaxis.set_minor_formatter(NullFormatter())
    _dress(left, "Segments on S3, dollars a TB")
    right.plot(xs, p99s, color=OTHERS, marker="o", label="99th percentile")
    right.plot(xs, p50s, color=OWN, marker="o", label="median")
    right.set_ylim(0, max(p99s) * 1.15)
    right.legend(fontsize=8, frameon=False, loc="lower right")
    _dress(right, "Acknowledged after, ms")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(_plain)
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("MB a second of one bundle", fontsize=9)
        axis.grid(alpha=0.3)
    return _save(figure, path)


def overview(results: Results, path: Path) -> bool:
    """Draw the chart of README.md: producing and consuming 1000 B, a bar for each system.

    Lighter bars belong to systems whose acknowledgement does not wait for the disk.
    """
    panels = {what: measures for what, measures in rates(results).items() if what in OVERVIEW}
    if not panels:
        return False
    figure, axes = plt.subplots(1, len(panels), figsize=(9.6, 3.2), squeeze=False, constrained_layout=True)
    for axis, (what, measures) in zip(axes[0], panels.items(), strict=True):
        wanted = [m for m in measures if m.subject == OVERVIEW[what] or not m.subject.startswith(OURS)]
        wanted.sort(key=lambda measure: measure.median)
        colours = [
            OWN if m.subject.startswith(OURS) else "#e2e8f0" if "no sync" in m.subject else OTHERS for m in wanted
        ]
        bars = axis.barh([m.subject for m in wanted], [m.median for m in wanted], color=colours, height=0.7)
        axis.bar_label(bars, [f"{m.median:,.0f}" for m in wanted], padding=3, fontsize=8)
        axis.set_xlim(0, max(m.median for m in wanted) * 1.2)
        axis.set_xticks([])
        axis.spines["bottom"].set_visible(False)
        _dress(axis, f"{what}, records a second")
    return _save(figure, path)


OVERVIEW = {"produce 1000 B": f"{OURS} send", "consume 1000 B": f"{OURS} messages"}
"""The chart's panels, and which of our ways each shows."""

PLOTS: dict[str, tuple[str, Callable[[Results, Path], bool]]] = {
    "throughput.png": ("Records a second", throughput),
    "latency.png": ("Latency of acknowledgements", latency),
    "group-commit.png": ("Group commit: throughput against latency", group_commit),
    "scaling.png": ("More broker processes", scaling),
    "cost.png": ("What requests cost", cost),
}
"""File name: title, and the function that draws it."""


def draw(results: Results, folder: Path) -> list[str]:
    """Return the names of the files that were written for the page; README.md's chart is one more."""
    folder.mkdir(parents=True, exist_ok=True)
    overview(results, folder / "overview.png")
    return [name for name, (_, plot) in PLOTS.items() if plot(results, folder / name)]


_plain = FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 or value == 0 else f"{value:g}")


def _even(count: int) -> list[float]:
    """Return this many numbers from 0 to 1 at equal distances."""
    return [number / max(1, count - 1) for number in range(count)]


def _dress(axis: Axes, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=10)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> bool:
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True
