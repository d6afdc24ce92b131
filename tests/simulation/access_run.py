"""Run level *access*, access rules on a whole cluster: rules and tokens that come and go while programs
of three principals produce and consume, under every disturbance of level *cluster*; in some runs a
broker is also cut off from everything but its clients.

At the end everything heals and everything is granted. Then each principal has to be served.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

from ledgermq.client.client import Client
from ledgermq.errors import LedgerMQError
from ledgermq_broker.access.freshness import LEASE_S
from ledgermq_broker.access.state.quotas import EACH, NO_QUOTA, Subject
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_ledger.object_store.prices import S3_PRICES
from ledgermq_ledger.object_store.wrappers.metered import StoreMeter
from tests.judges.violation import Violation
from tests.simulation.access_ambushes import (
    SPENDER,
    Hoarder,
    LongPolls,
    PasserBy,
    SlowProofs,
    Spender,
    calm,
    polls_long,
    spends,
)
from tests.simulation.access_clients import (
    ALLOWED,
    DENIED,
    LASTING,
    PRINCIPALS,
    TOKENED,
    TOPICS,
    Administrator,
    Prober,
    QuotaAdministrator,
    Thief,
    access_plan_of,
    change_quota,
    grant,
    lasting_rules,
    new_token,
    switches_of,
)
from tests.simulation.access_truth import AccessNetwork, AccessTruth
from tests.simulation.cluster_clients import PARTITIONS, Reader, Sender
from tests.simulation.cluster_end import HEALING_S
from tests.simulation.cluster_run import ClusterRun
from tests.simulation.guarded import ADMIN, first_token, guarded, rested
from tests.simulation.history import Outcome, Partition
from tests.simulation.loop import SimulatedLoop
from tests.simulation.result import Result
from tests.simulation.throttle_watch import JudgedCosts, is_limited

SECONDS_MIN = 30.0
ALONE_EVERY_S = 4.0
ALONE_S_MAX = 3.5 * LEASE_S


class AccessRun(ClusterRun):
    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self.own = access_plan_of(seed)
        settings = guarded(self.cluster.settings)
        if self.own.outlives:  # so that it is soon taken for gone
            settings = settings.model_copy(update={"heartbeat_interval_ms": 200})
        if self.own.hoards:
            settings = settings.model_copy(update={"checkpoint_slots": 3})
        self.plan = rested(self.plan)
        if self.own.proves_slowly or polls_long(seed):
            self.plan, self.cluster, settings = calm(self.plan, self.cluster, settings)
        self.cluster = replace(
            self.cluster,
            seconds=max(self.cluster.seconds, SECONDS_MIN),
            named_brokers=self.own.named_brokers,
            settings=settings,
        )
        self.truth = AccessTruth(self.world)
        self.network = AccessNetwork(self.world, self.truth)
        self.network.credential_of = self._credential_of
        if spends(seed):
            self.network.meters = self._meters
        self._switches = switches_of(self.truth)
        self._polls = LongPolls(self.world, self.network, self.cluster, self.truth)
        self._admin = ""
        self._served = 0

    async def run(self) -> Result:
        self.world.store.on_metadata = self.truth.on_metadata
        return await super().run()

    def _meters(self, broker: str) -> Sequence[StoreMeter]:
        self.truth.costs[broker] = JudgedCosts(self.truth.quotas, broker)
        return self.truth.costs[broker], StoreCosts(S3_PRICES)

    def _credential_of(self, who: str) -> str:
        """By the begin of the caller's name; an *old* one uses a token that was replaced, if there is one."""
        principal, _, kind = who.partition(".")
        if principal not in self.truth.tokens:
            return self._admin
        tokens = self.truth.tokens[principal]
        return (tokens[-2] if kind == "old" and len(tokens) > 1 else tokens[-1]).credential

    async def _create_topics(self) -> None:
        self._admin = await first_token(self.world, self.network, self._insist, ADMIN)
        await super()._create_topics()
        admin = self._plain_client("setup")
        for rule in lasting_rules():
            await self._insist(lambda rule=rule: grant(admin.access, rule))  # type: ignore[misc]
        for switch in self._switches.values():
            await self._insist(lambda switch=switch: switch.turn(admin.access, True))  # type: ignore[misc]
        for name in PRINCIPALS:
            await self._insist(lambda name=name: new_token(admin.access, self.truth, self._switches, name))  # type: ignore[misc]
        if polls_long(self.world.seed):
            await self._insist(lambda: self._polls.set_quota(admin))
        await admin.close()

    def _start_clients(self) -> list[asyncio.Task[None]]:
        world, network, plan = self.world, self.network, self.cluster
        about = self.own, self.truth, self._switches
        self._clients = [
            Administrator(world, network, plan, *about, "rules", [p for p in PRINCIPALS if p != TOKENED]),
            Administrator(world, network, plan, *about, "tokens", [TOKENED]),
            Sender(world, network, plan, "super", [*TOPICS]),
            Prober(world, network, plan, self.own, f"{TOKENED}.old"),
            (Hoarder if self.own.hoards else Thief)(world, network, plan, self.truth, DENIED),
        ]
        if self.own.hoards:
            self._clients += [PasserBy(world, network, plan, f"{name}.once") for name in (ALLOWED, TOKENED)]
        for name in PRINCIPALS:
            self._clients += [
                Sender(world, network, plan, f"{name}.send", [*TOPICS]),
                Reader(world, network, plan, f"{name}.read", [*TOPICS]),
                Prober(world, network, plan, self.own, f"{name}.try"),
            ]
        if polls_long(world.seed):
            self._clients.append(self._polls)
        elif spends(world.seed):
            self._clients.append(Spender(world, network, plan, self.truth))
        elif is_limited(world.seed):
            self._clients.append(QuotaAdministrator(world, network, plan, self.truth))
        if self.own.proves_slowly:
            world.loop.in_world(SlowProofs(world, self.brokers, self._cut_off, self._is_quiet).run())
        elif self.own.isolates:
            world.loop.in_world(self._leave_alone())
        if self.own.outlives:
            world.loop.in_world(self._outlive_terms())
        return [client.start() for client in self._clients]

    async def _leave_alone(self) -> None:
        """Now and then cut a broker off from the others and from the store, for longer than a lease or less."""
        world, r = self.world, random.Random(f"alone {self.world.seed}")
        while not world.healed:
            await asyncio.sleep(r.expovariate(1 / ALONE_EVERY_S))
            name, seconds = r.choice(sorted(self.brokers)), r.uniform(0, ALONE_S_MAX)
            if world.healed or name in world.weather.unreached:
                continue
            self._cut_off(name, seconds)
            await asyncio.sleep(seconds)

    def _is_quiet(self) -> bool:
        return all(lever.granted is not None for lever in self.truth.levers.values())

    def _cut_off(self, name: str, seconds: float) -> None:
        self.world.note(name, f"reaches neither brokers nor the store for {seconds:.1f} s")
        self.world.coverage.saw("disturbance: a broker is left alone")
        self.world.weather.unreached.add(name)
        others = [other for other in sorted(self.brokers) if other != name]
        for other in others:
            self.network.cut(name, other)
        self._disturbances.later(seconds, lambda: self._reach_again(name, others))

    def _reach_again(self, name: str, others: list[str]) -> None:
        self.world.note(name, "reaches brokers and the store again")
        self.world.weather.unreached.discard(name)
        for other in others:
            self.network.mend(name, other)

    async def _drain(self) -> list[tuple[str, Partition]]:
        """Before that: each principal is granted everything, and served."""
        try:
            async with asyncio.timeout(HEALING_S):
                await self._grant_all()
                for name in PRINCIPALS:
                    await self._serve(name)
        except TimeoutError:
            self.world.violations.append(
                Violation("stuck", f"a granted principal is not served after {HEALING_S:.0f} s of health")
            )
        return await super()._drain()

    async def _grant_all(self) -> None:
        admin = self._plain_client("last setup")  # the same name would draw the same tokens again
        for switch in self._switches.values():
            while not switch.lever.granted:
                await self._insist(lambda switch=switch: switch.turn(admin.access, True))  # type: ignore[misc]
        while not self.truth.tokens[TOKENED][-1].token.granted:
            await self._insist(lambda: new_token(admin.access, self.truth, self._switches, TOKENED))
        await self._insist(lambda: change_quota(admin, self.truth.quotas, Subject(EACH), NO_QUOTA))
        if spends(self.world.seed):
            await self._insist(lambda: change_quota(admin, self.truth.quotas, SPENDER, NO_QUOTA))
        await admin.close()

    async def _serve(self, name: str) -> None:
        """A program of the principal writes to each partition, and reads what it wrote to the one that keeps it."""
        client = self._plain_client(f"{name}.end")
        for topic in TOPICS:
            for number in range(PARTITIONS):
                await self._insist(lambda topic=topic, number=number: self._serve_one(client, name, topic, number))  # type: ignore[misc]
        self.world.coverage.saw("a granted principal was served in the end")
        await client.close()

    async def _serve_one(self, client: Client, name: str, topic: str, number: int) -> None:
        self._served += 1
        value = f"{name}.end.{self._served}"
        partition = (f"{topic}#{self.world.topic_ids[topic]}", number)
        op = self.world.history.begin_produce(f"{name}.end", partition, (value,))
        try:
            async with client.producer() as producer:
                result = await producer.send(topic, value, partition=number)
        except LedgerMQError as error:
            self.world.history.end_produce(op, Outcome.INFO, why=error.message)
            raise
        self.world.history.end_produce(op, Outcome.OK, result.offset)
        if topic != LASTING:
            return  # retention may take the record first
        async with client.consumer(topic, start={(topic, number): result.offset}) as consumer:
            while all(message.value != value.encode() for message in await consumer.fetch(500, timeout=5.0)):
                pass

    def _conclude(self, drained: list[tuple[str, Partition]]) -> None:
        super()._conclude(drained)
        self.world.violations += self.truth.judge_logs(self._final_logs())
        for found in self.truth.quotas.judge():
            if isinstance(found, str):
                self.world.coverage.saw(found)
            else:
                self.world.violations.append(found)
