"""`ledgermq quota …`: set, unset, list and describe quotas."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    Output,
    OutputFormat,
    Target,
    Timeout,
)
from ledgermq.cli.output.exit_codes import EPILOG
from ledgermq.cli.output.report import Report, Rows, show, show_rows
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import notes
from ledgermq.cli.session import connected
from ledgermq.client.admin.quotas import LIMITS, QuotaDescription
from ledgermq.errors import InvalidRequest

Who = Annotated[
    str,
    typer.Argument(
        metavar="PRINCIPAL",
        help="user:NAME, cert:NAME, jwt:SUBJECT, anonymous (callers of brokers without rules), or '*' for each without"
        " its own quota.",
    ),
]
ClientId = Annotated[
    str,
    typer.Option(
        "--client-id",
        "-c",
        help="Only calls with this client id; '*': each client id without its own quota.",
        show_default=False,
    ),
]


BytesIn = Annotated[
    int | None,
    typer.Option("--bytes-in", min=1, help="Bytes a second that are sent in batches.", show_default=False),
]
BytesOut = Annotated[
    int | None,
    typer.Option("--bytes-out", min=1, help="Bytes a second of batches that are received.", show_default=False),
]
Requests = Annotated[
    int | None, typer.Option("--requests", min=1, help="Calls a second; in streams, frames.", show_default=False)
]
Connections = Annotated[
    int | None, typer.Option("--connections", min=1, help="Connections with calls under way.", show_default=False)
]
Calls = Annotated[int | None, typer.Option("--calls", min=1, help="Calls and streams under way.", show_default=False)]
OpenTransactions = Annotated[
    int | None,
    typer.Option("--open-transactions", min=1, help="Transactions that have records staged.", show_default=False),
]
DollarsMonth = Annotated[
    float | None,
    typer.Option(
        "--dollars-month",
        help="Dollars a month for requests to the store, of a principal without a client id.",
        show_default=False,
    ),
]
Dropped = Annotated[
    list[str] | None,
    typer.Option(
        "--limit", "-l", help=f"Only this limit: {', '.join(LIMITS)}; repeatable. Not given: all.", show_default=False
    ),
]

COLUMNS = ("principal", "client_id", *LIMITS, "changed", "changed_by", "trouble")


def register(app: typer.Typer) -> None:
    quota = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(quota, name="quota", help="Set, unset and show quotas: what callers may use at each broker.")
    command(quota, "set")(set_quota)
    command(quota, "unset")(unset_quota)
    command(quota, "list")(list_quotas)
    command(quota, "describe")(describe_quota)


async def set_quota(
    principal: Who,
    client_id: ClientId = "",
    bytes_in: BytesIn = None,
    bytes_out: BytesOut = None,
    requests: Requests = None,
    connections: Connections = None,
    calls: Calls = None,
    open_transactions: OpenTransactions = None,
    dollars_month: DollarsMonth = None,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set limits of a quota; those that are not given stay. All brokers bind by it when the command returns.

    Each broker counts for itself. Examples:

    ledgermq quota set user:shop --bytes-in 5000000 --requests 200

    ledgermq quota set '*' --bytes-out 50000000

    ledgermq quota set anonymous --client-id nightly --bytes-in 1000000

    ledgermq quota set user:shop --dollars-month 25
    """
    given = (bytes_in, bytes_out, requests, connections, calls, open_transactions, dollars_month)
    if all(limit is None for limit in given):
        raise InvalidRequest(
            "give one or more limits: --bytes-in, --bytes-out, --requests, --connections, --calls, --open-transactions,"
            " --dollars-month; `ledgermq quota unset` drops limits"
        )
    async with connected(target, timeout_s) as client:
        found = await client.quotas.set(
            principal,
            client_id,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            requests=requests,
            connections=connections,
            calls=calls,
            open_transactions=open_transactions,
            dollars_month=dollars_month,
        )
    show(Report("", _facts(found)), output)


async def unset_quota(
    principal: Who,
    client_id: ClientId = "",
    limits: Dropped = None,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Drop limits of a quota. A quota without limits is removed."""
    async with connected(target, timeout_s) as client:
        left = await client.quotas.unset(principal, client_id, *(limits or ()))
    whose = f"{principal} {client_id}".strip()
    if left is None:
        notes().print(f"There is no quota for {whose} now.", markup=False)
    else:
        stays = ", ".join(f"{name} {getattr(left, name)}" for name in LIMITS if getattr(left, name) is not None)
        notes().print(f"The quota for {whose} has these limits left: {stays}.", markup=False)


async def list_quotas(
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the quotas."""
    async with connected(target, timeout_s) as client:
        quotas = await client.quotas.list()
    rows = Rows("quotas", COLUMNS, [_facts(quota) for quota in quotas])
    show_rows(rows, output, "There is no quota yet. `ledgermq quota set` stores one.")


async def describe_quota(
    principal: Who,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show what a principal uses at each broker now, and the limits that bind it.

    Rates are those of the last second, and are known only where there is a limit. Of `dollars_month`: what is spent of
    the budget of an hour and has not come back since. Tables that all principals share,
    such as `message_ids`, have no limit to set: a principal may have as many entries as are free.
    """
    async with connected(target, timeout_s) as client:
        uses = await client.quotas.describe(principal)
    rows = [
        {"broker": use.broker, "limit": name, "bound": use.limits.get(name), "used": use.used.get(name)}
        for use in uses
        for name in (*LIMITS, *(other for other in use.used if other not in LIMITS))
        if name in use.limits or name in use.used
    ]
    show(Report("", tables=[Rows("use", ("broker", "limit", "bound", "used"), rows)]), output)


def _facts(quota: QuotaDescription) -> dict[str, Any]:
    return {
        "principal": quota.principal,
        "client_id": quota.client_id,
        **{name: getattr(quota, name) for name in LIMITS},
        "changed": quota.changed.isoformat(timespec="seconds") if quota.changed is not None else "",
        "changed_by": quota.changed_by,
        "trouble": quota.trouble,
    }
