"""`ledgermq fsck ROOT`: prove that a root is clean, or list exactly what is wrong with it.

Exit code: 0 clean, 9 only garbage, 6 damage.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ledgermq.cli.arguments.options import Output, OutputFormat
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.cli.output.report import Report, Rows, show
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import progress_of_items
from ledgermq.errors import DataDamaged
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.fsck.check import Checked, check_root
from ledgermq_ledger.fsck.problem import Problem, Severity
from ledgermq_ledger.open_root import cluster_of, opened
from ledgermq_tools.ledger.root import Root

Quick = Annotated[bool, typer.Option("--quick", help="Read indexes and footers only, not every batch and row.")]
All = Annotated[bool, typer.Option("--notes", help="Show notes too: normal facts that are worth knowing.")]

VERDICTS = {None: "clean", Severity.NOTE: "clean", Severity.UNTIDY: "untidy", Severity.DAMAGE: "damaged"}
EXIT_CODES = {
    None: ExitCode.OK,
    Severity.NOTE: ExitCode.OK,
    Severity.UNTIDY: ExitCode.UNTIDY,
    Severity.DAMAGE: ExitCode.DAMAGED,
}


def register(app: typer.Typer) -> None:
    command(app, "fsck")(fsck)


async def fsck(root: Root, quick: Quick = False, notes: All = False, output: Output = OutputFormat.TABLE) -> None:
    """Check everything that a root holds, without a broker and without changing anything.

    Exit code 6: damage, 9: only garbage.
    """
    sources = Sources()
    async with opened(root, sources) as store:
        with progress_of_items() as progress:
            task = progress.add_task("Reading bundles", total=None, note="")
            try:
                cluster = await cluster_of(store)
            except DataDamaged as error:
                checked = Checked(
                    problems=[
                        Problem(
                            Severity.DAMAGE, keys.CLUSTER, error.code, error.message.removeprefix(f"{keys.CLUSTER}: ")
                        )
                    ]
                )
            else:
                checked = await check_root(
                    store,
                    cluster,
                    quick=quick,
                    on_bundle=lambda done, total: progress.update(task, completed=done, total=total),
                    now_ms=sources.now_ms(),
                )
                if all(problem.code != "CONTRADICTED" for problem in checked.problems):
                    from ledgermq_broker.features import check_features  # late: it loads a whole broker
                    from ledgermq_broker.internal.feature import StoredRoot

                    await check_features(StoredRoot(store, cluster, sources, quick), checked)
    show(fsck_report(store.url, checked, notes=notes or output is OutputFormat.JSON), output)
    raise typer.Exit(EXIT_CODES[checked.worst])


def fsck_report(url: str, checked: Checked, *, notes: bool) -> Report:
    """Return the report, the worst problems first; `notes`: include normal facts."""
    facts: dict[str, Any] = {"verdict": VERDICTS[checked.worst]}
    facts |= {name: getattr(checked, name) for name in ("objects", "segments", "records", "parquet_files")}
    shown = [problem for problem in checked.problems if notes or problem.severity > Severity.NOTE]
    rows = [{**asdict(problem), "severity": problem.severity.name.lower()} for problem in shown]
    return Report(
        f"check of {url}",
        facts,
        [Rows("problems", ("severity", "code", "object_key", "text"), rows)] if rows or notes else [],
    )
