"""The Go program in bench/peers/client/, built once: it produces to and consumes from the peers
that have no measuring tool to be had.

A compiled client, so that the peer and not its client is measured; `-streams` connections at once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from bench.peers.peer import STREAMS

SOURCE = Path(__file__).resolve().parent / "client"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bin"
BUILD_S_MAX = 600
RUN_S_MAX = 300


def built() -> Path:
    """Return the binary of the current sources. Exits with one clear sentence if it cannot be
    built.
    """
    digest = hashlib.sha256()
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.read_bytes())
    binary = CACHE / f"peer-client-{digest.hexdigest()[:12]}"
    if binary.exists():
        return binary
    if shutil.which("go") is None:
        sys.exit("Peers need a Go toolchain on PATH, which builds their client.")
    print("Building the client of the peers with Go (a minute, once) …", file=sys.stderr)
    CACHE.mkdir(parents=True, exist_ok=True)
    command = ["go", "build", "-buildvcs=false", "-o", str(binary), "."]
    if subprocess.run(command, cwd=SOURCE, stdout=sys.stderr, timeout=BUILD_S_MAX, check=False).returncode != 0:
        sys.exit("`go build` could not build the client of the peers, see above.")
    return binary


@dataclass(frozen=True, slots=True)
class Sending:
    """How a peer is sent records: see the flags of the program."""

    batch: int
    window: int = 10_000
    mode: str = ""
    connections: int = 1


@dataclass
class GoPeer:
    """A peer behind that program.

    `peer`: a name that the program knows. `sending` is given the size of the values.
    """

    peer: str
    port: int
    subject: str
    durability: str
    sending: Callable[[int], Sending]
    read: int = 1000
    """Records requested at once, if a peer supports that."""
    _topics: Iterator[int] = field(default_factory=count)
    _newest: str | None = None

    def new_topic(self) -> str:
        """Create a topic. The one before it is removed, because records take memory or disk, and a
        benchmark creates many topics.
        """
        if self._newest is not None:
            self._run("remove", self._newest)
        self._newest = f"bench-{next(self._topics)}"
        return self._newest

    def produce(self, topic: str, records: int, payloads: Path) -> dict[str, float]:
        with payloads.open("rb") as values:
            sending = self.sending(len(values.readline()))
        how = (
            "-batch",
            str(sending.batch),
            "-window",
            str(sending.window),
            "-mode",
            sending.mode,
            "-connections",
            str(sending.connections),
        )
        return self._rate("produce", topic, "-records", str(records), "-payloads", str(payloads), *how)

    def consume(self, topic: str, records: int) -> dict[str, float]:
        return self._rate("consume", topic, "-records", str(records), "-batch", str(self.read))

    def pace(self, topic: str, records: int, payloads: Path, rate: float) -> list[float]:
        """As `PacedPeer.pace`; only s2-lite."""
        options = ("-records", str(records), "-payloads", str(payloads), "-rate", str(rate), "-batch", "1")
        latencies_ms: list[float] = self._run("pace", topic, *options)["latencies_ms"]
        return sorted(latencies_ms)

    def _rate(self, what: str, topic: str, *options: str) -> dict[str, float]:
        found = self._run(what, topic, *options)
        return found | {"per_s": found["records"] / found["seconds"]}

    def _run(self, what: str, topic: str, *options: str) -> dict[str, Any]:
        where = ("-peer", self.peer, "-address", f"127.0.0.1:{self.port}", "-topic", topic, "-streams", str(STREAMS))
        done = subprocess.run(
            [str(built()), *where, "-do", what, *options],
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{self.peer}: {what} failed:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
