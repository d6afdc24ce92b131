"""The `ledgermq` command: assembles the application and starts it.

The client's commands are in this package. Commands of the server packages (dev, broker, compact,
inspect) come from the entry-point group "ledgermq.commands". Each entry point is a function
`register(app: typer.Typer) -> None`.

A run imports only the module of the command that it was given; `--version` and the completion of a
command's name import none. `COMMANDS` says where each command is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, NamedTuple

import typer

from ledgermq.cli.output.exit_codes import EPILOG, ExitCode
from ledgermq.cli.output.help import WIDTH_MAX, Root
from ledgermq.cli.output.terminal import notes
from ledgermq.environment import add_loader
from ledgermq.runtime.process.missing_modules import what_to_do

COMMANDS_GROUP = "ledgermq.commands"
COMPLETE = "_LEDGERMQ_COMPLETE"
"""The variable by which a shell asks for completions."""
ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}
MESSAGES, GROUPS, ACCESS, CLUSTER = "Messages and topics", "Groups and transactions", "Access", "Cluster"
SERVERS, ROOTS = "Servers", "Roots: work on the store, without a broker"


class Place(NamedTuple):
    """Where a command is. `module`: in this package; for a server's command the name of its entry point. `help`: in
    one line, for lists of commands.
    """

    panel: str
    module: str
    help: str


COMMANDS: dict[str, Place] = {
    "topic": Place(MESSAGES, "admin.topic", "Create, list, describe, alter and delete topics."),
    "table": Place(MESSAGES, "tables.commands", "Show, rebuild and drop tables of topics, which other programs read."),
    "schema": Place(MESSAGES, "schemas.commands", "Register, check, show, list and delete schemas of values."),
    "cut": Place(CLUSTER, "cuts.commands", "Name an instant of the whole cluster; list, keep and drop such cuts."),
    "produce": Place(MESSAGES, "messages.produce", "Send records: lines, JSON lines, rows of CSV, or whole records."),
    "consume": Place(MESSAGES, "messages.consume", "Print messages, to the end of the topic, or as they come."),
    "message": Place(MESSAGES, "messages.message", "Find messages by key, show one by its id, trace where it went."),
    "delayed": Place(MESSAGES, "messages.delayed", "List and recall messages that wait until they are due."),
    "group": Place(GROUPS, "groups.group", "List, describe, reset, delete, export and import consumer groups."),
    "queue": Place(GROUPS, "groups.queue", "List, describe, reset and delete queue groups."),
    "dlq": Place(GROUPS, "groups.dlq", "List, show, redrive and drop dead letters of consumer groups."),
    "worker": Place(
        GROUPS, "groups.worker", "Run the handlers that modules of yours declare, until SIGTERM or Ctrl-C."
    ),
    "transaction": Place(GROUPS, "transactions.transaction", "List, describe, commit, abort and forget transactions."),
    "token": Place(ACCESS, "admin.token", "Create, revoke and list tokens, by which clients prove who they are."),
    "acl": Place(ACCESS, "admin.acl", "Grant, revoke, list and test access rules."),
    "quota": Place(ACCESS, "admin.quota", "Set, unset and list quotas: what callers may use at each broker."),
    "cluster": Place(CLUSTER, "admin.cluster", "Show the bundles of the cluster, add some, move partitions."),
    "status": Place(CLUSTER, "admin.status", "Show brokers, bundles and their owners, and the cluster's health."),
    "cost": Place(CLUSTER, "admin.cost", "Show what requests to the store cost, by topic and principal."),
    "connections": Place(CLUSTER, "admin.status", "Show who is connected to the brokers."),
    "drain": Place(CLUSTER, "admin.status", "Let a broker hand over everything that it owns, and take nothing new."),
    "undrain": Place(CLUSTER, "admin.status", "Let a drained broker take its share of the bundles again."),
    "top": Place(CLUSTER, "broker", "Show live what brokers do: rates, latencies, cost."),
    "dev": Place(SERVERS, "broker", "Run an all-in-one broker on a local folder."),
    "broker": Place(SERVERS, "broker", "Run a broker of the cluster at ROOT."),
    "compactor": Place(SERVERS, "broker", "Run the compaction service of the cluster at ROOT."),
    "gateway": Place(SERVERS, "gateway", "Serve a cluster over HTTP and JSON."),
    "config": Place(SERVERS, "broker", "Show and check the settings of brokers and the compaction service."),
    "conformance": Place(SERVERS, "broker", "Check a client in another language against brokers that fail."),
    "sql": Place(ROOTS, "ledger", "Query topics with SQL, up to their newest record."),
    "compact": Place(ROOTS, "ledger", "Write all records that are in segments now to Parquet files."),
    "inspect": Place(ROOTS, "ledger", "Show and check what a root holds."),
    "fsck": Place(ROOTS, "ledger", "Check everything that a root holds, without changing anything."),
    "store": Place(ROOTS, "ledger", "Check that a store is fit to hold a root."),
    "gc": Place(ROOTS, "ledger", "Remove objects that are no longer needed."),
    "backup": Place(ROOTS, "ledger", "Copy what a cut names into a root of its own."),
    "restore": Place(ROOTS, "ledger", "Make a new cluster with the state of a cut."),
    "replica": Place(ROOTS, "ledger", "Show which cuts of a replicated root are whole."),
    "repair": Place(ROOTS, "ledger", "Mend damaged objects, and let compaction take parked partitions up again."),
}
"""In the order in which `ledgermq --help` shows them."""
ENTRIES = {"broker": "broker", "ledger": "broker", "gateway": "gateway"}
"""Entry points of server packages, and the extra that their commands need."""


def build(only: Iterable[str] | None = None) -> typer.Typer:
    """Return a new application. `only`: names of commands whose modules are imported; None: all that are installed."""
    app = typer.Typer(
        name="ledgermq",
        cls=type("Root", (Root,), {"panels": {name: place.panel for name, place in COMMANDS.items()}}),
        no_args_is_help=True,
        epilog=EPILOG,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its tables cut the names of options off
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH_MAX},
    )
    app.callback()(_root)
    wanted = [COMMANDS[name].module for name in (COMMANDS if only is None else only)]
    for module in dict.fromkeys(wanted):
        if module not in ENTRIES:
            import_module(f"ledgermq.cli.{module}").register(app)
    missing = _register_installed(app, None if only is None else {module for module in wanted if module in ENTRIES})
    for name, place in COMMANDS.items():
        if place.module in missing:
            _register_missing(app, name, ENTRIES[place.module], missing[place.module])
    if only is not None and not any(module in ENTRIES for module in wanted):
        add_loader(lambda: _register_installed(typer.Typer(), None))
    for command in app.registered_commands:
        command.short_help = COMMANDS[command.name].help if command.name in COMMANDS else command.short_help
    for group in app.registered_groups:
        group.short_help = COMMANDS[group.name].help if group.name in COMMANDS else group.short_help
    return app


def named(app: typer.Typer) -> typer.Typer:
    """Register each command with its name alone, which is what the completion of a name needs."""
    for name, place in COMMANDS.items():
        app.command(name, short_help=place.help, help=place.help)(lambda: None)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ledgermq {version('ledgermq')}")
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
    from ledgermq.cli.session import use_token_file  # late: it needs the client

    use_token_file(token_file)


def _register_installed(app: typer.Typer, only: set[str] | None) -> dict[str, ImportError | AttributeError]:
    """Load entry points. Return those whose extra is not installed."""
    missing: dict[str, ImportError | AttributeError] = {}
    if only is not None and not only:
        return missing
    from importlib.metadata import entry_points

    for entry in entry_points(group=COMMANDS_GROUP):
        if only is None or entry.name in only:
            try:
                entry.load()(app)
            except (ImportError, AttributeError) as error:
                missing[entry.name] = error
    return missing


def _register_missing(app: typer.Typer, name: str, extra: str, error: ImportError | AttributeError) -> None:
    """Register a substitute for a command that cannot be loaded; it prints what to install."""

    advice = what_to_do(error, f"pip install 'ledgermq[{extra}]'").removesuffix(f" ({error})")

    @app.command(name, add_help_option=False, context_settings=ANYTHING)
    def missing() -> None:
        """Not installed. Run it to see which extra of the package it needs."""
        from rich.markup import escape

        notes().print(
            rf"[bold red]error[/] \[NOT_INSTALLED] {escape(str(error))} [dim](hint: {escape(advice)})[/]",
            soft_wrap=True,
        )
        raise typer.Exit(1)


def command_of(words: Iterable[str]) -> str | None:
    """Return the first word that is no option of `ledgermq` itself; None: there is none."""
    rest = iter(words)
    for word in rest:
        if word == "--token-file":
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None


def typed_words(environment: Mapping[str, str]) -> list[str]:
    """Return the finished words behind `ledgermq` of a line that a shell wants to complete."""
    if "COMP_WORDS" in environment:
        return environment["COMP_WORDS"].split()[1 : int(environment.get("COMP_CWORD", "1"))]
    line = environment.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()[1:]
    return words if line[-1:].isspace() else words[:-1]


def for_run(arguments: Sequence[str], environment: Mapping[str, str]) -> typer.Typer:
    """Return the application with what this run needs. An unknown command needs all names, to find the nearest."""
    completes = COMPLETE in environment
    command = command_of(typed_words(environment) if completes else arguments)
    if command in COMMANDS:
        return build([command])
    if completes and command is None:
        return named(build([]))
    return build([]) if command is None and list(arguments) == ["--version"] else build()


def main() -> None:
    try:
        for_run(sys.argv[1:], os.environ)()
    except KeyboardInterrupt:  # before any command has begun
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
