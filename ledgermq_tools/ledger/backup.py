"""Run `ledgermq backup ROOT CUT TARGET`: copy what a cut names into a new root, which is a whole cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from ledgermq.cli.output.reporting import command
from ledgermq.sources import Sources
from ledgermq_ledger.open_root import cluster_of, opened
from ledgermq_tools.ledger.restore.command import Only, only_topics, say
from ledgermq_tools.ledger.root import Root

Cut = Annotated[
    str,
    typer.Argument(metavar="CUT", help="Name, id or time of the cut, as in `restore`: `ledgermq cut take` takes one."),
]
Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="Root URL of the copy, or a local folder. It must be empty.")
]


def register(app: typer.Typer) -> None:
    command(app, "backup")(backup)


async def backup(root: Root, cut: Cut, new_root: Target, topics: Only = None) -> None:
    """Copy what a cut names to another root, and nothing else. Brokers and compaction go on.

    The copy is a whole cluster, as it was at the cut: brokers that are started on it continue there. A copy that was
    broken off is no cluster, and is continued by the same command. Take the cut first, and drop it afterwards.
    """
    from ledgermq_ledger.cuts.reading.restore import CutCopy, back_up_cut  # late: every command loads this module
    from ledgermq_tools.ledger.restore.group_offsets import end_with_their_partitions

    sources = Sources()
    async with opened(root, sources) as store, opened(new_root, sources) as target:
        cluster, only = await cluster_of(store), only_topics(topics)
        copy = CutCopy(store, cluster, cut, target, sources, end_with_their_partitions, only)
        done = await back_up_cut(copy)
    say(done, new_root)
