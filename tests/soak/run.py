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
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import ledgermq
from bench.ours import rss_bytes_of
from ledgermq.errors import LedgerMQError
from tests.chaos.children import LEDGERMQ, PROJECT
from tests.chaos.judge import judge_logs
from tests.chaos.transaction_judge import until_over
from tests.judges.violation import Violation
from tests.soak.end import DRAIN_S_MAX, SoakEnd
from tests.soak.full_disk import FullDisk
from tests.soak.jobs import Jobs
from tests.soak.numbered import TIMED
from tests.soak.timed import A_SECOND, MESSAGES_MAX
from tests.soak.timed import PARTITIONS as TIMED_PARTITIONS
from tests.soak.transactor import MOVED, PARTITIONS, SOURCE, WHOLE
from tests.soak.verdict import Witnesses
from tests.soak.world import PRODUCED, SPARK, TOPICS, lines, sizes_of

BROKERS = 3
SLOW_READERS, SLOW_BYTES_PER_S = 1000, 1000
"""On all brokers together; each takes so much a second, and holds its place in line for the rest of
the time.
"""
KILL_EVERY_S = 20.0
COMPACTOR_KILL_EVERY_S = 75.0
STATUS_EVERY_S = 20.0
STREAM_UP_S_MAX = 600.0
BUCKET_BYTES_MAX = 8_000_000_000
"""Above this the producers rest: compaction, retention and the stream share two cores with them."""
STREAM_LAG_MAX_PER_S = 4_000
"""Records that the stream has not read, for each second of retention; above this they rest, too, or
retention would rightly take what it has not come to."""


class SoakRun(SoakEnd):
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
            await self._create_topics(client)
        self.note(f"{BROKERS} brokers are up, logs in {self.logs}; retention of brief: {self.retention_s:.0f} s")
        self.stream_file = self.folder / "stream.jsonl"
        self.stream = self.start_stream()
        async with asyncio.timeout(STREAM_UP_S_MAX):
            while not lines(self.stream_file):  # its first batch says where it began
                if self.stream.code is not None:
                    self.begin_again_with_the_stream()
                await asyncio.sleep(0.5)
        await self._start_programs()

    async def _create_topics(self, client: ledgermq.Client) -> None:
        often = {"parquet.target.bytes": 4_000_000, "parquet.max.lag.ms": 10_000}
        for topic in (SOURCE, WHOLE, MOVED):
            await client.create_topic(topic, PARTITIONS, often)
        brief = {
            "parquet.target.bytes": 32_000_000,
            "parquet.max.lag.ms": 20_000,
            "retention.ms": int(self.retention_s * 1000),
        }
        await client.create_topic("brief", PRODUCED["brief"][0], brief)
        await client.create_topic(TIMED, TIMED_PARTITIONS, often)

    async def _start_programs(self) -> None:
        self.producers = [
            self.spawn(
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
        self.timed_reader = self.spawn("timed-read", "tests.soak.timed", "read", *place)
        self.timed_sender = self.spawn(
            "timed-send", "tests.soak.timed", "send", *place, str(self.timed), str(self.seconds)
        )
        self.programs.start()
        self.jobs = Jobs(self.cluster.target, self.seed)
        await self.jobs.start()
        self.slow_readers = [
            self.spawn(
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
        self.plain = self.spawn("plain", "tests.soak.plain_reads", parquet, str(self.folder / "plain.jsonl"))

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
                self.stream = self.start_stream()
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
                self.begin_again_with_the_stream()
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
