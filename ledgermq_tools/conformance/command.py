"""`ledgermq conformance COMMAND…`: check a client that is written in another language.

Exit code: 0 it passes every check, 1 it fails one.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ledgermq.cli.arguments.options import Debug, Output, OutputFormat
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.cli.output.report import Report, Rows, show
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import notes
from ledgermq.errors import InvalidRequest

if TYPE_CHECKING:
    from ledgermq_tools.conformance.checks import Result

Command = Annotated[
    list[str],
    typer.Argument(metavar="COMMAND…", help="The client's program and its first arguments; the task is added behind."),
]
Level = Annotated[
    list[int] | None,
    typer.Option("--level", "-l", min=1, max=5, help="Check this level only (docs/protocol.md); may be repeated."),
]
Name = Annotated[
    list[str] | None,
    typer.Option("--check", metavar="NAME", help="Run the check of this name only; may be repeated."),
]
TaskTimeout = Annotated[
    float, typer.Option("--timeout", min=1, metavar="SECONDS", help="Longest time for one task of the program.")
]


def register(app: typer.Typer) -> None:
    command(
        app,
        "conformance",
        connects=False,
        examples=("ledgermq conformance --level 1 --level 2 -- ./my-client",),
    )(conformance)


async def conformance(
    program: Command,
    level: Level = None,
    check: Name = None,
    timeout_s: TaskTimeout = 60.0,
    output: Output = OutputFormat.TABLE,
    debug: Debug = False,
) -> None:
    """Run a client against brokers that redirect, fail, double and delay, and say what it does wrong.

    The brokers live in this process, on a store in memory. The program has the tasks of its levels: `produce`,
    `fetch`, `member`, `queue` and `transaction` (docs/protocol.md). Options of this command come before `--`, the
    program behind it. Exit code 1: a check failed.
    """
    from ledgermq_tools.conformance.checks import check_client, chosen  # late: it needs a broker
    from ledgermq_tools.conformance.program import Program

    if not debug:
        logging.getLogger().addHandler(logging.NullHandler())  # brokers log the troubles that checks plan

    def note(result: Result) -> None:
        notes().print(f"level {result.level}, {result.check}: {'passed' if result.passed else 'FAILED'}", markup=False)

    try:
        results = await check_client(Program(program, timeout_s), chosen(level or (), check or ()), note)
    except OSError as error:
        raise InvalidRequest(f"the program {program[0]!r} cannot be started: {error.strerror}") from error
    show(report(program, results), output)
    raise typer.Exit(ExitCode.OK if all(result.passed for result in results) else ExitCode.ERROR)


def report(program: list[str], results: list[Result]) -> Report:
    """Return the report: how many checks passed, and what was wrong in the others."""
    passed = sum(result.passed for result in results)
    rows = [{**asdict(result), "findings": "; ".join(result.findings)} for result in results]
    return Report(
        f"conformance of {' '.join(program)}",
        {"passed": passed, "failed": len(results) - passed},
        [Rows("checks", ("level", "check", "passed", "findings"), rows)],
    )
