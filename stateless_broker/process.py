"""The broker as a process: logs, signals, one node from start to SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from stateless_broker.logs import configure_logs, get_logger
from stateless_broker.node import Node
from stateless_broker.settings import BrokerSettings

log = get_logger(__name__)


def run_node(url: str, settings: BrokerSettings, on_ready: Callable[[Node], None]) -> None:
    """Until SIGTERM or SIGINT; a second signal ends it at once. Raises what `Node.start` raises, and the error that ended the broker."""
    configure_logs(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(url, settings, on_ready))


async def _serve(url: str, settings: BrokerSettings, on_ready: Callable[[Node], None]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, number, stopping)
    async with await Node.start(url, settings, Sources()) as node:
        on_ready(node)
        node.broker.failed.add_done_callback(lambda _: stopping.set())
        await stopping.wait()
    if node.broker.failed.done():
        error = node.broker.failed.result()
        raise error if isinstance(error, LedgerMQError) else LedgerMQError(f"the broker failed: {error!r}") from error


def _on_signal(number: signal.Signals, stopping: asyncio.Event) -> None:
    if stopping.is_set():
        sys.exit(128 + number)
    log.info("stopping", signal=signal.Signals(number).name)
    stopping.set()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
