"""Move partitions between bundles until their loads are even (`client.rebalance`, `ledgermq cluster rebalance`).

Loads are measured once, and the plan is made from them (`ledgermq.evenness`). All that has been done is in the
catalog, so a program that is interrupted leaves nothing behind, and the next one goes on from what is there:
partitions that are on their way count as arrived.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ledgermq.client.messages.descriptions import BundleLoads, TopicDescription, TopicPartition
from ledgermq.errors import InvalidRequest, PartitionBusy, TopicBeingDeleted
from ledgermq.evenness import QUIET_BYTES, Partition, PlacedPartition, PlannedMove, after, loads_of, plan

LOOK_S = 1.0
"""Pause between two looks how far moves are."""
MEASURE_LOOK_S_MAX = 5.0
SLOW_S = 20.0
"""A move that has not ended after so long is mentioned, once, with what it waits for."""
BUSY_TRIES = 4
BUSY_PAUSE_S = 1.0
"""Between two tries of a partition that something keeps: a short transaction has ended then."""
MEASURED_S = 60.0

Tell = Callable[[str], object]


class Cluster(Protocol):
    """The calls of a client that are needed."""

    async def describe_loads(self) -> list[BundleLoads]: ...

    async def list_topics(self) -> list[TopicDescription]: ...

    async def move_partition(self, topic: str, partition: int, bundle: int, *, dry_run: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class RebalanceMove:
    """A partition that moves, or would. `load`: bytes produced and fetched in a second, and 64 KiB for each request.
    `why`: the loads, or numbers of partitions, of both bundles before it.
    """

    partition: TopicPartition
    source: int
    target: int
    load: int
    why: str


@dataclass(frozen=True, slots=True)
class KeptPartition:
    """A partition of the plan that something keeps in its bundle, and why."""

    partition: TopicPartition
    bundle: int
    why: str


@dataclass(frozen=True, slots=True)
class BundleBalance:
    """What a bundle has before the moves and after them: its load, and its number of partitions."""

    bundle: int
    load: int
    load_after: int
    partitions: int
    partitions_after: int


@dataclass(frozen=True, slots=True)
class RebalanceResult:
    """What `client.rebalance` has moved, or would move. `already_moving`: partitions that were on their way before.
    `moves_left`: what it would do after that. `mean_load`: of all bundles.
    """

    dry_run: bool
    moves: tuple[RebalanceMove, ...]
    kept: tuple[KeptPartition, ...]
    bundles: tuple[BundleBalance, ...]
    already_moving: int
    moves_left: int
    mean_load: int


class Answers:
    """Counts answers of brokers, which renew the time limit of the command; a pause does not count."""

    def __init__(self) -> None:
        self._count = 0
        self._pauses = False

    def came(self) -> None:
        self._count += 1

    def progress(self) -> int | None:
        return None if self._pauses else self._count

    async def pause(self, seconds: float) -> None:
        self._pauses = True
        try:
            await asyncio.sleep(seconds)
        finally:
            self._pauses = False
            self._count += 1


async def measured(client: Cluster, least_s: float, tell: Tell, answers: Answers) -> Sequence[BundleLoads]:
    """Return the loads of all bundles when each has been measured for so long."""
    told = False
    while True:
        loads = [each for each in await client.describe_loads() if each.bundle]
        answers.came()
        youngest = min(loads, key=lambda each: each.measured_s)
        if youngest.measured_s >= least_s:
            return loads
        if not told:
            told = True
            tell(
                f"the load of bundle {youngest.bundle} has been measured for {youngest.measured_s:.0f} s;"
                f" waiting until it is {least_s:.0f} s"
            )
        await answers.pause(min(MEASURE_LOOK_S_MAX, max(LOOK_S, least_s - youngest.measured_s)))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the partitions are, or are on their way to, and what they cost.

    `moving`: those on their way, with the bundle that they leave. `fixed`: see `evenness.plan`.
    """

    partitions: dict[Partition, PlacedPartition]
    bundles: tuple[int, ...]
    fixed: dict[int, int]
    moving: dict[Partition, int] = field(default_factory=dict)


