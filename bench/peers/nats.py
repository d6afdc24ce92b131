"""NATS JetStream as a peer: one server, a stream on disk for a partition; twice, for its default
acknowledges before it syncs.

* `sync_interval: always`, the durability of LedgerMQ. A single message is then synced separately
  (some 11,000 a second here), but an atomic batch is synced as one: so the client sends atomic
  batches of 1000 messages, the most that the server takes, four in flight for each stream. Readers
  see all of a batch or nothing, which is more than is needed here; there is no cheaper way to be
  synced.
* The default: the acknowledgement means the page cache, and an fsync comes every two minutes.
  Messages go by fast ingest (since 2.14), acknowledged every 500, 1500 in flight for each stream:
  half as fast again here as publishing asynchronously, and as atomic batches.

Reading is an ordered consumer for each stream that pulls 1000 messages at a time. The client is a
program of ours around nats.go, for the project's own `nats bench` could not be had as a Go module
when this was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.go_client import GoPeer, Sending, built
from bench.peers.peer import served
from infra import nats
from infra.ports import free_port

SUBJECT = "NATS JetStream 2.15 (sync always)"
SUBJECT_BY_DEFAULT = "NATS JetStream 2.15 (default, no sync)"
DURABILITY = "fsync before the acknowledgement, one for a batch"
DURABILITY_BY_DEFAULT = "page cache only; an fsync every two minutes"
ATOMIC = Sending(batch=1000, mode="atomic")
FAST = Sending(batch=500, window=1500, mode="fast")


@contextmanager
def running(folder: Path, *, sync_always: bool = True) -> Iterator[GoPeer]:
    """Run it; `folder` holds the data and the log."""
    binary = nats.BINARY.install()
    built()
    port = free_port()
    settings = folder / "nats.conf"
    sync = ", sync_interval: always" if sync_always else ""
    settings.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}"{sync} }}\n')
    with served([str(binary), "-c", str(settings)], port, folder / "nats.log"):
        if sync_always:
            yield GoPeer("nats", port, SUBJECT, DURABILITY, lambda _: ATOMIC)
        else:
            yield GoPeer("nats", port, SUBJECT_BY_DEFAULT, DURABILITY_BY_DEFAULT, lambda _: FAST)
