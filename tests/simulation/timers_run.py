"""Run level *timers*, timed messages on a whole cluster: senders, recalls, topics that come and go, clocks that
are wrong by days, and every disturbance of level *cluster*.

In half of the runs others send timed messages in transactions, which they commit, abort, prepare or leave open.

At the end everything heals, and all due times pass. Then nothing may wait any longer, and what is visible is
compared with what was sent, recalled, decided and told.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from ledgermq.client.client import Client
from ledgermq.errors import TopicExists
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from tests.judges.violation import Violation
from tests.simulation.branch_clients import Resolver
from tests.simulation.cluster_clients import Reader, Sender, SimulatedClient
from tests.simulation.cluster_end import HEALING_S, topic_names
from tests.simulation.cluster_run import ClusterRun
from tests.simulation.history import FinalLog, Partition
from tests.simulation.killed_owners import KilledOwners, kills_owners
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.result import Result
from tests.simulation.timers_clients import (
    TEMPORARY,
    TOPICS,
    Looker,
    Recaller,
    Shared,
    TimedManager,
    TimedSender,
    TimedTransactor,
    TimersChurner,
    TimersClient,
)
from tests.simulation.timers_judge import judge, judge_together
from tests.simulation.timers_plan import scaled, timers_plan_of
from tests.simulation.timers_rows import LogStarts, TimersTruth
from tests.simulation.timers_truth import timers_truth
from tests.simulation.transactions_clients import Shared as SharedTogether
from tests.simulation.transactions_plan import transactions_plan_of
from tests.simulation.transactions_truth import TransactionTruth, transaction_truth
from tests.simulation.transactions_truth import judge as judge_transactions

KINDS: dict[str, type[TimersClient]] = {"s": TimedSender, "r": Recaller}
"""By the first letter of a client's name; these are killed and come back."""
TOGETHER: dict[str, type[TimedTransactor | TimedManager]] = {"t": TimedTransactor, "x": TimedManager}
"""Those that send in transactions."""
SHARED_ID = "timed"
LOOKS_EVERY_S = 5.0
ROUNDS_MAX = 20
STORM_EVERY_S, STORM_S_MAX = 1.5, 1.5


