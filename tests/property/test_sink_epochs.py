"""The promise of the Spark sink, in virtual time: whatever dies, comes again or comes late, an
epoch is in its topics once, and as one run of it made it.

Each epoch is run again and again, with other rows in other tasks each time, as a query does that is
not deterministic; by staged rows, as a transaction, or now one and now the other. Tasks fail
half-way or run twice, drivers die at any await or go on beside their successors, brokers are
killed, the sink's view of the store fails before and after the effect. At the end the topics hold,
for each epoch, all rows of exactly one run, each once, in the order of its tasks.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from ledgermq.client.context import ClientContext
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.transactions.two_phase import branch
from ledgermq.client.transactions.two_phase.branch import Branch, SharedTransaction
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.sinks import Decision
from ledgermq_spark.sink import transactional
from ledgermq_spark.sink.cluster import Place
from ledgermq_spark.sink.driver import commit_epoch
from ledgermq_spark.sink.epochs import epochs, publishing
from ledgermq_spark.sink.epochs.publishing import publish
from ledgermq_spark.sink.staged import Staged, StagedInTransaction
from ledgermq_spark.sink.task import stage_rows
from tests.broker.cluster import Cluster, cluster_of
from tests.stores.faulty import Faults
from tests.virtual_time import run_virtual, virtual
from tests.worlds.sink_places import place_of, rows_of

TOPICS = {"t": 3, "u": 2}
QUERY = "7e3afc91-a1ed-48aa-8b26-3784e3c39607"
EPOCHS = 3
FAULTS = Faults(before=0.03, after=0.03, throttle=0.02, delay_s_max=0.05)


@dataclass
class Life:
    """One query on one cluster.

    `tasks[epoch, run]`: what the tasks were given whose messages a commit of that run may have had.
    """

    cluster: Cluster
    random: random.Random
    modes: str = "staged"
    tasks: dict[tuple[int, int], list[list[str]]] = field(default_factory=dict)
    zombies: list[asyncio.Task[None]] = field(default_factory=list)

    async def query(self) -> None:
        for epoch in range(EPOCHS):
            run = 0
            while not await self._run(epoch, run):
                run += 1
                assert run < 40, f"epoch {epoch} does not come to its end"
            if self.random.random() < 0.5:
                await self._run(epoch, run + 1)

    async def _run(self, epoch: int, run: int) -> bool:
        """Whether the driver has heard that the epoch is committed."""
        given = self._rows(epoch, run)
        messages: list[Staged | StagedInTransaction] = []
        transaction = await self._begun() if self.random.choice(self.modes.split()) == "transaction" else None
        for rows in given:
            for _ in range(self.random.choice((0, 0, 0, 1))):
                await self._dies(self._stage(epoch, rows, transaction))
            for _ in range(20):
                with suppress(LedgerMQError):
                    messages.append(await self._stage(epoch, rows, transaction))
                    break
        assert len(messages) == len(given), "a task failed for good"
        self.tasks[epoch, run] = given
        commit = asyncio.create_task(self._commit(epoch, messages))
        fate = self.random.random()
        if fate < 0.5:
            with suppress(LedgerMQError):
                await commit
                return True
        elif fate < 0.8:
            await asyncio.sleep(self.random.uniform(0, 0.5))
            commit.cancel()
            await asyncio.gather(commit, return_exceptions=True)
        else:
            self.zombies.append(commit)
        return False

    def _rows(self, epoch: int, run: int) -> list[list[str]]:
        """By task: topic, key, and a value that no other run has."""
        names = [
            f"{self.random.choice('ttu')} {self.random.randrange(4)} {epoch}/{run}/{i}"
            for i in range(self.random.randrange(1, 60))
        ]
        tasks: list[list[str]] = [[] for _ in range(self.random.randrange(1, 4))]
        for name in names:
            self.random.choice(tasks).append(name)
        return tasks

    async def _begun(self) -> SharedTransaction:
        while True:
            async with place_of(self.cluster) as place:
                with suppress(LedgerMQError):
                    return await transactional.begin_at(place.client, place.sources, place.options)

    async def _stage(
        self, epoch: int, rows: list[str], transaction: SharedTransaction | None
    ) -> Staged | StagedInTransaction:
        async with place_of(self.cluster, FAULTS) as place:
            if transaction is not None:
                return await transactional.stage_at(
                    place.client, place.sources, place.options, transaction, QUERY, rows_of(rows)
                )
            return await stage_rows(place, QUERY, epoch, rows_of(rows))

    async def _commit(self, epoch: int, messages: list[Staged | StagedInTransaction]) -> None:
        async with place_of(self.cluster, FAULTS) as place:
            if in_transaction := [message for message in messages if isinstance(message, StagedInTransaction)]:
                await transactional.commit_epoch(place, QUERY, epoch, in_transaction)
                return
            staged = [message for message in messages if isinstance(message, Staged)]
            await commit_epoch(place, QUERY, epoch, staged, repeatable=True)

    async def _dies(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        await asyncio.sleep(self.random.uniform(0, 0.3))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def trouble(self) -> None:
        """Brokers die and come back, forever."""
        while True:
            await asyncio.sleep(self.random.uniform(1, 6))
            address = self.random.choice(("a:1", "b:1"))
            await self.cluster.stop(address, graceful=self.random.random() < 0.3)
            await asyncio.sleep(self.random.uniform(0, 3))
            await self.cluster.start(address)

    async def stored(self) -> dict[tuple[str, int], list[str]]:
        return {
            (topic, partition): [value.decode() for value in await self.cluster.read_all(topic, partition)]
            for topic, partitions in TOPICS.items()
            for partition in range(partitions)
        }


def check(life: Life, stored: dict[tuple[str, int], list[str]]) -> None:
    runs: defaultdict[int, set[int]] = defaultdict(set)
    for values in stored.values():
        for value in values:
            epoch, run, _ = map(int, value.split("/"))
            runs[epoch].add(run)
    everything = [value for values in stored.values() for value in values]
    assert len(everything) == len(set(everything)), "a row is stored twice"
    for epoch, found in runs.items():
        assert len(found) == 1, f"epoch {epoch} is a mixture of its runs {found}"
        tasks = life.tasks[epoch, next(iter(found))]
        wanted = sorted(row.split()[2] for task in tasks for row in task)
        assert sorted(value for value in everything if value.startswith(f"{epoch}/")) == wanted
        for values in stored.values():
            for task in tasks:
                names = [row.split()[2] for row in task]
                mine = [value for value in values if value in names]
                assert mine == [name for name in names if name in mine], "a task's rows lost their order"
    assert set(runs) == set(range(EPOCHS))


async def live(seed: int, modes: str = "staged") -> None:
    async with cluster_of("a:1", "b:1") as cluster:
        for topic, partitions in TOPICS.items():
            await cluster.create(topic, partitions)
        life = Life(cluster, random.Random(seed), modes)
        trouble = asyncio.create_task(life.trouble())
        try:
            await life.query()
            await asyncio.gather(*life.zombies, return_exceptions=True)
        finally:
            trouble.cancel()
            await asyncio.gather(trouble, *life.zombies, return_exceptions=True)
        for address in {"a:1", "b:1"} - set(cluster.brokers):
            await cluster.start(address)
        await cluster.settled()
        check(life, await life.stored())


@pytest.mark.parametrize("modes", ["staged", "transaction", "staged transaction"])
@pytest.mark.parametrize("seed", range(12))
@virtual
async def test_each_epoch_is_one_run_of_it_once(seed: int, modes: str) -> None:
    await live(seed, modes)


async def _each_for_itself(
    store: ObjectStore, sources: Sources, write: str, epoch: int, wanted: Decision, attempt: int = 0
) -> Decision:
    return wanted


async def _undecided(store: ObjectStore, write: str, epoch: int, attempt: int = 0) -> None:
    return None


async def _under_its_own_name(place: Place, write: str, epoch: int, decision: Decision) -> None:
    """Publishes under an identity of its own, as an ordinary producer would."""
    put_id = place.sources.new_id()
    sessions = await place.client.open_sessions(put_id, list(decision.opened_slots))
    opened = {each: session.opened_slot for each, session in sessions.items()}
    await publish(place, write, epoch, replace(decision, put_id=put_id, opened_slots=opened))


async def _never(store: ObjectStore, write: str, epoch: int) -> bool:
    return False


BROKEN: dict[str, tuple[tuple[object, str, object], ...]] = {
    "every driver decides for itself": ((epochs, "decide", _each_for_itself), (epochs, "read_decision", _undecided)),
    "every driver publishes under its own name": ((epochs, "publish", _under_its_own_name),),
    "what is done is done again": ((epochs, "is_done", _never), (publishing, "is_done", _never)),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, replacement in BROKEN[rule]:
        monkeypatch.setattr(owner, name, replacement)
    _find_a_life_that_fails(rule, "staged")


def _find_a_life_that_fails(rule: str, modes: str) -> None:
    for seed in range(40):
        try:
            run_virtual(lambda: live(seed, modes))  # noqa: B023
        except (AssertionError, LedgerMQError):
            return
    pytest.fail(f"no life shows what goes wrong when {rule}")


async def _as_committed(place: Place, write: str, epoch: int, transactional_id: str) -> bool:
    return True


class _OneBranch(Branch):
    def __init__(
        self, context: ClientContext, transaction: SharedTransaction, name: bytes, settings: ProducerSettings
    ) -> None:
        super().__init__(context, transaction, b"one", settings)


BROKEN_TRANSACTIONS: dict[str, tuple[tuple[object, str, object], ...]] = {
    "every driver commits its own transaction": BROKEN["every driver decides for itself"],
    "a decision counts though its transaction is aborted": ((epochs, "_is_committed", _as_committed),),
    "attempts of tasks share a branch": ((branch, "Branch", _OneBranch),),
}


@pytest.mark.parametrize("rule", BROKEN_TRANSACTIONS)
def test_each_rule_of_transactions_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, replacement in BROKEN_TRANSACTIONS[rule]:
        monkeypatch.setattr(owner, name, replacement)
    _find_a_life_that_fails(rule, "transaction")
