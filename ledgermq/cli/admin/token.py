"""`ledgermq token …`: create, revoke and list tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
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
from ledgermq.cli.output.exit_codes import EPILOG
from ledgermq.cli.output.report import Report, Rows, show, show_rows
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import confirm, notes
from ledgermq.cli.session import connected
from ledgermq.durations import parse_duration_ms
from ledgermq.errors import InvalidConfig, InvalidRequest

User = Annotated[str, typer.Argument(metavar="USER", help="Whose token; in rules the principal is user:USER.")]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", "-g", help="Group of the user, group:NAME in rules; repeatable.", show_default=False),
]
Expires = Annotated[
    str,
    typer.Option("--expires-in", metavar="DURATION", help="30d, 12h; not given: it never expires.", show_default=False),
]
Save = Annotated[
    Path | None,
    typer.Option(
        "--save",
        metavar="FILE",
        help="Write the token into a new file, which only your user may read, instead of stdout.",
        show_default=False,
    ),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the token, as `ledgermq token list` shows it.")]

COLUMNS = ("id", "user", "groups", "created", "expires", "created_by")


def register(app: typer.Typer) -> None:
    token = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(token, name="token", help="Create, revoke and list tokens, by which clients prove who they are.")
    command(token, "create")(create)
    command(token, "revoke")(revoke)
    command(token, "list")(list_tokens)


async def create(
    user: User,
    groups: Groups = None,
    expires_in: Expires = "",
    save: Save = None,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create a token, and print it once: brokers keep only its hash.

    The token is the only line on stdout, or of the file that --save names. To make the first one,
    give the root as target: a program that holds the credentials of the bucket may do everything.
    """
    life = timedelta(milliseconds=parse_duration_ms(expires_in, "--expires-in", 1000)) if expires_in else None
    with new_secret_file(save) as write:
        async with connected(target, timeout_s) as client:
            made = await client.access.create_token(user, groups=groups or (), expires_in=life)
        write(made.token)
    if save is not None:
        show_saved(made.token_id, user, save, output)
        return
    if output is OutputFormat.JSON:
        show(Report("", {"id": made.token_id, "token": made.token}), output)
        return
    notes().print(f"Token {made.token_id} of user:{user}. Keep it: it is not shown again.", markup=False)
    typer.echo(made.token)


@contextmanager
def new_secret_file(path: Path | None) -> Iterator[Callable[[str], None]]:
    """Make a file that only its owner may read, and yield what writes its only line. Without a path nothing is
    written. A file that exists is not touched; after an error none is left. Raises InvalidConfig.
    """
    if path is None:
        yield lambda text: None
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidConfig(f"--save {path}: {error.strerror or error}") from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        try:
            yield lambda text: print(text, file=file, flush=True)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def show_saved(token_id: str, user: str, path: Path, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        show(Report("", {"id": token_id, "file": str(path)}), output)
    else:
        notes().print(f"Token {token_id} of user:{user} is in {path}.", markup=False)


async def revoke(
    token_id: Id,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Revoke a token. Calls that begin after the command returns are refused by all brokers."""
    if not yes:
        confirm(f"Revoke token {token_id}?")
    async with connected(target, timeout_s) as client:
        existed = await client.access.revoke_token(token_id)
    if not existed:
        raise InvalidRequest(f"there is no token {token_id}; `ledgermq token list` shows all")
    notes().print(f"Token {token_id} is revoked.", markup=False)


async def list_tokens(
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the tokens, without what they are."""
    async with connected(target, timeout_s) as client:
        tokens = await client.access.list_tokens()
    none = "There is no token yet. `ledgermq token create USER` makes one."
    show_rows(Rows("tokens", COLUMNS, [_row(token) for token in tokens]), output, none)


def _row(token: ledgermq.TokenDescription) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "user": token.user,
        "groups": ",".join(token.groups),
        "created": token.created.isoformat(timespec="seconds"),
        "expires": token.expires.isoformat(timespec="seconds") if token.expires is not None else "never",
        "created_by": token.created_by,
    }
