"""`ledgermq dlq …`: list and show the dead letters of a group, and redrive or drop them."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer

import ledgermq
from ledgermq.cli.arguments.completion import complete_dead_letter_group, complete_topic
from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    AnswerTimeout,
    Output,
    OutputFormat,
    Target,
    Yes,
)
from ledgermq.cli.arguments.start import parse_start
from ledgermq.cli.messages.consume import Form, Printer, ResultFormat, chosen_format
from ledgermq.cli.messages.formats import MessageFormat
from ledgermq.cli.output.exit_codes import EPILOG
from ledgermq.cli.output.report import Report, Rows, at_time, show, show_rows
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import confirm, notes, progress_of_items
from ledgermq.cli.session import connected_session
from ledgermq.client.groups.retry_topics import dead_letter_topic
from ledgermq.errors import InvalidRequest

Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="Consumer group.", autocompletion=complete_dead_letter_group)
]
AnyGroup = Annotated[
    str | None,
    typer.Argument(metavar="GROUP", help="Only this group.", autocompletion=complete_dead_letter_group),
]
PlaceText = Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="Dead letter, as `list` shows it.")]
Places = Annotated[
    list[str] | None, typer.Argument(metavar="PARTITION:OFFSET…", help="Dead letters, as `list` shows them.")
]
Every = Annotated[bool, typer.Option("--all", "-a", help="Every dead letter that the filters take.")]
Settled = Annotated[bool, typer.Option("--all", "-a", help="Also dead letters that are redriven or dropped.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Only letters of this time or later: 2026-11-21T07:30, or an age: 2h."
    ),
]
Before = Annotated[str | None, typer.Option("--before", metavar="TIME", help="Only letters before this time.")]
Error = Annotated[str, typer.Option("--error", metavar="TEXT", help="Only letters whose last error has this text.")]
Key = Annotated[str | None, typer.Option("--key", "-k", help="Only letters with this key.")]
Topic = Annotated[
    str, typer.Option("--topic", help="Only letters that came from this topic.", autocompletion=complete_topic)
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="TOPIC",
        help="Send to this topic instead of the group's retry topic. Every group that reads it gets the messages.",
        autocompletion=complete_topic,
    ),
]
Max = Annotated[int | None, typer.Option("--max", "-n", min=1, help="At most this number of letters.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the letters; nothing is changed.")]

COLUMNS = ("group", "place", "time", "origin", "key", "attempts", "error", "bytes", "state")


LISTED_MAX = 1000


def register(app: typer.Typer) -> None:
    dlq = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(dlq, name="dlq", help="List, show, redrive and drop dead letters of consumer groups.")
    command(dlq, "list")(list_letters)
    command(dlq, "show")(show_one)
    command(dlq, "redrive")(redrive)
    command(dlq, "drop")(drop)


async def list_letters(
    group: AnyGroup = None,
    settled: Settled = False,
    since: Since = None,
    before: Before = None,
    error: Error = "",
    key: Key = None,
    topic: Topic = "",
    maximum: Max = None,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List messages that a group has given up: those in its dead-letter topic, GROUP.dlq, that are not
    redriven or dropped yet. At most 1000 are listed, unless --max says more.
    """
    wanted = filter_of((), since, before, error, key, topic)
    async with connected_session(target, timeout_s) as session:
        session.progress = session.while_in_trouble
        letters = session.client.dead_letters
        names = [group] if group is not None else await letters.groups()
        rows: list[dict[str, Any]] = []
        left_out, most = 0, maximum or LISTED_MAX
        for name in names:
            found = await letters.list(name, wanted, settled=settled, letters_max=max(1, most - len(rows)))
            shown = found.letters[: most - len(rows)]
            rows += [row_of(name, letter) for letter in shown]
            left_out += found.more + len(found.letters) - len(shown)
    show_rows(
        Rows("letters", COLUMNS, rows), output, "There is no dead letter." if settled else "No dead letter waits."
    )
    if left_out:
        notes().print(f"{left_out} more are not listed: use --max, or a filter.")


