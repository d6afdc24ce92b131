"""`ledgermq table …`: the tables of topics, which programs of others read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

import ledgermq
from ledgermq.cli.arguments.completion import complete_topic
from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    Output,
    OutputFormat,
    Target,
    Timeout,
    Yes,
)
from ledgermq.cli.output.exit_codes import EPILOG
from ledgermq.cli.output.report import Report, Rows, show
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import confirm, notes
from ledgermq.cli.session import connected

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topic)]

TABLE_COLUMNS = (
    *("topic", "format", "version", "rows", "files", "size_bytes", "missing", "behind_s", "held_bytes", "trouble"),
)
ERROR_COLUMNS = ("partition", "offset", "schema_id", "error")
PARTITION_COLUMNS = ("partition", "start", "end", "missing", "files", "rows", "size_bytes", "stopped")


def register(app: typer.Typer) -> None:
    table = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(table, name="table", help="Show, rebuild and drop tables of topics, which other programs read.")
    command(table, "list")(list_tables)
    command(table, "describe")(describe)
    command(table, "errors")(errors)
    command(table, "rebuild")(rebuild)
    command(table, "drop")(drop)


async def list_tables(
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the tables of all topics: what each has, and how far it is behind."""
    rows: list[dict[str, Any]] = []
    async with connected(target, timeout_s) as client:
        while found := await client.tables.list(after=rows[-1]["topic"] if rows else ""):
            rows += [
                {
                    **asdict(each),
                    "changed": each.changed.isoformat(timespec="seconds") if each.changed else None,
                    "behind_s": round(each.behind_s, 1),
                }
                for each in found
            ]
    show(Report("", {}, [Rows("tables", TABLE_COLUMNS, rows)]), output)


async def describe(
    name: Name,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show a topic's table: its folder, its versions, what each partition has, and how far it is behind."""
    async with connected(target, timeout_s) as client:
        found = await client.tables.describe(name)
    rows = [
        {
            "partition": each.partition,
            "start": each.start,
            "end": each.end,
            "parquet_end": each.parquet_end,
            "missing": each.missing,
            "files": each.files,
            "rows": each.rows,
            "size_bytes": each.size_bytes,
            "stopped": each.stopped,
        }
        for each in found.partitions
    ]
    show(Report("", table_facts(found), [Rows("partition_list", PARTITION_COLUMNS, rows)]), output)


async def errors(
    name: Name,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Records at most.")] = 100,
    after: Annotated[
        str, typer.Option("--after", help="Go on behind a former call: what it printed as next.", show_default=False)
    ] = "",
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show records of a topic whose values could not be decoded: partition, offset, why, and the schema's id.

    Only compacted records are looked at. `ledgermq message show` shows a record.
    """
    rows: list[dict[str, Any]] = []
    async with connected(target, timeout_s) as client:
        while True:
            page = await client.tables.errors(name, after=after, limit=min(limit - len(rows), 1000))
            rows += [asdict(each) for each in page.values]
            after = page.next
            if not after or len(rows) >= limit:
                break
    show(Report("", {"topic": name, "next": after}, [Rows("errors", ERROR_COLUMNS, rows)]), output)


async def rebuild(
    name: Name,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Let a topic's table show again what Parquet has, in a new generation.

    Former versions stay readable as long as before. Streams over the table have to begin again.
    """
    if not yes:
        confirm(f"Rebuild the table of topic {name}, so that streams over it have to begin again?")
    async with connected(target, timeout_s) as client:
        generation = await client.tables.rebuild(name)
    notes().print(f"The table of topic {name} is rebuilt within seconds, as generation {generation}.")


async def drop(
    name: Name,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """End a topic's table, with a last version that has no files. The topic stays, with its records."""
    if not yes:
        confirm(f"Drop the table of topic {name}, so that its readers find nothing?")
    async with connected(target, timeout_s) as client:
        await client.tables.drop(name)
    notes().print(f"Topic {name} has no table any longer.")


def table_facts(table: ledgermq.TableDescription) -> dict[str, Any]:
    return {
        "topic": table.topic,
        "format": table.format,
        "folder": table.folder,
        "generation": table.generation,
        "is_current": table.is_current,
        "version": table.version,
        "oldest_held": table.oldest_held,
        "changed": table.changed.isoformat(timespec="seconds") if table.changed else None,
        "rows": table.rows,
        "behind_s": round(table.behind_s, 1),
        "waits_for": table.waits_for,
        "held_bytes": table.held_bytes,
        "foreign_objects": table.foreign_objects,
        "foreign": list(table.foreign),
    }
