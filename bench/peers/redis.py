"""Redis Streams as a peer: one server with its append-only file synced before any answer
(`appendfsync always`), a stream for a partition.

Redis reads 16 KiB of each connection at a time, then syncs once for what it has read of all: so
four connections for each stream send pipelines of XADD (200, or 50 KB), which is faster here than
one connection, and than Redis's own redis-benchmark with the same. Reading is XREAD of 1000 entries
of a stream, one connection for each. All records are held in memory, so a new topic removes the one
before. The file is not rewritten in between (`auto-aof-rewrite-percentage 0`), which would only
cost the peer time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.go_client import GoPeer, Sending, built
from bench.peers.peer import served
from infra import redis
from infra.ports import free_port

SUBJECT = "Redis Streams 7 (fsync always)"
DURABILITY = "fsync before the acknowledgement, one for all connections that wait"
CONNECTIONS = 4
PIPELINE_BYTES = 50_000


def sending(value_bytes: int) -> Sending:
    return Sending(batch=min(200, PIPELINE_BYTES // value_bytes), connections=CONNECTIONS)


@contextmanager
def server(folder: Path) -> Iterator[int]:
    """Run it, and yield its port; `folder` holds the data and the log."""
    program = redis.install()
    port = free_port()
    settings = {
        "port": str(port), "bind": "127.0.0.1", "dir": str(folder), "save": "",
        "appendonly": "yes", "appendfsync": "always", "auto-aof-rewrite-percentage": "0",
    }  # fmt: skip
    command = [str(program.path), *(word for name, value in settings.items() for word in (f"--{name}", value))]
    with served(command, port, folder / "redis.log", program.environment):
        yield port


@contextmanager
def running(folder: Path) -> Iterator[GoPeer]:
    built()
    with server(folder) as port:
        yield GoPeer("redis", port, SUBJECT, DURABILITY, sending)
