"""Run `ledgermq backup ROOT CUT TARGET`: copy what a cut names into a new root, which is a whole cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import notes
from ledgermq.sources import Sources
from ledgermq_ledger.open_root import cluster_of, opened
from ledgermq_tools.ledger.root import Root

Cut = Annotated[str, typer.Argument(metavar="CUT", help="Name of the cut: `ledgermq cut take` takes one.")]
Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="Root URL of the copy, or a local folder. It must be empty.")
]


def register(app: typer.Typer) -> None:
    command(app, "backup")(backup)


async def backup(root: Root, cut: Cut, new_root: Target) -> None:
    """Copy what a cut names to another root, and nothing else. Brokers and compaction go on.

    The copy is a whole cluster, as it was at the cut: brokers that are started on it continue there. A copy
    that was broken off is continued by the same command. Take the cut first, and drop it afterwards.
    """
    from ledgermq_ledger.cuts.reading.backup import copy_cut  # late: every command of the application loads this module
    from ledgermq_ledger.cuts.reading.root import open_named

    async with opened(root, Sources()) as store, opened(new_root, Sources()) as copy:
        at = await open_named(store, await cluster_of(store), cut)
        copied = await copy_cut(at, copy)
    notes().print(f"{copied.objects} objects, {copied.bytes} bytes: {new_root} is the cluster as it was at cut {cut}.")
