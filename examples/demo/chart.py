"""Draw the picture at the end of the demo: mean departure delay by airline and by hour of the day."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from delays import Answer
from matplotlib.axes import Axes

BLUE, GREY, INK = "#2a6f97", "#c9d6df", "#22313f"


def draw(answer: Answer, airlines: dict[str, str], path: Path) -> None:
    plt.rcParams.update(
        {"font.size": 10, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 6.2), gridspec_kw={"width_ratios": [1, 1.1]})
    figure.suptitle("How late do flights leave New York?", x=0.01, ha="left", fontsize=16, fontweight="bold")
    subtitle = (
        f"Mean departure delay of the {answer.departed:,} flights that left JFK, LaGuardia and Newark in 2013, "
        "read by Spark from the Parquet files of the topic"
    )
    figure.text(0.01, 0.915, subtitle, ha="left", fontsize=10.5)
    _by_carrier(left, answer, airlines)
    _by_hour(right, answer)
    figure.tight_layout(rect=(0, 0, 1, 0.93), w_pad=3)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _by_carrier(axes: Axes, answer: Answer, airlines: dict[str, str]) -> None:
    table = answer.by_carrier.sort_values("mean_delay")
    names = [_short(airlines.get(code, code)) for code in table["carrier"]]
    bars = axes.barh(names, table["mean_delay"], color=BLUE, height=0.72)
    labels = [f"{mean:.1f}   ({count:,})" for mean, count in zip(table["mean_delay"], table["flights"], strict=True)]
    axes.bar_label(bars, labels=labels, padding=4, fontsize=8.5)
    axes.set_xlim(0, table["mean_delay"].max() * 1.3)
    axes.set_title("By airline (number of flights)", loc="left", fontweight="bold")
    axes.set_xlabel("mean departure delay, minutes")
    _plain(axes, grid="x")


def _by_hour(axes: Axes, answer: Answer) -> None:
    table = answer.by_hour[answer.by_hour["departed"] > 0]
    axes.bar(table["hour"], table["mean_delay"], color=BLUE, width=0.8)
    for hour, mean in zip(table["hour"], table["mean_delay"], strict=True):
        axes.annotate(
            f"{mean:.1f}", (hour, max(mean, 0)), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8
        )
    axes.set_xticks(table["hour"])
    axes.set_title("By scheduled hour of departure", loc="left", fontweight="bold")
    axes.set_ylabel("mean departure delay, minutes")
    axes.set_xlabel("hour of the day (New York time)")
    _plain(axes, grid="y")


def _plain(axes: Axes, grid: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=GREY, linewidth=0.6)  # type: ignore[arg-type]  # "x" or "y"
    axes.set_axisbelow(True)


def _short(airline: str) -> str:
    """Return the name without the legal form, which adds nothing to a chart."""
    return (
        airline.removesuffix(" Inc.")
        .removesuffix(" Co.")
        .removesuffix(" Corporation")
        .removesuffix(" Airlines")
        .strip()
    )
