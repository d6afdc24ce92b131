"""The two streams of a terminal program: results go to stdout, everything about the work (progress,
notes, errors) to stderr.

Colour and progress bars appear only where the stream is a terminal, so that pipes and files get
plain text.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from ledgermq.cli.exit_codes import ExitCode


def end_quietly_at_broken_pipes() -> None:
    """Exit with 0 when the reader of our output has gone, as `head` does.

    Rich, which also prints Typer's help, would exit with 1.
    """

    def end(self: Console) -> None:
        forget_output()
        raise SystemExit(0)

    Console.on_broken_pipe = end  # type: ignore[method-assign]


def forget_output() -> None:
    """Discard buffered output after a broken pipe.

    Otherwise Python would fail once more at exit.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
            continue
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def results() -> Console:
    """Return a console on the present stdout.

    Text is not wrapped when the output is not a terminal: one row is one line.
    """
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = 10_000
        console.soft_wrap = True
    return console


def notes() -> Console:
    """Return a console on the present stderr."""
    return Console(stderr=True, highlight=False, emoji=False)


def confirm(question: str) -> None:
    """Ask the user, and end the command unless the answer is yes.

    Ctrl-C and SIGTERM end it at once. Other handlers only cancel the command's task, and the task
    would not notice before the answer, because a prompt blocks the event loop.
    """

    def interrupt(number: int, frame: object) -> NoReturn:
        notes().print()  # so that the shell's prompt begins a line
        raise typer.Exit(ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        typer.confirm(question, abort=True, err=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def progress_of_bytes(console: Console | None = None) -> Progress:
    """Show a progress bar for a known number of bytes, removed when done; only on a terminal."""
    shown = console or notes()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal)


def progress_of_items(console: Console | None = None, *, quiet: bool = False) -> Progress:
    """Show a progress bar for a number of records or tasks, or a spinner if the total is unknown.

    It is removed when done, and shown only on a terminal. `quiet`: show none, because the user is typing there.
    """
    shown = console or notes()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=shown, transient=True, disable=quiet or not shown.is_terminal)
