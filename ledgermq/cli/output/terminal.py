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
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from ledgermq.cli.output.exit_codes import ExitCode

if TYPE_CHECKING:  # Rich takes a third of the time of a short command: only what prints with it imports it
    from rich.console import Console
    from rich.progress import Progress


def _console(**settings: Any) -> Console:
    """Make a console. The program exits with 0 when the reader of its output has gone, as `head` does; Rich would
    exit with 1.
    """
    from rich.console import Console

    def end(self: Console) -> None:
        forget_output()
        raise SystemExit(0)

    Console.on_broken_pipe = end  # type: ignore[method-assign]
    return Console(highlight=False, emoji=False, **settings)


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
    console = _console()
    if not console.is_terminal:
        console.width = 10_000
        console.soft_wrap = True
    return console


def notes() -> Console:
    """Return a console on the present stderr."""
    return _console(stderr=True)


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
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

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
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

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
