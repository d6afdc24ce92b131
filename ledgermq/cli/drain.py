"""`ledgermq drain` and `ledgermq undrain`: take a broker's bundles away, and let it take some again."""

from __future__ import annotations

from typing import Annotated

import typer

from ledgermq.cli.options import DEFAULT_TARGET, Debug, Target, Timeout
from ledgermq.cli.reporting import command
from ledgermq.cli.session import connected
from ledgermq.cli.terminal import notes

DRAIN_TIMEOUT_S = 120.0

Broker = Annotated[
    str, typer.Argument(metavar="BROKER", help="Address or id of the broker, as `ledgermq status` shows them.")
]


def register(app: typer.Typer) -> None:
    command(app, "drain")(drain)
    command(app, "undrain")(undrain)


async def drain(
    broker: Broker, target: Target = DEFAULT_TARGET, timeout_s: Timeout = DRAIN_TIMEOUT_S, debug: Debug = False
) -> None:
    """Let a broker hand over everything that it owns, and take nothing new. Its process goes on.

    Programs continue at the other brokers. The command returns when the broker owns nothing: its
    machine can then be taken out. The drain ends with `ledgermq undrain`, or when the broker starts
    again.
    """
    async with connected(target, timeout_s) as client:
        await client.drain_broker(broker)
    notes().print(f"{broker} owns nothing now. `ledgermq undrain {broker}` lets it take bundles again.", markup=False)


async def undrain(
    broker: Broker, target: Target = DEFAULT_TARGET, timeout_s: Timeout = DRAIN_TIMEOUT_S, debug: Debug = False
) -> None:
    """Let a drained broker take its share of the bundles again."""
    async with connected(target, timeout_s) as client:
        await client.undrain_broker(broker)
    notes().print(f"{broker} takes its share of the bundles within seconds.", markup=False)
