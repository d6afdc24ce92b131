"""Run `ledgermq replica status ROOT`: which cuts of a replicated root are whole, without changing anything."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledgermq.cli.arguments.options import Output, OutputFormat
from ledgermq.cli.output.exit_codes import EPILOG, ExitCode
from ledgermq.cli.output.report import Finding, Report, Rows, show
from ledgermq.cli.output.reporting import command
from ledgermq.durations import parse_duration_ms
from ledgermq.sources import Sources
from ledgermq_ledger.open_root import opened
from ledgermq_tools.ledger.root import Root

if TYPE_CHECKING:
    from ledgermq_ledger.cuts.reading.replica import CutInReplica

MaxAge = Annotated[
    str | None,
    typer.Option(
        "--max-age",
        metavar="AGE",
        help="Exit with 3 if the newest whole cut is older than this by the clock of this machine, such as 20m.",
        show_default=False,
    ),
]
All = Annotated[bool, typer.Option("--all", "-a", help="Look at every cut, not only until the first whole one.")]
COLUMNS = ("cut", "id", "taken", "whole", "objects", "missing", "first_missing")


def register(app: typer.Typer) -> None:
    replica = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(replica, name="replica", help="Show which cuts of a replicated root are whole.")
    command(replica, "status")(status)


async def status(root: Root, max_age: MaxAge = None, every: All = False, output: Output = OutputFormat.TABLE) -> None:
    """Show which cuts of a replicated root are whole, newest first. The store may replicate objects in any order.

    A cut is whole when all that it names has come; then `ledgermq restore --replica` makes a new cluster of it. Exit
    code 3 if none is, or if the newest one is older than --max-age. It reads only, and needs no broker.
    """
    from ledgermq_ledger.cuts.reading.replica import cuts_of_replica  # late, as in `backup`

    age_ms_max = None if max_age is None else parse_duration_ms(max_age, "--max-age")
    sources = Sources()
    found: list[CutInReplica] = []
    async with opened(root, sources) as store:
        async for each in cuts_of_replica(store):
            found.append(each)
            if each.is_whole and not every:
                break
    report = replica_report(root, found, sources.now_ms(), age_ms_max)
    show(report, output)
    if report.findings:
        raise typer.Exit(ExitCode.UNAVAILABLE)


def replica_report(url: str, found: list[CutInReplica], now_ms: int, age_ms_max: int | None) -> Report:
    """Return the report. It has a finding if no cut is whole, or the newest whole one is too old."""
    whole = next((each for each in found if each.is_whole), None)
    age_s = None if whole is None else round((now_ms - whole.created_ms) / 1000, 1)
    facts = {"newest_whole": None if whole is None else whole.name, "age_s": age_s}
    rows = Rows("cuts", COLUMNS, [_row(each) for each in found])
    findings = []
    if whole is None:
        why = f"the newest lacks {found[0].what_lacks}" if found else "no object of a cut has come"
        findings = [
            Finding(url, "NO_WHOLE_CUT", f"{why}: is the bucket replicated, and are cuts taken (cut_every_ms)?")
        ]
    elif age_ms_max is not None and now_ms - whole.created_ms > age_ms_max:
        findings = [Finding(url, "OLD_CUT", f"the newest whole cut, {whole.name!r}, is {age_s} s old")]
    return Report(f"replica {url}", facts, [rows], findings)


def _row(each: CutInReplica) -> dict[str, Any]:
    taken = datetime.fromtimestamp(each.created_ms / 1000, UTC) if each.created_ms else None
    return {
        "cut": each.name,
        "id": each.id,
        "taken": None if taken is None else taken.isoformat(timespec="seconds"),
        "whole": each.is_whole,
        "objects": each.objects,
        "missing": each.lacks,
        "first_missing": each.missing[0] if each.missing else "",
        "problem": each.problem,
    }
