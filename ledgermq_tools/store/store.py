"""`ledgermq store check URL`: try whether a store is fit to hold a root, before a cluster relies on it.

Exit code: 0 it keeps every rule, 1 it breaks one.
"""

from __future__ import annotations

from dataclasses import asdict

import typer

from ledgermq.cli.arguments.options import Output, OutputFormat
from ledgermq.cli.output.exit_codes import EPILOG, ExitCode
from ledgermq.cli.output.report import Report, Rows, show
from ledgermq.cli.output.reporting import command
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.conformance.checks import Result, check_store
from ledgermq_ledger.open_root import opened
from ledgermq_tools.ledger.root import Root


def register(app: typer.Typer) -> None:
    store = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(store, name="store", help="Check that a store is fit to hold a root.")
    command(store, "check")(check)


async def check(root: Root, output: Output = OutputFormat.TABLE) -> None:
    """Try on a store what ledgers need of it: races, lists, deletions, ranges, clocks, names and sizes.

    It writes some 40 objects below a fresh prefix of the root, and removes them. Exit code 1: the
    store breaks a rule.
    """
    sources = Sources()
    async with opened(root, sources) as store, opened(root, sources) as other:
        results = await check_store(store, other, sources)
    show(store_report(store.url, results), output)
    raise typer.Exit(ExitCode.OK if all(result.kept for result in results) else ExitCode.ERROR)


def store_report(url: str, results: list[Result]) -> Report:
    """Return the report: a verdict, and what each check found."""
    fit = all(result.kept for result in results)
    return Report(
        f"check of {url}",
        {"verdict": "fit" if fit else "not fit"},
        [Rows("checks", ("check", "kept", "found"), [asdict(result) for result in results])],
    )
