"""What runs in a soak, and what has become of it: processes, facts, violations, the stream that begins again."""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.chaos.children import Child, Children
from tests.chaos.stores import FolderStore
from tests.judges.violation import Violation
from tests.soak.cluster import SoakCluster
from tests.soak.programs import Programs
from tests.soak.transactor import MOVED, PARTITIONS, WHOLE

BROKER_BYTES_MAX = 768 * 1024 * 1024
TIMED_BYTES_MAX = 256
"""More memory of a broker for each timed message: all may wait in one."""
SPARK = {"MASTER": "local[2]"}
NOT_STARTED = "Python worker failed to connect back"
PRODUCED: dict[str, tuple[int, int, float]] = {"kept": (PARTITIONS, 100, 200_000.0), "brief": (8, 1000, 0.0)}
"""Partitions, bytes of a value, bytes a second (0: full speed). Retention is of `brief` alone."""
TOPICS = (*PRODUCED, WHOLE, MOVED)


class SoakWorld:
    stream: Child
    stream_file: Path
    producers: list[Child]
    timed_sender: Child
    timed_reader: Child
    slow_readers: list[Child]
    plain: Child

    def __init__(
        self, seconds: float, folder: Path, stack: AsyncExitStack, seed: int, with_spark: bool, timed: int
    ) -> None:
        self.seconds, self.folder, self.with_spark = seconds, folder, with_spark
        self.timed = timed
        self.broker_bytes_allowed = BROKER_BYTES_MAX + TIMED_BYTES_MAX * timed
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.children = Children(self.logs)
        stack.callback(self.children.close)
        self.store = FolderStore(folder)
        self.root = folder / "root"
        self.cluster = SoakCluster(self.children, self.store, self.note)
        self.violations: list[Violation] = []
        self.facts: dict[str, Any] = {
            "seconds": seconds,
            "kills": 0,
            "compactor_kills": 0,
            "stream_restarts": 0,
            "with_spark": with_spark,
            "bucket_bytes_max": 0,
            "stream_lag_max": 0,
            "broker_bytes_max": 0,
        }
        self.retention_s = max(150.0, seconds / 3)
        self.programs = Programs(self.children, self.cluster, folder, seed)
        self.seed = seed
        self.compactors: dict[str, Child] = {}
        self._ending = False
        self._random = random.Random(f"soak {seed}")
        self._begun_s = asyncio.get_running_loop().time()

    def note(self, text: str) -> None:
        line = f"[soak {asyncio.get_running_loop().time() - self._begun_s:7.1f}] {text}"
        print(line, flush=True)
        with (self.folder / "happened.txt").open("a") as out:
            print(line, file=out)

    def spawn(self, name: str, module: str, *arguments: str) -> Child:
        return self.children.spawn(name, [sys.executable, "-m", module, *arguments])

    def start_stream(self) -> Child:
        if not self.with_spark:
            return self.spawn(
                "stream", "tests.soak.follower", self.cluster.target, ",".join(TOPICS), str(self.stream_file)
            )
        place = (
            self.store.direct_url,
            str(self.root / "parquet"),
            ",".join(TOPICS),
            str(self.folder / "checkpoint"),
            str(self.stream_file),
        )
        return self.children.spawn("stream", [sys.executable, "-m", "tests.soak.stream", *place], SPARK)

    def begin_again_with_the_stream(self) -> None:
        """Spark ends a query whose Python process takes ten seconds to start. On a busy machine
        that is no bug, and the query goes on from its checkpoint.
        """
        said = self.stream.text()
        if NOT_STARTED not in said:
            self.violations.append(Violation("stream ended", said[-1500:]))
            raise RuntimeError("the stream has ended")
        self.facts["stream_restarts"] += 1
        self.note("Spark could not start a Python process in time; the stream is started again")
        self.stream = self.start_stream()


def sizes_of(root: Path) -> dict[str, int]:
    """Bytes by folder: parquet, segments, checkpoints, …"""
    found: dict[str, int] = {}
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        name = parts[2] if parts[0] == "ledgers" and len(parts) > 2 else parts[0]
        try:
            size = path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
        found[name] = found.get(name, 0) + size
    return found


def lines(file: Path) -> int:
    return sum(1 for _ in file.open("rb")) if file.exists() else 0
