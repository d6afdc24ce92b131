"""Run level three, groups on a whole cluster: members join, leave, stall and die while other
clients commit, query and reset. In two of three runs a second group moves messages that fail to its
retry topic and its dead-letter topic.

At the end everything heals, and the living members read all messages. Every broker is then
restarted, so that the coordinators' answers come from the store alone. These answers, and all that
was ever written, are compared with the records in the ledgers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ledgermq.client.groups.membership.coordinator import Coordinator
from ledgermq.client.groups.retries.refusals import CARRY_AFTER_S
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.methods import Method
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.limits import GroupLimits
from tests.judges.violation import Violation
from tests.simulation.cluster_end import HEALING_S, topic_names
from tests.simulation.expiry_watch import ExpiryWatch
from tests.simulation.failing_clients import FailingMember
from tests.simulation.failures_truth import GROUP as FAILING
from tests.simulation.failures_truth import (
    RETRY,
    Calls,
    FailuresTruth,
    failures_plan_of,
    failures_truth,
    judge_failures,
    places_of,
)
from tests.simulation.former_owners import FormerOwners
from tests.simulation.groups_clients import (
    GROUP,
    RETENTION_S,
    TOPIC,
    Asker,
    Committer,
    Done,
    ExpiringSender,
    GroupMember,
    RegisterTruth,
    Resetter,
    groups_plan_of,
)
from tests.simulation.groups_truth import GroupTruth, group_truth, judge_done
from tests.simulation.history import FinalLog, Partition
from tests.simulation.hostile_run import HostileRun
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.result import Result

ANSWERS_LOST, ANSWERS_LATE_S = 0.2, 3.0
EXPIRY_LOOK_S = 1.5 * GroupLimits.expiry_check_s


class GroupsRun(HostileRun):
    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self.groups = groups_plan_of(seed)
        self.failures = failures_plan_of(seed)
        kept_ms = round(RETENTION_S * 1000)
        settings = self.cluster.settings.model_copy(
            update={"offsets_partitions": 1 + seed % 3, "offsets_retention_ms": kept_ms}
        )
        self.cluster = replace(self.cluster, seconds=min(self.cluster.seconds, 30.0), settings=settings)
        self.network.on_call = self._arrived
        self._former = FormerOwners(self.world, self.brokers)
        self._members: dict[str, GroupMember] = {}
        self._done: Done
        self._expiry = ExpiryWatch(self.world)
        self._calls = Calls(expired=self._expiry.skipped["f"])
        if self.failures.members:  # their topics and transactional ids come first
            self.requests_factor = 4
        self._losing = random.Random(f"lost answers {seed}")
        self._register = RegisterTruth()
        self._clocks_are_wrong = bool(self.groups.clocks_wrong_s) and not self.cluster.is_s3
        if self._clocks_are_wrong:
            for number, seconds in enumerate(self.groups.clocks_wrong_s):
                self.world.skew_us[f"b{number}"] = round(seconds * 1e6)

    async def run(self) -> Result:
        with self._expiry.watching():
            return await super().run()

    def _arrived(self, address: str, method: Method, request: Any) -> Callable[[Any], None]:
        """Now and then members do not receive the answer to a commit of theirs before they stop waiting: the
        outcome of the transaction is unknown to them.
        """
        is_commit = isinstance(request, pb.EndTransactionRequest) and request.outcome == pb.COMMITTED
        loses = is_commit and not self.world.healed and self._losing.random() < ANSWERS_LOST
        if loses:
            return lambda answer: self._lose_answers(address)
        return self._former.arrived(address, method, request)

    def _lose_answers(self, address: str) -> None:
        members = [f"f{number}" for number in range(self.failures.members)]
        self.world.note(address, "does not reach the failing members")
        self.world.coverage.saw("the answer to a commit of moves was late")
        for member in members:
            self.network.cut(address, member)
            self._disturbances.later(ANSWERS_LATE_S, lambda member=member: self.network.mend(address, member))  # type: ignore[misc]

    def _start_clients(self) -> list[asyncio.Task[None]]:
        world, network, plan = self.world, self.network, self.cluster
        self._done = Done(world.topic_ids[TOPIC])
        self._clients = [
            ExpiringSender(self.groups.expiring, world, network, plan, "idem", [TOPIC, "brief"]),
            Committer(world, network, plan, "committer", self._register),
            Asker(world, network, plan, "asker", self._register),
            Asker(world, network, plan, "other", self._register),
            Resetter(world, network, plan, "resetter"),
        ]
        for number in range(self.groups.members):
            self._start(f"m{number}")
        for number in range(self.failures.members):
            self._start(f"f{number}")
        return [client.start() for client in self._clients] + self._start_hostile()

    def _start(self, name: str) -> None:
        if name[0] not in "mf":
            super()._start(name)
            return
        self._incarnation += 1
        about = self.world, self.network, self.cluster, self.groups, self._expiry
        if name.startswith("m"):
            member = GroupMember(*about, self._done, name, self._incarnation)
        else:
            member = FailingMember(*about, self.failures, self._calls, name, self._incarnation)
        self._members[name] = member
        member.start()

    def _victims(self) -> list[Process]:
        return super()._victims() + [member.process for member in self._members.values()]

    async def _compact_all(self) -> None:
        """Before that: the workers come to the end, and leave."""
        await self._work_off(GROUP, "the workers are not at the end")
        if self.failures.members:
            await self._until_settled()
        await self._stop_members()
        await super()._compact_all()
        for name in sorted(self.brokers):
            self.brokers[name].process.kill()
        await asyncio.sleep(1.0)
        for name in sorted(self.brokers):
            self._start(name)
        await self._compare()
        if self._clocks_are_wrong:
            await asyncio.sleep(EXPIRY_LOOK_S)
            self.world.coverage.saw("coordinators with wrong clocks looked for what has expired")
            await self._compare()

    async def _until_settled(self) -> None:
        """Wait until each failed message is handled or dead, but those that wait for longer than a run."""
        end_s = asyncio.get_running_loop().time() + HEALING_S
        if self.failures.far_s:  # what waits is carried meanwhile, and what is behind it goes on
            await asyncio.sleep(2 * CARRY_AFTER_S)
        while open_ := self._unsettled():
            if asyncio.get_running_loop().time() > end_s:
                text = f"after {HEALING_S:.0f} s of health the failing group has not finished {open_[:5]}"
                self.world.violations.append(Violation("stuck", text))
                return
            await asyncio.sleep(5.0)

    def _unsettled(self) -> list[str]:
        """Return what no wait holds up: where a wait outlives the run, or a wrong clock may have made it
        longer, only what is not in the retry topic.
        """
        truth, committed = self._failures_truth(), self._committed(FAILING)
        topics = (TOPIC,) if self.failures.far_s or self._calls.clocks_jumped else (TOPIC, RETRY)
        messages = [*truth.originals, *(copy.message for copy in truth.copies)]
        return [
            f"{message.topic}-{message.partition} {message.offset}"
            for message in messages
            if message.topic in topics and message.offset >= committed.get((message.topic, message.partition), 0)
        ]

    def _failures_truth(self) -> FailuresTruth:
        bundles = range(1, self.bundles())
        return failures_truth(self.world.store, bundles, topic_names(self.world))

    def _committed(self, group: str) -> dict[tuple[str, int], int]:
        names = topic_names(self.world)
        return {
            (names[partition.topic_id], partition.partition): value.offset or 0
            for (name, partition), value in self._truth().committed.items()
            if name == group
        }

    async def _stop_members(self) -> None:
        for member in self._members.values():
            member.stopped.set()
        await asyncio.sleep(30.0)

    async def _compare(self) -> None:
        """New coordinators, which know only what the store says, against the log."""
        truth = self._truth()
        client = self._plain_client("compare")
        for group in sorted({group for group, _ in truth.committed}):
            coordinator = Coordinator(client._connections, group)
            answer = await self._insist(lambda at=coordinator, group=group: _all_committed(at, group))  # type: ignore[misc]
            told = {
                PartitionId(p.topic_id, p.partition): (p.offset if p.HasField("offset") else None, p.counter)
                for p in answer.partitions
            }
            stored = {p: v.offset for (name, p), v in truth.committed.items() if name == group}
            if {partition: offset for partition, (offset, _) in told.items()} != stored:
                self.world.violations.append(
                    Violation("committed offsets differ", f"{group}: {told}, the log says {stored}")
                )
        await client.close()

    def _truth(self) -> GroupTruth:
        by_name = {name: topic_id for topic_id, name in topic_names(self.world).items()}
        bundles = range(1, self.bundles())
        return group_truth(
            self.world.store, bundles, by_name.get(keys.OFFSETS_TOPIC, -1), set(self.world.topic_ids.values())
        )

    def _final_logs(self) -> dict[Partition, FinalLog]:
        return {
            partition: log for partition, log in super()._final_logs().items() if not keys.is_internal(partition[0])
        }

    def _conclude(self, drained: list[tuple[str, Partition]]) -> None:
        failures, committed = self._failures_truth(), self._committed(FAILING)
        self._judge_failures(failures, committed)
        super()._conclude(drained)
        truth = self._truth()
        coverage = self.world.coverage
        coverage.saw("a commit was written", truth.commits)
        coverage.saw("a reset was written", truth.resets)
        coverage.saw("a partition was given to a member", truth.gives)
        self.world.violations += truth.violations
        for _, partition, offset in self._expiry.skipped["m"]:
            self._done.offsets[self.world.topic_ids[TOPIC], partition].add(offset)
        self.world.violations += judge_done(truth, GROUP, self._done.offsets)

    def _judge_failures(self, truth: FailuresTruth, committed: dict[tuple[str, int], int]) -> None:
        if not self.failures.members:
            return
        by_name = {name: topic_id for topic_id, name in topic_names(self.world).items()}
        for message, _ in truth.copies:
            partition = (f"{message.topic}#{by_name[message.topic]}", message.partition)
            self.world.history.begin_produce(
                "the failing group", partition, ((message.value or b"").decode(),), once=False, ordered=False
            )
        for what, count in places_of(truth, committed).items():
            self.world.coverage.saw(what, count)
        self.world.violations += judge_failures(truth, self.failures, self.world.seed, self._calls, committed)


async def _all_committed(coordinator: Coordinator, group: str) -> pb.FetchCommittedResponse:
    deadline = asyncio.get_running_loop().time() + 10.0
    return await coordinator.ask(lambda at: at.fetch_committed(pb.FetchCommittedRequest(group=group)), deadline)
