"""`make chaos`: real brokers on a real store, a schedule of troubles from a seed, clients all
along, and a judge.

python -m tests.chaos.run --store minio --events 200 --seed 0 --seconds 800

Phases: begin; troubles; heal, so that every client comes to an end by itself; every timed message is due;
groups work off what is left; all transactions end; a last reader; graceful stops; the last compaction; a new
broker that knows nothing, a reader of all that is in Parquet, and what groups have committed; pyarrow; fsck;
judgement. Each has a bound.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.chaos.children import LEDGERMQ, Children, with_mutant
from tests.chaos.churner import Churner
from tests.chaos.cluster import ChaosCluster
from tests.chaos.failures import judge_failed, until_settled
from tests.chaos.groups import CASTS, FAILING, PROCESSORS, SENDERS, WRITERS, Cast, CommittedAsker
from tests.chaos.hands import Hands
from tests.chaos.judge import compact_all, fsck, judge_groups, judge_history, judge_logs, read_parquet
from tests.chaos.librdkafka.sends import add_diaries
from tests.chaos.librdkafka.sends import told_of as told_of_senders
from tests.chaos.measures import Measures
from tests.chaos.members import Members
from tests.chaos.mover import ENDED_S_MAX as MOVES_ENDED_S_MAX
from tests.chaos.mover import Mover
from tests.chaos.plain_reader import PlainReader
from tests.chaos.queues import QueueWorker
from tests.chaos.schedule import Trouble, schedule
from tests.chaos.stores import STORES, ChaosStore, FolderStore
from tests.chaos.sync_program import SyncProgram
from tests.chaos.timed import TimedMessage, TimedSender, judge_timed, told_of, until_delivered
from tests.chaos.transaction_judge import add_sends, judge_transactions, until_over
from tests.chaos.workload import (
    CLOSE_S_MAX,
    PARTITIONS,
    TOPICS,
    ChaosClient,
    EndAsker,
    OwnerWatch,
    Reader,
    Sender,
    Workload,
)
from tests.judges.violation import Violation
from tests.simulation.history import Partition
from tests.simulation.queues_truth import QueuesTruth

BROKERS = 3
WARM_UP_S = 3.0
HEAL_S_MAX = CLOSE_S_MAX + 30.0
DRAIN_S_MAX = 180.0
OVER_S_MAX = 90.0
"""Time for transactions that were left open to end, and for what was staged to be freed."""
STATUS_EVERY_S = 20.0
QUEUE_WORKERS = ("hand 0", "hand 1", "hand 2")
LAST = {*QUEUE_WORKERS, "mover"}
"""Clients that end after the groups: the queue gets what transactional members still write, and a move ends when
compaction has passed it.
"""
VIOLATIONS_SHOWN = 20
HAPPENED = "happened.txt"
"""In the folder of the logs: all that a run printed while it went on."""


class ChaosRun:
    def __init__(
        self, kind: str, seed: int, command: tuple[str, ...], folder: Path, stack: AsyncExitStack, cast: Cast
    ) -> None:
        self.cast = cast
        self.children = Children(folder)
        stack.callback(self.children.close)
        self.kind, self.seed, self.folder, self.stack = kind, seed, folder, stack
        self.troubles: tuple[Trouble, ...] = ()
        self.store: ChaosStore = (
            FolderStore(folder) if kind == "file" else STORES[kind](folder, self.children, stack, seed)
        )
        self.cluster = ChaosCluster(self.children, self.store, self.note, command, is_kafka=cast.is_kafka)
        self.violations: list[Violation] = []
        self.timed: list[TimedMessage] = []
        self.queues = QueuesTruth()
        self._happened = stack.enter_context((folder / HAPPENED).open("w"))
        self.verdict = ""
        self._begun_s = asyncio.get_running_loop().time()

    def note(self, text: str) -> None:
        line = f"[{self.kind} {asyncio.get_running_loop().time() - self._begun_s:6.1f}] {text}"
        print(line, flush=True)
        print(line, flush=True, file=self._happened)

    async def run(self) -> None:
        await self._begin()
        async with _background(self.cluster.keep_running(), self.members.keep_running(), self._status()):
            await self._trouble()
            drained = await self._read_to_the_end("drain")
        await self._judge(drained)
        self.violations += [
            *self.work.violations,
            *self.cluster.violations,
            *self.members.violations,
            *judge_logs(self.folder),
        ]

    async def _begin(self) -> None:
        await self.store.start()
        await self.cluster.prepare(BROKERS, self.stack, self.seed)
        for broker in self.cluster.brokers:
            self.cluster.start(broker)
        await self.cluster.ready(self.cluster.brokers)
        self.measures = Measures(asyncio.get_running_loop().time())
        self.work = Workload(self.cluster.target, self.seed, self.measures)
        self.plain = PlainReader(*self.store.parquet_folder())
        self.owners = OwnerWatch(self.work)
        self.committed = CommittedAsker(self.work, self.cast.groups)
        target = self.cluster.kafka_target if self.cast.is_kafka else self.cluster.target
        self.members = Members(self.children, target, self.seed, self.cast)
        self.hands = Hands(self.cluster, self.store, self.children, self.members, self.measures, self.owners, self.note)
        async with self.work.connect() as client:
            for name, settings in TOPICS.items():
                await client.create_topic(name, PARTITIONS, settings)
        for member in self.members.places:
            self.members.start(member)
        self.note(f"{BROKERS} brokers are up, logs in {self.folder}")

    def _clients(self) -> dict[str, ChaosClient]:
        topics = list(TOPICS)
        both: dict[str, ChaosClient] = {
            "piped": Sender(self.work, "piped", topics, 60),
            "reader": Reader(self.work, "reader", topics),
            "ends": EndAsker(self.work, topics),
            "owners": self.owners,
            "committed": self.committed,
            "churner 0": Churner(self.work, "temp-0"),
            "mover": Mover(self.work, topics),
        }
        if self.cast.is_kafka:
            return both
        return both | {
            "one": Sender(self.work, "one", ["main"], 20, window_batches=1, linger_ms=0),
            "packed": Sender(self.work, "packed", topics, 40, compression="zstd", linger_ms=50),
            "plain": Sender(self.work, "plain", topics, 20, idempotent=False),
            "quick": Sender(self.work, "quick", ["main"], 20, acks="received", idempotent=False),
            "other": Reader(self.work, "other", ["main"]),
            "churner 1": Churner(self.work, "temp-1"),
            "synchronous": SyncProgram(self.work, "synchronous"),
            "late 0": TimedSender(self.work, "late0", 30, self.timed),
            "late 1": TimedSender(self.work, "late1", 10, self.timed),
            **{name: QueueWorker(self.work, name, self.queues) for name in QUEUE_WORKERS},
        }

    async def _trouble(self) -> None:
        tasks = {asyncio.create_task(client.run(), name=name) for name, client in self._clients().items()}
        tasks.add(asyncio.create_task(self.plain.run(self.work), name="plain reader"))
        try:
            await asyncio.sleep(WARM_UP_S)
            await self.hands.carry_out(self.troubles)
            self.note("all troubles are over")
            try:
                await self.cluster.ready(self.cluster.brokers)
            except TimeoutError as error:
                self.violations.append(Violation("stuck", f"in good health: {error}"))
            await asyncio.sleep(WARM_UP_S)
            self.work.stopped.set()
            last = {task for task in tasks if task.get_name() in LAST}
            await self._end(tasks - last, HEAL_S_MAX)
            self.violations += await until_delivered(self.work)
            self.note("no timed message waits")
            await self._work_off()
            await self._end(last, MOVES_ENDED_S_MAX + HEAL_S_MAX)
            self.violations += await until_over(self.cluster.target, self.store.direct_url, OVER_S_MAX)
            self.note("all transactions are over")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self, tasks: set[asyncio.Task[None]], seconds_max: float) -> None:
        if not tasks:
            return
        done, waiting = await asyncio.wait(tasks, timeout=seconds_max)
        for task in waiting:
            self.violations.append(
                Violation("stuck", f"client {task.get_name()} did not end within {seconds_max:.0f} s of health")
            )
        for task in done:
            if task.exception() is not None:
                self.violations.append(Violation("bug", f"client {task.get_name()} failed: {task.exception()!r}"))
        names = ", ".join(sorted(task.get_name() for task in tasks))
        self.note(f"{names}: all have ended" if not waiting else "some clients are stuck")

    async def _work_off(self) -> None:
        """The programs that write end, and the members of each group come to the end and leave."""
        writers = [place for place in self.members.places if place.role in (*WRITERS, SENDERS)]
        await asyncio.gather(*(self.members.stop(place) for place in writers))
        self.violations += await self.committed.work_off(HEAL_S_MAX)
        if FAILING in self.cast.groups:
            self.violations += await until_settled(self.work, HEAL_S_MAX)
        await asyncio.gather(*(self.members.stop(place) for place in self.members.places if place not in writers))
        self.note("the members of all groups have left")

    async def _read_to_the_end(self, name: str) -> list[tuple[str, Partition]]:
        """A new reader reads everything that there is to read."""
        reader = Reader(self.work, name, list(TOPICS))
        state = "it has not begun"
        try:
            async with asyncio.timeout(DRAIN_S_MAX), self.work.connect() as client:
                consumer = client.consumer(list(TOPICS), auto_offset_reset="earliest")
                try:
                    await reader.drain(consumer, client, name)
                finally:
                    state = f"{consumer.positions()} {consumer.last_error}"
                self.log_starts = {
                    (topic, number): offset
                    for topic in TOPICS
                    for number, offset in (await client.list_offsets(topic, "earliest")).items()
                }
        except TimeoutError:
            self.violations.append(
                Violation("stuck", f"reader {name} is not at the end after {DRAIN_S_MAX:.0f} s of health: {state}")
            )
            return []
        self.note(f"reader {name} has read everything")
        return [(name, (topic, number)) for topic in TOPICS for number in range(PARTITIONS)]

    async def _judge(self, drained: list[tuple[str, Partition]]) -> None:
        await asyncio.gather(*(self.cluster.stop(broker) for broker in self.cluster.brokers))
        self.violations += await compact_all(self.children, self.store.direct_url)
        new = self.cluster.brokers[0]
        self.cluster.start(new, "--no-background-compaction")
        await self.cluster.ready([new])
        drained += await self._read_to_the_end("cold")
        self.violations += await self.committed.work_off(DRAIN_S_MAX)
        if FAILING in self.cast.groups:
            self.failed = await judge_failed(self.work, self.members.diaries(FAILING))
            self.violations += self.failed.violations
        await self.cluster.stop(new)
        parquet, found = await read_parquet(self.plain)
        self.violations += found
        damage, self.verdict = await fsck(self.children, self.store.direct_url)
        self.violations += damage
        made = self.members.attempts()
        add_diaries(self.work.history, self.work.sent_ms, self.members.diaries(SENDERS))
        add_sends(self.work.history, made)
        if drained:
            self.violations += judge_history(self.work, parquet, self.log_starts, drained)
        committed = self.committed.newest(PROCESSORS)
        self.violations += judge_transactions(made, parquet, self.work.seen_ns, committed)
        self.violations += judge_timed(self.timed, parquet, self.work.timed_seen_us)
        self.violations += self.queues.judge({number: range(start) for number, start in self.queues.starts.items()})
        self.told_of_transactions = Counter(attempt.sent.told for attempt in made)
        self.violations += judge_groups(self.members, self.committed.told, parquet)
        self.stored = sum(len(records) for records in parquet.values())

    async def _status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            up = [broker.number for broker in self.cluster.brokers if broker.is_up]
            self.note(f"-- {self.measures.acknowledged} acknowledged, {self.measures.read} read, brokers up: {up}")

    def report(self) -> list[str]:
        lines = self.measures.report()
        lines.append(
            f"plain reader: {dict(self.plain.looks)}; {self.cluster.starts} broker starts, {self.cluster.failed_starts}"
            " failed"
        )
        lines.append(f"groups: {self.members.figures()}; {len(self.committed.told)} times told what is committed")
        if FAILING in self.cast.groups:
            lines.append(self.failed.report)
        else:
            lines.append(f"producers that are processes: {told_of_senders(self.members.diaries(SENDERS))}")
        told = self.told_of_transactions
        lines.append(
            f"transactions: {told[True]} acknowledged, {told[False]} aborted or never decided, {told[None]} unknown"
        )
        lines.append(told_of(self.timed))
        lines.append(f"queue: {self.queues.figures()}")
        lines.append(
            f"{self.stored} records in Parquet, all read with pyarrow; fsck: {self.verdict}; at most"
            f" {self.hands.late_s_max:.0f} s late"
        )
        return lines


@asynccontextmanager
async def _background(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome


async def run_one(
    kind: str,
    events: int,
    seed: int,
    seconds: float,
    folder: Path,
    command: tuple[str, ...] = LEDGERMQ,
    clients: str = "ledgermq",
) -> bool:
    """Prints; whether it was clean. `folder` takes logs and root."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asyncio.current_task().cancel)  # type: ignore[union-attr]
    async with AsyncExitStack() as stack:
        run = ChaosRun(kind, seed, command, folder, stack, CASTS[clients])
        run.troubles = schedule(seed, events, seconds, BROKERS, len(run.cast.members), run.store.kinds)
        try:
            await run.run()
        except Exception as error:
            run.violations.append(Violation("crash", f"the run itself failed: {error!r}"))
            traceback.print_exc()
        else:
            print("\n".join(run.report()))
    if not run.violations:
        return True
    print(f"\n{kind}, seed {seed}: {len(run.violations)} violations")
    for violation in run.violations[:VIOLATIONS_SHOWN]:
        print(f"  {str(violation)[:600]}")
    print(f"the troubles so far are in {folder}/{HAPPENED}, the logs of the processes beside it")
    again = f"STORE={kind} CLIENTS={clients} EVENTS={events} SEED={seed} SECONDS={seconds:g}"
    print(f"again: make chaos {again}", flush=True)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Kill, pause and cut off real brokers and judge what their clients saw."
    )
    parser.add_argument("--store", choices=("file", *STORES, "all"), default="all", help="all: file and minio")
    parser.add_argument("--clients", choices=tuple(CASTS), default="ledgermq", help="the programs that are processes")
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="how long the troubles last; by default four seconds for each")
    parser.add_argument("--mutant", help="plant this mutant of the simulation: the run has to fail")
    chosen = parser.parse_args()
    command = with_mutant(chosen.mutant) if chosen.mutant else LEDGERMQ
    seconds = chosen.seconds or 4.0 * chosen.events
    clean = True
    for kind in ("file", "minio") if chosen.store == "all" else (chosen.store,):
        folder = Path(tempfile.mkdtemp(prefix=f"ledgermq-chaos-{kind}-"))
        try:
            ok = asyncio.run(run_one(kind, chosen.events, chosen.seed, seconds, folder, command, chosen.clients))
        except asyncio.CancelledError:
            print(f"interrupted; logs are in {folder}")
            return 130
        if ok:
            shutil.rmtree(folder)
        clean = clean and ok
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
