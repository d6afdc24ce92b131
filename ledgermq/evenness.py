"""When loads count as even, and which partitions move between bundles to make them so. Pure.

Loads are in bytes a second: bytes produced and fetched, and 64 KiB for each request. The rules of a
plan:

* *Tolerance.* Loads are even within `EXCESS_MIN` of their mean. Then nothing moves. Otherwise bundles
  are evened out to half of that, so that the next small change asks for nothing.
* *Few bytes.* The bundle with the largest load gives to the one with the smallest, and gives what is
  nearest to what it has too much of, or to what the other one lacks, whichever is less.
* *Worth it.* A move takes away at least `GAIN_MIN` of that, or of what moves if this is less. So the
  bundle that takes a partition stays below what the other one had.
* A bundle whose moves are not worth it, because one of its partitions is too busy, is left as it is.
  The others are evened out among themselves.
* *Idle bundles.* Where there is no load, the numbers of partitions are evened out, by the same rules.
  Where there is one, idle partitions stay.

The loads in descending order become smaller with each step, so a plan ends. A step depends on nothing
but the state, so the plan for the state that a plan leads to is empty.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from ledgermq.buffers import MIB

EXCESS_MIN = 0.2
"""A load is too large when it exceeds the mean by more than this share of the mean. Bundles that have this much less
than the mean have too little.
"""
GAIN_MIN = 0.5
"""What moves for load must take away this share of what is too much."""
QUIET_BYTES = MIB
"""A bundle with a smaller load counts as idle: it costs 0.4 % of a core."""

Partition = tuple[str, int]
"""Name of a topic, and number of the partition."""


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """`bundle`: that it is in or moves to. `load`: in bytes a second. `may_move`: out of the bundle, now."""

    bundle: int
    load: int
    may_move: bool = True


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A partition is to move from bundle `source` to bundle `target`.

    `by`: what is evened out, loads or numbers of partitions. `source_before`, `target_before`: those of the two
    bundles, after the moves that are planned before. `mean`: of all bundles.
    """

    partition: Partition
    source: int
    target: int
    load: int
    by: Literal["load", "partitions"]
    source_before: int
    target_before: int
    mean: float


def plan(
    partitions: Mapping[Partition, PlacedPartition],
    bundles: Collection[int],
    fixed: Mapping[int, int] | None = None,
    *,
    quiet: int = QUIET_BYTES,
    moves_max: int | None = None,
) -> list[PlannedMove]:
    """Return the moves that even out the loads of the bundles, in the order in which they help most.

    `bundles`: those that partitions may be in. `fixed`: by bundle, the load of what is not in `partitions` and
    does not move. `quiet`: if the bundles have less load than this, on average, they count as idle.
    `moves_max`: plan no more than these; each beginning of a plan makes things more even.
    """
    partitions = {partition: each for partition, each in partitions.items() if each.bundle in bundles}
    sizes = loads_of(partitions, bundles, fixed)
    by: Literal["load", "partitions"] = "load"
    if sum(sizes.values()) < quiet * len(bundles):
        by = "partitions"
        counted = Counter(each.bundle for each in partitions.values())
        sizes = {bundle: counted[bundle] for bundle in sizes}
    found = _Bundles(sizes)
    for partition, each in partitions.items():
        if each.may_move and (size := each.load if by == "load" else 1):
            found.add(each.bundle, size, partition)
    steps = found.even_out(len(partitions) if moves_max is None else moves_max)
    first = {step.partition: step for step in reversed(steps)}
    last = {step.partition: step.target for step in steps}
    mean = sum(sizes.values()) / max(1, len(sizes))
    return [
        PlannedMove(
            step.partition,
            step.source,
            last[step.partition],
            partitions[step.partition].load,
            by,
            step.source_before,
            step.target_before,
            mean,
        )
        for step in reversed(first.values())
        if step.source != last[step.partition]
    ]


def loads_of(
    partitions: Mapping[Partition, PlacedPartition], bundles: Collection[int], fixed: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Return the load of each bundle. For arguments see `plan`."""
    found = {bundle: (fixed or {}).get(bundle, 0) for bundle in sorted(bundles)}
    for each in partitions.values():
        if each.bundle in found:
            found[each.bundle] += each.load
    return found


def after(
    partitions: Mapping[Partition, PlacedPartition], moves: Collection[PlannedMove]
) -> dict[Partition, PlacedPartition]:
    """Return the partitions as they are after the moves."""
    found = dict(partitions)
    for move in moves:
        each = found[move.partition]
        found[move.partition] = PlacedPartition(move.target, each.load, each.may_move)
    return found


@dataclass(frozen=True, slots=True)
class _Step:
    partition: Partition
    size: int
    source: int
    target: int
    source_before: int
    target_before: int


class _Bundles:
    """Sizes of bundles (loads, or numbers of partitions), and the partitions that may leave each."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._sizes = dict(sizes)
        self._held: dict[int, list[tuple[int, Partition]]] = {bundle: [] for bundle in sizes}

    def add(self, bundle: int, size: int, partition: Partition) -> None:
        insort(self._held[bundle], (size, partition))

    def even_out(self, steps_max: int) -> list[_Step]:
        """Return the steps, which are taken then."""
        steps: list[_Step] = []
        if self._next(EXCESS_MIN) is None:
            return steps
        while len(steps) < steps_max and (step := self._next(EXCESS_MIN / 2)) is not None:
            self._held[step.source].remove((step.size, step.partition))
            insort(self._held[step.target], (step.size, step.partition))
            self._sizes[step.source] -= step.size
            self._sizes[step.target] += step.size
            steps.append(step)
        return steps

    def _next(self, tolerance: float) -> _Step | None:
        """Return the step that helps most; None if the bundles are even within the tolerance, or no step is worth
        it.
        """
        rest = sorted(self._sizes, key=lambda bundle: (self._sizes[bundle], bundle))
        total = sum(self._sizes.values())
        while len(rest) > 1:
            target, source, count = rest[0], rest[-1], len(rest)
            excess, lack = self._sizes[source] * count - total, total - self._sizes[target] * count
            if max(excess, lack) <= tolerance * total:
                return None
            if (found := _nearest(self._held[source], excess, lack, count)) is not None:
                size, partition = found
                return _Step(partition, size, source, target, self._sizes[source], self._sizes[target])
            rest.pop()  # the others are evened out among themselves
            total -= self._sizes[source]
        return None


def _nearest(held: list[tuple[int, Partition]], excess: int, lack: int, count: int) -> tuple[int, Partition] | None:
    """Return what of `held`, in ascending order, leaves least of an excess and a lack; None if nothing is worth a
    move. Of two that leave the same, the smaller one moves. Excess and lack are `count` times what they are, so
    that nothing is rounded.
    """

    def twice_taken_away(size: int) -> int:
        return excess + lack - abs(excess - size * count) - abs(lack - size * count)

    def is_worth_it(size: int) -> bool:
        gain = twice_taken_away(size)
        return gain > 0 and gain >= 2 * GAIN_MIN * min(size * count, wanted)

    wanted = min(excess, lack)
    place = bisect_left(held, wanted, key=lambda each: each[0] * count)
    around = [each for each in held[max(0, place - 1) : place + 1] if is_worth_it(each[0])]
    return max(around, key=lambda each: (twice_taken_away(each[0]), -each[0]), default=None)
