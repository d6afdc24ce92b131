"""Bugs in what queries without a broker do with partitions that move (docs/design.md, Moved partitions)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

import pytest

from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from ledgermq_ledger.view.ranges import range_read
from ledgermq_spark.source.ranges import planning
from ledgermq_spark.source.streaming import followed
from ledgermq_spark.source.streaming.driver import Batches
from ledgermq_spark.source.streaming.followed import FollowedTopics
from ledgermq_spark.source.streaming.positions import Position, Topics
from ledgermq_spark.source.streaming.tracking import Tracker
from tests.simulation.mutants import mutant
from tests.simulation.queries_run import queries_plan_of

LOADED = True
Patch = pytest.MonkeyPatch
T = TypeVar("T")


@mutant("queries", likely=lambda seed: queries_plan_of(seed).kind == "query")
def planned_while_it_moves(patch: Patch) -> None:
    """Only the ledger says whether a partition is there. One that comes while a plan is made is planned without its
    records.
    """
    for module in (followed, planning):
        patch.setattr(module, "on_their_way", lambda chosen: {})


@mutant("queries")
def ledgers_are_not_asked_what_left(patch: Patch) -> None:
    """Only the catalog says where a partition is."""
    for module in (followed, planning):
        patch.setattr(module, "gone", lambda chosen, ledgers: {})


@mutant("queries")
def plan_believed_although_a_partition_left(patch: Patch) -> None:
    """What a plan found counts, although a partition left its ledger while it was made."""

    async def planned_whole(plan: Callable[[], Awaitable[T]], left: Callable[[], Collection[PartitionId]]) -> T:
        return await plan()

    for module in (followed, planning):
        patch.setattr(module, "planned_whole", planned_whole)


@mutant("queries", likely=lambda seed: queries_plan_of(seed).kind == "available-now")
def available_now_without_a_look(patch: Patch) -> None:
    """A query that ends with what is there takes the slots that it can see for all of it."""
    real = FollowedTopics.refresh

    async def refresh(self: FollowedTopics, *, at_once: bool = False, look: bool = False) -> None:
        await real(self, at_once=at_once)

    patch.setattr(FollowedTopics, "refresh", refresh)


@mutant("queries")
def offsets_of_moving_partitions_forgotten(patch: Patch) -> None:
    """The end of a batch has no offset of a partition that is away, so it is read from its begin afterwards."""

    def kept(self: Tracker, begins: Topics, topic: Topic) -> dict[int, int]:
        return {}

    patch.setattr(Tracker, "_kept", kept)


@mutant("queries")
def read_in_the_new_ledger_before_its_files_came(patch: Patch) -> None:
    """A partition counts as whole in its new ledger once it is open there, before its file list has come."""

    def holds(self: FollowedLedger, key: PartitionId, move: int) -> bool:
        moves = self._known.state.moves
        return moves.seal_of(key) is None and moves.move(key) == move

    patch.setattr(FollowedLedger, "holds", holds)
    for module in (followed, planning):
        patch.setattr(module, "on_their_way", lambda chosen: {})


@mutant("queries")
def range_read_where_it_was_planned(patch: Patch) -> None:
    """What was planned is read in the bundle of the plan only."""
    patch.setattr(range_read, "bundle_of", lambda checkpoint, key, offset: checkpoint.bundle)


@mutant("queries")
def available_now_ends_while_a_partition_is_away(patch: Patch) -> None:
    """A query that ends with what is there waits for no partition: neither to know its end nor to reach it."""

    async def stop_at_latest(self: Batches) -> None:
        await self.followed.refresh(at_once=True, look=True)
        self._tracker.stop_at_latest()

    async def next_(self: Batches, start: Position, rows_max: int | None) -> Position:
        await self.followed.refresh(at_once=self._tracker.stops)
        return self._tracker.next(start, rows_max)

    patch.setattr(Batches, "stop_at_latest", stop_at_latest)
    patch.setattr(Batches, "next", next_)


@mutant("queries")
def stream_stops_for_a_move(patch: Patch) -> None:
    """A stream waits for all partitions before each batch."""
    real = FollowedTopics.refresh

    async def refresh(self: FollowedTopics, *, at_once: bool = False, look: bool = False) -> None:
        await real(self, at_once=at_once, look=look)
        if not at_once:
            await self.here(self.every)

    patch.setattr(FollowedTopics, "refresh", refresh)
