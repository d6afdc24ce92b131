"""Redis Streams as a peer: one server with its append-only file synced before any answer (`appendfsync always`), a stream for a partition.

Redis reads 16 KiB of each connection at a time, then syncs once for what it has read of all: so four connections for each stream send
pipelines of XADD (200 of 100 B, 50 of 1 KB), which is faster here than one connection, and than Redis's own redis-benchmark with the
same. Reading is XREAD of 1000 entries of a stream, one connection for each. All records are held in memory, so a new topic removes the
one before. The file is not rewritten in between (`auto-aof-rewrite-percentage 0`), which would only cost the peer time.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from bench.peers.go_client import GoClient, Sending, large
from bench.peers.peer import served
from infra import redis
from infra.ports import free_port

SUBJECT = "Redis Streams 7 (fsync always)"
DURABILITY = "fsync before the acknowledgement, one for all connections that wait"
CONNECTIONS = 4
READ = 1000


@dataclass
class Redis:
    port: int
    program: redis.Program
    subject: str = SUBJECT
    durability: str = DURABILITY
    _topics: Iterator[int] = field(default_factory=count)

    def new_topic(self) -> str:
        cli = self.program.path.with_name("redis-cli")
        command = [str(cli), "-p", str(self.port), "FLUSHALL"]
        subprocess.run(command, env=self.program.environment, capture_output=True, check=True, timeout=60)
        return f"bench-{next(self._topics)}"

    def produce(self, topic: str, records: int, payloads: Path) -> dict[str, float]:
        sending = Sending(batch=50 if large(payloads) else 200, connections=CONNECTIONS)
        return GoClient("redis", self.port).produce(topic, records, payloads, sending)

    def consume(self, topic: str, records: int) -> dict[str, float]:
        return GoClient("redis", self.port).consume(topic, records, READ)


@contextmanager
def running(folder: Path) -> Iterator[Redis]:
    """`folder` takes the data and the log."""
    program = redis.install()
    port = free_port()
    settings = {
        "port": str(port), "bind": "127.0.0.1", "dir": str(folder), "save": "",
        "appendonly": "yes", "appendfsync": "always", "auto-aof-rewrite-percentage": "0",
    }  # fmt: skip
    command = [str(program.path), *(word for name, value in settings.items() for word in (f"--{name}", value))]
    with served(command, port, folder / "redis.log", program.environment):
        yield Redis(port, program)
