"""`ledgermq cluster rebalance`: move partitions between bundles until their loads are even.

Loads are measured once, and the plan is made from them (`ledgermq.evenness`). All that has been done is
in the catalog, so a command that is interrupted leaves nothing behind, and the next one goes on from
what is there: partitions that are on their way count as arrived.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer

import ledgermq
from ledgermq.cli.options import DEFAULT_TARGET, DEFAULT_TIMEOUT_S, AnswerTimeout, Debug, Output, OutputFormat, Target
from ledgermq.cli.report import Report, Rows, show
from ledgermq.cli.session import connected_session
from ledgermq.cli.terminal import notes
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

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would move, and the loads before and after.")]
MaxMoves = Annotated[
    int | None, typer.Option("--max-moves", min=1, metavar="N", help="Move no more partitions; those that help most.")
]
AtOnce = Annotated[
    int, typer.Option("--at-once", min=1, metavar="K", help="How many partitions leave a bundle at the same time.")
]
Measured = Annotated[
    float,
    typer.Option("--measured", min=0, metavar="SECONDS", help="Wait until the loads have been measured for so long."),
]
Tell = Callable[[str], None]


async def rebalance(
    target: Target = DEFAULT_TARGET,
    dry_run: DryRun = False,
    max_moves: MaxMoves = None,
    at_once: AtOnce = 1,
    measured_s: Measured = MEASURED_S,
    output: Output = OutputFormat.TABLE,
    timeout_s: AnswerTimeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """Move partitions between bundles until the loads of the bundles are even within 20 %.

    It moves as little of the load as it can, and nothing if the loads are even. Where there is no load, it evens
    out the numbers of partitions. Partitions that `ledgermq cluster move` would refuse now stay. Programs notice
    nothing.

    The command waits until the moves have ended, as long as brokers answer. Ctrl-C ends only the wait. Started
    again, it goes on: partitions that are on their way count as arrived.
    """
    async with connected_session(target, timeout_s) as session:
        answers, client = Answers(), session.client
        session.progress = answers.progress

        def tell(line: str) -> None:
            notes().print(line, markup=False, soft_wrap=True)

        loads = await measured(client, measured_s, tell, answers)
        found = placement_of(await client.list_topics(), loads)
        run = Rebalancing(client, found, at_once, max_moves, tell, answers, dry_run=dry_run)
        await run.until_even()
    show(report_of(run), output)


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


async def measured(
    client: ledgermq.Client, least_s: float, tell: Tell, answers: Answers
) -> Sequence[ledgermq.BundleLoads]:
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


def placement_of(topics: Sequence[ledgermq.TopicDescription], loads: Sequence[ledgermq.BundleLoads]) -> Placement:
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


def where(topics: Sequence[ledgermq.TopicDescription]) -> tuple[dict[Partition, int], dict[Partition, int]]:
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
        client: ledgermq.Client,
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
    return str(ledgermq.TopicPartition(*partition))


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


def report_of(run: Rebalancing) -> Report:
    """Return what was moved, or would be, and the loads of the bundles before and after."""
    found = run.found
    before, now = loads_of(found.partitions, found.bundles, found.fixed), loads_of(run.now, found.bundles, found.fixed)
    numbers_before, numbers_now = (
        Counter(each.bundle for each in partitions.values()) for partitions in (found.partitions, run.now)
    )
    mean = sum(before.values()) / max(1, len(before))
    facts = {
        "dry_run": run.dry_run,
        "moves": len(run.decided),
        "moved_load": sum(move.load for move in run.decided),
        "already_moving": len(found.moving),
        "moves_left": len(run.left()),
        "mean_load": round(mean),
    }
    moves = [
        {
            "partition": name_of(move.partition),
            "source": move.source,
            "target": move.target,
            "load": move.load,
            "why": why(move),
        }
        for move in run.decided
    ]
    kept: list[dict[str, Any]] = [
        {"partition": name_of(partition), "bundle": run.now[partition].bundle, "why": reason}
        for partition, reason in run.kept.items()
    ]
    bundles = [
        {
            "bundle": bundle,
            "load": before[bundle],
            "load_after": now[bundle],
            "partitions": numbers_before[bundle],
            "partitions_after": numbers_now[bundle],
        }
        for bundle in found.bundles
    ]
    return Report(
        "",
        facts,
        [
            Rows("moves", ("partition", "source", "target", "load", "why"), moves, if_any=True),
            Rows("kept", ("partition", "bundle", "why"), kept, if_any=True),
            Rows("bundles", ("bundle", "load", "load_after", "partitions", "partitions_after"), bundles),
        ],
    )
