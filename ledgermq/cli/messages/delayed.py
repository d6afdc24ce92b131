"""`ledgermq delayed …`: list messages that wait until they are due, and recall some of them; and the options
of `ledgermq produce` that delay records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

import ledgermq
from ledgermq.cli.arguments.completion import complete_topic
from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    Output,
    OutputFormat,
    Target,
    Timeout,
)
from ledgermq.cli.output.exit_codes import EPILOG, ExitCode
from ledgermq.cli.output.report import Report, Rows, at_time, show
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import notes
from ledgermq.cli.session import connected
from ledgermq.client.delayed import MESSAGES_MAX
from ledgermq.client.messages.due import LEVELS
from ledgermq.client.messages.handles import request_of
from ledgermq.durations import parse_duration_ms
from ledgermq.errors import InvalidRequest

DelayOption = Annotated[
    str | None,
    typer.Option("--delay", metavar="TIME", help="Deliver the records after this time, like 10s, 5m or 2h."),
]
DeliverAtOption = Annotated[
    str | None,
    typer.Option(
        "--deliver-at", metavar="TIME", help="Deliver the records at this time, like 2026-12-01T08:00; UTC by default."
    ),
]
LevelOption = Annotated[
    int | None,
    typer.Option(
        "--delay-level", min=1, max=len(LEVELS), help=f"Deliver the records after this level: {', '.join(LEVELS)}."
    ),
]
Topic = Annotated[
    str | None,
    typer.Option("--topic", metavar="NAME", help="Only messages of this topic.", autocompletion=complete_topic),
]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Only messages of this partition of --topic.")
]
Most = Annotated[
    int, typer.Option("--max", "-n", min=0, max=MESSAGES_MAX, help="List at most this number of messages.")
]
Handles = Annotated[
    list[str], typer.Argument(metavar="HANDLE...", help="Handles of the messages, as `produce` and `list` print them.")
]

MESSAGE_COLUMNS = ("due", "topic", "partition", "key", "bytes", "handle")
BUNDLE_COLUMNS = ("bundle", "messages", "bytes", "next_due", "delivered_to", "trouble")
RANGE_COLUMNS = ("bundle", "from", "to", "messages", "bytes")
RECALL_COLUMNS = ("topic", "partition", "due", "outcome", "handle")


def register(app: typer.Typer) -> None:
    delayed = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(delayed, name="delayed", help="List and recall messages that wait until they are due.")
    command(delayed, "list")(list_delayed)
    command(delayed, "recall")(recall)


@dataclass(frozen=True, slots=True)
class Delay:
    """When the records of a run are due, as `send` takes it."""

    delay: timedelta | None = None
    deliver_at: datetime | None = None
    delay_level: int | None = None


def parse_delay(delay: str | None, deliver_at: str | None, level: int | None) -> Delay:
    """Parse the options of `produce`. Raises InvalidRequest."""
    if sum(option is not None for option in (delay, deliver_at, level)) > 1:
        raise InvalidRequest("give only one of --delay, --deliver-at and --delay-level")
    after = None if delay is None else timedelta(milliseconds=parse_duration_ms(delay, "--delay"))
    return Delay(after, None if deliver_at is None else _parse_time(deliver_at), level)


def _parse_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"--deliver-at {text!r}: give a time, like 2026-12-01T08:00+01:00; UTC by default"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


async def list_delayed(
    topic: Topic = None,
    partition: Partition = None,
    most: Most = 20,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the delayed messages that are due next, and count all that wait.

    Messages of later times are stored, and are only counted, by the time in which they are due.

    Exit code 3: a part of the cluster has not answered, and is missing in the list.
    """
    async with connected(target, timeout_s) as client:
        found = await client.list_delayed(topic, partition, messages_max=most)
    bundles = [bundle_row(bundle) for bundle in found.bundles]
    ranges = [range_row(bundle, part) for bundle in found.bundles for part in bundle.ranges]
    if output is OutputFormat.TABLE and not any(bundle.messages for bundle in found.bundles) and not found.messages:
        notes().print("No delayed message is waiting.")
    else:
        messages = Rows("messages", MESSAGE_COLUMNS, [message_row(message) for message in found.messages])
        tables = [messages, Rows("bundles", BUNDLE_COLUMNS, bundles), Rows("later", RANGE_COLUMNS, ranges, if_any=True)]
        show(Report("", {"more_messages": found.left}, tables), output)
    for bundle, error in sorted(found.unanswered.items()):
        notes().print(
            f"bundle {bundle} has not answered, and is missing here: {error.code}: {error}",
            markup=False,
            soft_wrap=True,
        )
    if found.unanswered:
        raise typer.Exit(ExitCode.UNAVAILABLE)


