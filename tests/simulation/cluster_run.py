"""Run level two, a whole cluster: brokers, SDK clients and rival compactors, all of the product,
over a faulty store and a faulty network.

At the end everything heals and all clients must end by themselves. A last reader drains every
partition, and a last compaction moves everything to Parquet. The results of every way of reading
are then compared with the truth that the watched store kept.
"""

from __future__ import annotations

import asyncio

from ledgermq.errors import LedgerMQError, TopicExists
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from tests.simulation.cluster_clients import (
    PARTITIONS,
    Churner,
    EndAsker,
    Keeper,
    Reader,
    Sender,
)
from tests.simulation.cluster_end import ClusterEnd
from tests.simulation.cluster_plan import added_bundles_of, batch_by_of
from tests.simulation.direct import readable
from tests.simulation.disturbances import Disturbances, fill_and_free
from tests.simulation.drain_watch import drain_one, drains
from tests.simulation.filter_watch import FilteringReader
from tests.simulation.future_watch import TOPIC as AHEAD
from tests.simulation.future_watch import WRONG_S, FutureSender, clocks_are_wrong, dated_ahead, future_settings
from tests.simulation.growth_watch import judge_growth, metadata_batches
from tests.simulation.history import LogStart
from tests.simulation.load_watch import loaded, with_more_bundles
from tests.simulation.lookup_watch import Seeker, looks_up
from tests.simulation.loop import SimulatedLoop
from tests.simulation.near_watch import near, rack_of, with_racks
from tests.simulation.parquet_watch import ParquetWatch
from tests.simulation.quota_watch import TOPIC as BOUNDED
from tests.simulation.quota_watch import Follower, QuotaWatch, quota_policy_of, quota_settings
from tests.simulation.result import Result, finish
from tests.simulation.retention_watch import RetentionWatch
from tests.simulation.roaming import TOPIC as ROAMING
from tests.simulation.roaming import Roaming, roams, with_moves
from tests.simulation.stamp_watch import TOPIC as STAMPED
from tests.simulation.stamp_watch import StampWatch, stamped_of
from tests.simulation.undelete_watch import GRACE_MS, REGRETTED, Regretter, Waverer, judge_removals, regrets

LATE = "late"
"""A topic that is made after bundles were added."""


class ClusterRun(ClusterEnd):
    requests_factor = 2
    """How many times the requests of a plan with one ledger a run may take."""
    jump_s_max = 3600.0
    """How far clocks jump at most."""

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        if type(self) is ClusterRun and loaded(seed):
            self.cluster = with_more_bundles(self.cluster)
        if type(self) is ClusterRun and near(seed):
            self.cluster = with_racks(self.cluster)
            self.network.rack_of = rack_of
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
        self.watch = ParquetWatch(self.world)
        self.world.retention = RetentionWatch(self.world)
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
        if type(self) is ClusterRun and near(world.seed):
            await self._gather()
        await self._check_memory()
        drained = await self._drain()
        await self._filter_to_the_end()
        await self._compact_all()
        await self._check_bucket()
        self.world.violations += judge_growth(metadata_batches(self.world.store), self.cluster.settings.bundles)
        self.world.violations += judge_removals(metadata_batches(self.world.store))
        self._conclude(drained)
        return finish(world)

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
