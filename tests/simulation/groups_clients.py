"""Clients of groups in a simulated cluster: members that read, stall, leave and return, and other
clients that query, commit and reset.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import Any

from ledgermq.client.client import Client
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.membership.coordinator import Coordinator
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import GroupError, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import PARTITIONS, Sender, SimulatedClient
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.expiry_watch import ExpiryWatch
from tests.simulation.network import Network
from tests.simulation.world import World

GROUP, REGISTER, TOPIC = "workers", "register", "main"
RETENTION_S = 7200.0
"""Committed offsets are kept longer than any run takes: so none may go, whatever a clock shows."""
WRONG_S = 1.5 * RETENTION_S


@dataclass(frozen=True, slots=True)
class GroupsPlan:
    members: int
    session_timeout_s: float
    max_poll_interval_s: float
    assignor: str
    static: bool
    modes: tuple[str, ...]
    expiring: float
    """Share of the messages that have a time to live."""
    clocks_wrong_s: tuple[float, ...]
    """How far the clocks of the first brokers are ahead from the beginning: more than offsets are
    kept. S3 would refuse such clocks.
    """


def groups_plan_of(seed: int) -> GroupsPlan:
    r = random.Random(f"groups plan {seed}")
    return GroupsPlan(
        members=r.randint(2, 4),
        session_timeout_s=r.choice((2.0, 5.0)),
        max_poll_interval_s=r.choice((1.5, 5.0)),
        assignor=r.choice(("uniform", "range", "sticky", "consistent_hash")),
        static=r.random() < 0.3,
        modes=r.choice((("auto",), ("acked",), ("auto", "acked", "manual"))),
        expiring=random.Random(f"groups expiry {seed}").choice((0.0, 0.2, 0.6)),
        clocks_wrong_s=(-WRONG_S, WRONG_S) if random.Random(f"groups clocks {seed}").random() < 0.3 else (),
    )


class ExpiringSender(Sender):
    """Sends messages some of which expire before they are read, or before they are tried again."""

    def __init__(self, expiring: float, *about: Any) -> None:
        super().__init__(*about)
        self._expiring = expiring
        self._ttls = random.Random(f"times to live of {self.name} {self._world.seed}")

    def ttl_s(self) -> float | None:
        if self._ttls.random() >= self._expiring:
            return None
        return self._ttls.choice((0.0005, 0.1, 1.0, 3.0, 10.0, 3600.0))


class Done:
    """What members were done with, by partition: offsets."""

    def __init__(self, topic_id: int) -> None:
        self.offsets: defaultdict[PartitionId, set[int]] = defaultdict(set)
        self._topic_id = topic_id

    def note(self, message: GroupMessage) -> None:
        self.offsets[self._topic_id, message.partition].add(message.offset)


class GroupMember(SimulatedClient):
    """One incarnation of a member's process."""

    def __init__(
        self,
        world: World,
        network: Network,
        plan: ClusterPlan,
        groups: GroupsPlan,
        expiry: ExpiryWatch,
        done: Done,
        name: str,
        incarnation: int,
    ) -> None:
        super().__init__(world, network, plan, name)
        self.random = random.Random(f"member {name} {incarnation} {world.seed}")
        self._groups = groups
        self._expiry = expiry
        self._done = done
        self._incarnation = incarnation

    async def _live(self) -> None:
        brokers = [f"b{i}" for i in range(self._plan.brokers)]
        self.random.shuffle(brokers)
        settings = ClientSettings(timeout_s=15.0, attempt_timeout_s=self._plan.request_timeout_s)
        connector = self._network.connector(self.name, self._plan.request_timeout_s)
        self.client = Client(
            connector, brokers[:2], settings, self._world.sources(f"{self.name} {self._incarnation}", clock=self.name)
        )
        while not self.stopped.is_set():
            await self._session()
        await self.client.close()
        self._world.note(self.name, "has ended")

    async def _session(self) -> None:
        """From joining to leaving."""
        loop = asyncio.get_running_loop()
        over = loop.time() + self.random.choice((3.0, 10.0, 1000.0))
        mode = self.random.choice(self._groups.modes)
        consumer = self.client.consumer(
            TOPIC,
            group=GROUP,
            commit=mode,
            commit_interval_ms=self.random.choice((50, 500, 2000)),
            session_timeout_s=self._groups.session_timeout_s,
            max_poll_interval_s=self._groups.max_poll_interval_s,
            heartbeat_wait_s=0.5,
            revoke_wait_s=self.random.choice((0.0, 1.0)),
            close_timeout_s=3.0,
            request_timeout_s=self._plan.request_timeout_s,
            assignor=self._groups.assignor,
            instance_id=self.name if self._groups.static else "",
        )
        self._world.note(self.name, f"begins as {consumer.member_id[:8]}, {mode}")
        waiting: list[GroupMessage] = []
        try:
            while not self.stopped.is_set() and (loop.time() < over or self._world.healed):
                await self._turn(consumer, mode, waiting)
        finally:
            await self._close(consumer)

    async def _close(self, consumer: GroupConsumer) -> None:
        try:
            await consumer.close()
        except LedgerMQError as error:
            self._world.note(self.name, f"close: {type(error).__name__} {error.message[:100]}")

    async def _turn(self, consumer: GroupConsumer, mode: str, waiting: list[GroupMessage]) -> None:
        coverage = self._world.coverage
        try:
            messages = await consumer.fetch(self.random.choice((1, 5, 100)), timeout=self.random.choice((0.1, 1.0)))
            coverage.saw("a member was handed messages", bool(messages))
            self._expiry.judge_handed_out(self.name, messages)
            if mode == "acked":
                waiting += messages
                self._answer(waiting)
            else:
                for message in messages:
                    self._done.note(message)
            if mode == "manual":
                waiting += messages
                await self._commit(consumer, waiting)
        except LedgerMQError as error:
            coverage.saw(f"a member was told: {type(error).__name__}")
            self._world.judge_error(error)
            self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")
            await asyncio.sleep(0.3)
        if not self._world.healed and self.random.random() < 0.02:
            coverage.saw("a member stalled")
            await asyncio.sleep(2 * self._groups.max_poll_interval_s)

    async def _commit(self, consumer: GroupConsumer, waiting: list[GroupMessage]) -> None:
        """Now and then, all at once, or what was skipped; a refused message belongs to another member."""
        if (waiting or consumer.expired) and (self._world.healed or self.random.random() < 0.5):
            try:
                await consumer.commit(waiting or None)
            except GroupError:
                waiting.clear()
                raise
            waiting.clear()

    def _answer(self, waiting: list[GroupMessage]) -> None:
        """In any order; some only much later, some not at all until they come again."""
        self.random.shuffle(waiting)
        for _ in range(self.random.randint(0, len(waiting)) if not self._world.healed else len(waiting)):
            message = waiting.pop()
            if not self._world.healed and self.random.random() < 0.05:
                message.nack(self.random.choice((0.0, 0.5)))
            else:
                self._done.note(message)
                message.ack()