async def show_one(
    group: Group,
    place: PlaceText,
    form: Form = "",
    output: ResultFormat = None,
    target: Target = DEFAULT_TARGET,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print a dead letter with its headers, which say where it came from and how it failed."""
    printing = chosen_format(form, output, MessageFormat.JSONL)
    wanted = ledgermq.DeadLetterFilter(frozenset({parse_place(place)}))
    async with connected_session(target, timeout_s) as session:
        session.progress = session.while_in_trouble
        found = (await session.client.dead_letters.list(group, wanted, settled=True)).letters
    if not found:
        raise InvalidRequest(f"{dead_letter_topic(group)} has no dead letter at {place}")
    Printer(printing).write([letter.message for letter in found])


async def redrive(
    group: Group,
    places: Places = None,
    every: Every = False,
    since: Since = None,
    before: Before = None,
    error: Error = "",
    key: Key = None,
    topic: Topic = "",
    to: To = "",
    maximum: Max = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Send dead letters to be handled again: to the group's retry topic, which only this group reads.
    Members of a queue group find it within half a minute. Attempts count from 1 again.

    Each letter is sent once, however often the command is repeated. It stays readable in GROUP.dlq.
    """
    wanted = filter_of(places or (), since, before, error, key, topic)
    check_choice(places, every)
    await settle(group, wanted, "redriven", to, maximum, dry_run, yes, target, output, timeout_s)


async def drop(
    group: Group,
    places: Places = None,
    every: Every = False,
    since: Since = None,
    before: Before = None,
    error: Error = "",
    key: Key = None,
    topic: Topic = "",
    maximum: Max = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Drop dead letters: `list` shows them no longer, and `redrive` leaves them out.

    They stay readable in GROUP.dlq.
    """
    wanted = filter_of(places or (), since, before, error, key, topic)
    check_choice(places, every)
    await settle(group, wanted, "dropped", "", maximum, dry_run, yes, target, output, timeout_s)


async def settle(
    group: str,
    wanted: ledgermq.DeadLetterFilter,
    how: Literal["redriven", "dropped"],
    to: str,
    maximum: int | None,
    dry_run: bool,
    yes: bool,
    target: str,
    output: OutputFormat,
    timeout_s: float,
) -> None:
    async with connected_session(target, timeout_s) as session:
        session.progress = session.while_in_trouble
        dead_letters = session.client.dead_letters
        await dead_letters.check_known(group)
        if dry_run or not yes:
            most = maximum or LISTED_MAX
            found = await dead_letters.list(group, wanted, letters_max=min(most, LISTED_MAX))
            rows = [row_of(group, letter) for letter in found.letters]
            count = min(len(rows) + found.more, maximum or sys.maxsize)
            if rows or output is OutputFormat.JSON:
                show(Report("", tables=[Rows("letters", COLUMNS, rows)]), output)
            if count > len(rows):
                notes().print(f"… and {count - len(rows)} more.")
            if dry_run:
                verb = "redrive" if how == "redriven" else "drop"
                notes().print(f"This would {verb} {letters(count)} of {group}. Nothing was changed (--dry-run).")
                return
            if not count:
                notes().print(f"No dead letter of {group} is left that this could be about.")
                return
            with session.user_is_asked():
                confirm(f"{'Redrive' if how == 'redriven' else 'Drop'} {letters(count)} of {group}?")
        with progress_of_items() as bar:
            task = bar.add_task(f"{how} letters of {group}", total=None, note="")
            count = await dead_letters.settle(
                group, wanted, how, to=to, letters_max=maximum, on_progress=lambda n: bar.update(task, completed=n)
            )
    notes().print(f"{letters(count)} of {group} {'is' if count == 1 else 'are'} {how}.", markup=False, soft_wrap=True)


def letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count} dead letters"


def filter_of(
    places: list[str] | tuple[()], since: str | None, before: str | None, error: str, key: str | None, topic: str
) -> ledgermq.DeadLetterFilter:
    return ledgermq.DeadLetterFilter(
        frozenset(map(parse_place, places)),
        parse_time(since, "--since"),
        parse_time(before, "--before"),
        error,
        None if key is None else key.encode(),
        topic,
    )


def parse_time(text: str | None, option: str) -> datetime | None:
    """Parse a time or an age. Raises InvalidRequest."""
    if text is None:
        return None
    found = parse_start(text, datetime.now(UTC), option)
    if not isinstance(found, datetime):
        raise InvalidRequest(f"{option} {text!r}: give a time (2026-11-21T07:30) or an age (15m)")
    return found


def parse_place(text: str) -> ledgermq.LetterPlace:
    """Parse PARTITION:OFFSET. Raises InvalidRequest."""
    if not re.fullmatch(r"\d{1,9}:\d{1,19}", text):
        raise InvalidRequest(f"{text!r} is not the place of a dead letter: give PARTITION:OFFSET, as `list` shows it")
    partition, offset = text.split(":")
    return ledgermq.LetterPlace(int(partition), int(offset))


def check_choice(places: list[str] | None, every: bool) -> None:
    if bool(places) == every:
        raise InvalidRequest("name the dead letters by PARTITION:OFFSET, or give --all, with filters or without")


def row_of(group: str, letter: ledgermq.DeadLetter) -> dict[str, Any]:
    message, failures = letter.message, letter.failures
    return {
        "group": group,
        "place": str(letter.place),
        "time": None if message.timestamp_us is None else at_time(message.timestamp_us // 1000),
        "origin": str(failures.origin),
        "key": None if message.key is None else message.key.decode(errors="backslashreplace"),
        "attempts": failures.attempts,
        "first_failure": at_time(failures.first_ms),
        "error": failures.error,
        "bytes": letter.size_bytes,
        "state": letter.settled or "waits",
    }
