"""`ledgermq transaction …`: list and describe transactions, and decide about those whose producer or
transaction manager will not come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

import ledgermq
from ledgermq.cli.arguments.completion import complete_transaction
from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    Output,
    OutputFormat,
    Target,
    Timeout,
    Yes,
)
from ledgermq.cli.output.exit_codes import EPILOG, ExitCode
from ledgermq.cli.output.report import Report, Rows, at_time, show
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import confirm, notes
from ledgermq.cli.session import connected, connected_session
from ledgermq.cli.transactions import unresolved
from ledgermq.errors import LedgerMQError

Id = Annotated[
    str,
    typer.Argument(metavar="ID", help="Transactional id of the producer.", autocompletion=complete_transaction),
]
All = Annotated[
    bool, typer.Option("--all", "-a", help="List every transactional id, also those without an open transaction.")
]
ShowStaged = Annotated[
    bool, typer.Option("--staged", help="Also list what is staged in each bundle: invisible until its commit.")
]
LostBundle = Annotated[
    int, typer.Option("--bundle", min=1, metavar="N", help="Bundle whose part of the transaction is lost.")
]

LIST_COLUMNS = ("id", "kind", "state", "age_s", "bundles_missing", "trouble")
STAGED_COLUMNS = ("bundle", "id", "epoch", "number", "batches", "bytes", "age_s", "groups")
PART_COLUMNS = ("bundle", "complete", "topic", "partition", "batches", "groups")


def register(app: typer.Typer) -> None:
    transaction = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(transaction, name="transaction", help="List, describe, commit, abort and forget transactions.")
    command(transaction, "list")(list_transactions)
    command(transaction, "describe")(describe)
    command(transaction, "commit")(commit)
    command(transaction, "abort")(abort)
    command(transaction, "forget")(forget)
    command(transaction, "give-up")(give_up)
    unresolved.register(transaction)


async def list_transactions(
    every: All = False,
    staged: ShowStaged = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List open transactions: those that are prepared, decided and not complete yet, or undecided for
    some seconds. With --staged, also list what is staged, even if it was staged just now.

    Exit code 3: a part of the cluster has not answered, and is missing in the list.
    """
    async with connected(target, timeout_s) as client:
        found = await client.transactions.list(open_only=not every)
    tables = [Rows("transactions", LIST_COLUMNS, [transaction_row(one) for one in found.transactions])]
    if staged:
        tables.append(Rows("staged", STAGED_COLUMNS, staged_rows(found.staged)))
    if output is OutputFormat.TABLE and not any(table.rows for table in tables):
        notes().print("There is no transactional id yet." if every else "No transaction is open.")
    else:
        show(Report("", tables=tables), output)
    finish(found.unanswered)