@dataclass
class RegisterTruth:
    """The committed offsets of one group as a register that only `Committer` writes: what was
    acknowledged, what was tried.
    """

    acknowledged: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    tried: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))


class Asker(SimulatedClient):
    """Asks what the register says: never older than what was acknowledged before, never newer than
    what was tried.

    Patient, and several at once: some question waits at every coordinator that was put to sleep.
    """

    at_once = 3
    timeout_s = 20.0

    def __init__(self, world: World, network: Network, plan: ClusterPlan, name: str, truth: RegisterTruth) -> None:
        super().__init__(world, network, replace(plan, request_timeout_s=self.timeout_s), name)
        self._truth = truth

    async def work(self) -> None:
        self._coordinator = Coordinator(self.client._connections, REGISTER)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.at_once):
                tasks.create_task(self._turns())

    async def _turns(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(2.0))
            try:
                await self.turn(self.random.randrange(PARTITIONS))
            except LedgerMQError as error:
                self._world.coverage.saw(f"a committed offset was not told: {type(error).__name__}")
                self._world.judge_error(error)

    async def turn(self, number: int) -> None:
        await self.ask(number)

    async def ask(self, number: int) -> pb.CommittedPartition:
        least = self._truth.acknowledged[number]
        request = pb.FetchCommittedRequest(
            group=REGISTER, partitions=[pb.TopicPartition(topic=TOPIC, partition=number)]
        )
        answer = await self._coordinator.ask(lambda at: at.fetch_committed(request), self._deadline())
        found = answer.partitions[0]
        if not found.HasField("error"):
            self._world.coverage.saw("a committed offset was told")
            if found.offset < least:
                self._report(
                    "stale committed offset", f"{number}: {found.offset} was told, {least} had been acknowledged before"
                )
            if found.offset > self._truth.tried[number]:
                self._report(
                    "phantom commit",
                    f"{number}: {found.offset} was told, {self._truth.tried[number]} was the most that was tried",
                )
        return found

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._plan.request_timeout_s

    def _report(self, kind: str, text: str) -> None:
        self._world.note(self.name, f"{kind}: {text}")
        self._world.violations.append(Violation(kind, text))


class Committer(Asker):
    """The only one that writes the register: outside of membership, always one more than before.

    Impatient: it finds the next coordinator while others wait for the last one. The network may
    repeat what it sent, at any time.
    """

    at_once = 1
    timeout_s = 1.0

    def __init__(self, world: World, network: Network, plan: ClusterPlan, name: str, truth: RegisterTruth) -> None:
        super().__init__(world, network, plan, name, truth)
        self._sent: deque[pb.CommitOffsetsRequest] = deque(maxlen=10)

    async def turn(self, number: int) -> None:
        found = await self.ask(number)
        if found.HasField("error"):
            return
        offset = found.offset + 1
        commit = pb.OffsetCommit(
            topic=TOPIC,
            topic_id=found.topic_id,
            partition=number,
            epoch=found.epoch,
            counter=found.counter + 1,
            offset=offset,
        )
        self._truth.tried[number] = max(offset, self._truth.tried[number])
        request = pb.CommitOffsetsRequest(group=REGISTER, commits=[commit])
        self._sent.append(request)
        answer = await self._coordinator.ask(lambda at: at.commit_offsets(request), self._deadline())
        error = answer.results[0].error
        if not error.code:
            self._truth.acknowledged[number] = max(offset, self._truth.acknowledged[number])
        self._world.coverage.saw(f"a commit outside of membership: {error.code or 'done'}")
        if self.random.random() < 0.2:
            repeated = self.random.choice(self._sent)
            await self._coordinator.ask(lambda at: at.commit_offsets(repeated), self._deadline())


class Resetter(SimulatedClient):
    """Sends the workers back, while they run."""

    async def work(self) -> None:
        coordinator = Coordinator(self.client._connections, GROUP)
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(0.15))
            reset = pb.OffsetReset(
                topic=TOPIC, partition=self.random.randrange(PARTITIONS), offset=self.random.choice((0, 1, 5))
            )
            request = pb.ResetOffsetsRequest(group=GROUP, resets=[reset])
            deadline = asyncio.get_running_loop().time() + self._plan.request_timeout_s
            try:
                answer = await coordinator.ask(lambda at, request=request: at.reset_offsets(request), deadline)  # type: ignore[misc]
            except LedgerMQError as error:
                self._world.judge_error(error)
            else:
                self._world.coverage.saw(f"a reset: {answer.results[0].error.code or 'done'}")