async def recall(
    handles: Handles,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Recall delayed messages: they are never delivered.

    Exit code 7: it was too late for at least one; it is delivered, or surely will be. Exit code 8: at
    least one was due so long ago that its outcome is not known any longer.
    """
    for handle in handles:
        request_of(handle)  # one that is mistyped ends the command before any message is recalled
    outcomes: dict[str, ledgermq.RecallOutcome] = {}
    try:
        async with connected(target, timeout_s) as client:
            for handle in dict.fromkeys(handles):
                outcomes[handle] = await client.recall(handle)
    finally:
        if outcomes:
            rows = [recall_row(handle, outcome) for handle, outcome in outcomes.items()]
            show(Report("", tables=[Rows("messages", RECALL_COLUMNS, rows)]), output)
    if (code := exit_code_of(outcomes.values())) is not ExitCode.OK:
        raise typer.Exit(code)


def exit_code_of(outcomes: Iterable[ledgermq.RecallOutcome]) -> ExitCode:
    found = set(outcomes)
    if ledgermq.RecallOutcome.FORGOTTEN in found:
        return ExitCode.UNKNOWN_OUTCOME
    return ExitCode.REFUSED if ledgermq.RecallOutcome.TOO_LATE in found else ExitCode.OK


def recall_row(handle: str, outcome: ledgermq.RecallOutcome) -> dict[str, Any]:
    named = request_of(handle)
    return {
        "topic": named.topic,
        "partition": named.partition,
        "due": at_time(named.due_us // 1000),
        "outcome": str(outcome),
        "handle": handle,
    }


def sent_row(result: ledgermq.SendResult) -> dict[str, Any]:
    """Return a row of `produce` for a delayed record."""
    due = at_time(result.timestamp_us // 1000)
    return {"due": due, "topic": result.topic, "partition": result.partition, "handle": result.handle}


def message_row(message: ledgermq.DelayedMessage) -> dict[str, Any]:
    return {
        "due": _text_of(message.due),
        "topic": message.topic,
        "partition": message.partition,
        "bundle": message.bundle,
        "key": None if message.key is None else message.key.decode(errors="backslashreplace"),
        "bytes": message.size_bytes,
        "handle": message.handle,
    }


def bundle_row(bundle: ledgermq.DelayedBundle) -> dict[str, Any]:
    return {
        "bundle": bundle.bundle,
        "messages": bundle.messages,
        "bytes": bundle.size_bytes,
        "next_due": _text_of(bundle.next_due),
        "delivered_to": _text_of(bundle.delivered_to),
        "now": _text_of(bundle.now),
        "trouble": bundle.trouble,
    }


def range_row(bundle: ledgermq.DelayedBundle, part: ledgermq.DelayedRange) -> dict[str, Any]:
    return {
        "bundle": bundle.bundle,
        "from": _text_of(part.start),
        "to": _text_of(part.end),
        "messages": part.messages,
        "bytes": part.size_bytes,
    }


def _text_of(moment: datetime | None) -> str | None:
    return None if moment is None else at_time(int(moment.timestamp() * 1000))
