"""Run level four, transactions on a whole cluster: senders over all bundles, members that read,
process and write, two processes under one id; all of them pause, die and come back.

At the end everything heals, and the members work the input off. Then nothing may be staged, pending
or undecided, and what is visible is compared with what was decided.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ledgermq_ledger import keys
from tests.simulation.branch_clients import Manager, Resolver, Twins
from tests.simulation.cluster_clients import Reader, Sender
from tests.simulation.cluster_end import topic_names
from tests.simulation.cluster_run import ClusterRun
from tests.simulation.forgotten_sessions import repeatable_copies
from tests.simulation.former_owners import FormerOwners
from tests.simulation.groups_truth import group_truth
from tests.simulation.half_clients import Program
from tests.simulation.half_truth import coverage_of, judge_half
from tests.simulation.history import FinalLog, Partition
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.lost_answers import LostAnswers
from tests.simulation.once_clients import Repeater
from tests.simulation.roaming import Roaming, roams, with_moves
from tests.simulation.transactions_clients import (
    GROUP,
    INPUT,
    OUTPUTS,
    Processor,
    Shared,
    Thief,
    TransactionalClient,
    Transactor,
)
from tests.simulation.transactions_plan import transactions_plan_of
from tests.simulation.transactions_truth import TransactionTruth, judge, judge_processed, transaction_truth

SHARED_ID = "shared"
DAY_US = 24 * 3_600_000_000
FAR_S = 10.0
"""So long the clocks of brokers are a day ahead."""
KINDS: dict[str, type[TransactionalClient]] = {
    "t": Transactor,
    "p": Processor,
    "x": Manager,
    "z": Twins,
    "s": Thief,
    "y": Resolver,
    "h": Program,
    "o": Repeater,
}
"""By the first letter of a client's name."""


class TransactionsRun(ClusterRun):
    lasting = ("main", "brief", *OUTPUTS)

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self.own = transactions_plan_of(seed)
        settings = self.cluster.settings
        if self.own.outlives:  # so that it is soon taken for gone
            settings = settings.model_copy(update={"heartbeat_interval_ms": 200})
        topics = self.cluster.topic_settings | dict.fromkeys(OUTPUTS, self.cluster.topic_settings[INPUT])
        self.cluster = replace(
            self.cluster,
            seconds=min(self.cluster.seconds, 30.0),
            settings=settings,
            topic_settings=topics,
            constants=replace(self.cluster.constants, limits=(self.own.limits,), carry_slots=self.own.carry_slots),
        )
        if roams(seed):
            self.cluster = with_moves(self.cluster)
            self._roaming = Roaming(self.world, self.brokers, self.bundles, OUTPUTS[0])
        self._shared = Shared()
        self.network.on_call = FormerOwners(self.world, self.brokers).arrived
        self.network.on_start = LostAnswers(self.world).at
        self._members: dict[str, TransactionalClient] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def _start_clients(self) -> list[asyncio.Task[None]]:
        world, network, plan = self.world, self.network, self.cluster
        self._clients = [
            Sender(world, network, plan, "idem", [INPUT, "brief"]),
            Reader(world, network, plan, "reader", [INPUT, *OUTPUTS]),
        ]
        if self.own.outlives:
            world.loop.in_world(self._outlive_terms())
        for name in (
            "t0",
            "t1",
            "t2",
            "x0",
            "y0",
            "y1",
            "y2",
            "h0",
            "h1",
            *(f"p{number}" for number in range(self.own.processors)),
            *(("z0",) if self.own.twins else ()),
            *(("s0",) if self.own.thief else ()),
            *(("o0", "o1") if self.own.repeats else ()),
        ):
            self._start(name)
        return [client.start() for client in self._clients]

    def _start(self, name: str) -> None:
        if name[0] not in KINDS:
            super()._start(name)
            return
        self._incarnation += 1
        transactional_id = SHARED_ID if name in ("t0", "t1") else name
        member = self._members[name] = KINDS[name[0]](
            self.world,
            self.network,
            self.cluster,
            self.own,
            self._shared,
            name,
            transactional_id,
            self._incarnation,
        )
        self._tasks[name] = member.start()

    def _victims(self) -> list[Process]:
        return super()._victims() + [member.process for member in self._members.values()]

    async def _compact_all(self) -> None:
        """Before that: the input is worked off, and every transaction comes to its end."""
        if self.own.far_clocks:
            await self._stamp_ahead()
        await self._stop_members("txzso")
        await self._work_off(GROUP, "the input is not worked off")
        await self._stop_members("p")
        await self._until_no_transaction_is_open(lambda: self._truth().open)
        await self._stop_members("yh")
        await super()._compact_all()

    async def _stamp_ahead(self) -> None:
        """Let brokers stamp what they decide with a time that is a day ahead."""
        skew_us = self.world.skew_us
        for seconds, ahead_us in ((FAR_S, DAY_US), (0.0, -DAY_US)):
            for name in self.brokers:
                skew_us[name] += ahead_us
            await asyncio.sleep(seconds)
        self.world.coverage.saw("clocks were a day ahead")

    async def _stop_members(self, kinds: str) -> None:
        """Stop the members, and wait until they have ended: what one of them still prepares, others have to end."""
        ending = {name: member for name, member in self._members.items() if name[0] in kinds}
        for member in ending.values():
            member.stopped.set()
        await self._until_ended({name: self._tasks[name] for name in ending})

    def _truth(self) -> TransactionTruth:
        return transaction_truth(self.world.store, range(1, self.bundles()), topic_names(self.world))

    def _final_logs(self) -> dict[Partition, FinalLog]:
        return {
            partition: log for partition, log in super()._final_logs().items() if not keys.is_internal(partition[0])
        }

    def _conclude(self, drained: list[tuple[str, Partition]]) -> None:
        truth = self._truth()
        states_max = self.cluster.settings.producer_states_max
        truth.repeatable = repeatable_copies(truth, self.world.store, range(1, self.bundles()), states_max)
        self.world.coverage.saw("a copy was stored again, for its session was forgotten", len(truth.repeatable))
        for value, copies in truth.copies.items():
            once = value not in truth.repeatable
            for seen in copies:
                self.world.history.begin_produce("the cluster", seen.partition, (value,), once=once, ordered=False)
        super()._conclude(drained)
        coverage = self.world.coverage
        coverage.saw("a transaction was decided", len(truth.decided))
        coverage.saw("a record of a transaction became visible", len(truth.visible.keys() & truth.staged.keys()))
        coverage.saw("a staged record was carried forward", truth.carried)
        for what, count in coverage_of(truth, self._shared.half).items():
            coverage.saw(what, count)
        judge_half(truth, self._shared.half, self._shared.database, self.own.limits.checks_max)
        self.world.violations += judge(truth, self._shared.sent)
        self.world.violations += self._shared.attempts.judge(truth.visible)
        self._judge_processed(truth)

    def _judge_processed(self, truth: TransactionTruth) -> None:
        by_name = {name: topic_id for topic_id, name in topic_names(self.world).items()}
        groups = group_truth(self.world.store, range(1, self.bundles()), by_name.get(keys.OFFSETS_TOPIC, -1), set())
        self.world.violations += groups.violations
        committed = {
            partition.partition: value.offset or 0
            for (group, partition), value in groups.committed.items()
            if group == GROUP
        }
        self.world.coverage.saw("a message was processed", sum(committed.values()))
        self.world.violations += judge_processed(truth.visible, committed, OUTPUTS)
