"""Timed messages beside everything else of a soak, as two processes until SIGTERM: one sends many that
are due at random times of the soak, one reads them.

python -m tests.soak.timed send TARGET FOLDER MESSAGES SECONDS
python -m tests.soak.timed read TARGET FOLDER

`send` sends numbered messages to `timed`, MESSAGES within the first half of SECONDS, each due between
now and the end of SECONDS. It writes to FOLDER/timed-sent.json what was acknowledged, and of which
counters it does not know whether they were stored. `read` follows the topic until SIGTERM, then to its
end, and writes to FOLDER/timed-read.json which counters came, and what came twice or early. `judge`
compares the two.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

import ledgermq
from ledgermq.client.producing.delivery import Delivery
from ledgermq.client.producing.producer import Producer
from ledgermq.errors import LedgerMQError, OutcomeUnknown
from tests.simulation.model import Violation
from tests.soak.numbered import TIMED, heads, values

PARTITIONS, SIZE = 4, 100
A_SECOND = 20
"""Messages for each second of a soak, unless an option says otherwise."""
MESSAGES_MAX = 1_000_000
STEP = 500
"""Messages that are sent at once."""
DUE_S_MIN = 1.0
FETCH_S = 1.0
PAUSE_S = 0.3
UNANSWERED_MAX = 100
"""Steps."""
Intervals = list[tuple[int, int]]


def intervals(counters: Iterable[int]) -> Intervals:
    """Return sorted counters as (first, last) of each run without a gap; a repeated one counts once."""
    ordered = np.unique(np.fromiter(counters, dtype=np.int64))
    if not len(ordered):
        return []
    cuts = np.flatnonzero(np.diff(ordered) != 1) + 1
    return [(int(part[0]), int(part[-1])) for part in np.split(ordered, cuts)]


def counters_of(found: Intervals) -> np.ndarray:
    """Return all counters, ascending."""
    parts = [np.arange(first, last + 1) for first, last in found]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


@dataclass
class Seen:
    """What came of one partition; grows to the highest counter."""

    came: np.ndarray = field(default_factory=lambda: np.zeros(1024, dtype=bool))
    twice: list[int] = field(default_factory=list)
    early: list[tuple[int, int]] = field(default_factory=list)
    """Counter, and how early in microseconds."""
    late_max_us: int = 0

    def add(self, counters: np.ndarray, due_us: np.ndarray, now_us: int) -> None:
        if (highest := int(counters.max())) >= len(self.came):
            self.came = np.concatenate([self.came, np.zeros(highest + 1, dtype=bool)])
        distinct, times = np.unique(counters, return_counts=True)
        self.twice += distinct[(times > 1) | self.came[distinct]].tolist()
        self.came[distinct] = True
        too_soon = due_us > now_us
        self.early += list(zip(counters[too_soon].tolist(), (due_us - now_us)[too_soon].tolist(), strict=True))
        self.late_max_us = max(self.late_max_us, now_us - int(due_us.min()))


class TimedSender:
    def __init__(self, folder: Path, messages: int, seconds: float) -> None:
        self._folder, self._messages, self._seconds = folder, messages, seconds
        self._random = random.Random("timed")
        self._next = [0] * PARTITIONS
        self._acknowledged: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self._unknown: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self._told: Counter[str] = Counter()
        self._unanswered = asyncio.Semaphore(UNANSWERED_MAX)
        self._latest_due_s = 0.0
        self.stopping = asyncio.Event()

    async def run(self, target: str) -> None:
        loop = asyncio.get_running_loop()
        begun_s, begun_at_s, sent = loop.time(), time.time(), 0
        async with (
            ledgermq.connect(target, timeout_s=60) as client,
            client.producer(delivery_timeout_s=120) as producer,
            asyncio.TaskGroup() as group,
        ):
            while sent < self._messages and not self.stopping.is_set():
                partition, count = self._random.randrange(PARTITIONS), min(STEP, self._messages - sent)
                await self._unanswered.acquire()
                first = self._next[partition]
                self._next[partition] += count
                deliveries = []
                for value in values(partition, first, count, SIZE).to_pylist():
                    await producer.wait_for_room()
                    deliveries.append(self._send(producer, partition, value, begun_at_s + self._seconds))
                group.create_task(self._await(partition, first, deliveries))
                sent += count
                await asyncio.sleep(begun_s + self._seconds / 2 * sent / self._messages - loop.time())
            await self.stopping.wait()

    def _send(self, producer: Producer, partition: int, value: bytes, until_s: float) -> Delivery:
        now_s = time.time()
        due_s = self._random.uniform(now_s + DUE_S_MIN, max(now_s + 2 * DUE_S_MIN, until_s))
        self._latest_due_s = max(self._latest_due_s, due_s)
        return producer.send(TIMED, value, partition=partition, deliver_at=datetime.fromtimestamp(due_s, UTC))

    async def _await(self, partition: int, first: int, deliveries: list[Delivery]) -> None:
        for counter, delivery in enumerate(deliveries, first):
            await delivery.wait()
            error = delivery.exception()
            if error is None:
                self._acknowledged[partition].append(counter)
                continue
            self._told[f"{type(error).__name__}: {error}"[:120]] += 1
            if isinstance(error, OutcomeUnknown):
                self._unknown[partition].append(counter)
        self._unanswered.release()

    def write(self) -> None:
        document = {
            "acknowledged": [intervals(each) for each in self._acknowledged],
            "unknown": [intervals(each) for each in self._unknown],
            "told": dict(self._told),
            "latest_due_s": self._latest_due_s,
        }
        (self._folder / "timed-sent.json").write_text(json.dumps(document))


async def read(target: str, folder: Path, stopping: asyncio.Event) -> None:
    seen = [Seen() for _ in range(PARTITIONS)]
    async with ledgermq.connect(target, timeout_s=60) as client, client.consumer(TIMED) as consumer:
        while not stopping.is_set() or consumer.positions() != await consumer.end_offsets():
            try:
                table = await consumer.fetch_arrow(10_000, timeout=FETCH_S)
            except LedgerMQError as error:
                print(f"told: {type(error).__name__}: {error.message}", flush=True)
                await asyncio.sleep(PAUSE_S)
                continue
            now_us = time.time_ns() // 1000
            if table.num_rows:
                counters, partitions = heads(table["value"])
                due_us = table["timestamp"].cast(pa.int64()).to_numpy()
                for partition in np.unique(partitions):
                    mine = partitions == partition
                    seen[partition].add(counters[mine], due_us[mine], now_us)
    document = {
        "came": [intervals(np.flatnonzero(each.came)) for each in seen],
        "twice": [intervals(each.twice) for each in seen],
        "early": [each.early for each in seen],
        "late_max_ms": max(each.late_max_us for each in seen) / 1000,
    }
    (folder / "timed-read.json").write_text(json.dumps(document))


def judge(sent: Mapping[str, Any], came: Mapping[str, Any]) -> list[Violation]:
    """Each acknowledged message came once, none came early, and nothing came that was not sent."""
    found = []
    for partition in range(PARTITIONS):
        acknowledged, unknown, arrived = (
            counters_of(each[partition]) for each in (sent["acknowledged"], sent["unknown"], came["came"])
        )
        for kind, counters in (
            ("timed message lost", np.setdiff1d(acknowledged, arrived)),
            ("timed message never sent", np.setdiff1d(arrived, np.union1d(acknowledged, unknown))),
            ("timed message doubled", counters_of(came["twice"][partition])),
        ):
            if len(counters):
                found.append(Violation(kind, f"{TIMED}-{partition}: counters {intervals(counters)[:10]}"))
        if early := came["early"][partition]:
            found.append(Violation("timed message early", f"{TIMED}-{partition}: (counter, µs) {early[:10]}"))
    return found


def judge_parquet(parquet: Path, came: Mapping[str, Any]) -> list[Violation]:
    """Parquet holds what came, each message once."""
    found = []
    for partition in range(PARTITIONS):
        folder = parquet / f"topic={TIMED}" / f"partition={partition}"
        column = ds.dataset(folder, format="parquet").to_table(["value"])["value"] if folder.exists() else None
        counters = np.sort(heads(column)[0]) if column is not None and len(column) else np.empty(0, dtype=np.int64)
        if not np.array_equal(counters, counters_of(came["came"][partition])):
            text = f"{TIMED}-{partition}: {len(counters)} rows, counters {intervals(counters)[:10]}"
            found.append(Violation("Parquet differs from what came", text))
    return found


async def main(role: str, target: str, folder: str, messages: str = "0", seconds: str = "0") -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    if role == "read":
        await read(target, Path(folder), stopping)
        return
    sender = TimedSender(Path(folder), int(messages), float(seconds))
    sender.stopping = stopping
    await sender.run(target)
    sender.write()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
