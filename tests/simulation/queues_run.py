"""Run level *queues*, a queue group on a whole cluster: members that fetch, work, answer, stall and die, under every
disturbance of level *cluster*. In some runs the partitions of its topic move.

At the end everything heals, and one more member works off what is left. Then each message is finished, and what
members were given and told is judged (`queues_truth`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ledgermq.client.queues.queue import Queue
from ledgermq.errors import LedgerMQError, UnknownGroup
from ledgermq.protocol.methods import SHARE_FETCH, Method
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.queues.stored.check import check_shares
from ledgermq_broker.queues.stored.view import read_shares
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.log.partitions.moves import SLOT_BITS
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import PARTITIONS, Reader, Sender, SimulatedClient
from tests.simulation.cluster_end import HEALING_S
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.filter_watch import FILTERS
from tests.simulation.former_owners import FormerOwners
from tests.simulation.history import FinalLog, Partition
from tests.simulation.hostile_run import HostileRun
from tests.simulation.lease_clients import Handles, LeaseCaller, has_callers, has_callers_only
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.queues_truth import QueuesTruth, write_down
from tests.simulation.roaming import Roaming, roams, with_moves
from tests.simulation.tags import tag_of
from tests.simulation.world import World

TOPIC, GROUP = "main", "workers"
LETTERS = f"{GROUP}.dlq#"
CALLERS = 2
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class QueuesPlan:
    members: int
    lease_s: float
    records_max: int
    work_s: float
    fails: float
    filter: str
    """Of all members; "": they want everything."""
    levels: int
    """Of priority, in the topic."""
    patience_s: float
    """After so long without an answer, a member's call raises."""
    outlives: bool
    """Now and then a broker stands still until another has claimed its bundles."""
    limits: ShareLimits


TAG_FILTERS = tuple(text for text in FILTERS if "FUNCTION" not in text)


def queues_plan_of(seed: int) -> QueuesPlan:
    r = random.Random(f"queues plan {seed}")
    return QueuesPlan(
        members=r.randint(2, 4),
        lease_s=r.choice((1.0, 3.0, 10.0)),
        records_max=r.choice((1, 5, 50)),
        work_s=r.choice((0.0, 0.05, 0.5)),
        fails=r.choice((0.0, 0.1, 0.3)),
        filter=random.Random(f"queue filter {seed}").choice(("", "", *TAG_FILTERS)),
        levels=random.Random(f"queue levels {seed}").choice((1, 1, PARTITIONS)),
        patience_s=random.Random(f"queue patience {seed}").choice((0.5, 0.5, 30.0)),
        outlives=r.random() < 0.6,
        limits=ShareLimits(window_max=r.choice((5, 60, 2000))),
    )


class QueueMember(SimulatedClient):
    """One incarnation of a member; what it is given and says is written down as it happens."""

    def __init__(
        self,
        world: World,
        network: Network,
        plan: ClusterPlan,
        own: QueuesPlan,
        truth: QueuesTruth,
        name: str,
        incarnation: int,
    ) -> None:
        super().__init__(world, network, plan, name)
        self.random = random.Random(f"queue member {name} {incarnation} {world.seed}")
        self._own = own
        self._truth = truth
        self.turns = 0
        """How often brokers have served it."""

    async def work(self) -> None:
        while not self.stopped.is_set():
            queue = self.client.queue(
                TOPIC,
                group=GROUP,
                lease_s=self._own.lease_s,
                dead_letters=False,
                filter=self._own.filter or "*",
                request_timeout_s=self._own.patience_s,
            )
            write_down(queue, self._truth, self._world.loop.time, self._world.coverage.saw)
            await self._use(queue, self.random.randint(1, 40))
            if self.random.random() < 0.3:
                continue  # it is forgotten, as if the program had lost it
            try:
                await queue.close()
            except LedgerMQError as error:
                self._failed(error)

    async def _use(self, queue: Queue, turns: int) -> None:
        """Use it for some turns, and as long as it is not served: it works again once the brokers do."""
        served = True
        while not self.stopped.is_set() and (turns > 0 or not served):
            turns -= 1
            try:
                await self._turn(queue)
                served = True
                self.turns += 1
            except LedgerMQError as error:
                served = False
                self._failed(error)
                self._world.coverage.saw("a member of a queue was not served")
                await asyncio.sleep(0.2)

    def _failed(self, error: LedgerMQError) -> None:
        self._world.judge_error(error)
        self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")

    async def _turn(self, queue: Queue) -> None:
        for message in await queue.fetch(self.random.randint(1, self._own.records_max), self.random.uniform(0.1, 2.0)):
            assert message.value is not None
            self._truth.given[message.partition, message.offset] = message.value.decode()
            if self._own.work_s:
                await asyncio.sleep(self.random.expovariate(1 / self._own.work_s))
            kind = self.random.random()
            if kind < self._own.fails / 2 and not self._world.healed:
                message.nack(self.random.choice((0.0, 0.5, 3.0)))
            elif kind < self._own.fails and not self._world.healed:
                self._world.coverage.saw("a message was left to its lease")
            else:
                if self.random.random() < 0.1:
                    message.extend()
                message.ack()


