"""`ledgermq transaction unresolved …`: half messages whose producers never answered; list and show them,
and publish or drop them in the place of their producers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

import ledgermq
from ledgermq.cli.arguments.completion import complete_check_group
from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    AnswerTimeout,
    Output,
    OutputFormat,
    Target,
    Yes,
)
from ledgermq.cli.messages.consume import Form, Printer, ResultFormat, chosen_format
from ledgermq.cli.messages.formats import MessageFormat
from ledgermq.cli.output.exit_codes import EPILOG
from ledgermq.cli.output.report import Report, Rows, at_time, show, show_rows
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import confirm, notes
from ledgermq.cli.session import connected_session
from ledgermq.errors import InvalidRequest

Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="Check group of the producers.", autocompletion=complete_check_group)
]
AnyGroup = Annotated[
    str | None,
    typer.Argument(metavar="GROUP", help="Only this check group.", autocompletion=complete_check_group),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="Transactional id of the message, as `list` shows it.")]
Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID…", help="Transactional ids of messages, as `list` shows them.")
]
Every = Annotated[bool, typer.Option("--all", "-a", help="Every message of the group that is not decided yet.")]
Unverified = Annotated[
    bool,
    typer.Option(
        "--unverified",
        help="Publish also what the coordinator of the id no longer knows, for example after 7 days: then only the "
        "message itself says what it was meant for, and any program that may write GROUP.unresolved may have written "
        "it.",
    ),
]
Decided = Annotated[bool, typer.Option("--all", "-a", help="Also messages about which an operator has decided.")]

COLUMNS = ("group", "id", "topic", "partition", "time", "key", "bytes", "checks", "decision")
SHOWN_MAX = 20
"""Messages that a question to the user names."""


def register(app: typer.Typer) -> None:
    unresolved = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(unresolved, name="unresolved", help="List and decide half messages whose producers never answered.")
    command(unresolved, "list")(list_unresolved)
    command(unresolved, "show")(show_one)
    command(unresolved, "commit")(commit)
    command(unresolved, "rollback")(rollback)


async def list_unresolved(
    group: AnyGroup = None,
    decided: Decided = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the half messages that wait for an operator: after the last check, no producer of their
    check group knew whether to commit them.
    """
    async with connected_session(target, timeout_s) as session:
        session.progress = session.while_in_trouble
        unresolved = session.client.unresolved
        groups = await unresolved.groups() if group is None else [group]
        found = [each for name in groups for each in await unresolved.list(name, decided=decided)]
    none = "No unresolved message waits for a decision." if not decided else "There is none."
    show_rows(Rows("messages", COLUMNS, [row_of(each) for each in found]), output, none)


async def show_one(
    group: Group,
    name: Id,
    form: Form = "",
    output: ResultFormat = None,
    target: Target = DEFAULT_TARGET,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print an unresolved message as it lies in GROUP.unresolved."""
    printing = chosen_format(form, output, MessageFormat.JSONL)
    async with connected_session(target, timeout_s) as session:
        session.progress = session.while_in_trouble
        found = await session.client.unresolved.get(group, name)
    Printer(printing).write(found.messages)


async def commit(
    group: Group,
    names: Ids = None,
    every: Every = False,
    unverified: Unverified = False,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Publish unresolved messages in the topic and the partition that they were meant for.

    Look first whether the producer's own transaction was committed: the message says that it was. Each
    message is published once, however often the command is repeated; this cannot be undone.
    """
    await resolve(group, names or [], every, "commit", yes, target, output, timeout_s, unverified)


async def rollback(
    group: Group,
    names: Ids = None,
    every: Every = False,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Drop unresolved messages: `list` shows them no longer, and `commit` refuses them.

    They stay readable in GROUP.unresolved until the topic's retention removes them.
    """
    await resolve(group, names or [], every, "rollback", yes, target, output, timeout_s)


async def resolve(
    group: str,
    names: Sequence[str],
    every: bool,
    decision: Literal["commit", "rollback"],
    yes: bool,
    target: str,
    output: OutputFormat,
    timeout_s: float,
    unverified: bool = False,
) -> None:
    if bool(names) == every:
        raise InvalidRequest("name the messages by their ids, or give --all; not both")
    async with connected_session(target, timeout_s) as session:
        session.progress = session.while_in_trouble
        unresolved = session.client.unresolved
        if every:
            names = [each.transactional_id for each in await unresolved.list(group)]
        if names and not yes:
            shown = ", ".join(names[:SHOWN_MAX]) + (", …" if len(names) > SHOWN_MAX else "")
            verb = "Publish" if decision == "commit" else "Drop"
            with session.user_is_asked():
                confirm(f"{verb} {len(names)} unresolved messages of {group} ({shown})?")
        found = []
        if names and decision == "commit":
            found = await unresolved.commit(group, names, unverified=unverified)
        elif names:
            found = await unresolved.rollback(group, names)
    if found or output is not OutputFormat.TABLE:
        show(Report("", tables=[Rows("messages", COLUMNS, [row_of(each) for each in found])]), output)
    done = "published" if decision == "commit" else "dropped"
    notes().print(f"{len(found)} unresolved messages of {group} are {done}.", markup=False, soft_wrap=True)


def row_of(found: ledgermq.UnresolvedMessage) -> dict[str, Any]:
    return {
        "group": found.group,
        "id": found.transactional_id,
        "topic": found.topic,
        "partition": found.partition,
        "time": None if found.timestamp_us is None else at_time(found.timestamp_us // 1000),
        "key": None if found.key is None else found.key.decode(errors="backslashreplace"),
        "bytes": found.bytes,
        "checks": found.checks,
        "decision": found.decision,
        "offset": found.offset,
    }
