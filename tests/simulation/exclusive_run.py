"""Run level *exclusive*, producers that have a topic for themselves on a whole cluster: they ask for it, wait for it,
take it from each other, write, stall and die, beside producers that share it, under every disturbance of level
*cluster*.

At the end everything heals. Then one more producer takes the topic, writes and leaves it, and a shared one writes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ledgermq.client.producing.delivery import Delivery
from ledgermq.client.producing.producer import Producer
from ledgermq.errors import DeadlineExceeded, LedgerMQError, PartitionHeld, ProducerFenced
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.methods import HOLD_PARTITIONS, Method
from ledgermq_broker.exclusive.state.limits import HolderLimits
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import PARTITIONS, Reader, Sender, SimulatedClient, fate_of
from tests.simulation.cluster_end import HEALING_S
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.exclusive_truth import ExclusiveTruth
from tests.simulation.history import FinalLog, Outcome, Partition
from tests.simulation.hostile_run import HostileRun
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.quitters import Quitter, quits
from tests.simulation.world import World

TOPIC = "main"
LATE_DOUBLES = 0.1
"""Share of calls that arrive a second time."""
MODES = ("exclusive", "wait_for_exclusive", "exclusive_with_fencing")


@dataclass(frozen=True, slots=True)
class ExclusivePlan:
    writers: int
    modes: tuple[str, ...]
    """From which each producer draws."""
    lease_s: float
    outlives: bool
    """Now and then a broker stands still until another has claimed its bundles."""


def exclusive_plan_of(seed: int) -> ExclusivePlan:
    r = random.Random(f"exclusive plan {seed}")
    return ExclusivePlan(
        writers=r.randint(2, 3),
        modes=r.choice((MODES, MODES, ("exclusive", "wait_for_exclusive"), ("exclusive_with_fencing",))),
        lease_s=r.choice((0.5, 2.0, 5.0)),
        outlives=r.random() < 0.6,
    )


class Writer(SimulatedClient):
    """One incarnation of a program whose producers have a topic for themselves, one after the other."""

    def __init__(
        self,
        world: World,
        network: Network,
        plan: ClusterPlan,
        own: ExclusivePlan,
        truth: ExclusiveTruth,
        bundle_of: Callable[[int], int | None],
        name: str,
        incarnation: int,
    ) -> None:
        super().__init__(world, network, plan, name)
        self.random = random.Random(f"writer {name} {incarnation} {world.seed}")
        self.label = f"{name}.{incarnation}"
        self._own = own
        self._truth = truth
        self._bundle_of = bundle_of
        self._producers = 0

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            while not self.stopped.is_set():
                self._producers += 1
                mode = self.random.choice(self._own.modes)
                producer = self.client.producer(
                    access_mode=mode,
                    name=f"{self.label}/{self._producers}",
                    linger_ms=self._plan.linger_ms,
                    delivery_timeout_s=self._plan.delivery_timeout_s,
                    request_timeout_s=self._plan.request_timeout_s,
                )
                try:
                    await producer.acquire(TOPIC, timeout=self.random.uniform(1.0, 20.0))
                    self._world.coverage.saw(f"a topic was acquired: {mode}")
                    for number in range(PARTITIONS):
                        self._note(self._truth.acquired, producer, number)
                    await self._write(producer, group)
                except LedgerMQError as error:
                    self._world.judge_error(error)
                    self._world.coverage.saw(f"a topic was not acquired: {type(error).__name__}")
                    self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")
                await self._leave(producer)
                await asyncio.sleep(self.random.expovariate(1.0))

    async def _write(self, producer: Producer, group: asyncio.TaskGroup) -> None:
        over_s = asyncio.get_running_loop().time() + self.random.expovariate(1 / 5.0)
        while asyncio.get_running_loop().time() < over_s and not self.stopped.is_set() and producer.holds(TOPIC):
            number, value = self.random.randrange(PARTITIONS), f"{self.label}/{self.next_value()}"
            op = self._world.history.begin_produce(
                f"{self.label}/{self._producers}", self.partition(TOPIC, number), (value,), once=True, ordered=True
            )
            group.create_task(self._await(op, producer, producer.send(TOPIC, value, partition=number), number))
            await asyncio.sleep(self.random.expovariate(self._plan.records_s / 2))
            if self.random.random() < 0.02:
                await asyncio.sleep(self.random.uniform(0.5, 2.0) * self._own.lease_s)

    async def _await(self, op: int, producer: Producer, delivery: Delivery, number: int) -> None:
        try:
            result = await delivery
        except LedgerMQError as error:
            self._world.coverage.saw(f"a record of an exclusive producer failed: {type(error).__name__}")
            self._world.history.end_produce(op, fate_of(error), why=error.message)
            if isinstance(error, ProducerFenced) and "nothing of the batch was stored" in error.message:
                self._note(self._truth.told_loss, producer, number)
        else:
            self._world.history.end_produce(op, Outcome.OK, result.offset)

    def _note(self, note: Callable[[bytes, int, PartitionId], None], producer: Producer, number: int) -> None:
        """Tell the judge what the producer learned about a partition."""
        assert producer._exclusive is not None
        topic, bundle = producer._exclusive._topics.get(TOPIC), self._bundle_of(number)
        if topic is not None and bundle is not None:
            note(topic.id, bundle, PartitionId(self._world.topic_ids[TOPIC], number))

    async def _leave(self, producer: Producer) -> None:
        kind = self.random.random()
        if kind < 0.3 and producer._background is not None and not self._world.healed:
            self._world.coverage.saw("an exclusive producer was lost")
            producer._background.cancel()  # as if its process had died
            return
        try:
            await (producer.close() if kind < 0.8 else producer.abort())
        except LedgerMQError as error:
            self._world.note(self.name, f"close: {error.message[:100]}")


class SharedSender(Sender):
    """A producer that shares the topic; it tells the judge where it is refused because of a holder."""

    def __init__(self, run: ExclusiveRun, name: str, topics: list[str], **settings: object) -> None:
        super().__init__(run.world, run.network, run.cluster, name, topics, **settings)
        self._run = run

    async def _await(self, op: int, delivery: Delivery, partition: Partition, own_us: int) -> None:
        number, bundle = partition[1], self._run.bundle_known(partition[1])
        if bundle is None or not partition[0].startswith(f"{TOPIC}#"):
            await super()._await(op, delivery, partition, own_us)
            return
        key = PartitionId(self._world.topic_ids[TOPIC], number)
        judge = self._run.truth.sends(bundle, key)
        await super()._await(op, delivery, partition, own_us)
        [outcome] = await asyncio.gather(delivery, return_exceptions=True)
        if isinstance(outcome, PartitionHeld):
            judge()


class ExclusiveRun(HostileRun):
    hostile_writes = True

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self.own = exclusive_plan_of(seed)
        settings = self.cluster.settings
        if self.own.outlives:  # so that it is soon taken for gone
            settings = settings.model_copy(update={"heartbeat_interval_ms": 200})
        self.cluster = replace(
            self.cluster,
            seconds=min(self.cluster.seconds, 40.0),
            settings=settings,
            constants=replace(self.cluster.constants, limits=(HolderLimits(lease_ms=round(self.own.lease_s * 1000)),)),
        )
        self.truth = ExclusiveTruth(self.world, self.own.lease_s)
        self.network.on_call = self._arrived
        self._late = random.Random(f"late doubles {seed}")
        self._quitter = Quitter(self.world, self.network, TOPIC, self._owner_of) if quits(seed) else None
        self._writers: dict[str, Writer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def _arrived(self, address: str, method: Method, request: Any) -> Callable[[Any], None]:
        if method is HOLD_PARTITIONS and self._quitter is not None:
            self._quitter.arrived(request)
        if method is HOLD_PARTITIONS and not self.world.healed and self._late.random() < LATE_DOUBLES:
            self.world.loop.in_world(self._arrive_again(address, request))
        return self.truth.arrived(method, request, lambda topic, number: self._bundle_of(address, topic, number))

    async def _arrive_again(self, address: str, request: pb.HoldPartitionsRequest) -> None:
        """Let a call arrive a second time, late."""
        await asyncio.sleep(self._late.expovariate(1 / 3.0))
        line = self.network.connector("late double", 10.0).connect(address)
        with suppress(LedgerMQError):
            await line.hold_partitions(request)
            self.world.coverage.saw("a late double of a call")

    def _bundle_of(self, address: str, topic: str, number: int) -> int | None:
        served = self.brokers[address].broker
        found = None if served is None else served.metadata.catalog.topics_by_name.get(topic)
        return None if found is None or number >= found.partitions else found.bundles[number]

    def _owner_of(self, number: int) -> str | None:
        """Return the address of the broker that serves a partition of the topic; None: no broker does now."""
        for address, served in sorted(self.brokers.items()):
            if served.process.alive and served.broker is not None:
                bundle = self._bundle_of(address, TOPIC, number)
                if bundle is not None and bundle in served.broker.ownership.opened:
                    return address
        return None

    def bundle_known(self, number: int) -> int | None:
        """Return the bundle of a partition of the topic; None: no broker knows it now."""
        found = [self._bundle_of(address, TOPIC, number) for address in sorted(self.brokers)]
        return next((bundle for bundle in found if bundle is not None), None)

    def _start_clients(self) -> list[asyncio.Task[None]]:
        world, network, plan = self.world, self.network, self.cluster
        self._clients = [
            SharedSender(self, "idem", [TOPIC, "brief"]),
            SharedSender(self, "plain", [TOPIC], idempotent=False),
            Sender(world, network, plan, "quick", [TOPIC], acks="received", idempotent=False),  # refused at once
            Reader(world, network, plan, "reader", [TOPIC]),
        ]
        if self.own.outlives:
            world.loop.in_world(self._outlive_terms())
        if self._quitter is not None:
            world.loop.in_world(self._quitter.run())
        for number in range(self.own.writers):
            self._start(f"w{number}")
        return [client.start() for client in self._clients] + self._start_hostile()

    def _start(self, name: str) -> None:
        if not name.startswith("w"):
            super()._start(name)
            return
        self._incarnation += 1
        about = self.world, self.network, self.cluster, self.own, self.truth, self.bundle_known
        writer = self._writers[name] = Writer(*about, name, self._incarnation)
        self._tasks[name] = writer.start()

    def _victims(self) -> list[Process]:
        return super()._victims() + [writer.process for writer in self._writers.values()]

    async def _drain(self) -> list[tuple[str, Partition]]:
        """Before that: writers end, one more takes the topic and leaves it, and a shared producer writes."""
        for writer in self._writers.values():
            writer.stopped.set()
        await self._until_ended(self._tasks)
        await self._write_last()
        return await super()._drain()

    async def _write_last(self) -> None:
        client = self._plain_client("last writer")
        try:
            async with asyncio.timeout(HEALING_S):
                async with client.producer(access_mode="exclusive_with_fencing", name="last") as producer:
                    await self._insist(lambda: producer.acquire(TOPIC))
                    await self._send_to_each(producer, "exclusive at the end")
                async with client.producer() as shared:
                    await self._send_to_each(shared, "shared at the end")
        except (TimeoutError, PartitionHeld, ProducerFenced, DeadlineExceeded) as error:
            self.world.violations.append(Violation("stuck", f"the topic cannot be written to at the end: {error!r}"))
        await client.close()

    async def _send_to_each(self, producer: Producer, value: str) -> None:
        for number in range(PARTITIONS):
            partition = f"{TOPIC}#{self.world.topic_ids[TOPIC]}", number
            op = self.world.history.begin_produce(value, partition, (f"{value} {number}",), once=True, ordered=True)
            result = await producer.send(TOPIC, f"{value} {number}", partition=number)
            self.world.history.end_produce(op, Outcome.OK, result.offset)

    def _final_logs(self) -> dict[Partition, FinalLog]:
        return {
            partition: log for partition, log in super()._final_logs().items() if not keys.is_internal(partition[0])
        }

    def _conclude(self, drained: list[tuple[str, Partition]]) -> None:
        super()._conclude(drained)
        self.world.violations += self.truth.judge(self.bundles())