class TimersRun(ClusterRun):
    lasting = TOPICS
    jump_s_max = 5 * 86400.0

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self.own = timers_plan_of(seed)
        self.together = transactions_plan_of(seed)
        settings = self.cluster.settings
        if self.own.outlives:  # so that it is soon taken for gone
            settings = settings.model_copy(update={"heartbeat_interval_ms": 200})
        self.cluster = replace(
            self.cluster,
            seconds=min(self.cluster.seconds, 30.0),
            settings=settings,
            topic_settings=self.cluster.topic_settings | {"timed": self.cluster.topic_settings["main"]},
            constants=replace(
                self.cluster.constants,
                limits=(self.own.limits, self.together.limits),
                carry_slots=self.together.carry_slots,
            ),
        )
        if self.own.skew_s and not self.cluster.is_s3:
            for number in range(self.cluster.brokers):
                self.world.skew_us[f"b{number}"] = round(self.world.random.uniform(-1, 1) * self.own.skew_s * 1e6)
        self._shared, self._shared_together = Shared(), SharedTogether()
        self._members: dict[str, SimulatedClient] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._log_starts: dict[int, list[LogStarts]] = {}

        if kills_owners(seed):
            self.world.store.on_segment = KilledOwners(self.world, self.brokers, self._back).stored

    async def run(self) -> Result:
        with scaled(self.own):
            return await super().run()

    def _start_clients(self) -> list[asyncio.Task[None]]:
        world, network, plan = self.world, self.network, self.cluster
        self._clients = [
            Sender(world, network, plan, "idem", ["main", "timed"]),
            Reader(world, network, plan, "reader", [*TOPICS]),
            TimersChurner(world, network, plan, self.own, self._shared, "churn"),
            Looker(world, network, plan, self.own, self._shared, "looker"),
        ]
        if self.own.outlives:
            world.loop.in_world(self._outlive_terms())
        if self.own.storms:
            world.loop.in_world(self._storms())
        for number in range(self.own.senders):
            self._start(f"s{number}")
        self._start("r0")
        self._start("r1")
        for number in range(self.own.transactors):
            self._start(f"t{number}")
        for name in ("x0", "y0", "y1") if self.own.transactors else ():
            self._start(name)
        return [client.start() for client in self._clients]

    def _start(self, name: str) -> None:
        if name[0] not in {*KINDS, *TOGETHER, "y"}:
            super()._start(name)
            return
        self._incarnation += 1
        member = self._members[name] = self._made(name)
        self._tasks[name] = member.start()

    def _made(self, name: str) -> SimulatedClient:
        place = self.world, self.network, self.cluster
        if name[0] in KINDS:
            return KINDS[name[0]](*place, self.own, self._shared, name, self._incarnation)
        transactional_id = SHARED_ID if name[0] == "t" else name
        about = *place, self.together, self._shared_together, name, transactional_id, self._incarnation
        return Resolver(*about) if name[0] == "y" else TOGETHER[name[0]](self.own, *about)

    async def _storms(self) -> None:
        """Now and then the store refuses a put while one below it is under way: what the log has appended fails,
        and the bundle's timed messages are loaded again beside a block that is not durable yet (W14).
        """
        world, weather, r = self.world, self.world.weather, random.Random(f"storms {self.world.seed}")
        while not world.healed:
            world.coverage.saw("disturbance: slow and full store", weather.torn)
            await asyncio.sleep(r.uniform(0, STORM_S_MAX) if weather.torn else r.expovariate(1 / STORM_EVERY_S))
            weather.torn = not weather.torn and not world.healed

    def _back(self, process: Process, seconds: float) -> None:
        self._disturbances.later(seconds, lambda: self._start(process.name))

    def _victims(self) -> list[Process]:
        return super()._victims() + [member.process for member in self._members.values()]

    def _on_checkpoint(self, checkpoint: fmt.Checkpoint) -> None:
        super()._on_checkpoint(checkpoint)
        starts = {PartitionId(p.topic_id, p.partition): p.log_start for p in checkpoint.partitions if p.log_start}
        moment = len(self.world.store.first) - 1
        self._log_starts.setdefault(checkpoint.bundle, []).append(LogStarts(moment, starts))

    async def _drain(self) -> list[tuple[str, Partition]]:
        """Before that: senders end, every transaction comes to its end, and every due time passes."""
        await self._stop_members({*KINDS, *TOGETHER})
        await self._until_no_transaction_is_open(lambda: self._truth_together().open)
        await self._stop_members({"y"})
        await self._create_again()
        await self._until_quiet()
        return await super()._drain()

    async def _stop_members(self, kinds: set[str]) -> None:
        ending = {name: member for name, member in self._members.items() if name[0] in kinds}
        for member in ending.values():
            member.stopped.set()
        if ending:
            await self._until_ended({name: self._tasks[name] for name in ending})

    async def _create_again(self) -> None:
        """A new topic has the name of the removed ones, to which messages still wait."""
        client = self._plain_client("again")
        try:
            async with asyncio.timeout(HEALING_S):
                made = await self._insist(lambda: self._created_again(client))
        except TimeoutError:
            text = f"{TEMPORARY} could not be created within {HEALING_S:.0f} s of health"
            self.world.violations.append(Violation("stuck", text))
        else:
            self.world.topic_ids[TEMPORARY] = made
        await client.close()

    async def _created_again(self, client: Client) -> int:
        try:
            return (await client.create_topic(TEMPORARY, 2)).topic_id
        except TopicExists:
            return (await client.describe_topic(TEMPORARY)).topic_id

    async def _until_quiet(self) -> None:
        """Nothing waits: no message, no range, no tombstone of a recall, nothing above a log start."""
        loop = asyncio.get_running_loop()
        end_s = None
        while (truth := self._truth()).waiting:
            ahead_s = (truth.waits_until_us - self.world.store.now_us()) / 1e6
            if ahead_s <= 0:
                end_s = end_s or loop.time() + HEALING_S
                if loop.time() > end_s:
                    text = f"after {HEALING_S:.0f} s of health: {truth.waiting[:5]}"
                    self.world.violations.append(Violation("hanging message", text))
                    return
            if truth.violations:
                return  # what comes after it proves nothing
            await asyncio.sleep(max(LOOKS_EVERY_S, ahead_s + 1.0))

    async def _compact_all(self) -> None:
        """The files of hidden topics go, too."""
        await super()._compact_all()
        for _ in range(ROUNDS_MAX):
            if not self._hidden_files() or self.world.has_failed:
                return
            await asyncio.sleep(self.cluster.constants.parquet_min_age_ms / 1000)
            await super()._compact_all()
        self.world.violations.append(Violation("hanging message", f"files are left: {self._hidden_files()[:5]}"))

    def _hidden_files(self) -> list[str]:
        return self.world.store.keys_now("hidden/")

    def _truth(self) -> TimersTruth:
        return timers_truth(
            self.world.store,
            range(1, self.bundles()),
            self._log_starts,
            self.own.limits.recall_kept_ms * 1000,
        )

    def _truth_together(self) -> TransactionTruth:
        return transaction_truth(self.world.store, range(1, self.bundles()), topic_names(self.world))

    def _final_logs(self) -> dict[Partition, FinalLog]:
        return {
            partition: log for partition, log in super()._final_logs().items() if not keys.is_internal(partition[0])
        }

    def _conclude(self, drained: list[tuple[str, Partition]]) -> None:
        super()._conclude(drained)
        truth = self._truth()
        coverage = self.world.coverage
        coverage.saw("a timed message was delivered", sum(bool(row.delivered) for row in truth.rows.values()))
        coverage.saw("a hidden file was put", sum(key.startswith("hidden/") for key in self.world.store.first))
        self.world.violations += judge(truth, self._shared.sent, self.own.limits.recall_kept_ms * 1000)
        together = self._truth_together()
        self.world.violations += judge_transactions(together, self._shared_together.sent)
        self.world.violations += judge_together(truth, together)
        for what, count in truth.coverage.items():
            coverage.saw(what, count)
