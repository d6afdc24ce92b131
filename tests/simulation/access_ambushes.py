"""What single mistakes of access rules need, and dice alone hardly bring: producer ids that are known from a
checkpoint only, a broker whose proof of its rules ends long after it began, a principal with many calls that wait
while rules change, and with a quota that just allows them, and a principal that has spent what it may.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

from ledgermq.client.client import Client
from ledgermq.errors import LedgerMQError
from ledgermq.protocol.api import Connection
from ledgermq_broker.access.freshness import LEASE_S
from ledgermq_broker.access.state.quotas import MICRO, NO_QUOTA, Quota, Subject
from ledgermq_broker.broker import Broker
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_ledger.object_store.prices import HOURS_A_MONTH, S3_PRICES
from tests.broker.cluster import fetch_of
from tests.simulation.access_clients import ALLOWED, LASTING, TOPICS, Thief, access_plan_of, change_quota, patient
from tests.simulation.access_truth import AccessTruth, LeakedSession
from tests.simulation.ambush import NO_AMBUSH
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.cluster_clients import PARTITIONS, SimulatedClient, fate_of
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.history import Outcome
from tests.simulation.loop import State
from tests.simulation.network import Network
from tests.simulation.plan import RunPlan
from tests.simulation.world import World

PASSERS_BY_S = 2.0
SLOW_EVERY_S = 2.0
CACHE_BYTES = 256 * 1024 * 1024
"""A broker that does not reach the store answers from it."""
POLLS, POLL_MS, POLL_PAUSE_S_MAX = 40, 8000, 8.0
POLLED = Quota(bytes_in=10_000_000, bytes_out=100_000_000, requests=40)
BIG = 1024 * 1024
"""Bytes that no poll finds: it waits to its end."""
SPENDING = 0.2
BUDGETS_PUTS = (0, 1, 1, 3, 3000)
"""An hour: with the smallest ones a program is soon refused, with the largest it soon has paid."""
BUDGET_S = 2.0, 12.0
SPENDER = Subject(f"user:{ALLOWED}")
SLOW_SHARE = 0.6, 0.95
"""How long the answer to a proof is on the way, of a lease."""


class PasserBy(SimulatedClient):
    """Sends each record by a new producer, which never comes again: its id is soon known from checkpoints only."""

    async def work(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(PASSERS_BY_S))
            topic, number = self.random.choice(TOPICS), self.random.randrange(PARTITIONS)
            value = self.next_value()
            op = self._world.history.begin_produce(self.name, self.partition(topic, number), (value,))
            try:
                async with self.client.producer() as producer:
                    result = await producer.send(topic, value, partition=number)
            except LedgerMQError as error:
                self._world.history.end_produce(op, fate_of(error), why=error.message)
            else:
                self._world.history.end_produce(op, Outcome.OK, result.offset)


class Hoarder(Thief):
    """Keeps what it has learned, and uses the ids that were not seen of late, at each broker."""

    def at(self, lines: list[Connection]) -> list[Connection]:
        return lines

    def targets(self) -> list[LeakedSession]:
        newest = {leaked.following.id for leaked in self._truth.sessions}
        return [leaked for leaked in self.of_others(self._truth.places.values()) if leaked.following.id not in newest]


def calm(plan: RunPlan, cluster: ClusterPlan, settings: BrokerSettings) -> tuple[RunPlan, ClusterPlan, BrokerSettings]:
    """Return plans of a run in which little else happens than slow proofs, so that changes of rules are answered."""
    return (
        replace(plan, event_every_s=20.0, pause_s_max=1.0, naps=0.0, stalls=0.0, slow=0.0, ambush=NO_AMBUSH, full=0.0),
        replace(cluster, brokers=max(3, cluster.brokers)),
        settings.model_copy(update={"bundles": 4, "holding_ms": 0, "cache_bytes_max": CACHE_BYTES}),
    )


def polls_long(seed: int) -> bool:
    """Return whether a principal has many calls that wait."""
    own = access_plan_of(seed)
    return not (own.proves_slowly or own.hoards) and random.Random(f"long polls {seed}").random() < 0.2


class LongPolls(SimulatedClient):
    """Sets a quota for a principal, once, and then keeps calls of it waiting at each broker: many more than the quota
    allows in a second, and begun seldom enough for it.
    """

    def __init__(self, world: World, network: Network, plan: ClusterPlan, truth: AccessTruth) -> None:
        super().__init__(world, network, plan, f"{ALLOWED}.wait")
        self._truth = truth.quotas

    async def set_quota(self, admin: Client) -> None:
        """Raises the call's errors; then it is unknown whether it is set."""
        await change_quota(admin, self._truth, Subject(f"user:{ALLOWED}"), POLLED)

    async def work(self) -> None:
        connector = self._network.connector(self.name, 2 * POLL_MS / 1000)
        lines = [connector.connect(f"b{number}") for number in range(self._plan.brokers)]
        async with asyncio.TaskGroup() as group:
            for line in lines:
                for poll in range(POLLS):
                    group.create_task(self._poll(line, poll % PARTITIONS))

    async def _poll(self, line: Connection, number: int) -> None:
        request = fetch_of(LASTING, number, max_bytes=BIG, min_bytes=BIG, max_wait_ms=POLL_MS)
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.uniform(0, POLL_PAUSE_S_MAX))
            with suppress(LedgerMQError):
                await line.fetch_once(request)
                self._world.coverage.saw("a call waited while rules changed")