async def describe(
    name: Id,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the newest transaction of an id: its state, its parts in the bundles, and everything that the
    id has staged.

    Exit code 3: a part of the cluster has not answered, and may have staged data, too.
    """
    async with connected(target, timeout_s) as client:
        found = await client.transactions.describe(name)
        topics = {topic.topic_id: topic.name for topic in await client.list_topics()} if found.parts else {}
    parts = Rows("parts", PART_COLUMNS, part_rows(found, topics), if_any=True)
    show(Report("", facts_of(found), [parts, Rows("staged", STAGED_COLUMNS, staged_rows(found.staged))]), output)
    finish(found.unanswered)


async def commit(
    name: Id,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Commit a prepared transaction in the place of its transaction manager.

    This is a heuristic decision: a database that takes part in the transaction may have decided
    otherwise. The decision cannot be undone, and is kept until `forget`.
    """
    await resolve(name, True, yes, target, output, timeout_s)


async def abort(
    name: Id,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Abort a transaction that is prepared or undecided.

    For a prepared transaction this is a heuristic decision: a database that takes part in it may have
    decided otherwise. The decision cannot be undone, and is kept until `forget`.
    """
    await resolve(name, False, yes, target, output, timeout_s)


async def resolve(name: str, is_commit: bool, yes: bool, target: str, output: OutputFormat, timeout_s: float) -> None:
    verb = "Commit" if is_commit else "Abort"
    async with connected_session(target, timeout_s) as session:
        client = session.client
        if not yes:
            show(Report("", facts_of(await client.transactions.describe(name, staged=False))), output)
            notes().print(
                "This is a heuristic decision, in the place of the producer or the transaction manager: a database "
                "that takes part may have decided otherwise. It is final.",
                soft_wrap=True,
            )
            with session.user_is_asked():
                confirm(f"{verb} transaction {name}?")
        found = await client.transactions.resolve(name, commit=is_commit)
    show(Report("", facts_of(found)), output)
    done = "committed" if is_commit else "aborted"
    where = f"; not complete yet in bundles {', '.join(map(str, found.missing))}" if found.missing else ""
    notes().print(f"Transaction {found.number} of {name} is {done}{where}.", markup=False, soft_wrap=True)


async def forget(
    name: Id,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Forget the outcome of a two-phase transaction that is complete, or an operator's decision.

    A participant that asks for the outcome later gets TransactionUnknown.
    """
    if not yes:
        confirm(
            f"Forget the outcome of transaction {name}? A participant that asks for it later gets TransactionUnknown."
        )
    async with connected(target, timeout_s) as client:
        await client.transactions.forget(name)
    notes().print(f"Transaction {name} is forgotten.", markup=False)


async def give_up(
    name: Id,
    bundle: LostBundle,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Give up the part of a transaction in one bundle: DATA IS LOST.

    Staged data that this bundle has not made visible is dropped for good; the parts in other bundles
    stay. Use this only when `describe` shows that staged data is damaged beyond repair.
    """
    async with connected_session(target, timeout_s) as session:
        client = session.client
        if not yes:
            show(Report("", facts_of(await client.transactions.describe(name, staged=False))), output)
            notes().print(
                f"[bold red]DATA WILL BE LOST.[/] Records and offsets of transaction {name} that bundle {bundle} has "
                "not made visible are dropped for good. Its parts in other bundles stay, so the transaction is no "
                "longer all or nothing.",
                soft_wrap=True,
            )
            with session.user_is_asked():
                confirm(f"Lose the part of transaction {name} in bundle {bundle}?")
        found = await client.transactions.give_up(name, bundle)
    show(Report("", facts_of(found)), output)
    notes().print(f"The part of transaction {name} in bundle {bundle} is given up.", markup=False, soft_wrap=True)


def finish(unanswered: Mapping[int, LedgerMQError]) -> None:
    """Print the partitions that have not answered; if there are any, exit with the code for that."""
    for partition, error in sorted(unanswered.items()):
        notes().print(
            f"partition {partition} of __transactions has not answered, and is missing here: {error.code}: {error}",
            markup=False,
            soft_wrap=True,
        )
    if unanswered:
        raise typer.Exit(ExitCode.UNAVAILABLE)


def facts_of(found: ledgermq.TransactionDescription) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": found.transactional_id,
        "kind": found.kind,
        "state": state_of(found),
        "epoch": found.epoch,
        "number": found.number,
        "complete": found.complete,
        "bundles_missing": list(found.missing),
        "trouble": found.trouble,
        "changed": at_time(found.changed_ms),
        "timeout_s": found.timeout_ms / 1000,
        "partition": found.partition,
    }
    if found.check_group:
        facts |= {"check_group": found.check_group, "checks": found.checks}
    if found.coordinator:
        facts["coordinator"] = found.coordinator
    return facts


def transaction_row(found: ledgermq.TransactionDescription) -> dict[str, Any]:
    return {
        "id": found.transactional_id,
        "kind": found.kind,
        "state": state_of(found),
        "age_s": age_s(found.changed_ms),
        "bundles_missing": list(found.missing),
        "trouble": found.trouble,
        "epoch": found.epoch,
        "number": found.number,
        "complete": found.complete,
        "changed": at_time(found.changed_ms),
        "partition": found.partition,
    }


def state_of(found: ledgermq.TransactionDescription) -> str | None:
    """Return the state; None if the coordinator has recorded no transaction in this epoch."""
    return found.state if found.number else None


def staged_rows(staged: Iterable[ledgermq.StagedTransaction]) -> list[dict[str, Any]]:
    return [staged_row(one) for one in staged]


def staged_row(staged: ledgermq.StagedTransaction) -> dict[str, Any]:
    return {
        "bundle": staged.bundle,
        "id": staged.transactional_id,
        "epoch": staged.epoch,
        "number": staged.number,
        "batches": staged.batches,
        "bytes": staged.bytes,
        "age_s": age_s(staged.oldest_ms),
        "groups": list(staged.groups),
        "oldest": at_time(staged.oldest_ms),
    }


def part_rows(found: ledgermq.TransactionDescription, topics: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return a row for each partition of each part; `topics`: names by id."""
    rows = []
    for part in found.parts:
        shared = {"bundle": part.bundle, "complete": found.complete or part.bundle not in found.missing}
        if found.state == "prepared":
            shared["complete"] = False
        for (topic_id, partition), batches in sorted(part.batches.items()):
            where = {"topic": topics.get(topic_id, f"(id {topic_id})"), "topic_id": topic_id, "partition": partition}
            rows.append({**shared, **where, "batches": batches, "groups": list(part.groups)})
        if not part.batches:
            rows.append({**shared, "groups": list(part.groups)})
    return rows


def age_s(since_ms: int) -> float:
    """Return the seconds since a time, by this machine's clock."""
    return round(max(0.0, datetime.now(UTC).timestamp() - since_ms / 1000), 1)
