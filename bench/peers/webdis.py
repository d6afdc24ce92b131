"""Webdis before Redis Streams as a peer over HTTP: one process that passes commands on, a second one that stores.

Webdis has its package's defaults (two threads, no log of requests). Redis has what `bench/peers/redis.py` gives it, so
an acknowledgement comes after an fsync. Webdis knows no callers, checks nothing and is written in C. A command is the
path of a request, or its body; the last part of the path may be the body of a PUT.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.http_load import Served
from bench.peers import redis
from bench.peers.peer import served
from infra import webdis
from infra.ports import free_port

SUBJECT = "Webdis, Redis Streams 7 (fsync always)"
BODY_BYTES_MAX = 16 * 1024 * 1024


@contextmanager
def running(folder: Path) -> Iterator[Served]:
    """Run both; `folder` holds the data and the logs. Yields Webdis: its processor time is without that of Redis."""
    program = webdis.install()
    port = free_port()
    with redis.server(folder) as redis_port:
        settings = folder / "webdis.json"
        settings.write_text(
            json.dumps(
                {
                    "redis_host": "127.0.0.1",
                    "redis_port": redis_port,
                    "http_host": "127.0.0.1",
                    "http_port": port,
                    "threads": 2,
                    "daemonize": False,
                    "database": 0,
                    "http_max_request_size": BODY_BYTES_MAX,
                    "verbosity": 0,
                    "logfile": str(folder / "webdis-requests.log"),
                }
            )
        )
        command = [str(program.path), str(settings)]
        with served(command, port, folder / "webdis.log", program.environment) as process:
            yield Served(f"http://127.0.0.1:{port}", process.pid)
