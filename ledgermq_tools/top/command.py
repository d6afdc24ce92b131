"""Run `ledgermq top`: read the admin ports repeatedly, and show what happened in between."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ledgermq.cli.arguments.options import Output, OutputFormat
from ledgermq.cli.arguments.tls_options import given_tls
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.cli.output.report import print_json
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import notes, results
from ledgermq.client.settings.tls import chosen_tls
from ledgermq.errors import InvalidRequest
from ledgermq_broker.settings.brokers import ADMIN_PORT

Admins = Annotated[
    list[str] | None,
    typer.Argument(metavar="HOST:PORT…", help="Admin ports of the brokers (their setting admin_port)."),
]
Interval = Annotated[
    float, typer.Option("--interval", "-i", min=0.2, metavar="SECONDS", help="Seconds between two readings.")
]
AnswerTimeout = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Seconds to wait for an answer of an admin port.")
]
Once = Annotated[bool, typer.Option("--once", help="Show one interval and exit.")]


def register(app: typer.Typer) -> None:
    command(app, "top", connects=True)(top)


async def top(
    admins: Admins = None,
    interval: Interval = 2.0,
    once: Once = False,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = 3.0,
) -> None:
    """Show live what brokers do: rates, latencies, cost. In a pipe, one table follows another.

    Admin ports with TLS (setting admin_tls) need --tls or a file of TLS.

    --once or --output json: show one interval. Except on a terminal, the exit code is 3 if no admin
    port answers at first.
    """
    from rich.live import Live

    from ledgermq_tools.top.screen import screen
    from ledgermq_tools.top.watch import watch  # late: every command of the application loads this module

    addresses = [_checked(address) for address in admins or [f"localhost:{ADMIN_PORT}"]]
    tls = chosen_tls(given_tls())
    views = watch(addresses, interval, timeout_s, None if tls is None else tls.context())
    console = results()
    if console.is_terminal and not once and output is OutputFormat.TABLE:
        with Live(console=console, screen=False, auto_refresh=False) as live:
            async for view in views:
                live.update(screen(view), refresh=True)
    has_answered = False
    async for view in views:
        if output is OutputFormat.JSON:
            print_json(asdict(view))
        else:
            console.print(screen(view))
        has_answered |= any(row.broker for row in view.brokers)
        if not has_answered:
            text = f"No admin port answers. Brokers open one with --admin-port; `ledgermq top` looks at {ADMIN_PORT}."
            notes().print(text, soft_wrap=True)
            raise typer.Exit(ExitCode.UNAVAILABLE)
        if once or output is OutputFormat.JSON:
            return


def _checked(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or set(address) & set("/?#@ "):
        raise InvalidRequest(f"{address!r}: an admin port is given as host:port")
    return address
