"""Run a broker as a process: logs, signals, admin port, one node from start to SIGTERM.

SIGTERM, SIGINT   drain and end; a second one ends the process at once
SIGHUP            read the settings again (`reload`)

A process under a `supervisor` also drains when its standard input ends, because its parent has died
then.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from ledgermq.errors import LedgerMQError
from ledgermq.runtime.process.server_process import loop_factory, spare_what_stays
from ledgermq.runtime.tasks import end
from ledgermq.sources import Sources
from ledgermq_broker.access.audit.log import open_audit_file
from ledgermq_broker.health.readiness import Health
from ledgermq_broker.logs import configure_logs, follow_process, get_logger
from ledgermq_broker.metrics.process_metrics import ProcessMetrics
from ledgermq_broker.node import Node
from ledgermq_broker.ports.tls import Certificates, followed_certificates
from ledgermq_broker.process.reload import LiveSettings
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.declaring import ProcessSettings
from ledgermq_broker.settings.processes import is_reached_from_elsewhere

STALE_INTERVALS = 3
END_ANYWAY_AFTER_S = 3.0
END_ANYWAY_CODE = 3

T = TypeVar("T")

log = get_logger(__name__)


OnReady = Callable[[Node, int | None], None]
"""Called with the node that serves, and its admin port if one is open."""

Beside = Callable[[Node], AbstractAsyncContextManager[object]]
"""Runs something beside the node that serves, until it stops."""


def run_node(
    url: str,
    read_settings: Callable[[], BrokerSettings],
    on_ready: OnReady,
    *,
    supervised: bool = False,
    beside: Beside = nullcontext,
) -> None:
    """Run a node until SIGTERM or SIGINT, or, if `supervised`, until the standard input ends;
    SIGHUP calls `read_settings` again.

    Raises what `Node.start` raises, except for a store that does not answer, and the error that
    ended the broker.
    """
    settings = read_settings()
    configure_logs(settings.log_format, settings.log_level)
    open_audit_file(Path(settings.audit_file) if settings.audit_file else None)
    _return_freed_memory()
    with _spans(settings), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(url, settings, read_settings, on_ready, beside, supervised=supervised))


def _spans(settings: BrokerSettings) -> AbstractContextManager[None]:
    """Return what sends the spans of this process to a collector, if it traces."""
    if not settings.tracing:
        return nullcontext()
    from ledgermq.telemetry.exporting import exporting  # late: it needs an extra

    return exporting("ledgermq-broker")


async def _serve(
    url: str,
    settings: BrokerSettings,
    read: Callable[[], BrokerSettings],
    on_ready: OnReady,
    beside: Beside,
    *,
    supervised: bool,
) -> None:
    health, metrics = Health(), ProcessMetrics(url)
    node: Node | None = None

    def apply(changed: BrokerSettings) -> None:
        configure_logs(changed.log_format, changed.log_level, metrics.lines)
        if node is not None:
            node.apply(changed)

    live = LiveSettings(settings, read, apply)
    stopping = stop_signals(lambda: live.in_force)
    if supervised:
        _stop_at_end_of_input(stopping, lambda: live.in_force)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, live.reload)
    configure_logs(settings.log_format, settings.log_level, metrics.lines)
    sources = Sources()
    async with (
        followed_certificates(settings, sources, metrics.tls) as certificates,
        admin_port(settings, health, metrics, certificates) as admin,
    ):
        starting = asyncio.create_task(
            Node.start(url, settings, sources, hooks=metrics.hooks, wait_for_store=health, certificates=certificates),
            name="start",
        )
        node = await unless(stopping, starting)
        if node is None:
            return
        async with node:
            _up(node, health, metrics, live.in_force, certificates)
            spare_what_stays()
            on_ready(node, admin)
            samplers = []
            if settings.admin_port is not None:
                lag = metrics.group_lag.run(node.broker.groups)
                ages = metrics.queue_ages.run(node.broker.shares, sources.now_us)
                samplers = [asyncio.create_task(sampling, name="samples metrics") for sampling in (lag, ages)]
            node.broker.failed.add_done_callback(lambda _: _stop(stopping, lambda: live.in_force))
            async with beside(node):
                await stopping.wait()
            health.drains()
            await end(*samplers)
    if node.broker.failed.done():
        error = node.broker.failed.result()
        raise error if isinstance(error, LedgerMQError) else LedgerMQError(f"the broker failed: {error!r}") from error


def _up(
    node: Node, health: Health, metrics: ProcessMetrics, settings: BrokerSettings, certificates: Certificates | None
) -> None:
    follow_process(broker=node.broker.broker_id)
    node.apply(settings)  # they may have changed while the node was waiting for its store
    metrics.broker = node.broker
    health.notes = lambda: _notes(node) + ([] if certificates is None else certificates.problems())
    health.ready()
    if not node.broker.door.closed and is_reached_from_elsewhere(settings):
        log.warning(
            "every program that the port lets in may read and change everything; security = rules asks for tokens",
            host=settings.host,
            tls_client_auth=settings.tls_client_auth,
        )


def _return_freed_memory() -> None:
    """Let Arrow use the allocator of the system, which gives freed memory back: its own one kept 75 MiB more
    after a million timed messages (row D3). `ARROW_DEFAULT_MEMORY_POOL` chooses another.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())


