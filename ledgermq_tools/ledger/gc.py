"""Run `ledgermq gc ROOT`: remove objects that nothing refers to any longer, with or without brokers
and compactors running.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from ledgermq.cli.arguments.options import Output, OutputFormat
from ledgermq.cli.output.exit_codes import exit_code
from ledgermq.cli.output.report import Finding, Report, Rows, show
from ledgermq.cli.output.reporting import command
from ledgermq.durations import parse_duration_ms
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from ledgermq_ledger.fsck.problem import time_text
from ledgermq_ledger.open_root import fitting_cluster_of, opened
from ledgermq_ledger.rounds.engines import find_engine
from ledgermq_tools.ledger.root import Root

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, but remove nothing.")]
Grace = Annotated[
    str | None,
    typer.Option(
        "--grace",
        metavar="AGE",
        help=(
            "Keep objects younger than this by the store's clock, such as 15m. Default: the cluster's"
            " parquet_min_age_ms."
        ),
    ),
]


def register(app: typer.Typer) -> None:
    command(app, "gc")(gc)


async def gc(root: Root, dry_run: DryRun = False, grace: Grace = None, output: Output = OutputFormat.TABLE) -> None:
    """Remove objects that are no longer needed: segments that are in Parquet, replaced checkpoints,
    files below log starts, and so on.

    Younger objects than the grace period wait: the table shows when they may be removed. Deleted
    topics that can be brought back keep their files; `kept` shows which, and until when. Objects that
    no LedgerMQ process puts are only listed. Brokers and compactors may run meanwhile.
    """
    from ledgermq_ledger.garbage.sweep import Swept, find_removable, sweep
    from ledgermq_ledger.garbage.topics.removed import find_kept
    from ledgermq_ledger.keys import METADATA_BUNDLE
    from ledgermq_ledger.log.ledger_ref import LedgerRef
    from ledgermq_ledger.parquet.compaction import Compaction
    from ledgermq_ledger.topics.catalog import read_catalog  # late: every command of the application loads this module

    chosen_ms = None if grace is None else parse_duration_ms(grace, "--grace")
    sources = Sources()
    async with opened(root, sources) as store:
        cluster = await fitting_cluster_of(store)
        grace_ms = cluster.parquet_min_age_ms if chosen_ms is None else chosen_ms
        catalog = await read_catalog(LedgerRef(store, METADATA_BUNDLE, cluster, sources))
        if dry_run:
            found = await find_removable(store, cluster, catalog, grace_ms)
            swept = Swept(found, failures=found.failures)
        else:
            with find_engine("local")(sources) as engine:
                swept = await sweep(Compaction(store, cluster, sources, engine), grace_ms=grace_ms)
        kept = []
        try:
            kept = await find_kept(store, catalog)
        except LedgerMQError as error:
            swept.failures.setdefault("removed topics", error)
    show(sweep_report(store.url, swept, kept, dry_run=dry_run, keys=output is OutputFormat.JSON), output)
    if swept.failures:
        raise typer.Exit(exit_code(next(iter(swept.failures.values()))))


def sweep_report(url: str, swept: Any, kept: Sequence[Any], *, dry_run: bool, keys: bool) -> Report:
    """Return the report. `kept`: of topics that can be brought back. `keys`: list every object, not only the number of
    each kind.
    """
    found = swept.found
    gone = {each.key for each in (found.removable if dry_run else swept.removed)}
    facts = {
        "dry_run": dry_run,
        "objects": len(gone),
        "bytes": sum(each.size for each in found.removable if each.key in gone),
        "within_grace": len(found.waiting),
        "not_removed": len(found.removable) - len(gone),
        "kept_to_undelete": sum(each.objects for each in kept),
        "archived": found.archived,
        "fences_kept": found.fences_kept,
        "foreign": len(found.foreign),
    }
    kinds = [{"kind": kind.value, "objects": objects, "bytes": size} for kind, objects, size in found.by_kind()]
    tables = [Rows("kinds", ("kind", "objects", "bytes"), kinds)] if kinds else []
    if found.waiting:
        tables.append(Rows("waiting", ("kind", "objects", "bytes", "may_go_from", "all_from"), [*_waiting(found)]))
    if kept:
        tables.append(Rows("kept", ("topic", "objects", "bytes", "until"), [*_kept(kept)]))
    if keys:
        rows = [
            {name: getattr(each, name) for name in ("key", "size", "modified_ms", "why")}
            | {"kind": each.kind.value, "removed": each.key in gone and not dry_run}
            for each in found.removable
        ]
        tables.append(Rows("found", ("kind", "key", "size", "modified_ms", "why", "removed"), rows))
    findings = [Finding(key, "FOREIGN_OBJECT", "no LedgerMQ process puts it here; it is kept") for key in found.foreign]
    findings += [_failure(where, error) for where, error in sorted(swept.failures.items())]
    return Report(f"garbage of {url}", facts, tables, findings)


def _waiting(found: Any) -> Iterator[dict[str, Any]]:
    """Return by kind the objects that nothing needs and that are too young, and when this command
    may remove the first and the last of them.
    """
    for kind, waiting in found.waiting_by_kind():
        times = [each.free_ms for each in waiting]
        row = {"kind": kind.value, "objects": len(waiting), "bytes": sum(each.size for each in waiting)}
        yield row | {"may_go_from": time_text(min(times)), "all_from": time_text(max(times)), "free_ms": max(times)}


def _kept(kept: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Return by topic what a deletion left so that the topic can be brought back, and until when it is kept."""
    for each in kept:
        row = {"topic": each.topic, "objects": each.objects, "bytes": each.bytes}
        yield row | {"until": time_text(each.until_ms), "until_ms": each.until_ms}


def _failure(where: str, error: LedgerMQError) -> Finding:
    return Finding(error.object_key or where, error.code, error.message)
