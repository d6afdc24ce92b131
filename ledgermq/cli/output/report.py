"""Findings of a command as plain values: printed as tables for people or as one JSON document for
programs, with the same content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ledgermq.cli.arguments.options import OutputFormat
from ledgermq.cli.output.escapes import escaped
from ledgermq.cli.output.terminal import notes, results

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """A table of a report. `columns` selects and orders the keys of `rows` in the printed table;
    JSON has all keys. `if_any`: an empty table is not printed.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Row]
    if_any: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in the store. `object_key`: the object, relative to the root."""

    object_key: str
    code: str
    problem: str


@dataclass(slots=True)
class Report:
    """A report. `facts` are printed above the tables; their values have JSON's own types."""

    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    tables: list[Rows] = field(default_factory=list)
    findings: list[Finding] | None = None
    """Problems found; None: this report checks nothing."""

    def document(self) -> dict[str, Any]:
        document = {**self.facts, **{table.name: list(table.rows) for table in self.tables}}
        if self.findings is not None:
            document["findings"] = [asdict(finding) for finding in self.findings]
        return document


def show(report: Report, output: OutputFormat) -> None:
    """Print to stdout."""
    if output is OutputFormat.JSON:
        print_json(report.document())
    else:
        _print_for_people(report, results())


def show_rows(rows: Rows, output: OutputFormat, if_none: str) -> None:
    """Print to stdout. Without rows, people read `if_none` instead, and programs get an empty list."""
    if output is OutputFormat.TABLE and not rows.rows:
        notes().print(if_none)
    else:
        show(Report("", tables=[rows]), output)


def print_json(document: Any) -> None:
    encodable = json.dumps(document, indent=2, ensure_ascii=False).encode(errors="backslashreplace").decode()
    results().print(encodable, markup=False, soft_wrap=True)


def _print_for_people(report: Report, console: Console) -> None:
    if report.title:
        console.print(f"[bold]{escape(report.title)}[/]")
    width = max((len(name) for name in report.facts), default=0)
    for name, value in report.facts.items():
        console.print(f"  {_words(name):<{width}}  {escape(text(value))}")
    for table in report.tables:
        if table.rows or not table.if_any:
            console.print(_table(table))
    if report.findings is not None:
        _print_findings(report.findings, console)


def _table(rows: Rows) -> Table:
    table = Table(
        title=_words(rows.name), title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
    )
    numeric = {column for column in rows.columns if all(isinstance(row.get(column), (int, float)) for row in rows.rows)}
    for column in rows.columns:
        table.add_column(_words(column), justify="right" if column in numeric else "left", overflow="fold")
    for row in rows.rows:
        table.add_row(*(escape(text(row.get(column))) for column in rows.columns))
    return table


def _print_findings(findings: Sequence[Finding], console: Console) -> None:
    if not findings:
        console.print("[green]no damage found[/]")
        return
    console.print(f"[bold red]{len(findings)} finding{'s' if len(findings) > 1 else ''}[/]")
    for finding in findings:
        console.print(
            rf"  [red]{escape(text(finding.object_key))}[/]  \[{finding.code}] {escape(text(finding.problem))}"
        )


def at_time(ms: int) -> str:
    """Return a wall-clock time as reports show it: UTC, to the millisecond."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def text(value: Any) -> str:
    """Return a value as text for people."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text(inner)}" for name, inner in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return ", ".join(text(inner) for inner in value) or "–"
    return escaped(str(value))


def _words(name: str) -> str:
    return name.replace("_", " ")