def _notes(node: Node) -> list[str]:
    """Return the problems of a broker that is ready."""
    ownership, notes = node.broker.ownership, []
    age_s = ownership.heartbeat_age_s()
    if age_s > STALE_INTERVALS * ownership.times.interval_s:
        notes.append(f"no heartbeat has reached the object store for {age_s:.1f} s")
    notes += node.broker.service.problems()
    return [*notes, *node.broker.opened.refusals()]


def stop_signals(settings: Callable[[], ProcessSettings]) -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets; the process ends shortly after
    `shutdown_ms` at the latest, whatever still runs.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _on_signal, number, stopping, settings)
    return stopping


async def unless(stopping: asyncio.Event, starting: asyncio.Task[T]) -> T | None:
    """Return the task's result, or None if the process was stopped first, which cancels the task."""
    stop = asyncio.create_task(stopping.wait(), name="stop signal")
    try:
        await asyncio.wait([starting, stop], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
        return None if starting.cancelled() else starting.result()
    finally:
        stop.cancel()


@asynccontextmanager
async def admin_port(
    settings: ProcessSettings, health: Health, metrics: ProcessMetrics, certificates: Certificates | None
) -> AsyncIterator[int | None]:
    """Open the admin port for the block, if the settings name one; yield its number."""
    if settings.admin_port is None:
        yield None
        return
    from ledgermq_broker.ports.admin_server import (
        AdminServer,
    )  # late: a process without the port saves half a second

    server = AdminServer(health, lambda: metrics.render(is_ready=health.is_ready))
    context = None
    if settings.admin_tls != "off" and certificates is not None:
        context = certificates.http_context(asks_clients=settings.admin_tls == "mutual")
    port = await server.listen(settings.admin_host, settings.admin_port, context)
    log.info("admin port open", host=settings.admin_host, port=port, tls=settings.admin_tls)
    try:
        yield port
    finally:
        await server.close()


def _on_signal(number: signal.Signals, stopping: asyncio.Event, settings: Callable[[], ProcessSettings]) -> None:
    if stopping.is_set():
        sys.exit(128 + number)
    log.info("stopping", signal=signal.Signals(number).name)
    _stop(stopping, settings)


def _stop_at_end_of_input(stopping: asyncio.Event, settings: Callable[[], ProcessSettings]) -> None:
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 1):
            loop.remove_reader(descriptor)
            if not stopping.is_set():
                log.error("stopping, for the parent process has ended")
                _stop(stopping, settings)

    loop.add_reader(descriptor, readable)


def _stop(stopping: asyncio.Event, settings: Callable[[], ProcessSettings]) -> None:
    stopping.set()
    # Threads that wait for a store cannot be cancelled, and the interpreter waits for them.
    watchdog = threading.Timer(settings().shutdown_ms / 1000 + END_ANYWAY_AFTER_S, _end_anyway)
    watchdog.daemon = True
    watchdog.start()


def _end_anyway() -> None:
    """End the process as a crash would: what was acknowledged is stored, and other brokers take
    over.
    """
    log.error("not everything has ended in time")
    os._exit(END_ANYWAY_CODE)
