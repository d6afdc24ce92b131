"""Run `ledgermq config show` and `ledgermq config validate`: the settings that a process would use
here, and whether a file is valid.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ledgermq.cli.arguments.options import Output, OutputFormat
from ledgermq.cli.output.exit_codes import EPILOG
from ledgermq.cli.output.report import Report, Rows, show
from ledgermq.cli.output.reporting import command
from ledgermq_broker.ports.tls import check_tls
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.declaring import ProcessSettings
from ledgermq_broker.settings.processes import KINDS, LIVE, REMOVED, CompactionSettings
from ledgermq_broker.settings.sources import read_sources, settle, shown
from ledgermq_tools.broker.settings_page import unit_of

COLUMNS = ("setting", "value", "unit", "from", "live")


class Process(StrEnum):
    BROKER = "broker"
    COMPACTOR = "compactor"


SETTINGS_OF: dict[Process, type[ProcessSettings]] = {
    Process.BROKER: BrokerSettings,
    Process.COMPACTOR: CompactionSettings,
}

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="LEDGERMQ_CONFIG", help="TOML file of settings.")
]
Checked = Annotated[
    Path | None, typer.Argument(envvar="LEDGERMQ_CONFIG", metavar="FILE", help="TOML file of settings.")
]
OfProcess = Annotated[Process, typer.Option("--process", "-p", help="Whose settings.")]


def register(app: typer.Typer) -> None:
    config = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(config, name="config", help="Show and check the settings of brokers and the compaction service.")
    command(config, "show")(show_settings)
    command(config, "validate")(validate)


def show_settings(
    config: ConfigFile = None,
    process: OfProcess = Process.BROKER,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show every setting with its value here, from environment and file, and its source; secrets as
    stars.
    """
    show(settings_report(process, config), output)


def validate(file: Checked = None) -> None:
    """Check a file, together with this environment's LEDGERMQ_… variables.

    Exit code 2 if something is wrong.
    """
    given = read_sources(KINDS, file, {}, REMOVED)
    for kind in KINDS:
        check_tls(settle(kind, given))
    settle(BrokerSettings, given).cluster_defaults().check()
    typer.echo(
        f"{file or 'the environment'}: valid, {len(given.file)} settings in the file, {len(given.environment)} in the"
        " environment"
    )


def settings_report(process: Process, file: Path | None) -> Report:
    """Return the report. Raises InvalidConfig."""
    kind = SETTINGS_OF[process]
    given = read_sources(KINDS, file, {}, REMOVED)
    settings = settle(kind, given)
    rows: list[dict[str, Any]] = [
        {
            "setting": name,
            "value": shown(getattr(settings, name)),
            "unit": unit_of(name),
            "from": given.origin(name),
            "live": name in LIVE,
            "variable": f"LEDGERMQ_{name.upper()}",
        }
        for name in kind.model_fields
    ]
    return Report(
        "", {"process": process.value, "file": str(file) if file else None}, [Rows("settings", COLUMNS, rows)]
    )
