"""s2-lite as a peer, which like LedgerMQ keeps nothing but objects: one server, a stream for a
partition. Its store is a folder, where it syncs what it acknowledges, or a bucket.

All of its settings are defaults: it puts a part of its log every 5 ms into a folder, every 50 ms
into a bucket, and acknowledges what is in it. A session for each stream appends batches of 1000
records or 1 MB, the most that it takes, eight in flight; another reads from the first record on. A
topic is not removed before the next, for the server would delete its records one by one, beside
what is measured. Its Go client could not be had as a module: a program of ours speaks its wire
protocol, s2s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from bench.peers.go_client import GoPeer, Sending, built
from bench.peers.peer import served
from infra.cargo_binary import CargoBinary
from infra.ports import free_port

SUBJECT = "s2-lite 0.43"
DURABILITY = "fsync of a part of its log before the acknowledgement, one every 5 ms (in a bucket: a PUT every 50 ms)"
BINARY = CargoBinary("s2-lite", "S2_LITE", "0.43.", "s2-lite@0.43.4", "server", 40)
BASIN = {"name": "benchmark", "config": {"create_stream_on_append": True}}
BATCH_RECORDS, BATCH_BYTES, BATCHES_IN_FLIGHT = 1000, 1 << 20, 8
RECORD_BYTES = 8
"""What the server counts for a record beyond its value."""


def sending(value_bytes: int) -> Sending:
    batch = min(BATCH_RECORDS, BATCH_BYTES // (value_bytes + RECORD_BYTES))
    return Sending(batch=batch, window=BATCHES_IN_FLIGHT * batch)


@contextmanager
def running(folder: Path, root: str = "") -> Iterator[GoPeer]:
    """Run it; `folder` holds the log, and the data unless `root` is given, a URL of LedgerMQ's: an
    empty folder, or one in a bucket whose keys are in the environment.
    """
    program = BINARY.path()
    built()
    port = free_port()
    basins = folder / "basins.json"
    basins.write_text(json.dumps({"basins": [BASIN]}))
    store, environment = _store(root or (folder / "data").as_uri())
    command = [str(program), "--port", str(port), "--init-file", str(basins), "--no-dashboard", *store]
    with served(command, port, folder / "s2-lite.log", environment):
        yield GoPeer("s2", port, SUBJECT, DURABILITY, sending)


def _store(root: str) -> tuple[list[str], dict[str, str]]:
    """Return the options and the environment for a store."""
    url = urlsplit(root)
    if url.scheme == "file":
        return ["--local-root", unquote(url.path)], {}
    given = {name: values[0] for name, values in parse_qs(url.query).items()}
    environment = {"AWS_ENDPOINT_URL_S3": given["endpoint"], "AWS_REGION": given["region"]}
    return ["--bucket", url.netloc, "--path", url.path.strip("/")], environment
