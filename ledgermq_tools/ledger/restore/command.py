"""Run `ledgermq restore`: a new cluster with the state of a cut, or topics of a cut in a living cluster."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ledgermq.cli.arguments.options import DEFAULT_TIMEOUT_S
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import notes
from ledgermq.cli.session import connected_session
from ledgermq.errors import InvalidConfig
from ledgermq.sources import Sources
from ledgermq_ledger.open_root import fitting_cluster_of, opened

if TYPE_CHECKING:
    from ledgermq_ledger.cuts.reading.left_out import OnlyTopics
    from ledgermq_ledger.cuts.reading.restore import Restored

Source = Annotated[
    str,
    typer.Argument(
        metavar="ROOT@CUT",
        help="Root URL or local folder, then @ and a cut: its name, its id, or a time (2026-11-30T08:00, UTC unless it"
        " names a zone), which stands for the newest cut at or before it.",
    ),
]
NewRoot = Annotated[
    str | None,
    typer.Argument(
        metavar="[NEWROOT]",
        help="Root URL of the new cluster, or a local folder. It must be empty. Leave it out with --into.",
        show_default=False,
    ),
]

Only = Annotated[
    str | None,
    typer.Option(
        "--topics",
        metavar="PATTERN",
        help="Only topics whose whole name this RE2 pattern matches, such as 'orders|pay.*', with the offsets of groups"
        " there. The others are deleted in the copy.",
        show_default=False,
    ),
]

FromReplica = Annotated[
    bool,
    typer.Option(
        "--replica",
        help="The store replicates objects to ROOT in any order. Only a cut of which all has come is taken; without"
        " @CUT the newest one.",
    ),
]

Into = Annotated[
    str | None,
    typer.Option(
        "--into",
        metavar="HOST:PORT,…|ROOT",
        help="Bring the topics of --topics back into this living cluster instead, as new topics.",
        show_default=False,
    ),
]
Suffix = Annotated[
    str, typer.Option("--suffix", metavar="SUFFIX", help="With --into: what the names of the new topics end with.")
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0.1, metavar="SECONDS", help="With --into: longest wait for an answer of brokers."),
]
SUFFIX = ".restored"


def register(app: typer.Typer) -> None:
    command(app, "restore")(restore)


async def restore(
    source: Source,
    new_root: NewRoot = None,
    topics: Only = None,
    replica: FromReplica = False,
    into: Into = None,
    suffix: Suffix = SUFFIX,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Make a new cluster with the state of a cut, in an empty root. The old cluster goes on, and nothing of it changes.

    The new cluster has another id. Brokers that are started on it continue at the cut: consumers at their
    offsets, transactions that were open are aborted. What was broken off is continued by the same command. Keep the
    cut until it is done.

    With --into, topics of the cut come into a living cluster as new topics, each record once, however often the
    command is repeated. --timeout counts from the last records that were read or stored.
    """
    if into is not None:
        if new_root is not None or replica or topics is None:
            raise InvalidConfig("--into needs --topics, and takes neither NEWROOT nor --replica")
        await _bring_back(source, topics, into, suffix, timeout_s)
        return
    if new_root is None:
        raise InvalidConfig("give NEWROOT, an empty root for the new cluster, or --into for topics in a living one")
    await _restore(source, new_root, topics, replica=replica)


async def _restore(source: str, new_root: str, topics: str | None, *, replica: bool) -> None:
    from ledgermq_ledger.cuts.reading.restore import CutCopy, restore_cut  # late, as in `backup`
    from ledgermq_tools.ledger.restore.group_offsets import end_with_their_partitions

    root, wanted = split(source, is_replica=replica)
    sources = Sources()
    async with opened(root, sources) as store, opened(new_root, sources) as target:
        cluster = await fitting_cluster_of(store)
        only = only_topics(topics)
        copy = CutCopy(store, cluster, wanted, target, sources, end_with_their_partitions, only, replica)
        done = await restore_cut(copy)
    say(done, new_root)


async def _bring_back(source: str, topics: str, into: str, suffix: str, timeout_s: float) -> None:
    from ledgermq_tools.ledger.restore.topics import TopicsBack, bring_topics_back

    root, wanted = split(source, is_replica=False)
    only, sources, calls = only_topics(topics), Sources(), 0
    assert only is not None

    def stored(records: int) -> None:
        nonlocal calls
        calls += 1

    async with opened(root, sources) as store, connected_session(into, timeout_s) as session:
        session.progress = lambda: calls
        cluster = await fitting_cluster_of(store)
        back = TopicsBack(store, cluster, wanted, session.client, only, sources, suffix, stored, asyncio.to_thread)
        for each in await bring_topics_back(back):
            earlier = f", {each.records - each.sent} of them by earlier calls" if each.records > each.sent else ""
            notes().print(f"{each.name} has the {each.records} records that {each.topic} had at the cut{earlier}.")


def split(source: str, *, is_replica: bool) -> tuple[str, str]:
    """Return root and cut of ROOT@CUT. A replica's cut may be left out. Raises InvalidConfig."""
    root, at, wanted = source.rpartition("@")
    if at and root and wanted and "/" not in wanted:
        return root, wanted
    if is_replica and (not at or "/" in wanted):
        return source, ""
    raise InvalidConfig(f"{source!r} names no cut: give ROOT@CUT; `ledgermq cut list` shows the cuts")


def only_topics(pattern: str | None) -> OnlyTopics | None:
    """Return what the option `--topics` says. Raises InvalidRequest."""
    from ledgermq_ledger.cuts.reading.left_out import OnlyTopics
    from ledgermq_offsets.limits import GroupLimits
    from ledgermq_offsets.membership.subscriptions import compile_pattern

    if pattern is None:
        return None
    compiled = compile_pattern(pattern, GroupLimits())
    return OnlyTopics(pattern, lambda name: compiled.fullmatch(name) is not None)


def say(done: Restored, new_root: str) -> None:
    """Print what was copied."""
    taken = datetime.fromtimestamp(done.cut.taken_ms / 1000, UTC).isoformat(timespec="seconds")
    what = f"{new_root} is cluster {done.cluster.cluster_id}, as cut {done.cut.name} of {taken} had it"
    if done.copied is None:
        notes().print(f"{what}; an earlier call has done that.")
        return
    notes().print(f"{what}: {done.copied.objects} objects, {done.copied.bytes} bytes.")
    if done.set_back:
        notes().print(f"{done.set_back} committed offsets of records behind the cut were set back to its ends.")
