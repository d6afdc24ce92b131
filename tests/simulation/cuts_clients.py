"""Programs of the level *cuts*: transfers that write to every partition of two topics, all or nothing, and operators
that take cuts, read them through a broker, and drop some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ledgermq.errors import LedgerMQError, TransactionAborted, UnknownCut
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import PARTITIONS, SimulatedClient
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.network import Network
from tests.simulation.transactions_clients import Shared, TransactionalClient
from tests.simulation.transactions_plan import TransactionsPlan
from tests.simulation.world import World

LASTING, EXPIRING = "left", "right"
"""Topics of the transfers: of one nothing expires, of the other soon everything."""
TOPICS: Sequence[str] = (LASTING, EXPIRING)


@dataclass(frozen=True, slots=True)
class Taken:
    """A cut, as the program that took it knows it. `before`: transfers that were committed before the call; `known`:
    those that had begun when it returned.
    """

    before: frozenset[str]
    known: frozenset[str]


@dataclass(slots=True)
class Book:
    begun: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)
    cuts: dict[str, Taken] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    """Topics that were deleted together with the cuts that had them."""
    gone: set[str] = field(default_factory=set)
    """Cuts that were dropped with such a topic."""
    unanswered: int = 0
    """Calls of that kind of which no answer has come, so that any cut may be gone."""

    def may_be_gone(self, cut: str) -> bool:
        return bool(self.unanswered) or cut in self.gone


class Transfers(TransactionalClient):
    """Each transaction has one record for every partition of both topics, all of one value."""

    def __init__(
        self, world: World, network: Network, plan: ClusterPlan, own: TransactionsPlan, name: str, book: Book
    ) -> None:
        super().__init__(world, network, plan, own, Shared(), name, name, 0)
        self._book = book

    async def _session(self) -> None:
        async with self._transactions() as transactions:
            while not self.stopped.is_set():
                value = self.next_value()
                self._book.begun.add(value)
                transaction = transactions.begin()
                await transaction.start()
                try:
                    places = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
                    self.random.shuffle(places)
                    for topic, number in places:
                        self._world.history.begin_produce(
                            self.name, self.partition(topic, number), (value,), once=False, ordered=False
                        )
                        transaction.send(topic, value, key=value, partition=number)
                    await transaction.commit(self._own.deadline_s)
                    self._book.committed.add(value)
                except TransactionAborted:
                    self._world.coverage.saw("a transfer was aborted")
                finally:
                    if not transaction.closed:
                        await transaction.abort()
                await asyncio.sleep(self.random.expovariate(2 * self._plan.records_s))


class Operator(SimulatedClient):
    """Takes cuts, reads some by `read_arrow`, and drops some."""

    def __init__(self, world: World, network: Network, plan: ClusterPlan, name: str, book: Book) -> None:
        super().__init__(world, network, plan, name)
        self._book = book
        self._cuts = 0

    async def work(self) -> None:
        while not self.stopped.is_set():
            await asyncio.sleep(self.random.expovariate(2.0))
            try:
                await self._take()
                if self.random.random() < 0.5:
                    await self._read()
                if self.random.random() < 0.3:
                    await self._drop()
            except LedgerMQError as error:
                self._world.judge_error(error)
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")

    async def _take(self) -> None:
        self._cuts += 1
        name, before = f"{self.name}-{self._cuts}", frozenset(self._book.committed)
        is_brief = self.random.random() < 0.2
        try:
            await self.client.cuts.take(name, keep_s=3.0 if is_brief else None)
        except LedgerMQError:
            self._world.coverage.saw("a cut was not taken")
            raise
        self._world.coverage.saw("a cut was taken")
        if not is_brief:
            self._book.cuts[name] = Taken(before, frozenset(self._book.begun))

    async def _read(self) -> None:
        """Read a cut while the cluster goes on."""
        if not self._book.cuts:
            return
        name = self.random.choice(sorted(self._book.cuts))
        taken = self._book.cuts[name]
        try:
            table = await self.client.read_arrow(LASTING, cut=name)
        except UnknownCut:
            if name in self._book.cuts:  # otherwise the other operator has dropped it meanwhile
                raise
            return
        self._world.coverage.saw("a cut was read")
        found: list[set[str]] = [set() for _ in range(PARTITIONS)]
        for partition, value in zip(
            table.column("partition").to_pylist(), table.column("value").to_pylist(), strict=True
        ):
            found[partition].add(value.decode())
        self._world.violations += judge_cut(name, found, taken)

    async def _drop(self) -> None:
        if not self._book.cuts:
            return
        name = self.random.choice(sorted(self._book.cuts))
        del self._book.cuts[name]
        await self.client.cuts.drop(name)
        self._world.coverage.saw("a cut was dropped")


def judge_cut(name: str, parts: Sequence[set[str]], taken: Taken | None) -> list[Violation]:
    """Judge what a cut has of the lasting topic, by partition."""
    whole = set.intersection(*parts)
    found = []
    if torn := set.union(*parts) - whole:
        found.append(Violation("torn transaction", f"cut {name} has a part of {sorted(torn)[:5]}"))
    if taken is not None:
        if missing := taken.before - whole:
            text = f"cut {name} lacks {sorted(missing)[:5]}, which were committed before it was asked for"
            found.append(Violation("not in the cut", text))
        if later := whole - taken.known:
            text = f"cut {name} has {sorted(later)[:5]}, which had not begun when it was answered"
            found.append(Violation("later than the cut", text))
    return found
