"""Run the level *cuts*: transfers over all bundles, and operators who take, read and drop cuts, while brokers die,
rounds, retention and moves go on.

At the end everything heals. Each cut that is left is read from the store alone, before and after more rounds; then all
are dropped, and nothing of them may be left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ledgermq.client.client import Client
from ledgermq.errors import LedgerMQError, UnknownCut
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.reading.root import open_named
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from tests.judges.violation import Violation
from tests.simulation.automatic_cuts_watch import AutomaticWatch, cuts_by_themselves, schedule_of
from tests.simulation.cluster_clients import Reader, Sender
from tests.simulation.cluster_end import HEALING_S
from tests.simulation.cluster_run import ClusterRun
from tests.simulation.cuts_clients import EXPIRING, LASTING, TOPICS, Book, Operator, Transfers, judge_cut
from tests.simulation.deleted_with_cuts import Deleter, deletes_topics, judge_deletions
from tests.simulation.drawn_epochs import (
    REQUESTS_FACTOR,
    TAKERS,
    Cutter,
    LatePlaces,
    Taker,
    calm,
    judge_draws,
    takes_over,
)
from tests.simulation.history import FinalLog, Partition
from tests.simulation.loop import SimulatedLoop
from tests.simulation.racing_commits import RACED, RACED_RECORDS_S, KeepingCutter, Racer, ahead_of_data, races
from tests.simulation.replica_watch import is_replicated, judge_replica
from tests.simulation.restore_watch import judge_restored
from tests.simulation.roaming import Roaming, roams, with_moves
from tests.simulation.transactions_clients import Shared
from tests.simulation.transactions_plan import transactions_plan_of
from tests.worlds.reading import read_to_end

SECONDS = 25.0
ROUNDS = 4
"""After all has healed, each as far from the one before as Parquet files have to be old before they go."""


class CutsRun(ClusterRun):
    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        own = self._own = transactions_plan_of(seed)
        settings = self.cluster.topic_settings
        self.cluster = replace(
            self.cluster,
            seconds=SECONDS,
            topic_settings=settings | {LASTING: settings["main"], EXPIRING: settings["brief"]},
            constants=replace(self.cluster.constants, limits=(own.limits,), carry_slots=own.carry_slots),
        )
        if cuts_by_themselves(seed):
            self.cluster = replace(self.cluster, settings=self.cluster.settings.model_copy(update=schedule_of(seed)))
        self._automatic = AutomaticWatch(self.world, self.cluster.settings.cut_schedule())
        if roams(seed):
            self.cluster = with_moves(self.cluster)
            self._roaming = Roaming(self.world, self.brokers, self.bundles, LASTING)
        if takes_over(seed):
            self.network.on_start = LatePlaces(self.world).at
            self.requests_factor = REQUESTS_FACTOR
            self.plan = calm(self.plan, seed)
        self._book = Book()

    def _start_clients(self) -> list[asyncio.Task[None]]:
        world, network, plan = self.world, self.network, self.cluster
        self._clients = [
            Sender(world, network, plan, "idem", ["main", "brief"]),
            Reader(world, network, plan, "reader", ["main"]),
            *(Transfers(world, network, plan, self._own, name, self._book) for name in ("t0", "t1")),
        ]
        if not races(world.seed):  # they would leave the cutter few turns
            self._clients += [Operator(world, network, plan, name, self._book) for name in ("o0", "o1")]
        if takes_over(world.seed):
            raced = KeepingCutter(world, network, plan, "cutter", self._book) if races(world.seed) else None
            self._clients.append(raced or Cutter(world, network, plan, "cutter"))
            self._clients += [Taker(world, network, plan, self._own, Shared(), name, name, 0) for name in TAKERS]
        if races(world.seed):
            self._clients.append(Racer(world, network, plan, "racer"))
            self._clients.append(Sender(world, network, replace(plan, records_s=RACED_RECORDS_S), "raced", [RACED]))
        if deletes_topics(world.seed):
            self._clients.append(Deleter(world, network, plan, "deleter", self._book))
        return [client.start() for client in self._clients]

    def _final_logs(self) -> dict[Partition, FinalLog]:
        return {
            partition: log for partition, log in super()._final_logs().items() if not keys.is_internal(partition[0])
        }

    async def _compact_all(self) -> None:
        await self._end_automatic()
        client = self._plain_client("cuts at the end")
        listed = {cut.name: cut.state for cut in await self._insist(client.cuts.list)}
        for name in self._book.cuts.keys() - {name for name, state in listed.items() if state == "taken"}:
            if not self._book.may_be_gone(name):
                self._report(
                    "a cut is lost", f"cut {name} was taken, and no client dropped it; it is {listed.get(name)}"
                )
        self.world.violations += judge_deletions(self.world, self._book.deleted)
        taken = sorted(name for name, state in listed.items() if state == "taken" and name in self._book.cuts)
        before = {name: await self._judged(name) for name in taken}
        if taken:
            chosen = await self._to_restore(taken)
            await judge_restored(self.world, chosen, before[chosen], TOPICS)
            if is_replicated(self.world.seed):
                await judge_replica(self.world, before, TOPICS)
        await super()._compact_all()
        await self._more_rounds()
        if taken and [info async for info in self.world.line("last").list(names.HELD)]:
            self.world.coverage.saw("a file was handed over to cuts")
        for dropped in (sorted(listed.keys() - set(taken)), taken[:1], taken[1:]):
            for name in taken:
                if name in self._book.cuts and await self._judged(name) != before[name]:
                    self._report("a cut has changed", f"cut {name} is not what it was before the last rounds")
            for name in dropped:
                self._book.cuts.pop(name, None)
            await self._drop(client, dropped)
        await client.close()
        await self._more_rounds()
        await self._find_what_is_left()

    async def _to_restore(self, taken: Sequence[str]) -> str:
        """Return the first cut in which a group is ahead of data, else the first one."""
        store = self.world.line("last")
        for name in taken if races(self.world.seed) else ():
            at = await open_named(store, await read_cluster(store), name)
            if await ahead_of_data(self.world, at.store, at.cluster):
                self.world.coverage.saw("a group was ahead of a cut's data")
                return name
        return taken[0]

    async def _end_automatic(self) -> None:
        """Judge the automatic cuts after some health and a takeover, and let no further one be taken."""
        if cuts_by_themselves(self.world.seed):
            await self._automatic.expect_more()
            await self._replace_controller()
            await self._automatic.expect_more()
        for each in self.brokers.values():
            if each.broker is not None:
                each.broker.apply(each.broker.settings.model_copy(update={"cut_every_ms": 0}))
        await self._automatic.judge()

    async def _replace_controller(self) -> None:
        """The controller stops, right after it has taken an automatic cut, and starts again."""
        for name, each in self.brokers.items():
            if each.broker is not None and keys.METADATA_BUNDLE in each.broker.ownership.opened:
                await asyncio.wait({each.process.spawn(each.broker.stop())}, timeout=20.0)
                each.process.kill()
                await asyncio.sleep(1.0)
                self._start(name)
                return

    def _report(self, kind: str, text: str) -> None:
        self.world.violations.append(Violation(kind, text))

    async def _more_rounds(self) -> None:
        sources = self.world.sources("rounds beside cuts")
        for _ in range(ROUNDS):
            await compact_root(self.world.line("last"), sources, LocalEngine(sources, run_inline))
            await asyncio.sleep(self.cluster.constants.parquet_min_age_ms / 1000 + 1)

    async def _judged(self, name: str) -> dict[Partition, dict[int, bytes]]:
        """Return what a cut has of the topics of transfers, by offset."""
        try:
            await judge_draws(self.world, name)
            found = await self._read(name)
        except LedgerMQError as error:
            self._report("a cut is not whole", f"cut {name}: {type(error).__name__} {error.message}")
            return {}
        parts = [{value.decode() for value in rows.values()} for (topic, _), rows in found.items() if topic == LASTING]
        self.world.violations += judge_cut(name, parts, self._book.cuts.get(name))
        whole = set.union(*parts)
        for (topic, number), rows in found.items():
            if alone := {value.decode() for value in rows.values()} - whole:
                self._report("torn transaction", f"cut {name} has {sorted(alone)[:5]} only in {topic}/{number}")
        self.world.coverage.saw("a cut was read from the store alone")
        return found

    async def _read(self, name: str) -> dict[Partition, dict[int, bytes]]:
        store = self.world.line("last")
        at = await open_named(store, await read_cluster(store), name)
        found: dict[Partition, dict[int, bytes]] = {}
        for topic in (at.catalog.topics_by_name[each] for each in TOPICS):
            for number, bundle in enumerate(topic.bundles):
                key = PartitionId(topic.id, number)
                ref = LedgerRef(at.store, bundle, at.cluster, self.world.sources("reader of cuts"))
                ledger = FollowedLedger(ref, run_blocking=run_inline)
                await ledger.open()
                start = (await at.partition(key)).start
                has_some = ledger.reader.end(key) > start
                found[topic.name, number] = await read_to_end(ledger.reader, key, start) if has_some else {}
        return found

    async def _drop(self, client: Client, names: Sequence[str]) -> None:
        """Drop cuts, and wait until all of them are gone."""
        for cut in await self._insist(client.cuts.list):
            if cut.name in names and cut.state == "taken":
                await self._insist(lambda name=cut.name: drop_if_there(client, name))  # type: ignore[misc]
        end_s = asyncio.get_running_loop().time() + HEALING_S
        while left := [cut for cut in await self._insist(client.cuts.list) if cut.name in names]:
            if asyncio.get_running_loop().time() > end_s:
                self._report("stuck", f"cuts are left after {HEALING_S:.0f} s of health: {left}")
                return
            await asyncio.sleep(1.0)

    async def _find_what_is_left(self) -> None:
        store = self.world.line("last")
        left = [info.key for prefix in (names.HELD, names.CUTS) async for info in store.list(prefix)]
        for bundle in range(self.bundles()):
            left += [f"pin of {pin.cut} in {bundle}" for pin in (await newest_checkpoint(store, bundle)).pins]
        if left:
            self._report("left of cuts", f"no cut is left, but {left[:5]}")


async def drop_if_there(client: Client, name: str) -> None:
    """Drop a cut whose time may be over meanwhile."""
    with suppress(UnknownCut):
        await client.cuts.drop(name)
