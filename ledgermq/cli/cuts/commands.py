"""`ledgermq cut …`: instants of the whole cluster with names."""

from __future__ import annotations

from typing import Annotated, Any

import typer

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
from ledgermq.client.cuts.admin import CutDescription
from ledgermq.durations import parse_duration_ms

Name = Annotated[str, typer.Argument(metavar="CUT", help="Name of the cut.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topic)]
Keep = Annotated[str, typer.Option("--keep", help="How long it is kept: 12h, 7d, or forever: until it is dropped.")]
COLUMNS = ("name", "state", "taken", "until", "reason")
FILE_COLUMNS = ("partition", "first_offset", "last_offset", "size", "url", "held_url")
PARTITION_COLUMNS = ("partition", "start", "parquet_end", "end", "missing")


def register(app: typer.Typer) -> None:
    cut = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(cut, name="cut", help="Name an instant of the whole cluster; list, keep and drop such cuts.")
    command(cut, "take")(take)
    command(cut, "list")(list_cuts)
    command(cut, "show")(show_cut)
    command(cut, "keep")(keep_cut)
    command(cut, "drop")(drop)
    command(cut, "files")(files)


async def take(
    name: Name,
    keep: Keep = "7d",
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Give this instant of the whole cluster a name. Writing goes on.

    Transactions are in the cut whole or not at all. What the cut names is not deleted while it is there, so it costs
    storage.
    """
    async with connected(target, timeout_s) as client:
        found = await client.cuts.take(name, keep_s=_keep_s(keep))
    show(Report("", _facts(found), []), output)


async def list_cuts(
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show all cuts, also those that are being taken or removed."""
    async with connected(target, timeout_s) as client:
        found = await client.cuts.list()
    show(Report("", {}, [Rows("cuts", COLUMNS, [_facts(each) for each in found])]), output)


async def show_cut(
    name: Name,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show a cut, and what it has of each bundle: a checkpoint, and the segments after it up to a slot."""
    async with connected(target, timeout_s) as client:
        found = await client.cuts.show(name)
    rows = [{"bundle": each.bundle, "base": each.base, "slot": each.slot} for each in found.bundles]
    show(Report("", _facts(found), [Rows("bundles", ("bundle", "base", "slot"), rows)]), output)


async def keep_cut(
    name: Name,
    keep: Annotated[str, typer.Argument(metavar="TIME", help="From now on: 12h, 7d; or forever.")],
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set how long a cut is kept, from now on."""
    async with connected(target, timeout_s) as client:
        found = await client.cuts.keep(name, _keep_s(keep))
    show(Report("", _facts(found), []), output)


async def drop(
    name: Name,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Drop a cut. What only it needs is deleted in the background."""
    if not yes:
        confirm(f"Drop cut {name}, so that the cluster can no longer be read as it was then?")
    async with connected(target, timeout_s) as client:
        await client.cuts.drop(name)
    notes().print(f"Cut {name} is dropped; what only it needs is deleted within minutes.")


async def files(
    name: Name,
    topic: Topic,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the Parquet files of a topic that a cut names, and how many records of it no file has yet.

    A file is at its url. Once retention has taken it, it is at its held_url.
    """
    async with connected(target, timeout_s) as client:
        found = await client.cuts.files(name, topic)
    parts = [{column: getattr(each, column) for column in PARTITION_COLUMNS} for each in found]
    rows = [{column: getattr(each, column) for column in FILE_COLUMNS} for part in found for each in part.files]
    show(Report("", {}, [Rows("partitions", PARTITION_COLUMNS, parts), Rows("files", FILE_COLUMNS, rows)]), output)


def _keep_s(text: str) -> float | None:
    return None if text == "forever" else parse_duration_ms(text, "--keep", 1000) / 1000


def _facts(found: CutDescription) -> dict[str, Any]:
    return {
        "name": found.name,
        "state": found.state,
        "taken": found.taken.isoformat(timespec="milliseconds") if found.taken else None,
        "until": found.until.isoformat(timespec="seconds") if found.until else None,
        "reason": found.reason,
    }
