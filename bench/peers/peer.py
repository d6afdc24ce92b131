"""What each peer offers to a benchmark, and how its server process is started and ended."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

START_S_MAX = 120.0
END_S_MAX = 30.0
STREAMS = 8
"""Partitions, or streams if a peer has no partitions."""


class Peer(Protocol):
    """A running server. Rates are from the first record until the last acknowledgement, or until
    the last record is read.
    """

    @property
    def subject(self) -> str:
        """Its name in tables."""

    @property
    def durability(self) -> str:
        """What an acknowledgement means, in words."""

    def new_topic(self) -> str:
        """Create an empty topic of STREAMS partitions; the one before it may be deleted."""

    def produce(self, topic: str, records: int, payloads: Path) -> dict[str, float]:
        """Return `per_s`. `payloads`: a file with a value per line; the values are sent repeatedly."""

    def consume(self, topic: str, records: int) -> dict[str, float]:
        """Return `per_s` and `records`, read from the beginning."""


class PacedPeer(Peer, Protocol):
    """A peer that can also send records one by one, when they are due."""

    def pace(self, topic: str, records: int, payloads: Path, rate: float) -> list[float]:
        """Send `rate` a second. Return in ms, sorted, how long after it was due each was acknowledged."""


@contextmanager
def served(
    command: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server process, from when it listens on `port` until the end of the block; it is then
    killed, because its data is no longer needed.
    """
    with log.open("wb") as output:
        given = os.environ | dict(environment or {})
        process = subprocess.Popen(
            command, cwd=log.parent, env=given, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait(process, port, log)
        yield process
    finally:
        _end(process)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_S_MAX
    while process.poll() is None and time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"{log.stem} did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process with all its children, because they are one process group."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
    process.wait(timeout=END_S_MAX)
