"""Timed messages beside everything else of a soak, as two processes until SIGTERM: one sends many that
are due at random times of the soak and after it, one reads them.

python -m tests.soak.timed send TARGET FOLDER MESSAGES SECONDS
python -m tests.soak.timed read TARGET FOLDER

`send` sends numbered messages to `timed`: most of MESSAGES at once, so that they wait together, the rest
within the first half of SECONDS. By its counter a message is due before the end of SECONDS, within
`AFTER_S` after it, or so late that it does not come in a soak (`is_far`). It writes to FOLDER/timed-sent.npz
what was acknowledged, and of which counters it does not know whether they were stored. `read` follows the
topic until SIGTERM, then to its end, and writes to FOLDER/timed-read.npz which counters came, and what came
twice or early. `judge` compares the two. A message costs a byte at each.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

import ledgermq
from ledgermq.client.producing.delivery import Delivery
from ledgermq.errors import LedgerMQError, OutcomeUnknown
from tests.judges.violation import Violation
from tests.soak.numbered import TIMED, heads, values

PARTITIONS, SIZE = 4, 100
SENT, CAME = "timed-sent.npz", "timed-read.npz"
A_SECOND = 20
"""Messages for each second of a soak, unless an option says otherwise."""
MESSAGES_MAX = 1_000_000
STEP = 500
"""Messages that are sent at once."""
AT_ONCE = 0.8
"""Share of the messages that are sent at the start."""
FAR_OF_TEN, AFTER_OF_TEN = 9, (7, 8)
"""Last digits of the counters of messages that are due after any soak, and soon after its end."""
DUE_S_MIN = 1.0
AFTER_S, FAR_S = 60.0, 30 * 86_400.0
FETCH_S = 1.0
PAUSE_S = 0.3
UNANSWERED_MAX = 100
"""Steps."""
Bits = np.ndarray[Any, np.dtype[np.bool_]]
"""[partition, counter]."""


def is_far(counters: np.ndarray) -> Bits:
    """Return which messages are due after any soak."""
    return counters % 10 == FAR_OF_TEN


def intervals(bits: Bits) -> list[tuple[int, int]]:
    """Return (first, last) of each run of counters that are set."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], bits, [False]))))
    return [(int(first), int(end) - 1) for first, end in edges.reshape(-1, 2)]


def padded(bits: Bits, count: int) -> Bits:
    """Return the same with at least `count` counters in each partition."""
    missing = max(0, count - bits.shape[-1])
    return np.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, missing)])


@dataclass
class Sent:
    """`told`: how often each error was returned."""

    acknowledged: Bits
    unknown: Bits
    told: dict[str, int] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        np.savez_compressed(
            folder / SENT, acknowledged=self.acknowledged, unknown=self.unknown, told=json.dumps(self.told)
        )

    @classmethod
    def load(cls, folder: Path) -> Sent:
        with np.load(folder / SENT) as found:
            return cls(found["acknowledged"], found["unknown"], json.loads(str(found["told"])))

    def waiting(self) -> tuple[int, int]:
        """Return how many messages wait at least, and at most, when all others have come."""
        far = is_far(np.arange(self.acknowledged.shape[1]))
        surely = int(np.count_nonzero(self.acknowledged & far))
        return surely, surely + int(np.count_nonzero(self.unknown & far))


