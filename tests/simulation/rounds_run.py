"""Level two: rounds of Parquet compaction, on a store that refuses late puts as files do or as S3
does.

Rivals that plan, write, commit, trim, apply retention and collect garbage; topics that are deleted
and created again under the same name; everybody may sleep anywhere. No brokers: so a seed costs
little, and reaches what the level *cluster* meets once in hundreds.
"""

from __future__ import annotations

import asyncio

from ledgermq.errors import LedgerMQError
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import ClusterSettings, open_cluster
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.topics.removed import remove as remove_topics
from ledgermq_ledger.keys import ParquetName, PartitionId
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.catalog import read_catalog
from ledgermq_ledger.topics.topic import METADATA, encode_topic_record
from tests.judges.violation import Violation
from tests.simulation.ambush import NO_AMBUSH
from tests.simulation.checker import check
from tests.simulation.disturbances import Disturbances, fill_and_free
from tests.simulation.history import FinalLog, LogStart, Partition
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.merged_watch import MergedWatch, judge_merged
from tests.simulation.parquet_watch import ParquetWatch, judge_parquet
from tests.simulation.plan import plan_of
from tests.simulation.result import Result, finish
from tests.simulation.retention_watch import RetentionWatch
from tests.simulation.rounds_plan import BUNDLES, rounds_plan_of
from tests.simulation.rounds_processes import (
    CHURNED,
    LASTING,
    Compactor,
    Founder,
    Producer,
    TopicChanger,
    Worker,
    metadata_batch,
    topic_of,
)
from tests.simulation.store import NO_FAULTS
from tests.simulation.watch import ledger_log
from tests.simulation.world import World
from tests.worlds.ledgers import ledger_of

HEALING_S = 300.0
STRANGER = "parquet/_copied/half.parquet"


