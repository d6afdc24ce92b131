"""`ledgermq cluster rebalance` moves partitions of a busy bundle while they are written and read, and then finds
nothing to do. In virtual time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

import ledgermq
from ledgermq.buffers import KIB
from ledgermq.cli.admin.cluster import until_moved
from ledgermq.cli.admin.rebalance import report_of
from ledgermq.client.admin.rebalancing import (
    SLOW_S,
    Answers,
    Rebalancing,
    measured,
    name_of,
    placement_of,
    where,
)
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import InvalidRequest
from ledgermq.evenness import Partition
from ledgermq.runtime.tasks import end
from ledgermq_broker.bundle.loads import LoadTimes
from ledgermq_ledger import keys
from tests.broker.cluster import in_cluster
from tests.broker.test_load import busy
from tests.broker.test_moves import BROKERS, CONSTANTS, MovesCluster
from tests.waiting import until

QUIET = 64 * KIB
"""A busy partition of these tests has four times as much."""
BUNDLES = 4
moving_cluster = in_cluster(
    *BROKERS,
    constants=replace(CONSTANTS, loads=LoadTimes(quiet=QUIET, wait_s=10**6)),  # no bundle moves for load
    kind=MovesCluster,
    background_compaction=True,
    bundles=BUNDLES,
)


class Told(list[str]):
    """What the command tells people."""

    def tell(self, line: str) -> None:
        self.append(line)

    def about(self, words: str) -> list[str]:
        return [line for line in self if words in line]


async def run_of(
    client: ledgermq.Client, told: Told, at_once: int = 1, moves_max: int | None = None, *, dry_run: bool = False
) -> Rebalancing:
    """A run as the command begins it, for a cluster with smaller loads."""
    loads = await measured(client, 60, told.tell, Answers())
    found = placement_of(await client.list_topics(), loads)
    return Rebalancing(client, found, at_once, moves_max, told.tell, Answers(), dry_run=dry_run, quiet=QUIET)


async def rebalanced(
    client: ledgermq.Client, at_once: int = 1, moves_max: int | None = None, *, dry_run: bool = False
) -> tuple[Rebalancing, Told]:
    told = Told()
    run = await run_of(client, told, at_once, moves_max, dry_run=dry_run)
    await run.until_even()
    return run, told


async def held(client: ledgermq.Client, partitions: Sequence[int]) -> list[int]:
    """How many of these partitions of topic t each bundle has, in descending order."""
    there, _ = where(await client.list_topics())
    counted = Counter(there["t", partition] for partition in partitions)
    return sorted((counted[bundle] for bundle in range(1, BUNDLES)), reverse=True)


@asynccontextmanager
async def at_most(client: ledgermq.Client, number: int) -> AsyncIterator[None]:
    """Check at each moment that no more partitions leave a bundle."""

    async def watch() -> None:
        while True:
            _, moving = where(await client.list_topics())
            assert max(Counter(moving.values()).values(), default=0) <= number
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    try:
        yield
        assert not watching.done()
    finally:
        await end(watching)


@pytest.mark.slow
@moving_cluster
async def test_busy_partitions_of_one_bundle_are_shared_and_then_nothing_moves(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 9)
        there, _ = where(await client.list_topics())
        crowded = [partition for (_, partition), bundle in there.items() if bundle == 1]
        assert len(crowded) == 3
        async with busy(cluster, crowded):
            await asyncio.sleep(120)
            assert await held(client, crowded) == [3, 0, 0]
            async with at_most(client, 1):
                run, told = await rebalanced(client)
            assert await held(client, crowded) == [1, 1, 1]
            assert not where(await client.list_topics())[1], "it waits for the end of the moves"
            assert [move.by for move in run.decided] == ["load", "load"]
            assert len(told.about("moves from bundle 1 to bundle ")) == len(told.about("has moved to bundle ")) == 2
            assert told[0].startswith(f"1. t/{run.decided[0].partition[1]} moves from bundle 1 to bundle ")
            assert "bundle 1 has 29" in told[0] or "bundle 1 has 30" in told[0], "percent of the mean"
            report = report_of(run.result()).document()
            assert [row["partitions_after"] for row in report["bundles"]] == [1, 4, 4]
            again, told = await rebalanced(client)
            assert (again.decided, told) == ([], []), "also before both bundles have measured it anew"
            await asyncio.sleep(600)
            again, told = await rebalanced(client)
            assert (again.decided, told) == ([], [])
        await cluster.check_root()


@moving_cluster
async def test_a_run_that_was_interrupted_goes_on_with_the_next(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 9)
        async with busy(cluster, [0, 3, 6]):
            assert await held(client, [0, 3, 6]) == [3, 0, 0]
            await asyncio.sleep(120)
            first = await run_of(client, Told())
            going = asyncio.create_task(first.until_even())
            await until(lambda: len(first.decided) == 1)
            await end(going)
            _, moving = where(await client.list_topics())
            assert moving, "brokers go on with it"
            second, _told = await rebalanced(client)
            assert second.found.moving == moving
            assert len(second.decided) == 1
            assert {move.target for move in first.decided + second.decided} == {2, 3}
            assert await held(client, [0, 3, 6]) == [1, 1, 1]
            assert report_of(second.result()).facts["already_moving"] == 1


@moving_cluster
async def test_a_dry_run_shows_the_plan_and_changes_nothing(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 9)
        async with busy(cluster, [0, 3, 6]):
            await asyncio.sleep(120)
            before = await client.list_topics()
            run, told = await rebalanced(client, dry_run=True)
            assert await client.list_topics() == before
            assert told == []
            report = report_of(run.result()).document()
            assert (report["dry_run"], report["moves_left"]) == (True, 0)
            assert [(row["source"], row["target"]) for row in report["moves"]] == [(1, 2), (1, 3)]
            loads = [row["load"] for row in report["bundles"]]
            assert loads[0] > 10 * QUIET > 10 * max(loads[1:])
            assert max(row["load_after"] for row in report["bundles"]) < 5 * QUIET


@moving_cluster
async def test_what_is_kept_where_it_is_stays_and_the_rest_is_planned_without_it(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 9)
        async with busy(cluster, [0, 3, 6]), client.transactions("x") as transactions:
            await asyncio.sleep(120)
            planned = (await rebalanced(client, dry_run=True))[0].decided[0].partition
            async with transactions.begin() as transaction:
                transaction.send("t", b"-1", partition=planned[1])
                await transaction.flush()
                tried, _ = await rebalanced(client, dry_run=True)
                assert list(tried.kept) == [planned]
                run, told = await rebalanced(client)
                await transaction.abort()
            assert list(run.kept) == [planned]
            assert len(run.decided) == 2
            assert planned not in {move.partition for move in run.decided}
            [line] = told.about("stays in bundle 1: ")
            assert "transaction" in line
            assert await held(client, [0, 3, 6]) == [1, 1, 1]


@moving_cluster
async def test_a_short_transaction_only_delays_a_move(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 9)
        async with busy(cluster, [0, 3, 6]), client.transactions("x") as transactions:
            await asyncio.sleep(120)
            planned = (await rebalanced(client, dry_run=True))[0].decided[0].partition
            async with transactions.begin() as transaction:
                transaction.send("t", b"-1", partition=planned[1])
                await transaction.flush()
                going = asyncio.create_task(rebalanced(client))
                await asyncio.sleep(1.5)
                await transaction.abort()
            run, _ = await going
            assert run.kept == {}
            assert run.decided[0].partition == planned


@moving_cluster
async def test_no_more_moves_than_wanted_and_the_next_run_makes_the_others(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 9)
        async with busy(cluster, [0, 3, 6]):
            await asyncio.sleep(120)
            run, _ = await rebalanced(client, moves_max=1)
            assert len(run.decided) == 1
            assert report_of(run.result()).facts["moves_left"] == 1
            run, _ = await rebalanced(client, moves_max=1)
            assert (len(run.decided), report_of(run.result()).facts["moves_left"]) == (1, 0)
            assert await held(client, [0, 3, 6]) == [1, 1, 1]


@moving_cluster
async def test_added_bundles_get_idle_partitions_several_at_once(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 12)
        await client.create_topic("keyed", 3, settings={"cleanup.policy": "compact"})
        await client.add_bundles(2)
        async with at_most(client, 3):
            run, _ = await rebalanced(client, at_once=3)
        there, moving = where(await client.list_topics())
        assert not moving
        assert Counter(there.values()) == dict.fromkeys(range(1, 6), 3)
        assert {move.by for move in run.decided} == {"partitions"}
        assert run.kept == {}


@moving_cluster
async def test_loads_are_waited_for(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 3)
        told, answers = Told(), Answers()
        begun = asyncio.get_running_loop().time()
        asked = asyncio.create_task(measured(client, 60, told.tell, answers))
        await asyncio.sleep(30)
        assert answers.progress() is None, "a pause is no silence of brokers"
        loads = await asked
        assert min(each.measured_s for each in loads) >= 60
        assert 30 < asyncio.get_running_loop().time() - begun < 120
        [line] = told
        assert "waiting until it is 60 s" in line
        assert (answers.progress() or 0) > 10, "each renews the time limit"
        await cluster.stop(cluster.owner_of_bundle(1), graceful=False)
        loads = await measured(client, 60, told.tell, Answers())
        assert len(told) == 2
        assert min(each.measured_s for each in loads) >= 60


@moving_cluster
async def test_a_move_that_does_not_end_is_told_once(cluster: MovesCluster) -> None:
    """The owner of an old bundle cannot write its checkpoint, so it cannot bring what it has to Parquet."""
    async with cluster.client() as client:
        await client.create_topic("t", 12)
        async with client.producer() as producer:
            for partition in range(12):
                await producer.send("t", b"x", partition=partition)
        await client.add_bundles(1)
        told = Told()
        run = await run_of(client, told)
        view = cluster.held_view(cluster.owner_of_bundle(1))
        view.held = keys.checkpoints(1)
        going = asyncio.create_task(run.until_even())
        await asyncio.sleep(3 * SLOW_S)
        assert not going.done()
        [held_up] = [move.partition for move in run.decided if move.source == 1]
        slow = told.about("still moves")
        [line] = [line for line in slow if line.startswith(f"{name_of(held_up)} ")]
        assert "still moves after 20 s: no round of compaction has brought its records in bundle 1 to Parquet" in line
        assert len(slow) == len({*slow}), "others of the same owner may wait, too"
        view.held = ""
        view.let_go.set()
        await going
        assert f"{name_of(held_up)} has moved to bundle 4" in told[-2:]


@in_cluster(*BROKERS, constants=CONSTANTS, kind=MovesCluster, background_compaction=False, bundles=BUNDLES)
async def test_a_command_that_waits_because_nothing_compacts_says_so(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            await producer.send("t", b"x", partition=0)
        await client.move_partition("t", 0, 2)
        told, looks = Told(), list[int]()
        waiting = asyncio.create_task(until_moved(client, TopicPartition("t", 0), told.tell, looks.append))
        await asyncio.sleep(SLOW_S - 1)
        assert not told
        await asyncio.sleep(10 * SLOW_S)
        [line] = told
        assert line.startswith("t/0 still moves after 20 s: no round of compaction has brought its records in bundle 1")
        assert "`ledgermq compactor ROOT`" in line
        assert len(looks) > 100, "each renews the time limit"
        for broker in cluster.brokers.values():
            broker.context.background_rounds.allow(True)
        await waiting
        assert len(told) == 1


class Deleting(Rebalancing):
    """Another client deletes a topic right after the command has looked where partitions are."""

    has_deleted = False

    async def _look(self) -> tuple[dict[Partition, int], Counter[int]]:
        found = await super()._look()
        if not self.has_deleted:
            self.has_deleted = True
            assert isinstance(self._client, ledgermq.Client)
            await self._client.delete_topic("z")
        return found


@moving_cluster
async def test_a_topic_that_is_deleted_meanwhile_stays_out_and_the_rest_is_evened_out(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("z", 6)
        await client.create_topic("t", 9)
        await client.add_bundles(1)
        told = Told()
        loads = await measured(client, 60, told.tell, Answers())
        found = placement_of(await client.list_topics(), loads)
        run = Deleting(client, found, 3, None, told.tell, Answers(), quiet=QUIET)
        await run.until_even()
        assert {topic for topic, _ in run.kept} == {"z"}
        assert told.about("z/")
        there, moving = where(await client.list_topics())
        assert not moving
        assert 4 in there.values()


@moving_cluster
async def test_a_program_evens_out_the_numbers_of_partitions_as_the_command_does(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 9)
        for partition in range(9):
            await client.move_partition("t", partition, 1)
        await until(lambda: is_still(client), 600, every_s=1)
        before = where(await client.list_topics())[0]
        planned = await client.rebalance(dry_run=True)
        assert (planned.dry_run, len(planned.moves), planned.moves_left) == (True, 6, 0)
        assert where(await client.list_topics())[0] == before, "a dry run moves nothing"
        done = await client.rebalance(max_moves=4, at_once=2)
        assert (len(done.moves), done.moves_left, done.already_moving, done.kept) == (4, 2, 0, ())
        assert [each.partitions for each in done.bundles] == [9, 0, 0]
        assert sorted(each.partitions_after for each in done.bundles) == [2, 2, 5]
        there, moving = where(await client.list_topics())
        assert not moving, "it waits for the end of the moves"
        assert {there[move.partition] for move in done.moves} == {2, 3}
        for wrong in ({"at_once": 0}, {"max_moves": 0}, {"measured_s": -1.0}):
            with pytest.raises(InvalidRequest, match="give at least one move"):
                await client.rebalance(**wrong)


async def is_still(client: ledgermq.Client) -> bool:
    return not where(await client.list_topics())[1]
