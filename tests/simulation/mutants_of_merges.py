"""Bugs in merges of small Parquet files (docs/design.md, Parquet compaction)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import ledgermq_ledger.garbage.sweep
import ledgermq_ledger.parquet.merging.merge
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.topics import merged_files
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.merging.merged_list import standing
from ledgermq_ledger.parquet.merging.plan import may_list
from tests.simulation.archive_ambushes import ambush_of_archives
from tests.simulation.mutants import mutant
from tests.simulation.rounds_plan import SLEEPER_BEFORE_A_LIST, SLEEPER_BEHIND_THE_FRONT, rounds_plan_of, with_merges

LOADED = True
Patch = pytest.MonkeyPatch


def _merges(seed: int) -> bool:
    return bool(with_merges(rounds_plan_of(seed), seed).merges)


def _sleeps_before_lists(seed: int) -> bool:
    is_merging = not ambush_of_archives(seed)
    return is_merging and with_merges(rounds_plan_of(seed), seed).ambush is SLEEPER_BEFORE_A_LIST


@mutant("rounds", likely=_sleeps_before_lists)
def merge_listed_whatever_came_between(patch: Patch) -> None:
    """A merge brings its list into force though another one has done so since it read the list."""

    def is_right(draft: fmt.Checkpoint, counters: fmt.PartitionCheckpoint, merge: Any) -> bool:
        return may_list(draft, counters) and counters.merged.number <= merge.task.number

    patch.setattr(ledgermq_ledger.parquet.merging.merge, "_is_right", is_right)


@mutant("rounds", likely=_merges)
def merged_files_collected_on_their_way(patch: Patch) -> None:
    """What no list names is garbage, whatever its number."""
    real = merged_files._judge_of

    async def judge_of(store: ObjectStore, *rest: Any) -> Any:
        judge = await real(store, *rest)
        if judge is None or judge.counters is None:
            return judge
        counters = fmt.PartitionCheckpoint()
        counters.CopyFrom(judge.counters)
        counters.merged.number = 2**62
        return replace(judge, counters=counters)

    patch.setattr(merged_files, "_judge_of", judge_of)


def _sleeps_behind_the_front(seed: int) -> bool:
    is_merging = not ambush_of_archives(seed)
    return is_merging and with_merges(rounds_plan_of(seed), seed).ambush is SLEEPER_BEHIND_THE_FRONT


@mutant("rounds", likely=_sleeps_behind_the_front)
def merge_forgets_what_is_behind_the_front(patch: Patch) -> None:
    """A new list leaves out the merged files that no reader takes any longer, though they are not deleted yet."""

    def with_file(merged: Sequence[Any], new: Any, counters: fmt.PartitionCheckpoint) -> list[Any]:
        return sorted([*standing(merged, counters), new], key=lambda file: file.first_offset)

    patch.setattr(ledgermq_ledger.parquet.merging.merge, "with_file", with_file)


@mutant("rounds", likely=_merges)
def merged_file_outlives_its_small_files(patch: Patch) -> None:
    """A merged file stays until all of its small files have gone."""

    async def remove_behind(*rest: Any) -> int:
        return 0

    def why_garbage(self: Any, name: Any) -> str:
        if self.counters is None:
            return "its topic is deleted"
        if name.offsets is not None and name.offsets[1] < self.counters.parquet_start:
            return "all of its small files are deleted"
        is_passed = name.number <= self.counters.merged.number
        return "no list names it" if is_passed and name.key not in self.named else ""

    patch.setattr(ledgermq_ledger.garbage.sweep.merged_files, "remove_behind", remove_behind)
    patch.setattr(merged_files._Judge, "why_garbage", why_garbage)
