"""Programs that take their transactional ids over again and again, and stage something each time, in some runs of the
level *cuts*; and what cuts have of that.

What is staged may be in a cut that lacks the epoch itself. A copy of that cut would draw it again, beside the batches
that are there (I22). `judge_draws` finds them by the store alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.broker import Broker
from ledgermq_broker.transactions.state.coordinating.ids import Ids
from ledgermq_broker.transactions.state.participating.staged import BundleState
from ledgermq_broker.transactions.state.types import Transaction
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.cuts.reading.root import RootAtCut, open_named
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.internal_topic import read_internal
from ledgermq_ledger.log.ledger_ref import LedgerRef
from tests.judges.violation import Violation
from tests.simulation.automatic_cuts_watch import cuts_by_themselves
from tests.simulation.called_brokers import Called, stand_between
from tests.simulation.cluster_clients import PARTITIONS, SimulatedClient
from tests.simulation.plan import RunPlan, undisturbed
from tests.simulation.transactions_clients import TransactionalClient
from tests.simulation.world import World

FIRST_SEED = 30
"""Seeds below it were recorded for mutants before there were such programs; they stay as they were."""
FIRST_SEED_APART = 50
"""Seeds below it were recorded for mutants before there were others in such runs; they stay as they were."""
TAKERS = ("k0", "k1")
REQUESTS_FACTOR = 10
"""So many times the requests of other runs: these programs send many."""
DELAY_S_MAX = 0.02
LATE_S_MAX = 1.0
"""Much less than a hold lasts."""
SLOW, SLOW_S = 0.03, 0.4
"""Share of requests to the store that take long, so that what was decided before a hold is durable after it."""


def takes_over(seed: int) -> bool:
    """Return whether there are such programs in this run. They delay cuts, so none has to come at its time there."""
    return (
        seed >= FIRST_SEED and not cuts_by_themselves(seed) and random.Random(f"ids taken over {seed}").random() < 0.7
    )


def comes_apart(seed: int) -> bool:
    """Return whether there are such programs, and perhaps others beside them."""
    return seed >= FIRST_SEED_APART and takes_over(seed)


def has_slow_requests(seed: int) -> bool:
    """Return whether some requests to the store take long in this run; cuts take longer then, so there are fewer."""
    return comes_apart(seed) and random.Random(f"slow requests {seed}").random() < 0.5


def calm(plan: RunPlan, seed: int) -> RunPlan:
    """Return a plan of a run in which little else happens, so that many cuts are taken."""
    return replace(
        undisturbed(plan),
        slow=SLOW if has_slow_requests(seed) else 0.0,
        slow_s=SLOW_S,
        faults=replace(plan.faults, delay_s_max=DELAY_S_MAX),
        net_delay_s_max=DELAY_S_MAX,
        event_every_s=10.0,
        pause_s_max=3.0,
    )


class Taker(TransactionalClient):
    async def _session(self) -> None:
        while not self.stopped.is_set():
            async with self._transactions() as transactions, transactions.begin() as transaction:
                for topic in self.outputs:
                    for number in range(PARTITIONS):
                        transaction.send(topic, self.next_value(), partition=number)
                await transaction.flush()
                await transaction.abort()


class Cutter(SimulatedClient):
    """Takes a cut, judges it, drops it, again and again."""

    async def work(self) -> None:
        number = 0
        while not self.stopped.is_set():
            number += 1
            name = f"{self.name}-{number}"
            try:
                await self.client.cuts.take(name)
                await judge_draws(self._world, name)
                await self.let_go(name)
            except LedgerMQError as error:
                self._world.judge_error(error)
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")
            await asyncio.sleep(self.random.expovariate(5.0))

    async def let_go(self, name: str) -> None:
        await self.client.cuts.drop(name)


class LatePlaces:
    """Some bundles of a cut are placed later than others, in runs with such programs."""

    def __init__(self, world: World) -> None:
        self._random = random.Random(f"late places {world.seed}")

    def at(self, broker: Broker) -> None:
        """Delay calls of this broker. Call it when the broker has started."""
        stand_between(broker, lambda api: _Late(api, self._random))


class _Late(Called):
    def __init__(self, api: Any, draw: random.Random) -> None:
        super().__init__(api)
        self._random = draw

    async def hold_for_cut(self, request: pb.HoldForCutRequest) -> pb.HoldForCutResponse:
        if request.step == pb.CUT_PLACE and self._random.random() < 0.5:
            await asyncio.sleep(self._random.uniform(0.2, LATE_S_MAX))
        answer: pb.HoldForCutResponse = await self._api.hold_for_cut(request)
        return answer


async def judge_draws(world: World, name: str) -> None:
    store = world.line("last")
    at = await open_named(store, await read_cluster(store), name)
    world.coverage.saw("a cut was judged by its epochs")
    if twice := await _undrawn(world, at):
        text = f"a copy of cut {name} draws those of {twice[:3]} again"
        world.violations.append(Violation("an epoch is drawn twice", text))


async def _undrawn(world: World, at: RootAtCut) -> Sequence[str]:
    """Return the transactions that have something staged in a cut, under epochs that their ids have not had there."""
    topic = at.catalog.topics_by_name.get(keys.TRANSACTIONS_TOPIC)
    ids, staged = Ids(), list[Transaction]()
    for number, bundle in enumerate(topic.bundles) if topic is not None else ():
        assert topic is not None
        history = await read_history(LedgerRef(at.store, bundle, at.cluster, world.sources("reader of epochs")))
        state = BundleState()
        for record in await read_internal(at.store, history, topic.id, number):
            ids.apply(record.key, record.value)
            state.apply(record.key, record.value)
        staged += [one.transaction for one in state.all()]
    if staged:
        world.coverage.saw("a cut has something staged")
    return [str(one) for one in staged if _is_undrawn(ids, one)]


def _is_undrawn(ids: Ids, staged: Transaction) -> bool:
    known = ids.known.get(staged.transactional_id)  # an id that is unknown there gets another producer id
    return known is not None and known.holder[0] == staged.producer_id and staged.epoch > known.holder[1]