def placement_of(topics: Sequence[TopicDescription], loads: Sequence[BundleLoads]) -> Placement:
    """Return the placement. While a partition moves, both bundles have measured a part of its load."""
    load: Counter[Partition] = Counter()
    for each in loads:
        load.update(each.partitions)
    there, moving = where(topics)
    partitions = {
        partition: PlacedPartition(bundle, load[partition], may_move=partition not in moving)
        for partition, bundle in there.items()
    }
    fixed = {each.bundle: each.others for each in loads}
    return Placement(partitions, tuple(sorted(fixed)), fixed, moving)


def where(topics: Sequence[TopicDescription]) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Return the bundle of each partition, and the one that it leaves of those that move."""
    there: dict[Partition, int] = {}
    moving: dict[Partition, int] = {}
    for topic in topics:
        for each in topic.partitions:
            there[topic.name, each.partition] = each.bundle
            if each.moving_from is not None:
                moving[topic.name, each.partition] = each.moving_from
    return there, moving


@dataclass(slots=True)
class _Awaited:
    move: PlannedMove
    since: float
    told: bool = False


class Rebalancing:
    """One run: it lets brokers carry out a plan, with at most `at_once` moves out of each bundle.

    A partition that is refused stays, and the rest is planned again without it. `quiet`: see `evenness.plan`.
    """

    def __init__(
        self,
        client: Cluster,
        found: Placement,
        at_once: int,
        moves_max: int | None,
        tell: Tell,
        answers: Answers,
        *,
        dry_run: bool = False,
        quiet: int = QUIET_BYTES,
    ) -> None:
        self.found = found
        self.now = dict(found.partitions)
        """Where partitions are after the moves that are decided, or, in a dry run, would be."""
        self.decided: list[PlannedMove] = []
        self.kept: dict[Partition, str] = {}
        """Why a partition of the plan did not move."""
        self.dry_run = dry_run
        self._client = client
        self._at_once = at_once
        self._moves_max = moves_max
        self._tell = tell
        self._answers = answers
        self._quiet = quiet
        self._awaited: dict[Partition, _Awaited] = {}

    async def until_even(self) -> None:
        """Wait until the loads are even, or nothing more can be done, and the moves have ended."""
        while True:
            kept = len(self.kept)
            await self._carry_out(self.left(self._moves_max))
            if len(self.kept) == kept:
                break
        while self._awaited:
            await self._look()
            await self._answers.pause(LOOK_S)

    def left(self, moves_max: int | None = None) -> list[PlannedMove]:
        """Return what is left to do, within `moves_max` moves of this run."""
        left = None if moves_max is None else moves_max - len(self.decided)
        return plan(self.now, self.found.bundles, self.found.fixed, quiet=self._quiet, moves_max=left)

    def result(self) -> RebalanceResult:
        """Return what was moved, or would be, and the loads of the bundles before and after."""
        found = self.found
        before, now = (loads_of(each, found.bundles, found.fixed) for each in (found.partitions, self.now))
        numbers_before, numbers_now = (
            Counter(each.bundle for each in partitions.values()) for partitions in (found.partitions, self.now)
        )
        return RebalanceResult(
            self.dry_run,
            tuple(
                RebalanceMove(TopicPartition(*move.partition), move.source, move.target, move.load, why(move))
                for move in self.decided
            ),
            tuple(
                KeptPartition(TopicPartition(*partition), self.now[partition].bundle, reason)
                for partition, reason in self.kept.items()
            ),
            tuple(
                BundleBalance(bundle, before[bundle], now[bundle], numbers_before[bundle], numbers_now[bundle])
                for bundle in found.bundles
            ),
            len(found.moving),
            len(self.left()),
            round(sum(before.values()) / max(1, len(before))),
        )

    async def _carry_out(self, moves: list[PlannedMove]) -> None:
        waiting = list(moves)
        while waiting:
            there, leaving = await self._look()
            for move in list(waiting):
                if self.dry_run or leaving[move.source] < self._at_once:
                    waiting.remove(move)
                    if await self._decide(move, there):
                        leaving[move.source] += 1
            if waiting:
                await self._answers.pause(LOOK_S)

    async def _look(self) -> tuple[dict[Partition, int], Counter[int]]:
        """Tell which moves have ended. Return the bundle of each partition, and how many leave each bundle."""
        there, moving = where(await self._client.list_topics())
        self._answers.came()
        now = asyncio.get_running_loop().time()
        for partition, awaited in list(self._awaited.items()):
            if partition not in moving:
                del self._awaited[partition]
                self._tell(f"{name_of(partition)} has moved to bundle {awaited.move.target}")
            elif not awaited.told and now - awaited.since >= SLOW_S:
                awaited.told = True
                self._tell(slow_move(partition, awaited.move.source))
        return there, Counter(moving.values())

    async def _decide(self, move: PlannedMove, there: dict[Partition, int]) -> bool:
        """Let a partition move; return whether it does."""
        reason = await self._refusal(move, there)
        if reason is not None:
            self.kept[move.partition] = reason
            self.now[move.partition] = replace(self.now[move.partition], may_move=False)
            if not self.dry_run:
                self._tell(f"{name_of(move.partition)} stays in bundle {move.source}: {reason}")
            return False
        self.decided.append(move)
        self.now = after(self.now, [move])
        self.now[move.partition] = replace(self.now[move.partition], may_move=False)
        if not self.dry_run:
            self._awaited[move.partition] = _Awaited(move, asyncio.get_running_loop().time())
            self._tell(
                f"{len(self.decided)}. {name_of(move.partition)} moves from bundle {move.source} to bundle"
                f" {move.target}: {why(move)}"
            )
        return True

    async def _refusal(self, move: PlannedMove, there: dict[Partition, int]) -> str | None:
        if there.get(move.partition) not in (move.source, move.target):
            return "it was moved or deleted meanwhile"
        topic, partition = move.partition
        for attempt in range(1, BUSY_TRIES + 1):
            try:
                await self._client.move_partition(topic, partition, move.target, dry_run=self.dry_run)
            except PartitionBusy as error:
                if self.dry_run or attempt == BUSY_TRIES:
                    return error.message
                await self._answers.pause(BUSY_PAUSE_S)
            except (InvalidRequest, TopicBeingDeleted) as error:
                return error.message
            else:
                break
            finally:
                self._answers.came()
        return None


def name_of(partition: Partition) -> str:
    return str(TopicPartition(*partition))


def slow_move(partition: Partition, source: int) -> str:
    """Return what a move waits for that has not ended after SLOW_S."""
    return (
        f"{name_of(partition)} still moves after {SLOW_S:.0f} s: no round of compaction has brought its records in"
        f" bundle {source} to Parquet so far, and the move ends only after one. If brokers have"
        " background_compaction = false, check that `ledgermq compactor ROOT` or Spark compacts, or run `ledgermq"
        " compact ROOT` once; otherwise `ledgermq status` shows what is wrong. The move goes on without this command"
    )


def why(move: PlannedMove) -> str:
    """Return why a partition moves."""
    if move.by == "partitions":
        return (
            f"bundle {move.source} has {move.source_before} partitions, bundle {move.target} has"
            f" {move.target_before}, the mean is {move.mean:.1f}"
        )
    source, target = move.source_before / move.mean, move.target_before / move.mean
    return f"bundle {move.source} has {source:.0%} of the mean load, bundle {move.target} has {target:.0%}"


async def rebalance(
    cluster: Cluster,
    measured_s: float,
    at_once: int,
    moves_max: int | None,
    tell: Tell,
    answers: Answers,
    *,
    dry_run: bool,
) -> RebalanceResult:
    """Measure the loads, and let partitions move until they are even or nothing more can be done."""
    loads = await measured(cluster, measured_s, tell, answers)
    found = placement_of(await cluster.list_topics(), loads)
    run = Rebalancing(cluster, found, at_once, moves_max, tell, answers, dry_run=dry_run)
    await run.until_even()
    return run.result()
