"""Render the view of `ledgermq top` as rich tables."""

from __future__ import annotations

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ledgermq_tools.top.readings import BrokerRow, TopicRow, View

TOPICS_MAX = 20
BROKER_COLUMNS = (
    "broker",
    "state",
    "bundles",
    "streams",
    "rec/s in",
    "in",
    "out",
    "PUT/s",
    "GET/s",
    "flush p99",
    "cache",
    "$/h",
    "cpu",
    "memory",
)
TOPIC_COLUMNS = ("topic", "rec/s in", "in", "rec/s out", "out")


def screen(view: View) -> Group:
    total_in, total_out = sum(row.bytes_in for row in view.brokers), sum(row.bytes_out for row in view.brokers)
    dollars = sum(row.dollars_per_hour for row in view.brokers)
    ready = sum(row.ready for row in view.brokers)
    head = Text.from_markup(
        f"[bold]{ready}[/] of {len(view.brokers)} brokers ready   in [bold]{rate(total_in)}[/]   out"
        f" [bold]{rate(total_out)}[/]   store [bold]{money(dollars)}[/] per hour   [dim]Ctrl-C ends[/]"
    )
    brokers = _table(BROKER_COLUMNS)
    for broker in view.brokers:
        brokers.add_row(*_broker_cells(broker))
    troubles = [Text(f"{row.broker or row.admin}: {row.trouble}", style="red") for row in view.brokers if row.trouble]
    topics = _table(TOPIC_COLUMNS)
    for topic in view.topics[:TOPICS_MAX]:
        topics.add_row(*_topic_cells(topic))
    hidden = len(view.topics) - TOPICS_MAX
    more = [Text(f"and {hidden} more topics", style="dim")] if hidden > 0 else []
    return Group(head, brokers, *troubles, topics, *more)


def _table(columns: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="left" if column in ("broker", "state", "topic") else "right", no_wrap=True)
    return table


def _broker_cells(row: BrokerRow) -> tuple[str, ...]:
    name = escape(row.broker or row.admin)
    if not row.broker and row.trouble:
        return name, "[red]no answer[/]", *["–"] * (len(BROKER_COLUMNS) - 2)
    return (
        name,
        "[green]ready[/]" if row.ready else "[yellow]not ready[/]",
        str(row.bundles),
        str(row.streams),
        f"{row.records_in:,.0f}",
        rate(row.bytes_in),
        rate(row.bytes_out),
        f"{row.puts:.1f}",
        f"{row.gets:.1f}",
        "–" if row.flush_p99_s is None else f"≤ {1000 * row.flush_p99_s:g} ms",
        "–" if row.cache_hits is None else f"{row.cache_hits:.0%}",
        money(row.dollars_per_hour),
        f"{row.cpu:.0%}",
        f"{row.memory_bytes / 1e6:,.0f} MB",
    )


def _topic_cells(row: TopicRow) -> tuple[str, ...]:
    return (
        escape(row.topic),
        f"{row.records_in:,.0f}",
        rate(row.bytes_in),
        f"{row.records_out:,.0f}",
        rate(row.bytes_out),
    )


def rate(bytes_per_s: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.1f} {unit}/s"
    return f"{bytes_per_s:.0f} B/s"


def money(dollars: float) -> str:
    return f"${dollars:.2f}" if dollars >= 0.1 or not dollars else f"${dollars:.4f}"
