"""The `ledgermq` command: assembles the application and starts it.

The client's commands are in this package. Commands of the server packages (dev, broker, compact,
inspect) come from the entry-point group "ledgermq.commands". Each entry point is a function
`register(app: typer.Typer) -> None`; its name is the extra that it needs.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from ledgermq.cli import (
    acl,
    cluster,
    consume,
    delayed,
    dlq,
    group,
    message,
    produce,
    queue,
    quota,
    status,
    token,
    topic,
    transaction,
)
from ledgermq.cli.exit_codes import EPILOG, ExitCode
from ledgermq.cli.session import use_token_file
from ledgermq.cli.terminal import end_quietly_at_broken_pipes, notes, results

PARTS = (topic, produce, consume, message, delayed, group, queue, dlq, transaction, token, acl, quota, cluster, status)
"""In the order in which `ledgermq --help` shows them."""
COMMANDS_GROUP = "ledgermq.commands"
COMMANDS_OF_EXTRA = {"broker": ("dev", "broker", "compactor", "config", "top")}
ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


def build() -> typer.Typer:
    """Return a new application with every command that is installed."""
    app = typer.Typer(
        name="ledgermq",
        no_args_is_help=True,
        epilog=EPILOG,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for part in PARTS:
        part.register(app)
    for extra, error in sorted(_register_installed(app).items()):
        for name in COMMANDS_OF_EXTRA.get(extra, (extra,)):
            _register_missing(app, name, extra, error)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        results().print(f"ledgermq {version('ledgermq')}")
        raise typer.Exit


def _root(
    shown: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and exit.")
    ] = False,
    token_file: Annotated[
        str,
        typer.Option(
            "--token-file",
            envvar="LEDGERMQ_TOKEN_FILE",
            metavar="FILE",
            show_default=False,
            help="File with the token that proves to brokers who you are. LEDGERMQ_TOKEN holds a token itself.",
        ),
    ] = "",
) -> None:
    """LedgerMQ: a message broker with nothing durable but an object-store bucket, whose topics
    plain Spark reads as Parquet files.
    """
    use_token_file(token_file)


def _register_installed(app: typer.Typer) -> dict[str, ImportError]:
    """Return the entry points whose extra is not installed."""
    missing = {}
    for entry in entry_points(group=COMMANDS_GROUP):
        try:
            entry.load()(app)
        except ImportError as error:
            missing[entry.name] = error
    return missing


def _register_missing(app: typer.Typer, name: str, extra: str, error: ImportError) -> None:
    """Register a substitute for a command that cannot be loaded; it prints what to install."""

    @app.command(name, add_help_option=False, context_settings=ANYTHING)
    def missing() -> None:
        """Not installed. Run it to see which extra of the package it needs."""
        notes().print(
            rf"[bold red]error[/] \[NOT_INSTALLED] {error} [dim](hint: pip install 'ledgermq\[{extra}]')[/]",
            soft_wrap=True,
        )
        raise typer.Exit(1)


def main() -> None:
    end_quietly_at_broken_pipes()
    try:
        build()()
    except KeyboardInterrupt:  # before any command has begun
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
