"""Panels of the dashboard, and the expressions of their queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HERE = '{job=~"$job", instance=~"$instance"}'


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries`: (expression, legend). Units are Grafana's. `empty`: what the panel shows while its queries have no
    data, because zero would be wrong; all other queries have a value on an idle cluster, too.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: Literal["timeseries", "stat"] = "timeseries"
    text: str = ""
    empty: str = ""


def metric(name: str, **labels: str) -> str:
    """Return a selector for the chosen brokers."""
    more = "".join(f", {label}{value}" for label, value in labels.items())
    return f"ledgermq_{name}" + HERE[:-1] + more + "}"


def rate(name: str, by: str = "instance", **labels: str) -> str:
    return f"sum by ({by}) (rate({metric(name, **labels)}[$__rate_interval]))"


def total(name: str, **labels: str) -> str:
    return or_zero(f"sum({metric(name, **labels)})")


def quantile(q: float, name: str, by: str = "") -> str:
    labels = "le" + (f", {by}" if by else "")
    return f"histogram_quantile({q:g}, sum by ({labels}) (rate({metric(name + '_bucket')}[$__rate_interval])))"


def quantiles(name: str) -> tuple[tuple[str, str], ...]:
    return tuple((quantile(q, name), f"p{100 * q:g}") for q in (0.5, 0.95, 0.99))


def or_zero(expression: str) -> str:
    """Use this for series that begin with the first event of their kind. Zero is shown only while there are none."""
    return f"{expression} or on() vector(0)"


def top(expression: str) -> str:
    return f"topk(10, {expression})"


def stat(title: str, expression: str, unit: str = "short") -> Panel:
    return Panel(title, ((expression, ""),), unit, "stat")
