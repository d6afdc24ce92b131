"""`ledgermq cluster rebalance`: move partitions between bundles until their loads are even."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    AnswerTimeout,
    Output,
    OutputFormat,
    Target,
)
from ledgermq.cli.output.report import Report, Rows, show
from ledgermq.cli.output.terminal import notes
from ledgermq.cli.session import connected_session
from ledgermq.client.admin.rebalancing import MEASURED_S, Answers, RebalanceResult
from ledgermq.client.admin.rebalancing import rebalance as rebalanced

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would move, and the loads before and after.")]
MaxMoves = Annotated[
    int | None, typer.Option("--max-moves", min=1, metavar="N", help="Move no more partitions; those that help most.")
]
AtOnce = Annotated[
    int, typer.Option("--at-once", min=1, metavar="K", help="How many partitions leave a bundle at the same time.")
]
Measured = Annotated[
    float,
    typer.Option("--measured", min=0, metavar="SECONDS", help="Wait until the loads have been measured for so long."),
]


async def rebalance(
    target: Target = DEFAULT_TARGET,
    dry_run: DryRun = False,
    max_moves: MaxMoves = None,
    at_once: AtOnce = 1,
    measured_s: Measured = MEASURED_S,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Move partitions between bundles until the loads of the bundles are even within 20 %.

    It moves as little of the load as it can, and nothing if the loads are even. Where there is no load, it evens
    out the numbers of partitions. Partitions that `ledgermq cluster move` would refuse now stay. Programs notice
    nothing.

    The command waits until the moves have ended, as long as brokers answer. Ctrl-C ends only the wait. Started
    again, it goes on: partitions that are on their way count as arrived.
    """
    async with connected_session(target, timeout_s) as session:
        answers, client = Answers(), session.client
        session.progress = answers.progress

        def tell(line: str) -> None:
            notes().print(line, markup=False, soft_wrap=True)

        result = await rebalanced(client, measured_s, at_once, max_moves, tell, answers, dry_run=dry_run)
    show(report_of(result), output)


def report_of(result: RebalanceResult) -> Report:
    """Return what was moved, or would be, and the loads of the bundles before and after."""
    facts = {
        "dry_run": result.dry_run,
        "moves": len(result.moves),
        "moved_load": sum(move.load for move in result.moves),
        "already_moving": result.already_moving,
        "moves_left": result.moves_left,
        "mean_load": result.mean_load,
    }
    moves = [asdict(move) | {"partition": str(move.partition)} for move in result.moves]
    kept = [asdict(each) | {"partition": str(each.partition)} for each in result.kept]
    return Report(
        "",
        facts,
        [
            Rows("moves", ("partition", "source", "target", "load", "why"), moves, if_any=True),
            Rows("kept", ("partition", "bundle", "why"), kept, if_any=True),
            Rows(
                "bundles",
                ("bundle", "load", "load_after", "partitions", "partitions_after"),
                list(map(asdict, result.bundles)),
            ),
        ],
    )
