"""`ledgermq top`: reads the admin ports again and again, and shows what happened in between."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ledgermq.cli.exit_codes import ExitCode
from ledgermq.cli.options import Debug, Output, OutputFormat
from ledgermq.cli.report import print_json
from ledgermq.cli.reporting import command
from ledgermq.cli.terminal import results
from ledgermq.errors import InvalidRequest
from stateless_broker.settings import ADMIN_PORT

if TYPE_CHECKING:
    from stateless_broker.top.readings import View

Admins = Annotated[list[str] | None, typer.Argument(metavar="HOST:PORT…", help="Admin ports of the brokers (their setting admin_port).")]
Interval = Annotated[float, typer.Option("--interval", "-i", min=0.2, metavar="SECONDS", help="Between two looks.")]
Once = Annotated[bool, typer.Option("--once", help="Show one interval and end.")]


def register(app: typer.Typer) -> None:
    command(app, "top")(top)


async def top(
    admins: Admins = None, interval: Interval = 2.0, once: Once = False, output: Output = OutputFormat.TABLE, debug: Debug = False
) -> None:
    """What brokers do right now, live: rates, latencies, cost. --once or --output json: one interval. Exit code 3 when none answers."""
    from rich.live import Live

    from stateless_broker.top.screen import screen
    from stateless_broker.top.watch import watch  # late: every command of the application loads this module

    addresses = [_checked(address) for address in admins or [f"localhost:{ADMIN_PORT}"]]
    views = watch(addresses, interval)
    if once or output is OutputFormat.JSON:
        await _show_once(await anext(views), output)
        return
    with Live(console=results(), screen=False, auto_refresh=False) as live:
        async for view in views:
            live.update(screen(view), refresh=True)


async def _show_once(view: View, output: OutputFormat) -> None:
    from stateless_broker.top.screen import screen

    if output is OutputFormat.JSON:
        print_json(asdict(view))
    else:
        results().print(screen(view))
    if not any(row.broker for row in view.brokers):
        raise typer.Exit(ExitCode.UNAVAILABLE)


def _checked(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or set(address) & set("/?#@ "):
        raise InvalidRequest(f"{address!r}: an admin port is given as host:port")
    return address
