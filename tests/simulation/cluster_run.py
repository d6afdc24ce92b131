"""Run level two, a whole cluster: brokers, SDK clients and rival compactors, all of the product,
over a faulty store and a faulty network.

At the end everything heals and all clients must end by themselves. A last reader drains every
partition, and a last compaction moves everything to Parquet. The results of every way of reading
are then compared with the truth that the watched store kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from ledgermq.client.client import Client
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import LedgerMQError, TopicExists
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.catalog import topic_key
from tests.judges.violation import Violation
from tests.simulation.ambush import NO_AMBUSH
from tests.simulation.checker import check
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.cluster_clients import (
    PARTITIONS,
    Churner,
    EndAsker,
    Keeper,
    Reader,
    Sender,
    SimulatedClient,
    note_polls,
)
from tests.simulation.cluster_plan import ClusterPlan, added_bundles_of, batch_by_of, cluster_plan_of
from tests.simulation.direct import readable
from tests.simulation.disturbances import Disturbances, fill_and_free
from tests.simulation.drain_watch import drain_one, drains
from tests.simulation.filter_watch import FilteringReader
from tests.simulation.future_watch import TOPIC as AHEAD
from tests.simulation.future_watch import WRONG_S, FutureSender, clocks_are_wrong, dated_ahead, future_settings
from tests.simulation.growth_watch import judge_growth, metadata_batches, numbers_of_bundles
from tests.simulation.history import FinalLog, LogStart, Outcome, Partition
from tests.simulation.load_watch import PARTITIONS as LOADED_PARTITIONS
from tests.simulation.load_watch import TOPIC as LOADED
from tests.simulation.load_watch import LoadWatch, SteadySender, loaded, with_more_bundles
from tests.simulation.lookup_watch import Seeker, looks_up
from tests.simulation.loop import Process, SimulatedLoop, State
from tests.simulation.network import Network
from tests.simulation.parquet_watch import ParquetWatch, judge_parquet
from tests.simulation.plan import RunPlan, plan_of
from tests.simulation.quota_watch import TOPIC as BOUNDED
from tests.simulation.quota_watch import Follower, QuotaWatch, quota_policy_of, quota_settings
from tests.simulation.result import Result, finish
from tests.simulation.retention_watch import RetentionWatch
from tests.simulation.roaming import TOPIC as ROAMING
from tests.simulation.roaming import Roaming, moves_left, roams, with_moves
from tests.simulation.stamp_watch import TOPIC as STAMPED
from tests.simulation.stamp_watch import StampWatch, stamped_of
from tests.simulation.store import NO_FAULTS
from tests.simulation.undelete_watch import GRACE_MS, REGRETTED, Regretter, Waverer, regrets
from tests.simulation.watch import ledger_log
from tests.simulation.world import World

T = TypeVar("T")
HEALING_S = 600.0
DRAIN_S = 600.0
LATE = "late"
"""A topic that is made after bundles were added."""
SETTLES_S = 15.0
"""Each broker has taken its share by then."""
OUTLIVED_EVERY_S, STANDS_STILL_S_MAX = 2.0, 10.0
REST_S = 90
"""A request of before the healing may take twice 30 seconds, and others wait for it."""


class ClusterRun:
    lasting: Sequence[str] = ("main", "brief")
    """Topics that are never removed: drained at the end, and compared with what plain readers find."""
    requests_factor = 2
    """How many times the requests of a plan with one ledger a run may take."""
    jump_s_max = 3600.0
    """How far clocks jump at most."""

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        self.world = World(loop, seed, lines_kept)
        self.plan: RunPlan = plan_of(seed)
        self.cluster: ClusterPlan = cluster_plan_of(seed)
        self.brokers: dict[str, ClusterBroker] = {}
        if type(self) is ClusterRun and loaded(seed):
            self.cluster = with_more_bundles(self.cluster)
        self._roaming: Roaming | None = None
        if type(self) is ClusterRun and roams(seed):
            self.cluster = with_moves(self.cluster)
            self.cluster.topic_settings[ROAMING] = dict(self.cluster.topic_settings["main"])
            self.lasting = [*self.lasting, ROAMING]
            self._roaming = Roaming(self.world, self.brokers, self.bundles)
        self._regrets = type(self) is ClusterRun and regrets(seed)
        if self._regrets:
            self.cluster.topic_settings[REGRETTED] = self.cluster.topic_settings["brief"] | {
                "topic.delete.grace.ms": GRACE_MS
            }
            self.lasting = [*self.lasting, REGRETTED]
        self.network = Network(self.world)
        self.watch = ParquetWatch(self.world)
        self.world.retention = RetentionWatch(self.world)
        self._compactors: dict[str, Process] = {}
        self._clients: list[SimulatedClient] = []
        self._filtering: list[FilteringReader] = []
        self._seekers: list[Seeker] = []
        self._incarnation = 0
        self._quota = self._quota_watch()
        self.world.stamps = self._stamp_watch()
        self._dates_ahead = self._date_ahead()

    def _quota_watch(self) -> QuotaWatch | None:
        """Return what watches a topic with a backlog quota, in runs that have one."""
        policy = quota_policy_of(self.world.seed) if type(self) is ClusterRun else ""
        if not policy:
            return None
        self.cluster.topic_settings[BOUNDED] = quota_settings(policy)
        self.lasting = [*self.lasting, BOUNDED]
        return QuotaWatch(self.world, policy)

    def _stamp_watch(self) -> StampWatch | None:
        """Return what watches timestamps, in runs in which brokers set them."""
        if type(self) is not ClusterRun or not stamped_of(self.world.seed):
            return None
        self.cluster.topic_settings[STAMPED]["message.timestamp.type"] = "LogAppendTime"
        for number in range(self.cluster.brokers if not self.cluster.is_s3 else 0):
            self.world.skew_us[f"b{number}"] = (number % 3 - 1) * 20_000_000
        return StampWatch(self.world)

    def _date_ahead(self) -> bool:
        """Prepare what a producer needs whose records are dated in the future, in runs that have one."""
        if type(self) is not ClusterRun or not dated_ahead(self.world.seed):
            return False
        self.cluster.topic_settings[AHEAD] = future_settings(self.cluster.topic_settings["main"])
        self.lasting = [*self.lasting, AHEAD]
        for number in range(self.cluster.brokers if clocks_are_wrong(self.world.seed) else 0):
            self.world.skew_us[f"b{number}"] = (number % 3 - 1) * WRONG_S * 1_000_000
        return True

    async def run(self) -> Result:
        with readable(self.world.store, self.world.coverage):
            return await self._run()

    async def _run(self) -> Result:
        world, plan = self.world, self.plan
        world.is_s3 = self.cluster.is_s3
        world.coverage.saw("a run on S3" if world.is_s3 else "a run on files")
        world.store.on_checkpoint, world.store.on_parquet = self._on_checkpoint, self._on_parquet
        for i in range(self.cluster.brokers):
            self._start(f"b{i}")
        await self._create_topics()
        for i in range(self.cluster.compactors):
            self._start(f"c{i}")
        work = self._start_clients()
        world.weather.faults, world.weather.slow, world.weather.list_page = plan.faults, plan.slow, plan.list_page
        world.net_delay_s_max, self.network.resets = plan.net_delay_s_max, self.cluster.resets
        world.weather.naps, world.weather.nap_s_max, world.weather.stalls = plan.naps, plan.pause_s_max, plan.stalls
        world.weather.ambush, world.weather.slow_s = plan.ambush, plan.slow_s
        disturbances = self._disturbances = Disturbances(world, plan, self._victims, self._start)
        disturbances.more = [self._stop, self._cut]
        # S3 refuses a client whose clock is an hour wrong
        disturbances.jump_s_max = 30.0 if self.cluster.is_s3 else self.jump_s_max
        hand = world.loop.in_world(disturbances.run())
        filling = world.loop.in_world(fill_and_free(world, plan.full))
        growing = world.loop.in_world(self._grow(work))
        roaming = world.loop.in_world(self._roaming.decide() if self._roaming is not None else asyncio.sleep(0))
        await world.go_on(self.cluster.seconds, self.requests_factor * plan.requests_max)
        hand.cancel()
        filling.cancel()
        growing.cancel()
        roaming.cancel()
        await asyncio.wait([growing])
        await self._heal(disturbances, work)
        if self._quota is not None:
            await self._press(self._quota)
        if type(self) is ClusterRun and drains(world.seed):
            client = self._plain_client("drainer")
            world.violations += await drain_one(world, self.brokers, client)
            await client.close()
        if type(self) is ClusterRun and loaded(world.seed):
            await self._load()
        await self._check_memory()
        drained = await self._drain()
        await self._filter_to_the_end()
        await self._compact_all()
        await self._check_bucket()
        self.world.violations += judge_growth(metadata_batches(self.world.store), self.cluster.settings.bundles)
        self._conclude(drained)
        return finish(world)

    def bundles(self) -> int:
        """Return the number of bundles in force."""
        return numbers_of_bundles(metadata_batches(self.world.store), self.cluster.settings.bundles)[-1]

    async def _grow(self, work: list[asyncio.Task[None]]) -> None:
        """Add bundles, and then a topic that lands in them, with programs that use it, in some runs."""
        added = added_bundles_of(self.world.seed)
        if not added:
            return
        client = self._plain_client("growth")
        try:
            await asyncio.sleep(self.cluster.seconds * 0.3 * self.world.random.random())
            await self._insist(lambda: client.add_bundles(added))
            self.world.coverage.saw("bundles were added")
            line = self.network.connector("growth", 10.0).connect("b0")
            await self._insist(lambda: line.add_bundles(pb.AddBundlesRequest(bundles=2)))  # fewer than there are
            while LATE not in self.world.topic_ids:
                try:
                    made = await client.create_topic(LATE, PARTITIONS, self.cluster.topic_settings["main"])
                except TopicExists:
                    made = await self._insist(lambda: client.describe_topic(LATE))
                except LedgerMQError:
                    await asyncio.sleep(0.5)
                    continue
                self.world.topic_ids[LATE] = made.topic_id
        finally:
            await client.close()
        self.lasting = [*self.lasting, LATE]
        for each in (
            Sender(self.world, self.network, self.cluster, "late", [LATE]),
            Reader(self.world, self.network, self.cluster, "late reader", [LATE]),
        ):
            self._clients.append(each)
            work.append(each.start())

    def _victims(self) -> list[Process]:
        return [broker.process for broker in self.brokers.values()] + list(self._compactors.values())

    def _start(self, name: str) -> None:
        self._incarnation += 1
        if name.startswith("b"):
            broker = self.brokers[name] = ClusterBroker(self.world, self.network, self.cluster, name, self._incarnation)
            broker.on_failed = lambda: self._disturbances.restart_later(broker.process)
        else:
            self._compactors[name] = self.world.start(name)
            self._compactors[name].spawn(self._compact(name, self._incarnation))

    def _stop(self, victim: Process) -> None:
        broker = self.brokers.get(victim.name)
        if broker is None:
            return
        self.world.note(victim.name, "is asked to stop")

        async def stop() -> None:
            task = victim.spawn(broker.stop())
            await asyncio.wait({task}, timeout=20.0)
            if victim.alive:  # not killed meanwhile: else it is started again for that
                victim.kill()
                await asyncio.sleep(1.0)
                self._start(victim.name)

        self._disturbances.later(0.0, stop)

    def _cut(self, victim: Process) -> None:
        other = self.world.random.choice(
            [name for name in sorted(self.brokers) if name != victim.name] + [c.name for c in self._clients]
        )
        self.world.note(victim.name, f"is cut off from {other}")
        self.world.coverage.saw("disturbance: network cut")
        self.network.cut(victim.name, other)
        self._disturbances.later(
            self.world.random.uniform(0, self.plan.pause_s_max), lambda: self.network.mend(victim.name, other)
        )

    async def _outlive_terms(self) -> None:
        """Now and then a broker stands still until another has claimed a bundle of it, and a moment more: it
        wakes with the questions that came meanwhile.
        """
        world = self.world
        while not world.healed:
            await asyncio.sleep(world.random.expovariate(1 / OUTLIVED_EVERY_S))
            victim = self.brokers[world.random.choice(sorted(self.brokers))].process
            if world.healed or victim.state is not State.RUNNING:
                continue
            claims, end_s = self._claims(), world.loop.time() + STANDS_STILL_S_MAX
            world.note(victim.name, "stands still until another has claimed what it has")
            victim.pause()
            while not world.healed and self._claims() == claims and world.loop.time() < end_s:
                await asyncio.sleep(0.1)
            await asyncio.sleep(world.random.uniform(0.2, 4.0))
            if self._claims() > claims:
                world.coverage.saw("a broker stood still until another had claimed")
            if victim.state is State.PAUSED:
                victim.resume()

    def _claims(self) -> int:
        segments = self.world.store.segments.values()
        return sum(index.kind == fmt.CLAIM for bundle in segments for index, _ in bundle.values())

    async def _create_topics(self) -> None:
        client = self._plain_client("setup")
        for name, settings in self.cluster.topic_settings.items():
            while name not in self.world.topic_ids:
                try:
                    made = await client.create_topic(name, PARTITIONS, settings)
                except TopicExists:
                    made = await client.describe_topic(name)
                self.world.topic_ids[name] = made.topic_id
        await client.close()

    def _plain_client(self, name: str) -> Client:
        brokers = [f"b{i}" for i in range(self.cluster.brokers)]
        return Client(
            self.network.connector(name, 10.0), brokers, ClientSettings(timeout_s=60.0), self.world.sources(name)
        )

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

    def _start_clients(self) -> list[asyncio.Task[None]]:
        world, network, plan = self.world, self.network, self.cluster
        topics = ["main", "brief"]
        self._filtering = [FilteringReader(world, network, plan, name) for name in ("picky", "choosy")]
        self._clients = [
            Sender(world, network, plan, "idem", topics),
            Sender(world, network, plan, "one", ["main"], window_batches=1),
            Sender(world, network, plan, "plain", topics, idempotent=False, batch_by=batch_by_of(world.seed)),
            Sender(world, network, plan, "quick", ["main"], acks="received", idempotent=False),
            Reader(world, network, plan, "reader", topics),
            Reader(world, network, plan, "other", ["main"]),
            EndAsker(world, network, plan, "ends", "main"),
            Churner(world, network, plan, "churn"),
            Keeper(world, network, plan, "keeper"),
            *self._filtering,
        ]
        if looks_up(world.seed):
            self._seekers = [Seeker(world, network, plan, "seeker")]
            self._clients += self._seekers
        if self._quota is not None:
            self._clients += [Sender(world, network, plan, "much", [BOUNDED]), Follower(world, network, plan, "behind")]
        if self._regrets:
            self._clients += [
                Sender(world, network, plan, "hopeful", [REGRETTED]),
                Regretter(world, network, plan, "regretter"),
                Waverer(world, network, plan, "waverer"),
            ]
        if self._dates_ahead:
            self._clients.append(FutureSender(world, network, plan, "dated ahead"))
        if self._roaming is not None:
            self._clients += [
                Sender(world, network, plan, "roamer", [ROAMING]),
                Sender(world, network, plan, "rover", [ROAMING], idempotent=False),
                Reader(world, network, plan, "follower", [ROAMING]),
            ]
        return [client.start() for client in self._clients]

    async def _compact(self, name: str, incarnation: int) -> None:
        store, sources = self.world.line(name), self.world.sources(f"{name} {incarnation}", clock=name)
        engine = LocalEngine(sources, run_inline)
        while not self.world.healed:
            await asyncio.sleep(sources.random.uniform(0, 4 * self.plan.compact_every_s))
            try:
                report = await compact_root(store, sources, engine)
            except LedgerMQError as error:
                self.world.note(name, f"compaction: {type(error).__name__} {error.message[:80]}")
                continue
            self.world.coverage.saw("a round was finished by a compactor", len(report.rounds))
            for bundle, error in report.failures.items():
                self.world.note(name, f"compaction of {bundle}: {type(error).__name__} {error.message[:80]}")

    def _on_parquet(self, changed: keys.ParquetName) -> None:
        self.watch.on_parquet(changed)
        self.world.retention.on_parquet(changed)

    def _on_checkpoint(self, checkpoint: fmt.Checkpoint) -> None:
        names = {topic_id: name for name, topic_id in self.world.topic_ids.items()}
        for part in checkpoint.partitions:
            if part.log_start and part.topic_id in names:
                self.world.history.add(
                    LogStart((f"{names[part.topic_id]}#{part.topic_id}", part.partition), part.log_start)
                )
        self.watch.on_checkpoint(checkpoint)
        self.world.retention.on_checkpoint(checkpoint)
        if self._quota is not None:
            self._quota.on_checkpoint(checkpoint)

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

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except LedgerMQError as error:
                self.world.note("drain", f"{type(error).__name__}: {error.message[:100]}")
                await asyncio.sleep(0.5)

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
        names = _topic_names(self.world)
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


def _topic_names(world: World) -> dict[int, str]:
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
