"""`ledgermq acl …`: grant, revoke, list and test access rules."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import ledgermq
from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    Output,
    OutputFormat,
    Target,
    Timeout,
    Yes,
)
from ledgermq.cli.output.exit_codes import EPILOG, ExitCode
from ledgermq.cli.output.report import Report, Rows, show, show_rows
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import confirm, notes
from ledgermq.cli.session import connected

Who = Annotated[
    str,
    typer.Argument(
        metavar="PRINCIPAL", help="user:NAME, group:NAME, cert:NAME, jwt:SUBJECT, or '*' for every principal."
    ),
]
Operations = Annotated[
    str,
    typer.Argument(
        metavar="OPERATIONS",
        help="Some of produce,consume,describe,create,alter,delete (on topics); or group, transaction, or cluster.",
    ),
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Topic, group or transactional id; 'orders.*' means all that begin with orders.",
        show_default=False,
    ),
]
Deny = Annotated[bool, typer.Option("--deny", help="Deny it instead; a rule that denies wins over all that allow.")]
Ids = Annotated[list[str], typer.Argument(metavar="RULE…", help="Ids of rules, as `ledgermq acl list` shows them.")]
Operation = Annotated[str, typer.Argument(metavar="OPERATION", help="One operation, as in `ledgermq acl grant`.")]
OfPrincipal = Annotated[
    str, typer.Option("--principal", "-P", help="Whose rights; not given: your own.", show_default=False)
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", "-g", help="A group of that principal; repeatable.", show_default=False)
]

COLUMNS = ("id", "effect", "principal", "operations", "name", "created", "created_by", "trouble")


def register(app: typer.Typer) -> None:
    acl = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(acl, name="acl", help="Grant, revoke, list and test access rules.")
    command(acl, "grant")(grant)
    command(acl, "revoke")(revoke)
    command(acl, "list")(list_rules)
    command(acl, "test")(try_out)


async def grant(
    principal: Who,
    operations: Operations,
    name: Name = "",
    deny: Deny = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Allow something to a principal, or deny it. It is in force in all brokers when the command returns.

    Without a rule everything is refused, if brokers run with `security = rules`. Examples:

    ledgermq acl grant user:shop produce orders

    ledgermq acl grant group:analysts consume,describe 'orders.*'

    ledgermq acl grant user:billing group billing
    """
    async with connected(target, timeout_s) as client:
        rule_id = await client.access.grant(principal, operations, name, deny=deny)
    show(Report("", {"id": rule_id}), output)


async def revoke(
    ids: Ids,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Remove rules. No broker judges by them any longer when the command returns."""
    if not yes:
        confirm(f"Remove {len(ids)} access rule{'s' if len(ids) > 1 else ''}?")
    async with connected(target, timeout_s) as client:
        revoked = await client.access.revoke(*ids)
    for rule_id in ids:
        notes().print(f"Rule {rule_id} {'is removed' if rule_id in revoked else 'did not exist'}.", markup=False)


async def list_rules(
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the rules."""
    async with connected(target, timeout_s) as client:
        rules = await client.access.list()
    none = "There is no access rule yet. `ledgermq acl grant` stores one."
    show_rows(Rows("rules", COLUMNS, [_row(rule) for rule in rules]), output, none)


async def try_out(
    operation: Operation,
    name: Name = "",
    principal: OfPrincipal = "",
    groups: Groups = None,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show whether the rules allow something, and which rule decides.

    Exit code 7: it is not allowed.
    """
    async with connected(target, timeout_s) as client:
        found = await client.access.test(operation, name, principal=principal, groups=groups or ())
    facts = {"principal": found.principal, "allowed": found.allowed, "why": found.why, "rule": found.rule_id}
    show(Report("", facts), output)
    if not found.allowed:
        raise typer.Exit(ExitCode.REFUSED)


def _row(rule: ledgermq.AccessRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "effect": "" if rule.trouble else "deny" if rule.deny else "allow",
        "principal": rule.principal,
        "operations": ",".join(rule.operations),
        "name": rule.name,
        "created": rule.created.isoformat(timespec="seconds") if rule.created is not None else "",
        "created_by": rule.created_by,
        "trouble": rule.trouble,
    }
