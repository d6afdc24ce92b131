"""Add the command `ledgermq gateway`, found through the entry-point group "ledgermq.commands".

Every setting of `GatewaySettings` becomes an option, and a variable LEDGERMQ_GATEWAY_….
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import Field, fields
from functools import partial
from typing import Any

import typer

import ledgermq
from ledgermq.cli.arguments.options import DEFAULT_TARGET, Debug, Target, option_of_setting, with_options
from ledgermq.cli.arguments.tls_options import given_tls
from ledgermq.cli.output.reporting import command
from ledgermq.client.connection.credentials import credential_of
from ledgermq.client.connection.grpc_connection import GrpcConnector, MoreMetadata
from ledgermq.client.connection.target import is_root_url, parse_addresses
from ledgermq.client.settings.tls import chosen_tls
from ledgermq.client.settings.values import ClientSettings
from ledgermq.environment import add_settings
from ledgermq.errors import InvalidConfig
from ledgermq.runtime.process.server_process import loop_factory, spare_what_stays
from ledgermq.sources import Sources
from ledgermq.telemetry.exporting import exporting
from ledgermq_gateway.admin_port import admin_port
from ledgermq_gateway.cluster.clock import ClusterClock
from ledgermq_gateway.cluster.origins import said_by
from ledgermq_gateway.gateway import Gateway
from ledgermq_gateway.logs import configure_logs
from ledgermq_gateway.settings import GatewaySettings, words

VARIABLE = "LEDGERMQ_GATEWAY_"
TIMEOUT_S, ATTEMPT_TIMEOUT_S = 20.0, 10.0
DECODING_THREADS = 2
CLIENT_ID = "ledgermq-gateway"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_settings([f"gateway_{each.name}" for each in fields(GatewaySettings)], {})
    command(app, "gateway", connects=True)(with_options(gateway, map(_option, fields(GatewaySettings))))


def gateway(target: Target = DEFAULT_TARGET, debug: Debug = False, **flags: Any) -> None:
    """Serve a cluster over HTTP until SIGTERM or Ctrl-C. It keeps nothing, so any number may run side by side. Each
    request needs its caller's own token, where brokers want one.
    """
    settings = GatewaySettings(**{name: value for name, value in flags.items() if value is not None})
    if is_root_url(target):
        raise InvalidConfig(f"a gateway connects to brokers, not to a root like {target!r}: give host:port")
    configure_logs(debug=debug)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(target, settings))


async def _run(target: str, settings: GatewaySettings) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _on_signal, number, stopping)
    async with AsyncExitStack() as stack:
        is_traced = settings.tracing == "on"
        if is_traced:
            stack.enter_context(exporting("ledgermq-gateway"))
        clock = ClusterClock()
        said = said_by(credential_of("", settings.delegate_token_file, {}) if settings.delegate_token_file else None)
        opened = partial(cluster_client, target, clock.sources, said, rack=settings.rack)
        client = await stack.enter_async_context(opened(tracing=is_traced))
        stranger = await stack.enter_async_context(opened())
        made = Gateway(settings, clock, client.as_caller, stranger.as_caller)
        admin = await stack.enter_async_context(admin_port(made))
        await stack.enter_async_context(made.running(tls_context(settings)))
        scheme = "https" if settings.http_cert_file else "http"
        typer.echo(f"gateway listens on {scheme}://{settings.host}:{made.port}, of the brokers {target}")
        if settings.console != "off":
            own = words(settings.public_urls)[:1] or (f"{scheme}://localhost:{made.port}",)
            typer.echo(f"console, to {settings.console}, on {own[0]}/console")
        if admin is not None:
            typer.echo(f"metrics and health on http://{settings.admin_host}:{admin}")
        spare_what_stays()
        await stopping.wait()


def _on_signal(number: signal.Signals, stopping: asyncio.Event) -> None:
    if stopping.is_set():
        sys.exit(128 + number)
    stopping.set()


def cluster_client(
    target: str, sources: Sources, said: MoreMetadata | None = None, *, tracing: bool = False, rack: str = ""
) -> ledgermq.Client:
    """Return the client of which each caller gets a view. It has no credential: the gateway's own (LEDGERMQ_TOKEN, a
    token file) are not looked for. `said`: what its calls say of where they come from. `rack`: where it runs.
    """
    tls = chosen_tls(given_tls())
    connector = GrpcConnector(request_timeout_s=ATTEMPT_TIMEOUT_S, tls=tls, client_id=CLIENT_ID, rack=rack, more=said)
    settings = ClientSettings(timeout_s=TIMEOUT_S, attempt_timeout_s=ATTEMPT_TIMEOUT_S, tracing=tracing, rack=rack)
    threads = ThreadPoolExecutor(DECODING_THREADS, "ledgermq decoding")
    return ledgermq.Client(connector, parse_addresses(target), settings, sources, threads, owns_threads=True)


def tls_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    """Return the context of the HTTP port; None: plain HTTP. Raises InvalidConfig."""
    if not settings.http_cert_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.http_cert_file, settings.http_key_file)
    except OSError as error:
        raise InvalidConfig(
            f"http_cert_file {settings.http_cert_file}, http_key_file {settings.http_key_file}: {error}"
        ) from error
    return context


def _option(setting: Field[Any]) -> inspect.Parameter:
    kind = str if isinstance(setting.default, str) else int
    variable = VARIABLE + setting.name.upper()
    return option_of_setting(setting.name, kind, setting.default, setting.metadata["help"], variable=variable)
