"""RabbitMQ streams as a peer: one node with its stream plugin, a stream for a partition. It does
not fsync, and has no setting for it.

Frames of 200 messages (`BatchSend`) of 100 B, or of 100 messages of 1 KB packed into one entry
(sub-entry batching, which was half as fast again for these and no faster for those; with lz4 it was
several times slower); 20,000 unconfirmed for each stream, one connection for each producer and
consumer, as the page of best practices of its Go client says for throughput. The project's own
stream-perf-test is in no package registry, and its counterpart in Go does not count: hence a
program of ours around that client.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.go_client import GoPeer, Sending, built
from bench.peers.peer import served
from infra import rabbitmq
from infra.ports import free_port

SUBJECT = "RabbitMQ streams 3.10 (no sync)"
DURABILITY = "page cache only: it never syncs"
END_TRIES_MAX = 25
LARGE_BYTES = 500


def sending(value_bytes: int) -> Sending:
    if value_bytes < LARGE_BYTES:
        return Sending(batch=200, window=20_000)
    return Sending(batch=100, window=20_000, mode="sub")


@contextmanager
def running(folder: Path) -> Iterator[GoPeer]:
    """Run it; `folder` holds the data and the log."""
    programs = rabbitmq.install()
    built()
    port, names_port, node_port = free_port(), free_port(), free_port()
    (folder / "rabbitmq.conf").write_text(f"listeners.tcp = none\nstream.listeners.tcp.1 = 127.0.0.1:{port}\n")
    (folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
    environment = programs.environment | {
        "HOME": str(folder),  # Erlang keeps its cookie there
        "RABBITMQ_HOME": str(programs.home),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_NODENAME": "ledgermq-peer@localhost",
        "RABBITMQ_DIST_PORT": str(node_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names_port),
    }
    try:
        with served([str(programs.home / "sbin" / "rabbitmq-server")], port, folder / "rabbitmq.log", environment):
            yield GoPeer("rabbitmq", port, SUBJECT, DURABILITY, sending)
    finally:
        _end_names(programs, names_port)


def _end_names(programs: rabbitmq.Programs, port: int) -> None:
    """End Erlang's name server, which leaves the process group of the node that started it, and
    does not end while it counts the node as alive.
    """
    epmd = next(programs.erlang.glob("erts-*/bin/epmd"))
    for _ in range(END_TRIES_MAX):
        if (
            subprocess.run(
                [str(epmd), "-port", str(port), "-kill"], capture_output=True, check=False, timeout=30
            ).returncode
            == 0
        ):
            return
        time.sleep(0.2)
    raise RuntimeError(f"Erlang's name server on port {port} does not end")
