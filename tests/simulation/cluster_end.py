"""The end of a run of a whole cluster: all heals, clients end, a last reader and a last compaction see all that
there is, and what every way of reading has found is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from ledgermq.errors import LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.topic import topic_key
from tests.judges.violation import Violation
from tests.simulation.ambush import NO_AMBUSH
from tests.simulation.checker import check
from tests.simulation.cluster_clients import (
    PARTITIONS,
    Reader,
    note_polls,
)
from tests.simulation.cluster_processes import ClusterProcesses
from tests.simulation.disturbances import Disturbances
from tests.simulation.filter_watch import FilteringReader
from tests.simulation.history import FinalLog, Outcome, Partition
from tests.simulation.load_watch import PARTITIONS as LOADED_PARTITIONS
from tests.simulation.load_watch import TOPIC as LOADED
from tests.simulation.load_watch import LoadWatch, SteadySender
from tests.simulation.lookup_watch import Seeker
from tests.simulation.near_watch import PARTITIONS as NEAR_PARTITIONS
from tests.simulation.near_watch import TOPIC as NEAR
from tests.simulation.near_watch import NearWatch
from tests.simulation.parquet_watch import judge_parquet
from tests.simulation.quota_watch import QuotaWatch
from tests.simulation.roaming import Roaming, moves_left
from tests.simulation.store import NO_FAULTS
from tests.simulation.watch import ledger_log
from tests.simulation.world import World

HEALING_S = 600.0
DRAIN_S = 600.0
SETTLES_S = 15.0
"""Each broker has taken its share by then."""
REST_S = 90
"""A request of before the healing may take twice 30 seconds, and others wait for it."""


class ClusterEnd(ClusterProcesses):
    lasting: Sequence[str] = ("main", "brief")
    """Topics that are never removed: drained at the end, and compared with what plain readers find."""
    _filtering: Sequence[FilteringReader] = ()
    _seekers: Sequence[Seeker] = ()
    _roaming: Roaming | None = None
    _quota: QuotaWatch | None = None

    async def _work_off(self, group: str, failure: str) -> None:
        """Wait until a group has acknowledged all of its topic: all is well, and nothing more comes."""
        client = self._plain_client("lag")
        lags: object = None
        try:
            async with asyncio.timeout(HEALING_S):
                while True:
                    try:
                        lag = await client.groups.lag(group)
                        lags = {partition: lag[partition].messages for partition in lag}
                        if len(lag) >= PARTITIONS and not any(each.messages for each in lag.values()):
                            break
                    except LedgerMQError as error:
                        self.world.note("lag", f"{type(error).__name__} {error.message[:100]}")
                    await asyncio.sleep(1.0)
        except TimeoutError:
            text = f"{failure} after {HEALING_S:.0f} s of health: {lags}"
            self.world.violations.append(Violation("stuck", text))
        await client.close()

    async def _heal(self, disturbances: Disturbances, work: list[asyncio.Task[None]]) -> None:
        world = self.world
        world.weather.faults, world.weather.slow, world.weather.naps = NO_FAULTS, 0.0, 0.0
        self.network.resets = 0.0
        world.net_delay_s_max = 0.002
        world.weather.stalls, world.weather.ambush, world.weather.full = 0.0, NO_AMBUSH, 0.0
        world.weather.torn = False
        world.note("world", "heals")
        world.healed = True
        if self.cluster.is_s3:
            world.skew_us.clear()
        await disturbances.heal()
        for client in self._clients:
            client.stopped.set()
        await self._until_ended({client.name: task for task, client in zip(work, self._clients, strict=True)})

    async def _until_no_transaction_is_open(self, open_ones: Callable[[], Collection[str]]) -> None:
        """Nothing is left staged, pending or incomplete: transactions that no program ends time out."""
        end_s = asyncio.get_running_loop().time() + HEALING_S
        while left := open_ones():
            if asyncio.get_running_loop().time() > end_s:
                text = f"after {HEALING_S:.0f} s of health there is still {sorted(left)[:5]}"
                self.world.violations.append(Violation("hanging transaction", text))
                return
            await asyncio.sleep(10.0)

    async def _until_ended(self, tasks: Mapping[str, asyncio.Task[None]]) -> None:
        """Wait for clients that were stopped, by name."""
        _, waiting = await asyncio.wait(tasks.values(), timeout=HEALING_S)
        for name, task in tasks.items():
            if task in waiting:
                self.world.violations.append(
                    Violation("stuck", f"client {name} did not end within {HEALING_S:.0f} s of health")
                )
            elif (error := task.exception()) is not None:
                self.world.violations.append(Violation("bug", f"client {name} failed: {error!r}"))

    async def _drain(self) -> list[tuple[str, Partition]]:
        """A new reader reads everything that there is to read."""
        reader = Reader(self.world, self.network, self.cluster, "drain", [*self.lasting])
        drained: list[tuple[str, Partition]] = []
        state = "it does not know the ends"

        async def work() -> None:
            reader.client = self._plain_client("drain")
            consumer = reader.client.consumer([*self.lasting], auto_offset_reset="earliest", deliver_expired=True)
            nonlocal state
            await self._insist(consumer.wait_ready)
            partitions = [reader.partition(p.topic, p.partition) for p in consumer.assignment]
            ops = [self.world.history.ask_end("drain", partition) for partition in partitions]
            ends = await self._insist(consumer.end_offsets)
            for op, partition in zip(ops, consumer.assignment, strict=True):
                self.world.history.tell_end(op, ends[partition])
            while missing := [p for p, end in ends.items() if consumer.positions()[p] < end]:
                state = f"{[(p, consumer.positions()[p], ends[p]) for p in missing]} {consumer.last_error}"
                note_polls(reader, "drain", await self._insist(lambda: consumer.fetch(500, timeout=5.0)))
            drained.extend(("drain", partition) for partition in partitions)
            await reader.client.close()

        try:
            async with asyncio.timeout(DRAIN_S):
                await work()
        except TimeoutError:
            self.world.violations.append(
                Violation("stuck", f"the last reader is not at the end after {DRAIN_S:.0f} s of health: {state}")
            )
        return drained

    async def _filter_to_the_end(self) -> None:
        """Consumers with filters read on from where they were, up to the end."""
        for reader in self._filtering:
            reader.client = self._plain_client(f"{reader.name} at the end")
            if hangs := await reader.read_to_the_end():
                self.world.violations.append(Violation("stuck", f"a consumer with a filter is not at the end: {hangs}"))
            await reader.client.close()

    async def _press(self, quota: QuotaWatch) -> None:
        client = self._plain_client("pressing")
        try:
            async with asyncio.timeout(HEALING_S):
                await quota.press(client)
        except TimeoutError:
            quota.report("stuck", f"the group is not at the end after {HEALING_S:.0f} s of health")
        await client.close()

    async def _compact_all(self) -> None:
        sources = self.world.sources("last compaction")
        end_s = asyncio.get_running_loop().time() + HEALING_S
        moved = {LOADED} & set(self.lasting) | ({self._roaming.topic} if self._roaming is not None else set())
        while left := moves_left(self.world, sorted(moved)):
            if asyncio.get_running_loop().time() > end_s:
                self.world.violations.append(Violation("stuck", f"moves have not ended: {left}"))
                break
            await compact_root(self.world.line("last"), sources, LocalEngine(sources, run_inline))
            await asyncio.sleep(5.0)
        report = await compact_root(self.world.line("last"), sources, LocalEngine(sources, run_inline))
        for bundle, error in report.failures.items():
            self.world.violations.append(
                Violation("compaction fails", f"bundle {bundle}: {type(error).__name__} {error.message}")
            )

    async def _check_bucket(self) -> None:
        """`ledgermq fsck` finds nothing damaged, while the brokers go on."""
        store = self.world.line("last")
        checked = await check_root(store, await read_cluster(store), run_blocking=run_inline)
        for problem in checked.problems:
            if problem.severity is Severity.DAMAGE:
                self.world.violations.append(Violation("fsck", f"{problem.code} {problem.object_key}: {problem.text}"))

    async def _load(self) -> None:
        client = self._plain_client("loader")
        settings = self.cluster.topic_settings["main"]
        topic = await self._insist(lambda: client.create_topic(LOADED, LOADED_PARTITIONS, settings))
        await asyncio.sleep(SETTLES_S)
        topic = await self._insist(lambda: client.describe_topic(LOADED))
        self.world.topic_ids[LOADED] = topic.topic_id
        self.lasting = [*self.lasting, LOADED]
        sender = SteadySender(self.world, self.network, self.cluster, "steady", [LOADED])
        watch = LoadWatch(self.world, self.brokers, sender)
        operator = client if self.cluster.settings.background_compaction else None
        self.world.violations += await watch.watch(topic, operator)
        await client.close()

    async def _gather(self) -> None:
        client = self._plain_client("gatherer")
        settings = self.cluster.topic_settings["main"]
        topic = await self._insist(lambda: client.create_topic(NEAR, NEAR_PARTITIONS, settings))
        await asyncio.sleep(SETTLES_S)
        self.world.topic_ids[NEAR] = topic.topic_id
        self.lasting = [*self.lasting, NEAR]
        senders = {
            rack: SteadySender(self.world, self.network, self.cluster, f"near {rack}", [NEAR]) for rack in ("r0", "r1")
        }
        self.world.violations += await NearWatch(self.world, self.brokers, senders).watch(topic)
        await client.close()

    async def _check_memory(self) -> None:
        """At rest nothing is held for batches or answers on their way: what clients did not wait
        for is stored before the last look.
        """
        for broker in self.brokers.values():
            for _ in range(REST_S):
                context = broker.broker.context if broker.broker is not None else None
                batches, answers = (
                    (context.produce_memory.taken, context.answers.taken) if context is not None else (0, 0)
                )
                if not batches and not answers:
                    break
                await asyncio.sleep(1.0)
            else:
                held = f"{batches} bytes of batches and {answers} of answers"
                self.world.violations.append(
                    Violation("memory leaked", f"{broker.name} holds {held} though no client produces or reads")
                )

    def _conclude(self, drained: list[tuple[str, Partition]]) -> None:
        world = self.world
        logs = self._final_logs()
        world.violations += check(world.history, logs, drained)
        for reader in self._filtering:
            for session in reader.sessions:
                world.violations += session.judge(logs)
        for seeker in self._seekers:
            world.violations += seeker.judge(logs)
        if world.stamps is not None:
            world.violations += world.stamps.judge(self.bundles())
        lasting = {f"{topic}#{world.topic_ids[topic]}" for topic in self.lasting}
        world.violations += judge_parquet(world, logs, {partition for partition in logs if partition[0] in lasting})
        _cover(world, self.bundles())

    def _final_logs(self) -> dict[Partition, FinalLog]:
        store, logs = self.world.store, {}
        names = topic_names(self.world)
        for bundle in range(1, self.bundles()):
            starts = {
                PartitionId(p.topic_id, p.partition): p.log_start for p in store.newest_checkpoint(bundle).partitions
            }
            for (topic_id, number), records in sorted(ledger_log(store, bundle).items()):
                if self._quota is not None and keys.is_internal(names[topic_id]):
                    continue
                partition = f"{names[topic_id]}#{topic_id}", number
                log = FinalLog(records, starts.get(PartitionId(topic_id, number), 0))
                if partition in logs:  # it has moved
                    moves = Roaming(self.world, self.brokers, self.bundles, names[topic_id])
                    log = moves.together(number, logs[partition], log, bundle)
                logs[partition] = log
        return logs


def topic_names(world: World) -> dict[int, str]:
    """Id → name of every topic that there ever was, from the records of `__metadata` themselves."""
    names = {}
    for segment in world.store.history(keys.METADATA_BUNDLE):
        for offset, key, value in segment.records() if segment.valid else ():
            if value is not None and key.startswith(topic_key("")):
                record = fmt.TopicRecord.FromString(value)
                names[0 if record.name == keys.METADATA_TOPIC else record.topic_id or offset] = record.name
    return names


def _cover(world: World, bundles: int) -> None:
    for bundle in range(bundles):
        for segment in world.store.history(bundle):
            if not segment.valid:
                world.coverage.saw("a void segment")
            elif segment.index.kind == fmt.CLAIM:
                world.coverage.saw("a term was opened")
        world.coverage.saw("a plan was finished", world.store.newest_checkpoint(bundle).finished_plan)
    world.coverage.saw("an object was created again after it was deleted", len(world.store.created_again))
    for event in world.history:
        outcome = getattr(event, "outcome", None)
        if isinstance(outcome, Outcome):
            world.coverage.saw(f"a record's fate: {outcome.value}")