class RoundsRun:
    healing_s = HEALING_S

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        self.world = World(loop, seed, lines_kept)
        self.plan, self.rounds = plan_of(seed), rounds_plan_of(seed)
        self.world.is_s3 = self.rounds.is_s3
        self.watch = ParquetWatch(self.world)
        self.world.retention = RetentionWatch(self.world)
        self.merged = MergedWatch(self.world)
        self.workers: dict[str, Worker] = {}
        self.cluster: ClusterSettings
        self._names: dict[int, str] = {}
        self._incarnation = 0

    async def run(self) -> Result:
        world, plan = self.world, self.plan
        world.store.on_parquet, world.store.on_checkpoint = self._on_parquet, self._on_checkpoint
        world.store.on_merged = self._on_merged
        self.cluster = await open_cluster(world.store, world.sources("genesis"), self.rounds.cluster)
        await self._create_topics()
        for name in self._processes():
            self._start(name)
        for name, seconds in zip(sorted(self.workers), self.rounds.clocks_wrong_s, strict=False):
            world.skew_us[name] = round(seconds * 1e6)
        weather = world.weather
        weather.faults, weather.slow, weather.slow_s, weather.list_page = (
            plan.faults,
            plan.slow,
            plan.slow_s,
            plan.list_page,
        )
        weather.naps, weather.nap_s_max, weather.stalls, weather.ambush = (
            plan.naps,
            plan.pause_s_max,
            plan.stalls,
            self.rounds.ambush,
        )
        disturbances = Disturbances(world, plan, self._victims, self._start)
        disturbances.jump_s_max = self.rounds.clock_jump_s_max
        hand = world.loop.in_world(disturbances.run())
        filling = world.loop.in_world(fill_and_free(world, plan.full))
        await self._let_run()
        hand.cancel()
        filling.cancel()
        await self._heal(disturbances)
        if world.has_failed:
            return finish(world)
        async with asyncio.timeout(self.healing_s):
            await self._finish_all()
        await self._check_bucket()
        self._conclude()
        return finish(world)

    async def _let_run(self) -> None:
        await self.world.go_on(self.rounds.seconds, 2 * self.plan.requests_max)

    def _victims(self) -> list[Process]:
        return [worker.process for worker in self.workers.values()]

    def _start(self, name: str) -> None:
        self._incarnation += 1
        self.workers[name] = self._kind_of(name)(self.world, self.rounds, self.cluster, name, self._incarnation)

    def _processes(self) -> list[str]:
        return ["w", "t", *(f"c{i}" for i in range(self.rounds.compactors))]

    def _kind_of(self, name: str) -> type[Worker]:
        return {"w": Producer, "t": TopicChanger}.get(name, Compactor)

    async def _create_topics(self) -> None:
        world = self.world
        first = Founder(world, self.rounds, self.cluster, "setup", 0)
        await first.append(0, metadata_batch(METADATA.name, encode_topic_record(METADATA, creation=True)))
        for name in LASTING:
            record = encode_topic_record(topic_of(name, self.rounds), creation=True)
            world.topic_ids[name] = await first.append(0, metadata_batch(name, record))
        first.process.kill()
        world.store.create_now(STRANGER, [b"PAR1, half written by another program"])

    def _on_parquet(self, changed: ParquetName) -> None:
        self.watch.on_parquet(changed)
        self.world.retention.on_parquet(changed)

    def _on_merged(self, key: str) -> None:
        self.merged.on_merged(key)

    def _on_checkpoint(self, checkpoint: fmt.Checkpoint) -> None:
        for name in LASTING:
            topic_id = self.world.topic_ids.get(name)
            for part in checkpoint.partitions:
                if part.topic_id == topic_id and part.log_start:
                    self.world.history.add(LogStart((f"{name}#{topic_id}", part.partition), part.log_start))
        self.watch.on_checkpoint(checkpoint)
        self.world.retention.on_checkpoint(checkpoint)
        self.merged.on_checkpoint(checkpoint)

    async def _heal(self, disturbances: Disturbances) -> None:
        weather = self.world.weather
        weather.faults, weather.slow, weather.naps, weather.stalls, weather.ambush = NO_FAULTS, 0.0, 0.0, 0.0, NO_AMBUSH
        weather.full = 0.0
        self.world.note("world", "heals")
        self.world.healed = True
        self.world.skew_us.clear()
        await disturbances.heal()
        await asyncio.sleep(60.0)  # every worker ends its last step

    async def _finish_all(self) -> None:
        """All to Parquet, and every removed topic out of the way."""
        world = self.world
        last = TopicChanger(world, self.rounds, self.cluster, "last", 0)
        store, sources = world.line("last"), world.sources("last rounds", clock="last")
        engine = LocalEngine(sources, run_inline)
        while not world.has_failed:
            try:
                catalog = await read_catalog(ledger_of(store, 0, cluster=self.cluster))
                removals = await remove_topics(Compaction(store, self.cluster, sources, engine), catalog)
                for bundle, error in removals.failures.items():
                    world.note("last", f"bundle {bundle}: {type(error).__name__} {error.message[:100]}")
                for topic in removals.free:
                    await last.append(0, metadata_batch(topic.name, None))
                    world.freed.add(topic.id)
                report = await compact_root(store, sources, engine)
                for bundle, error in report.failures.items():
                    world.violations.append(
                        Violation("compaction fails", f"bundle {bundle}: {type(error).__name__} {error.message}")
                    )
                removed = [topic for topic in catalog.topics_by_name.values() if topic.removed]
                if not removed or report.failures:
                    return
            except LedgerMQError as error:
                world.note("last", f"{type(error).__name__} {error.message[:100]}")
            await asyncio.sleep(1.0)

    async def _check_bucket(self) -> None:
        checked = await check_root(self.world.line("last"), self.cluster, run_blocking=run_inline)
        damage = [problem for problem in checked.problems if problem.severity is Severity.DAMAGE]
        self.world.violations += [
            Violation("fsck", f"{problem.code} {problem.object_key}: {problem.text}") for problem in damage
        ]

    def _conclude(self) -> None:
        world = self.world
        self.watch.look_at_all()
        if not world.store.has(STRANGER):
            world.violations.append(Violation("a stranger's object deleted", STRANGER))
        logs = self._logs()
        world.violations += check(world.history, logs)
        lasting = {f"{name}#{world.topic_ids[name]}" for name in LASTING}
        world.violations += judge_parquet(
            world, logs, {partition for partition in self._whole(logs) if partition[0] in lasting}
        )
        parts = {
            PartitionId(part.topic_id, part.partition): part
            for bundle in range(1, BUNDLES)
            for part in world.store.newest_checkpoint(bundle).partitions
        }
        judge_merged(world, logs, parts)
        for bundle in range(BUNDLES):
            world.coverage.saw("a plan was finished", world.store.newest_checkpoint(bundle).finished_plan)
        world.coverage.saw("an object was created again after it was deleted", len(world.store.created_again))
        world.coverage.saw("a run on S3" if self.rounds.is_s3 else "a run on files")

    def _logs(self) -> dict[Partition, FinalLog]:
        """What the ledgers say of every topic."""
        world = self.world
        logs: dict[Partition, FinalLog] = {}
        names = {world.topic_ids[name]: name for name in LASTING}
        for bundle in range(1, BUNDLES):
            starts = {
                PartitionId(p.topic_id, p.partition): p.log_start
                for p in world.store.newest_checkpoint(bundle).partitions
            }
            for (topic_id, number), records in sorted(ledger_log(world.store, bundle).items()):
                name = f"{names.get(topic_id, CHURNED)}#{topic_id}"
                logs[name, number] = FinalLog(records, starts.get(PartitionId(topic_id, number), 0))
        return logs

    def _whole(self, logs: dict[Partition, FinalLog]) -> dict[Partition, FinalLog]:
        """Whose records have to be in Parquet at the end."""
        return logs