@dataclass
class Came:
    """`twice`: counters of each partition; `early`: (counter, how early in microseconds) likewise."""

    came: Bits
    twice: list[list[int]]
    early: list[list[tuple[int, int]]]
    late_max_ms: float = 0.0

    def save(self, folder: Path) -> None:
        rest = json.dumps({"twice": self.twice, "early": self.early, "late_max_ms": self.late_max_ms})
        np.savez_compressed(folder / CAME, came=self.came, rest=rest)

    @classmethod
    def load(cls, folder: Path) -> Came:
        with np.load(folder / CAME) as found:
            return cls(found["came"], **json.loads(str(found["rest"])))


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
        self._sent = Sent(np.zeros((PARTITIONS, messages), bool), np.zeros((PARTITIONS, messages), bool))
        self._told: Counter[str] = Counter()
        self._unanswered = asyncio.Semaphore(UNANSWERED_MAX)
        self.stopping = asyncio.Event()

    async def run(self, target: str) -> None:
        loop = asyncio.get_running_loop()
        begun_s, end_s, sent = loop.time(), time.time() + self._seconds, 0
        at_once = round(self._messages * AT_ONCE)
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
                for counter, value in enumerate(values(partition, first, count, SIZE).to_pylist(), first):
                    await producer.wait_for_room()
                    due = datetime.fromtimestamp(self._due_s(counter, end_s), UTC)
                    deliveries.append(producer.send(TIMED, value, partition=partition, deliver_at=due))
                group.create_task(self._await(partition, first, deliveries))
                sent += count
                if sent >= at_once:
                    paced = (sent - at_once) / max(1, self._messages - at_once)
                    await asyncio.sleep(begun_s + self._seconds / 2 * paced - loop.time())
            print(f"all sent after {loop.time() - begun_s:.1f} s", flush=True)
            await self.stopping.wait()

    def _due_s(self, counter: int, end_s: float) -> float:
        now_s = time.time()
        if counter % 10 == FAR_OF_TEN:
            return self._random.uniform(now_s + FAR_S, now_s + 10 * FAR_S)
        if counter % 10 in AFTER_OF_TEN:
            return self._random.uniform(end_s, end_s + AFTER_S)
        return self._random.uniform(now_s + DUE_S_MIN, max(now_s + 2 * DUE_S_MIN, end_s))

    async def _await(self, partition: int, first: int, deliveries: list[Delivery]) -> None:
        for counter, delivery in enumerate(deliveries, first):
            await delivery.wait()
            error = delivery.exception()
            if error is None:
                self._sent.acknowledged[partition, counter] = True
                continue
            self._told[f"{type(error).__name__}: {error}"[:120]] += 1
            self._sent.unknown[partition, counter] = isinstance(error, OutcomeUnknown)
        self._unanswered.release()

    def write(self) -> None:
        self._sent.told = dict(self._told)
        self._sent.save(self._folder)


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
    came_of(seen).save(folder)


def came_of(seen: list[Seen]) -> Came:
    count = max(len(each.came) for each in seen)
    late_ms = max(each.late_max_us for each in seen) / 1000
    bits = np.stack([padded(each.came, count) for each in seen])
    return Came(bits, [each.twice for each in seen], [each.early for each in seen], late_ms)


def judge(sent: Sent, came: Came) -> list[Violation]:
    """Each acknowledged message came once, unless it is due after any soak; none came early, and nothing
    came that was not sent.
    """
    found = []
    count = max(sent.acknowledged.shape[1], came.came.shape[1])
    acknowledged, unknown, arrived = (padded(each, count) for each in (sent.acknowledged, sent.unknown, came.came))
    far = is_far(np.arange(count))
    twice = np.zeros_like(arrived)
    for partition, counters in enumerate(came.twice):
        twice[partition, counters] = True
    for partition in range(PARTITIONS):
        for kind, bits in (
            ("timed message lost", acknowledged[partition] & ~far & ~arrived[partition]),
            ("timed message never sent", arrived[partition] & ~(acknowledged | unknown)[partition]),
            ("timed message months early", arrived[partition] & far),
            ("timed message doubled", twice[partition]),
        ):
            if bits.any():
                found.append(Violation(kind, f"{TIMED}-{partition}: counters {intervals(bits)[:10]}"))
        if early := came.early[partition]:
            found.append(Violation("timed message early", f"{TIMED}-{partition}: (counter, µs) {early[:10]}"))
    return found


def judge_waiting(sent: Sent, waiting: int) -> list[Violation]:
    """As many wait as are due after any soak."""
    least, most = sent.waiting()
    if least <= waiting <= most:
        return []
    return [Violation("timed message lost", f"{waiting} timed messages wait, not {least} to {most}")]


def judge_parquet(parquet: Path, came: Came) -> list[Violation]:
    """Parquet holds what came, each message once."""
    found = []
    for partition in range(PARTITIONS):
        folder = parquet / f"topic={TIMED}" / f"partition={partition}"
        column = ds.dataset(folder, format="parquet").to_table(["value"])["value"] if folder.exists() else None
        counters = np.sort(heads(column)[0]) if column is not None and len(column) else np.empty(0, dtype=np.int64)
        if not np.array_equal(counters, np.flatnonzero(came.came[partition])):
            text = f"{TIMED}-{partition}: {len(counters)} rows, {np.count_nonzero(came.came[partition])} came"
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
