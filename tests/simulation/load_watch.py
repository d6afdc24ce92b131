"""Keep some bundles of one broker of a healthy cluster busy, and look that they are shared and then stay, in some
runs of level cluster.
Where brokers make rounds, an operator evens out the bundles then (`evenness_watch`).

load forgotten       a busy bundle looks idle at its next owner
load not shared      brokers announce loads that ask for a move, long after the load became steady
placement restless   a bundle changes its owner or its term, though the loads are steady and nothing else happens
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace

from ledgermq.client.client import Client
from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.client.producing.producer import Producer
from ledgermq.errors import LedgerMQError
from ledgermq_broker.broker import Broker
from ledgermq_broker.cluster.placement.bundles import relief
from ledgermq_ledger.keys import METADATA_BUNDLE
from tests.judges.violation import Violation
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.cluster_clients import Sender, fate_of
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.evenness_watch import LEFT_MIN, QUIET, EvennessWatch
from tests.simulation.history import Outcome
from tests.simulation.world import World

TOPIC = "loaded"
MORE_BUNDLES, PARTITIONS = 4, 8
SHARED_S, STILL_S, EVERY_S = 100.0, 60.0, 1.0
"""A busy partition gets a record each second, each in its own request."""
KNOWN_S = 5.0
"""After this time all brokers have read what an owner announces."""


def loaded(seed: int) -> bool:
    """Return whether the cluster gets a steady load in this run."""
    return random.Random(f"load {seed}").random() < 0.25


def with_more_bundles(plan: ClusterPlan) -> ClusterPlan:
    """Return the plan with enough bundles that a broker has several."""
    bundles = plan.settings.bundles + MORE_BUNDLES
    return replace(plan, settings=plan.settings.model_copy(update={"bundles": bundles}))


class SteadySender(Sender):
    """Produces to some partitions at a steady pace."""

    def take(self, partitions: list[int]) -> None:
        """Choose partitions of the first topic."""
        self._partitions = partitions

    async def work(self) -> None:
        producer = self.client.producer(linger_ms=0, delivery_timeout_s=30.0)
        async with asyncio.TaskGroup() as group:
            for partition in self._partitions:
                group.create_task(self._send_all(producer, partition))

    async def _send_all(self, producer: Producer, number: int) -> None:
        while not self.stopped.is_set():
            value = self.next_value()
            partition = self.partition(self._topics[0], number)
            op = self._world.history.begin_produce(self.name, partition, (value,), once=True, ordered=True)
            try:
                result = await producer.send(self._topics[0], value, key=value, partition=number)
            except LedgerMQError as error:
                self._world.history.end_produce(op, fate_of(error), why=error.message)
            else:
                self._world.history.end_produce(op, Outcome.OK, result.offset)
            await asyncio.sleep(EVERY_S)


class LoadWatch:
    def __init__(self, world: World, brokers: Mapping[str, ClusterBroker], sender: SteadySender) -> None:
        self._world = world
        self._brokers = brokers
        self._sender = sender

    async def watch(self, topic: TopicDescription, client: Client | None) -> list[Violation]:
        """`client`: of an operator who evens out the bundles then; None: there is none."""
        partitions = self._of_one_broker(topic)
        if not partitions:
            return []
        self._sender.take(partitions)
        task = self._sender.start()
        violations = await self._forgotten() or await self._restless() or self._not_shared()[:1]
        if client is not None and not violations:
            violations = await EvennessWatch(self._world, client, {(TOPIC, each) for each in partitions}).watch()
        self._sender.stopped.set()
        await task
        self._world.coverage.saw("a steady load was shared")
        return violations

    async def _forgotten(self) -> list[Violation]:
        """Look at each bundle that gets another owner while loads are shared."""
        now, announced = asyncio.get_running_loop().time, dict[int, tuple[str, int, float]]()
        end_s = now() + SHARED_S
        while now() < end_s:
            await asyncio.sleep(0.1)
            for broker in self._running():
                for bundle, load in _announced(broker).items():
                    before, known, since_s = announced.get(bundle, (broker.broker_id, 0, now()))
                    if before != broker.broker_id:
                        if now() - since_s >= KNOWN_S and load < LEFT_MIN * known:
                            text = f"{broker.broker_id} took bundle {bundle} from {before} with {load} of {known}"
                            return [Violation("load forgotten", text)]
                        since_s = now()
                    announced[bundle] = broker.broker_id, load, since_s if load >= QUIET else now()
        return []

    def _of_one_broker(self, topic: TopicDescription) -> list[int]:
        """Return the partitions in all bundles of the broker that has most of them; none if that is one bundle."""
        bundles: dict[str, set[int]] = {}
        for partition in topic.partitions:
            if partition.owner:
                bundles.setdefault(partition.owner, set()).add(partition.bundle)
        owner = max(sorted(bundles), key=lambda owner: len(bundles[owner]), default="")
        if len(bundles.get(owner, ())) < 2:
            return []
        return [partition.partition for partition in topic.partitions if partition.owner == owner]

    def _running(self) -> list[Broker]:
        return [broker.broker for _, broker in sorted(self._brokers.items()) if broker.broker is not None]

    def _not_shared(self) -> list[Violation]:
        found = []
        for broker in self._running():
            live, loads = broker.membership.live(), broker.directory.loads
            owners = {bundle: owner.broker for bundle, owner in broker.directory.owners.items()}
            if owners.keys() == broker.directory.claims.keys() and (wish := relief(live, owners, loads)) is not None:
                found.append(Violation("load not shared", f"{wish} of {owners} with {loads}"))
        return found

    def _terms(self) -> dict[int, tuple[str, int]]:
        return {
            bundle: (broker.broker_id, owner.epoch)
            for broker in self._running()
            for bundle, owner in broker.ownership.opened.items()
            if bundle != METADATA_BUNDLE
        }

    async def _restless(self) -> list[Violation]:
        terms, now = self._terms(), asyncio.get_running_loop().time
        end_s = now() + STILL_S
        while now() < end_s:
            await asyncio.sleep(0.2)
            if (found := self._terms()) != terms:
                return [Violation("placement restless", f"{terms} became {found} under a steady load")]
        return []


def _announced(broker: Broker) -> dict[int, int]:
    """Return the load that a broker announces of each bundle that it owns, 0 of those that look idle."""
    known = broker.ownership._loads._bundles
    return {bundle: known[bundle].announced for bundle in broker.ownership.opened if bundle in known}