def spends(seed: int) -> bool:
    """Return whether a principal has a budget in dollars, and soon has spent it."""
    own = access_plan_of(seed)
    rare = own.proves_slowly or own.hoards or polls_long(seed)
    return not rare and random.Random(f"spent budgets {seed}").random() < SPENDING


class Spender(SimulatedClient):
    """Changes the budget of a principal, and drops it."""

    def __init__(self, world: World, network: Network, plan: ClusterPlan, truth: AccessTruth) -> None:
        super().__init__(world, network, patient(plan), "budgets")
        self._truth = truth.quotas

    async def work(self) -> None:
        while not self.stopped.is_set():
            puts = self.random.choice(BUDGETS_PUTS)
            budget = round(puts * S3_PRICES.of("put") * HOURS_A_MONTH * MICRO)
            quota = Quota(bytes_in=10_000_000, bytes_out=100_000_000, requests=10_000, microdollars_month=budget)
            self._world.note(self.name, f"wants what pays {puts} PUTs an hour")
            with suppress(LedgerMQError):
                await change_quota(self.client, self._truth, SPENDER, quota if puts else NO_QUOTA)
            await asyncio.sleep(self.random.uniform(*BUDGET_S))


class SlowProofs:
    """Now and then the answer to a proof takes most of a lease to arrive, and just then its broker is cut off from
    the others and from the store. Clients still reach it, and it owns partitions that they read.

    `leave_alone(name, seconds)`: cuts it off for so long. `is_quiet()`: whether no change of rules is on its way: one
    that is would wait for the broker, and hold up the changes that this is for.
    """

    def __init__(
        self,
        world: World,
        brokers: Mapping[str, ClusterBroker],
        leave_alone: Callable[[str, float], None],
        is_quiet: Callable[[], bool],
    ) -> None:
        self._world = world
        self._brokers = brokers
        self._leave_alone = leave_alone
        self._is_quiet = is_quiet

    async def run(self) -> None:
        world, r = self._world, random.Random(f"slow proofs {self._world.seed}")
        while not world.healed:
            await asyncio.sleep(r.expovariate(1 / SLOW_EVERY_S))
            owners = [name for name in sorted(self._brokers) if self._owns_data_alone(self._brokers[name])]
            if not owners or world.healed:
                continue
            name, seconds = r.choice(owners), r.uniform(*SLOW_SHARE) * LEASE_S
            broker = self._brokers[name].broker
            assert broker is not None
            with _slow_proof(broker, seconds, self._is_quiet) as answered:
                try:
                    async with asyncio.timeout(LEASE_S):
                        await answered.wait()
                except TimeoutError:
                    continue
                world.note(name, f"has read the rules for a proof, and learns it in {seconds:.1f} s")
                world.coverage.saw("disturbance: the answer to a proof of rules is slow")
                self._leave_alone(name, 2 * LEASE_S)
                await asyncio.sleep(2 * LEASE_S)

    @staticmethod
    def _owns_data_alone(found: ClusterBroker) -> bool:
        """Return whether it owns bundles, and not that of the rules."""
        if found.broker is None or found.process.state is not State.RUNNING:
            return False
        opened = found.broker.ownership.terms.opened
        return bool(opened) and 0 not in opened


@contextmanager
def _slow_proof(broker: Broker, seconds: float, is_quiet: Callable[[], bool]) -> Iterator[asyncio.Event]:
    """Let the next proof of a broker go on only so long after all that it asks for was read, which sets the event."""
    rules, metadata = broker.rules, broker.metadata
    prove, catch_up = rules.prove, metadata.catch_up
    answered = asyncio.Event()
    is_proving = False

    async def proving() -> None:
        nonlocal is_proving
        is_proving = True
        try:
            await prove()
        finally:
            is_proving = False

    async def reading() -> None:
        await catch_up()
        if is_proving and is_quiet() and not answered.is_set():
            answered.set()
            await asyncio.sleep(seconds)

    rules.prove, metadata.catch_up = proving, reading  # type: ignore[method-assign]
    try:
        yield answered
    finally:
        del rules.prove, metadata.catch_up
