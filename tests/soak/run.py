"""`make soak`: producers at full speed, brokers killed every 20 s, two rival compactors (one of
them Spark), programs with transactions, many timed messages, a queue group, retention, a Spark stream and plain reads
of Parquet, all at once on a local folder; then the judgement.

python -m tests.soak.run --seconds 1800

Phases: begin; the soak; the producers end; all transactions end; all timed messages come; the stream
reads to the end; all stop; what is left is compacted; the grace passes; fsck.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

import ledgermq
from bench.ours import rss_bytes_of
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from ledgermq_broker.timed.stored.view import read_timers
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.root.open import open_store
from tests.chaos.children import LEDGERMQ, PROJECT, Child, Children
from tests.chaos.judge import compact_all, fsck, judge_logs
from tests.chaos.stores import FolderStore
from tests.chaos.transaction_judge import until_over
from tests.judges.violation import Violation
from tests.soak.cluster import GRACE_S, LOG_START_MS, SoakCluster
from tests.soak.full_disk import FullDisk
from tests.soak.jobs import Jobs
from tests.soak.numbered import TIMED
from tests.soak.programs import Programs
from tests.soak.timed import A_SECOND, AFTER_S, MESSAGES_MAX, Came, Sent, judge_parquet, judge_waiting
from tests.soak.timed import PARTITIONS as TIMED_PARTITIONS
from tests.soak.timed import judge as judge_timed
from tests.soak.transactor import MOVED, PARTITIONS, SOURCE, WHOLE
from tests.soak.verdict import Witnesses, judge

BROKERS = 3
SLOW_READERS, SLOW_BYTES_PER_S = 1000, 1000
"""On all brokers together; each takes so much a second, and holds its place in line for the rest of
the time.
"""
BROKER_BYTES_MAX = 768 * 1024 * 1024
TIMED_BYTES_MAX = 256
"""More memory of a broker for each timed message: all may wait in one."""
KILL_EVERY_S = 20.0
COMPACTOR_KILL_EVERY_S = 75.0
STATUS_EVERY_S = 20.0
DRAIN_S_MAX = 300.0
STREAM_UP_S_MAX = 600.0
STOP_S_MAX = 90.0
LOG_START_S = 5 * LOG_START_MS / 1000
"""Until the log starts of hidden topics have moved behind what was delivered."""
BUCKET_BYTES_MAX = 8_000_000_000
"""Above this the producers rest: compaction, retention and the stream share two cores with them."""
STREAM_LAG_MAX_PER_S = 4_000
"""Records that the stream has not read, for each second of retention; above this they rest, too, or
retention would rightly take what it has not come to."""

SPARK = {"MASTER": "local[2]"}
NOT_STARTED = "Python worker failed to connect back"

PRODUCED: dict[str, tuple[int, int, float]] = {"kept": (PARTITIONS, 100, 200_000.0), "brief": (8, 1000, 0.0)}
"""Partitions, bytes of a value, bytes a second (0: full speed). Retention is of `brief` alone."""
TOPICS = (*PRODUCED, WHOLE, MOVED)


class SoakRun:
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
        self._seed = seed
        self.compactors: dict[str, Child] = {}
        self._ending = False
        self._random = random.Random(f"soak {seed}")
        self._begun_s = asyncio.get_running_loop().time()

    def note(self, text: str) -> None:
        line = f"[soak {asyncio.get_running_loop().time() - self._begun_s:7.1f}] {text}"
        print(line, flush=True)
        with (self.folder / "happened.txt").open("a") as out:
            print(line, file=out)

    async def run(self) -> None:
        await self._begin()
        async with _background(self.cluster.keep_running(), self._status(), self._keep_compacting()):
            full_disk = FullDisk(self.folder, self.note)
            async with _background(
                self._kill_brokers(), self._kill_compactor(), self.programs.kill_them(), full_disk.run()
            ):
                await asyncio.sleep(self.seconds)
            self.violations += full_disk.violations
            self.facts["disk_fills"] = full_disk.turns
            self.note("the time is over: no more kills")
            for broker in self.cluster.brokers:
                if not broker.wanted:  # the end came between its kill and its start
                    self.cluster.start(broker)
            await self.cluster.ready(self.cluster.brokers)
            await self._end_producers()
            self.violations += await self.jobs.end()
            self.facts["jobs"] = self.jobs.figures
            self.note("all jobs of the queue group are done")
            self.violations += await self.programs.end()
            self.note("the programs with transactions have ended")
            self.violations += await until_over(self.cluster.target, self.store.direct_url, DRAIN_S_MAX)
            await self._end_timed()
            await self._drain()
        await self._stop_all()
        await self._clean_up()
        self.violations += [*self.cluster.violations, *judge_logs(self.logs)]

    async def _begin(self) -> None:
        await self.store.start()
        await self.cluster.prepare_direct(BROKERS)
        for broker in self.cluster.brokers:
            self.cluster.start(broker)
        await self.cluster.ready(self.cluster.brokers)
        async with ledgermq.connect(self.cluster.target) as client:
            await client.create_topic(
                SOURCE, PARTITIONS, {"parquet.target.bytes": 4_000_000, "parquet.max.lag.ms": 10_000}
            )
            for topic in (WHOLE, MOVED):
                await client.create_topic(
                    topic, PARTITIONS, {"parquet.target.bytes": 4_000_000, "parquet.max.lag.ms": 10_000}
                )
            await client.create_topic(
                "brief",
                PRODUCED["brief"][0],
                {
                    "parquet.target.bytes": 32_000_000,
                    "parquet.max.lag.ms": 20_000,
                    "retention.ms": int(self.retention_s * 1000),
                },
            )
            await client.create_topic(
                TIMED, TIMED_PARTITIONS, {"parquet.target.bytes": 4_000_000, "parquet.max.lag.ms": 10_000}
            )
        self.note(f"{BROKERS} brokers are up, logs in {self.logs}; retention of brief: {self.retention_s:.0f} s")
        self.stream_file = self.folder / "stream.jsonl"
        self.stream = self._start_stream()
        async with asyncio.timeout(STREAM_UP_S_MAX):
            while not lines(self.stream_file):  # its first batch says where it began
                if self.stream.code is not None:
                    self._begin_again_with_the_stream()
                await asyncio.sleep(0.5)
        self.producers = [
            self._spawn(
                f"producer-{topic}",
                "tests.soak.producer",
                self.cluster.target,
                topic,
                str(count),
                str(size),
                str(rate),
                str(self.folder),
            )
            for topic, (count, size, rate) in PRODUCED.items()
        ]
        place = (self.cluster.target, str(self.folder))
        self.timed_reader = self._spawn("timed-read", "tests.soak.timed", "read", *place)
        self.timed_sender = self._spawn(
            "timed-send", "tests.soak.timed", "send", *place, str(self.timed), str(self.seconds)
        )
        self.programs.start()
        self.jobs = Jobs(self.cluster.target, self._seed)
        await self.jobs.start()
        self.slow_readers = [
            self._spawn(
                f"slow-readers-{broker.number}",
                "bench.slow_readers",
                broker.address,
                "kept",
                f"--partitions={PARTITIONS}",
                f"--readers={SLOW_READERS // BROKERS}",
                f"--bytes-per-s={SLOW_BYTES_PER_S}",
                "--until-killed",
            )
            for broker in self.cluster.brokers
        ]
        parquet = str(self.root / "parquet")
        self.plain = self._spawn("plain", "tests.soak.plain_reads", parquet, str(self.folder / "plain.jsonl"))

    def _spawn(self, name: str, module: str, *arguments: str) -> Child:
        return self.children.spawn(name, [sys.executable, "-m", module, *arguments])

    def _start_stream(self) -> Child:
        if not self.with_spark:
            return self._spawn(
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

    def _begin_again_with_the_stream(self) -> None:
        """Spark ends a query whose Python process takes ten seconds to start. On a busy machine
        that is no bug, and the query goes on from its checkpoint.
        """
        said = self.stream.text()
        if NOT_STARTED not in said:
            self.violations.append(Violation("stream ended", said[-1500:]))
            raise RuntimeError("the stream has ended")
        self.facts["stream_restarts"] += 1
        self.note("Spark could not start a Python process in time; the stream is started again")
        self.stream = self._start_stream()

    async def _keep_compacting(self) -> None:
        """Two rivals; one that was killed begins again, one that ended by itself is a bug."""
        names = ("compact-local", "compact-spark" if self.with_spark else "compact-rival")
        while not self._ending:
            for name in names:
                child = self.compactors.get(name)
                if child is not None and child.code is not None and child.code != -signal.SIGKILL:
                    self.violations.append(Violation("compactor ended", f"{child.log.name}: exit code {child.code}"))
                if child is None or child.code is not None:
                    engine = "spark" if name == "compact-spark" else "local"
                    command = [
                        *LEDGERMQ,
                        "compact",
                        self.store.direct_url,
                        "--every",
                        "2s",
                        "--engine",
                        engine,
                        "--output",
                        "json",
                    ]
                    self.compactors[name] = self.children.spawn(name, command, SPARK)
            await asyncio.sleep(1.0)

    async def _kill_brokers(self) -> None:
        while True:
            await asyncio.sleep(KILL_EVERY_S)
            broker = self._random.choice(self.cluster.brokers)
            await broker.kill()
            self.facts["kills"] += 1
            await asyncio.sleep(self._random.choice((0.0, 1.0, 5.0)))
            self.cluster.start(broker)

    async def _kill_compactor(self) -> None:
        """In turn; and once, in the middle, the stream with its whole session."""
        turn = 0
        while True:
            await asyncio.sleep(COMPACTOR_KILL_EVERY_S)
            turn += 1
            name = sorted(self.compactors)[turn % 3 == 0] if self.compactors else ""
            if name:
                await self.compactors[name].kill()
                self.facts["compactor_kills"] += 1
                self.note(f"{name} killed")
            if turn == max(1, round(self.seconds / COMPACTOR_KILL_EVERY_S / 2)):
                await self.stream.kill()
                self.stream = self._start_stream()
                self.note("the stream's driver killed and started again")

    async def _status(self) -> None:
        lag = 0
        while True:
            sizes = await asyncio.to_thread(sizes_of, self.root)
            total = sum(sizes.values())
            self.facts["bucket_bytes_max"] = max(self.facts["bucket_bytes_max"], total)
            self._check_memory()
            lag = await self._stream_lag(lag)
            self.facts["stream_lag_max"] = max(self.facts["stream_lag_max"], lag)
            pause = self.folder / "pause"
            full = max(total / BUCKET_BYTES_MAX, lag / (self.retention_s * STREAM_LAG_MAX_PER_S))
            if full > 1:
                pause.touch()
            elif full < 0.8:
                pause.unlink(missing_ok=True)
            if self.stream.code is not None and not self._ending:
                self._begin_again_with_the_stream()
            up = [broker.number for broker in self.cluster.brokers if broker.is_up]
            parts = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sorted(sizes.items()))
            read = (
                f"batches {lines(self.stream_file)}, {lag:,} records behind, plain reads"
                f" {lines(self.folder / 'plain.jsonl')}"
            )
            self.note(f"-- {parts}; brokers up {up}{', producers rest' if pause.exists() else ''}; {read}")
            await asyncio.sleep(STATUS_EVERY_S)

    def _check_memory(self) -> None:
        """Of each broker, with all the readers that take less than it has for them."""
        for broker in self.cluster.brokers:
            if broker.child is not None and broker.is_up:
                size = rss_bytes_of(broker.child.pid)
                self.facts["broker_bytes_max"] = max(self.facts["broker_bytes_max"], size)
                if size > self.broker_bytes_allowed:
                    self.violations.append(Violation("memory", f"{broker.name} takes {size >> 20} MiB"))
        for child in self.slow_readers:
            if child.code is not None and not self._ending:
                self.violations.append(Violation("slow readers ended", child.text()[-1000:]))

    async def _stream_lag(self, known: int) -> int:
        """Records; what was `known` while brokers are down."""
        try:
            async with asyncio.timeout(STATUS_EVERY_S), ledgermq.connect(self.cluster.target) as client:
                ends = {
                    (topic, number): end
                    for topic in TOPICS
                    for number, end in (await client.list_offsets(topic, "latest")).items()
                }
        except (LedgerMQError, TimeoutError):
            return known
        return sum(end - Witnesses.stream_end(self.stream_file, partition) for partition, end in ends.items())

    async def _end_producers(self) -> None:
        (self.folder / "pause").unlink(missing_ok=True)
        for producer in self.producers:
            producer.signal(signal.SIGTERM)
        for producer in self.producers:
            if await producer.ended(DRAIN_S_MAX) != 0:
                self.violations.append(Violation("producer", f"{producer.log.name}: {producer.text()[-1000:]}"))
        self.note("the producers have ended")

    async def _end_timed(self) -> None:
        """Until every timed message has come that is due by now, and what waited in hidden topics is freed."""
        self.timed_sender.signal(signal.SIGTERM)
        await self._ended_well(self.timed_sender, "timed sender")
        sent = Sent.load(self.folder)
        _, most = sent.waiting()
        limit_s = DRAIN_S_MAX + AFTER_S
        try:
            async with (
                asyncio.timeout(limit_s),
                ledgermq.connect(self.cluster.target, timeout_s=60) as client,
            ):
                while (waiting := await count_waiting(client)) > most:
                    self.note(f"{waiting:,} timed messages wait")
                    await asyncio.sleep(2.0)
        except TimeoutError:
            self.violations.append(Violation("stuck", f"timed messages wait after {limit_s:.0f} s"))
        else:
            self.violations += judge_waiting(sent, waiting)
            self.facts["timed_waiting"] = waiting
        self.timed_reader.signal(signal.SIGTERM)
        await self._ended_well(self.timed_reader, "timed reader")
        try:
            await until_freed(self.store.direct_url, limit_s)
        except TimeoutError:
            self.violations.append(Violation("stuck", f"delivered timed messages are not freed after {limit_s:.0f} s"))
        await asyncio.sleep(LOG_START_S)
        self.note("all timed messages have come")

    async def _ended_well(self, child: Child, name: str) -> None:
        """Count it as a violation if the process does not end, or fails. It ended by itself: the same."""
        try:
            code = await child.ended(DRAIN_S_MAX)
        except TimeoutError:
            self.violations.append(Violation("stuck", f"the {name} did not end within {DRAIN_S_MAX:.0f} s"))
            return
        if code != 0:
            self.violations.append(Violation(name, f"{child.log.name}: exit code {code}: {child.text()[-1000:]}"))

    async def _drain(self) -> None:
        """Until the stream has read all that there is."""
        async with ledgermq.connect(self.cluster.target) as client:
            self.ends = {
                (topic, number): end
                for topic in TOPICS
                for number, end in (await client.list_offsets(topic, "latest")).items()
            }
        (self.folder / "ends.json").write_text(json.dumps([[*partition, end] for partition, end in self.ends.items()]))
        try:
            async with asyncio.timeout(DRAIN_S_MAX):
                while any(
                    Witnesses.stream_end(self.stream_file, partition) < end for partition, end in self.ends.items()
                ):
                    await asyncio.sleep(2.0)
        except TimeoutError:
            self.violations.append(Violation("stuck", f"the stream is not at the end after {DRAIN_S_MAX:.0f} s"))
        self._ending = True
        self.note("the stream has read everything")

    async def _stop_all(self) -> None:
        for child in self.slow_readers:
            await child.kill()
        (self.folder / f"{self.stream_file.name}.stop").touch()
        self.plain.signal(signal.SIGTERM)
        for child in self.compactors.values():
            child.signal(signal.SIGTERM)
        for child in (self.stream, self.plain, *self.compactors.values()):
            try:
                code = await child.ended(STOP_S_MAX)
            except TimeoutError:
                self.violations.append(Violation("stuck", f"{child.log.name}: did not end within {STOP_S_MAX:.0f} s"))
                continue
            if code != 0:
                self.violations.append(
                    Violation("graceful stop", f"{child.log.name}: exit code {code}: {child.text()[-500:]}")
                )
        await asyncio.gather(*(self.cluster.stop(broker) for broker in self.cluster.brokers))
        self.note("everything has stopped")

    async def _clean_up(self) -> None:
        """What is left goes to Parquet; what is not needed goes, once the grace has passed."""
        self.violations += await compact_all(self.children, self.store.direct_url)
        self.facts["bucket_bytes_before_grace"] = sum(sizes_of(self.root).values())
        await asyncio.sleep(GRACE_S)
        for _ in range(2):
            self.violations += await compact_all(self.children, self.store.direct_url)
        found, verdict = await fsck(self.children, self.store.direct_url)
        self.violations += found
        if not verdict.startswith("clean"):
            self.violations.append(Violation("fsck", f"not clean at the end: {verdict}"))
        self.facts["program_kills"] = self.programs.kills
        self.facts["fsck"] = verdict
        sizes = sizes_of(self.root)
        self.facts["bucket_bytes_at_the_end"] = sizes
        self._judge_timed()
        witnesses = Witnesses.read(self.folder, list(PRODUCED))
        self.violations += await judge(
            witnesses, self.store.direct_url, self.root / "parquet", self.ends, sizes, self.facts
        )

    def _judge_timed(self) -> None:
        sent, came = Sent.load(self.folder), Came.load(self.folder)
        self.violations += judge_timed(sent, came)
        self.violations += judge_parquet(self.root / "parquet", came)
        self.facts["timed"] = {
            "acknowledged": int(np.count_nonzero(sent.acknowledged)),
            "came": int(np.count_nonzero(came.came)),
            "late_max_ms": came.late_max_ms,
            "told": sent.told,
        }


async def count_waiting(client: ledgermq.Client) -> int:
    return sum(bundle.messages for bundle in (await client.list_delayed(messages_max=0)).bundles)


async def until_freed(url: str, limit_s: float) -> None:
    """Wait until delivery has passed all that flushes left in memory: only then the log starts of intakes
    move, and segments go. Raises TimeoutError.
    """
    async with asyncio.timeout(limit_s), await open_store(url, sources=Sources()) as store:
        cluster = await read_cluster(store)
        while True:
            found, _ = await read_timers(store, cluster, Sources(), Problems().collecting, blocks=False)
            if all(one.state.intake_start() >= one.state.flushed.end_offset for one in found):
                return
            await asyncio.sleep(2.0)


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


@asynccontextmanager
async def _background(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Ends the work with the block; what fails in it fails the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def soak(seconds: float, folder: Path, seed: int, with_spark: bool, timed: int) -> bool:
    async with AsyncExitStack() as stack:
        run = SoakRun(seconds, folder, stack, seed, with_spark, timed)
        try:
            await run.run()
        except Exception as error:
            run.violations.append(Violation("crash", f"the run itself failed: {error!r}"))
            traceback.print_exc()
        print(json.dumps(run.facts, indent=2))
        (folder / "facts.json").write_text(json.dumps(run.facts, indent=2))
    for violation in run.violations[:30]:
        print(f"  {str(violation)[:800]}")
    print(f"{len(run.violations)} violations; logs are in {folder}" if run.violations else "clean")
    return not run.violations


def main() -> int:
    parser = argparse.ArgumentParser(description="Everything at once for a long time, and what is left of it.")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--without-spark", action="store_true", help="an SDK consumer for the stream, and both compactors local"
    )
    parser.add_argument(
        "--timed", type=int, help=f"timed messages, at most {MESSAGES_MAX:,}; else {A_SECOND} for each second"
    )
    parser.add_argument("--keep", action="store_true", help="keep the root and the logs of a clean run, too")
    chosen = parser.parse_args()
    timed = int(chosen.seconds * A_SECOND) if chosen.timed is None else chosen.timed
    if not 1 <= timed <= MESSAGES_MAX:
        parser.error(f"--timed is a number from 1 to {MESSAGES_MAX:,}, not {timed}")
    folder = Path(tempfile.mkdtemp(prefix="ledgermq-soak-"))
    clean = asyncio.run(soak(chosen.seconds, folder, chosen.seed, not chosen.without_spark, timed))
    if clean and not chosen.keep:
        shutil.rmtree(folder)
    return 0 if clean else 1


assert PROJECT.is_dir()

if __name__ == "__main__":
    sys.exit(main())
