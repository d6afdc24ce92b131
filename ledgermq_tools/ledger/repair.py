"""Run `ledgermq repair ROOT`: mend what is stored twice, and resume parked partitions.

With `--skip` they resume without the batches that cannot be read.
"""

from __future__ import annotations

import asyncio
import getpass
import socket
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledgermq.cli.arguments.options import Output, OutputFormat
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.cli.output.report import Report, Rows, show
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import confirm, notes
from ledgermq.errors import InvalidRequest, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.open_root import fitting_cluster_of, opened
from ledgermq_ledger.topics.catalog import read_catalog
from ledgermq_tools.ledger.root import Root

if TYPE_CHECKING:
    from ledgermq_ledger.root.mend import Mended

Topic = Annotated[str | None, typer.Option("--topic", "-t", help="Repair only partitions of this topic.")]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Repair only this partition of the topic.")
]
Skip = Annotated[
    bool, typer.Option("--skip", help="Abandon the batches that cannot be read. Needs --topic and --partition.")
]
By = Annotated[
    str | None, typer.Option("--by", help="Name of the person who decides, for the record. Default: user and machine.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what is parked and what is damaged; change nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation before records are abandoned.")]

COLUMNS = ("topic", "partition", "bundle", "offsets", "records", "object_key", "reason", "outcome")
DAMAGED = "damaged"


def register(app: typer.Typer) -> None:
    command(app, "repair")(repair)


async def repair(
    root: Root,
    topic: Topic = None,
    partition: Partition = None,
    skip: Skip = False,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Mend damaged objects of bundle 0 from their second copies, and let compaction resume parked
    partitions.

    A partition resumes once its damaged objects were restored. With --skip, Parquet gets marker
    rows in place of the records that cannot be read. Brokers may run meanwhile. Exit code 6:
    something is still damaged.
    """
    from ledgermq_ledger.parquet.compacting import repair as repairing  # late: every command loads this module

    if skip and (topic is None or partition is None):
        raise InvalidRequest("--skip abandons records: name one partition, by --topic and --partition")
    sources = Sources()
    async with opened(root, sources) as store:
        cluster = await fitting_cluster_of(store)
        copies = await _mend(store, dry_run=dry_run)
        names = {
            each.id: each.name
            for each in (
                await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, sources))
            ).topics_by_id.values()
        }
        rows = []
        for found in await repairing.find_parked(store, cluster, asyncio.to_thread):
            name = names.get(found.part.topic_id, f"(topic id {found.part.topic_id})")
            if topic not in (None, name) or partition not in (None, found.part.partition):
                continue
            outcome = "would be taken up again" if not found.damaged else "would be given up" if skip else DAMAGED
            if not dry_run and (skip or not found.damaged):
                if found.damaged and not yes:
                    confirm(f"Permanently abandon {found.records} records of {name}/{found.part.partition}?")
                decided_by = by or _user_and_machine()
                if not await repairing.repair_partition(store, cluster, found, sources, decided_by=decided_by):
                    raise Unavailable(f"{name}/{found.part.partition} has changed meanwhile; look again")
                outcome = "given up, and taken up again" if found.damaged else "taken up again"
            rows += _rows(name, found, outcome)
    show(_report(store, copies, rows), output)
    if dry_run and (rows or copies):
        notes().print("Nothing was changed (--dry-run).")
    if any(row["outcome"] == DAMAGED for row in rows) or any(each.is_lost for each in copies):
        raise typer.Exit(ExitCode.DAMAGED)


def _report(store: ObjectStore, copies: list[Mended], rows: list[dict[str, Any]]) -> Report:
    facts = {
        "parked": len({(row["topic"], row["partition"]) for row in rows}),
        "damaged_metadata": sum(each.damage for each in copies),
    }
    tables = [
        Rows("objects", ("object_key", "reason", "outcome"), [_mended(each) for each in copies]),
        Rows("partitions", COLUMNS, rows),
    ]
    return Report(f"repair of {store.url}", facts, [table for table in tables if table.rows])


async def _mend(store: ObjectStore, *, dry_run: bool) -> list[Mended]:
    from ledgermq_ledger.root.copies import copies_of
    from ledgermq_ledger.root.mend import mend_copies

    copies = copies_of(store)
    return await mend_copies(copies, dry_run=dry_run) if copies is not None else []


def _mended(each: Mended) -> dict[str, Any]:
    return {
        "object_key": each.object_key,
        "reason": each.reason.removeprefix(f"{each.object_key}: "),
        "outcome": each.outcome,
    }


def _rows(name: str, found: Any, outcome: str) -> list[dict[str, Any]]:
    """Return a row for each damaged batch, or one row if none is damaged any longer."""
    common = {"topic": name, "partition": found.part.partition, "bundle": found.bundle, "outcome": outcome}
    parked = found.part.parked
    if not found.damaged:
        return [
            common | {"offsets": "", "records": 0, "object_key": parked.object_key, "reason": f"was: {parked.reason}"}
        ]
    return [
        common
        | {
            "offsets": f"{each.first_offset}-{each.last_offset}",
            "records": each.last_offset + 1 - each.first_offset,
            "object_key": each.object_key,
            "reason": each.reason,
        }
        for each in found.damaged
    ]


def _user_and_machine() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container whose user has no name
        return socket.gethostname()
