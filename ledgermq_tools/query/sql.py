"""`ledgermq sql ROOT QUERY`: query topics with DuckDB, Parquet files and segments together, without
a broker.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import sys
from collections.abc import Iterator
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledgermq.cli.arguments.options import OutputFormat
from ledgermq.cli.messages.consume import chosen_format
from ledgermq.cli.messages.formats import MessageFormat
from ledgermq.cli.output.report import Rows, show_rows
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import notes
from ledgermq.errors import InvalidConfig, InvalidRequest
from ledgermq.json_records import time_text
from ledgermq.runtime.process.missing_modules import what_to_do
from ledgermq.sources import Sources
from ledgermq_ledger.open_root import opened
from ledgermq_tools.ledger.root import Root

if TYPE_CHECKING:
    import pyarrow as pa

    from ledgermq_tools.query.run import QueryResult

TABLE_ROWS_MAX = 1000
MIB = 1024 * 1024
EXAMPLES = (
    'ledgermq sql ledgermq-data "select count(*) from flights"',
    "ledgermq sql s3://bucket/prefix 'select * from orders limit 5' -f jsonl",
)

Query = Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT of DuckDB; each topic is a table.")]
Form = Annotated[
    str, typer.Option("--format", "-f", metavar="table|jsonl|csv", help="How to print rows. Default: table.")
]
ResultFormat = Annotated[
    OutputFormat | None,
    typer.Option("--output", "-o", show_default=False, help="As in other commands: json is --format jsonl."),
]
Memory = Annotated[
    int,
    typer.Option("--memory", min=64, metavar="MIB", help="What DuckDB may use, in MiB; more goes to temporary files."),
]


def register(app: typer.Typer) -> None:
    command(app, "sql", examples=EXAMPLES)(sql)


async def sql(
    root: Root,
    query: Query,
    form: Form = "",
    output: ResultFormat = None,
    memory_mib: Memory = 1024,
) -> None:
    """Query topics up to their newest durable record, whether it is in Parquet yet or not.

    Reads the store only; no broker is needed.
    """
    printing = chosen_format(form, output, MessageFormat.TABLE)
    if printing not in (MessageFormat.TABLE, MessageFormat.JSONL, MessageFormat.CSV):
        raise InvalidRequest(f"--format {form!r}: give table, jsonl or csv")
    try:
        from ledgermq_tools.query.run import run_query  # late: DuckDB is an extra
    except ImportError as error:
        advice = what_to_do(error, 'pip install "ledgermq[duckdb]"')
        raise InvalidConfig(f"`ledgermq sql` needs DuckDB: {advice}") from error
    async with opened(root, Sources()) as store, run_query(store, query, memory_bytes=memory_mib * MIB) as result:
        if printing is MessageFormat.TABLE:
            await _show_table(result)
            return
        names = distinct(result.schema.names)
        if printing is MessageFormat.CSV:
            _write(_csv_line(names))
        async with aclosing(result.batches()) as batches:
            async for batch in batches:
                for row in plain_rows(batch):
                    _write(_csv_line(_cells(row)) if printing is MessageFormat.CSV else _json_line(names, row))
                sys.stdout.flush()


async def _show_table(result: QueryResult) -> None:
    names = distinct(result.schema.names)
    rows: list[dict[str, Any]] = []
    has_more = False
    async with aclosing(result.batches()) as batches:
        async for batch in batches:
            room = TABLE_ROWS_MAX - len(rows)
            rows += [dict(zip(names, _cells(row), strict=True)) for row in plain_rows(batch.slice(0, room))]
            if has_more := batch.num_rows > room:
                break
    show_rows(Rows("", names, rows), OutputFormat.TABLE, "no rows")
    if has_more:
        notes().print(f"these are the first {TABLE_ROWS_MAX} rows; --format jsonl prints all")


def distinct(names: list[str]) -> list[str]:
    """Return the names of columns, with a number where one stands twice."""
    found: list[str] = []
    for name in names:
        number, new = 1, name
        while new in found:
            number += 1
            new = f"{name}_{number}"
        found.append(new)
    return found


def plain_rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the rows as values that JSON knows, and bytes."""
    import pyarrow as pa

    columns = []
    for column in batch.columns:
        if pa.types.is_timestamp(column.type):  # years that Python does not know are possible
            found: list[Any] = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64()).to_pylist()
            columns.append([None if us is None else time_text(us) or us for us in found])
        else:
            columns.append([_plain(value) for value in column.to_pylist()])
    return zip(*columns, strict=True)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no NaN and no infinity
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _json_line(names: list[str], row: tuple[Any, ...]) -> str:
    fields = dict(_named(name, value) for name, value in zip(names, row, strict=True))
    return json.dumps(fields, ensure_ascii=False) + "\n"


def _named(name: str, value: Any) -> tuple[str, Any]:
    """Return a field as `ledgermq.json_records` has it: bytes are text, or base64 under another name."""
    if isinstance(value, bytes):
        try:
            return name, value.decode()
        except UnicodeDecodeError:
            return f"{name}_base64", base64.b64encode(value).decode()
    if isinstance(value, dict):
        return name, dict(_named(str(inner), each) for inner, each in value.items())
    if isinstance(value, list):
        return name, [_named(name, each)[1] for each in value]
    return name, value


def _cells(row: tuple[Any, ...]) -> list[Any]:
    return [_cell(value) for value in row]


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, dict | list):
        return json.dumps(_named("", value)[1], ensure_ascii=False)
    return value


def _csv_line(cells: list[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _write(line: str) -> None:
    sys.stdout.buffer.write(line.encode(errors="surrogateescape"))