class QueuesRun(HostileRun):
    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self.own = queues_plan_of(seed)
        settings = self.cluster.settings
        if self.own.outlives:  # so that it is soon taken for gone
            settings = settings.model_copy(update={"heartbeat_interval_ms": 200})
        self.cluster = replace(
            self.cluster,
            seconds=min(self.cluster.seconds, 30.0),
            settings=settings,
            constants=replace(self.cluster.constants, limits=(self.own.limits,)),
        )
        if self.own.levels > 1:
            self.cluster.topic_settings[TOPIC]["priority.levels"] = str(self.own.levels)
            self.world.coverage.saw("a queue of a topic with levels of priority")
        if roams(seed):
            self.cluster = with_moves(self.cluster)
            self._roaming = Roaming(self.world, self.brokers, self.bundles, TOPIC, every_s=0.7)
        self.world.judged_elsewhere.add(LETTERS.removesuffix("#"))
        self._truth = QueuesTruth()
        self._handles = Handles()
        self._former = FormerOwners(self.world, self.brokers)
        self.network.on_call = self._arrived
        self._members: dict[str, QueueMember | LeaseCaller] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def _arrived(self, address: str, method: Method, request: Any) -> Callable[[Any], None]:
        """Judge that a broker sends no messages of a bundle that another one has claimed before the call came."""
        served = self.brokers[address].broker
        if method is not SHARE_FETCH or served is None:
            return lambda answer: None
        topics = served.metadata.catalog.topics_by_name
        newest: dict[int, int] = {}
        for each in request.partitions:
            if (topic := topics.get(each.topic)) is not None:
                move = topic.moves.get(each.partition)
                epoch = self._former.newest_epoch(topic.bundles[each.partition])
                newest[each.partition] = (move.id if move is not None else 0) << SLOT_BITS | epoch

        def answered(answer: Any) -> None:
            if isinstance(answer, LedgerMQError):
                return
            for part in answer.header.partitions:
                if not part.ranges:
                    continue
                self.world.coverage.saw("a partition that moved was leased", int(part.epoch >> SLOT_BITS > 0))
                if part.epoch < newest.get(part.partition, 0):
                    text = f"{address} sent messages of partition {part.partition}, epoch {part.epoch}: {newest}"
                    self.world.violations.append(Violation("former owner sent messages", text))

        return answered

    def _start_clients(self) -> list[asyncio.Task[None]]:
        world, network, plan = self.world, self.network, self.cluster
        self._clients = [
            Sender(world, network, plan, "idem", [TOPIC, "brief"]),
            Reader(world, network, plan, "reader", [TOPIC]),
        ]
        if self.own.outlives:
            world.loop.in_world(self._outlive_terms())
        for number in range(0 if has_callers_only(world.seed) else self.own.members):
            self._start(f"q{number}")
        for number in range(CALLERS if has_callers(world.seed) else 0):
            self._start(f"k{number}")
        return [client.start() for client in self._clients] + self._start_hostile()

    def _start(self, name: str) -> None:
        if not name.startswith(("q", "k")):
            super()._start(name)
            return
        self._incarnation += 1
        about = self.world, self.network, self.cluster
        if name.startswith("k"):
            wanted, lease_s = self.own.filter or "*", self.own.lease_s
            more = GROUP, TOPIC, lease_s, wanted, self._truth, self._handles
            self._members[name] = LeaseCaller(*about, *more, name, self._incarnation)
        else:
            self._members[name] = QueueMember(*about, self.own, self._truth, name, self._incarnation)
        self._tasks[name] = self._members[name].start()

    def _victims(self) -> list[Process]:
        return super()._victims() + [member.process for member in self._members.values()]

    async def _drain(self) -> list[tuple[str, Partition]]:
        """After that: nothing is left of the queue, and its members end."""
        drained = await super()._drain()
        await self._until_finished()
        await self._until_served()
        for member in self._members.values():
            member.stopped.set()
        await self._until_ended(self._tasks)
        return drained

    async def _until_finished(self) -> None:
        client = self._plain_client("look")
        loop = asyncio.get_running_loop()
        end_s, left = loop.time() + HEALING_S, "it is not known"
        while loop.time() < end_s:
            try:
                found = await client.queues.describe(GROUP)
                ends = await client.list_offsets(TOPIC)
            except (UnknownGroup, LedgerMQError) as error:
                left = error.message
            else:
                starts = {each.partition.partition: each.start for each in found.partitions}
                left = f"it begins at {starts}, and the topic ends at {ends}"
                if len(starts) == PARTITIONS and starts == ends:
                    break
            await asyncio.sleep(LOOK_S)
        else:
            self.world.violations.append(Violation("stuck", f"after {HEALING_S:.0f} s the queue is not empty: {left}"))
        await client.close()

    async def _until_served(self) -> None:
        """Every member that was not served for a while is served again."""
        before = {name: member.turns for name, member in self._members.items()}
        end_s = asyncio.get_running_loop().time() + HEALING_S
        while left := [name for name, turns in before.items() if self._members[name].turns == turns]:
            if asyncio.get_running_loop().time() > end_s:
                text = f"after {HEALING_S:.0f} s members {', '.join(left)} are not served again"
                self.world.violations.append(Violation("stuck", text))
                return
            await asyncio.sleep(LOOK_S)

    async def _check_bucket(self) -> None:
        """`ledgermq fsck` finds nothing wrong in the state of the queue either."""
        await super()._check_bucket()
        store, problems = self.world.line("last"), Problems()
        sources = self.world.sources("check of queues")
        found, catalog = await read_shares(store, await read_cluster(store), sources, problems.collecting)
        check_shares(found, catalog, problems)
        self.world.violations += [
            Violation("fsck", f"{problem.code} {problem.object_key}: {problem.text}") for problem in problems.all
        ]
        self.world.coverage.saw("the state of a queue was checked", sum(len(one.state.partitions) for one in found))

    def _final_logs(self) -> dict[Partition, FinalLog]:
        return {
            partition: log
            for partition, log in super()._final_logs().items()
            if not keys.is_internal(partition[0]) and not partition[0].startswith(LETTERS)
        }

    def _conclude(self, drained: list[tuple[str, Partition]]) -> None:
        super()._conclude(drained)
        name = f"{TOPIC}#{self.world.topic_ids[TOPIC]}"
        logs = {number: log for (topic, number), log in self._final_logs().items() if topic == name}
        ends = {number: range(log.log_start, len(log.records)) for number, log in logs.items()}
        self.world.violations += self._truth.judge(ends)
        letters = [log for (topic, _), log in super()._final_logs().items() if topic.startswith(LETTERS)]
        copies = [value for log in letters for value in log.records.values()]
        self.world.coverage.saw("a dead letter was copied by a handle", len(copies))
        self.world.violations += self._truth.judge_dead(copies, logs)
        if self.own.filter:
            self.world.coverage.saw("a queue with a filter was read")
            passes = FILTERS[self.own.filter]
            self.world.violations += self._truth.judge_filter(logs, lambda value: passes(tag_of(value)))
