"""Options of TLS for every command that connects to brokers: `cli.reporting` adds and takes them,
`given_tls` returns what the running command was given.

What an option does not say, the environment and the TOML file say (`ledgermq.client.settings.tls`).
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledgermq.errors import InvalidConfig

if TYPE_CHECKING:  # it needs gRPC, which completion and help do not
    from ledgermq.client.settings.tls import Tls

_given: ContextVar[Tls | bool | None] = ContextVar("tls", default=None)

_OPTIONS: dict[str, Any] = {
    "tls": Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls",
            show_default=False,
            help="Connect by TLS. Default: yes if LEDGERMQ_TLS is true or a --tls-… file is given.",
        ),
    ],
    "tls_ca_file": Annotated[
        Path | None,
        typer.Option("--tls-ca-file", show_default=False, help="PEM file of the authorities of brokers."),
    ],
    "tls_cert_file": Annotated[
        Path | None,
        typer.Option("--tls-cert-file", show_default=False, help="PEM file of your certificate."),
    ],
    "tls_key_file": Annotated[
        Path | None,
        typer.Option("--tls-key-file", show_default=False, help="PEM file of its private key."),
    ],
    "tls_server_name": Annotated[
        str | None,
        typer.Option(
            "--tls-server-name", show_default=False, help="Name that brokers' certificates have, not their addresses."
        ),
    ],
}


TLS_OPTIONS = tuple(
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
    for name, annotation in _OPTIONS.items()
)


def take_tls(given: dict[str, Any]) -> dict[str, Any]:
    """Keep the values of the options for `given_tls`; return the others. Raises InvalidConfig."""
    _given.set(_tls_of({name: given.get(name) for name in _OPTIONS}))
    return {name: value for name, value in given.items() if name not in _OPTIONS}


def _tls_of(values: dict[str, Any]) -> Tls | bool | None:
    is_on, ca, cert, key, server_name = values.values()
    if ca is None and cert is None and key is None and server_name is None:
        return is_on  # type: ignore[no-any-return]
    if is_on is False:
        raise InvalidConfig("--no-tls takes no files of TLS and no server name")
    from ledgermq.client.settings.tls import Tls

    return Tls(ca=ca, cert=cert, key=key, server_name=server_name)


def given_tls() -> Tls | bool | None:
    """Return the value of the client's setting `tls` for the running command."""
    return _given.get()
