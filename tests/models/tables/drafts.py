"""What a registrar of the model puts into the next version: a rebuild, rows, a removal, or a merge."""

from __future__ import annotations

from itertools import pairwise

from tests.models.tables.state import Commit, File, Generation, Part, Range, Shown
from tests.models.tables.world import World

Lists = dict[int, tuple[int, Part]]
"""By partition: the bundle in charge, and its list."""
MOST_FILES = 3


def draft_rebuild(world: World, commit: Commit, shown: Shown, lists: Lists) -> None:
    """A new topic, or a new setting: replace all files by what the lists have."""
    topic = commit.generation[0]
    for partition, (_, part) in lists.items():
        behind = world.breaks("rebuilt-with-a-merged-file-that-is-behind")
        merged = [
            File(topic, partition, "merged", *found)
            for found in (part.merged if partition not in world.lost_lists else ())
            if (found[1] > part.start if behind else found[0] >= max(part.start, part.front))
        ]
        small = [
            File(topic, partition, "small", *found)
            for found in part.small
            if found[1] > part.start and not any(file.first <= found[0] < file.end for file in merged)
        ]
        commit.adds |= {*merged, *small}
        commit.end[partition], commit.start[partition] = part.end, part.start
    commit.removes = set(shown.files) - commit.adds


def draft_version(
    world: World, commit: Commit, shown: Shown, lists: Lists, remembered: dict[tuple[Generation, int], int]
) -> None:
    """Rows, or a removal, or a merge: a version is of one kind, and the kinds take turns."""
    for partition, (_, part) in lists.items():
        end = _registered_end(world, commit.generation, partition, part, shown, remembered)
        if world.breaks("merged-before-it-is-registered") and _draft_merge_too_early(
            commit, shown, partition, part, end
        ):
            break
        _draft_rows(world, commit, shown, partition, part, end)
    refused = world.refuses_rows and bool(commit.adds)
    if refused:
        commit.adds, commit.end = set(), {}
    is_due = any(part.start > shown.start.get(partition, 0) for partition, (_, part) in lists.items())
    beside = world.breaks("removes-beside-adds")
    if is_due and world.walk.chance(0.25) and commit.changes_rows and not beside:
        commit.adds, commit.end = set(), {}
    if not commit.adds or beside:
        for partition, (_, part) in lists.items():
            _draft_removal(world, commit, shown, partition, part)
    if refused and world.breaks("refused-rows-hold-up-merges"):
        return
    if not commit.adds and not commit.start and not commit.removes:
        for partition, (_, part) in lists.items():
            _draft_merge(world, commit, shown, partition, part)


def _registered_end(
    world: World,
    generation: Generation,
    partition: int,
    part: Part,
    shown: Shown,
    remembered: dict[tuple[Generation, int], int],
) -> int:
    if world.breaks("end-from-memory") and any(of == generation for of, _ in remembered):
        return remembered.get((generation, partition), 0)
    if world.breaks("log-checkpoint-without-txn") and world.walk.chance(0.01):
        return part.start
    return shown.end.get(partition, 0)


def _draft_rows(world: World, commit: Commit, shown: Shown, partition: int, part: Part, end: int) -> None:
    lowest = max(part.start, shown.start.get(partition, 0))
    new = [found for found in part.small if found[0] >= end and found[1] > lowest]
    if new and new[0][0] != end and not world.breaks("gaps-allowed"):
        is_beside_older = bool(shown.of(partition)) and not world.breaks("gap-beside-older-files")
        if new[0][0] > part.start or is_beside_older:
            return
    if world.breaks("gaps-allowed") and len(new) > 1 and world.walk.chance(0.1):
        new = new[1:]
    for found in new[:MOST_FILES]:
        commit.adds.add(File(commit.generation[0], partition, "small", *found))
        commit.end[partition] = found[1]


def _draft_removal(world: World, commit: Commit, shown: Shown, partition: int, part: Part) -> None:
    """What is below the log start goes, and the table says its start, also if nothing goes."""
    straddling = [file for file in shown.of(partition) if file.kind == "merged" and file.first < part.start < file.end]
    if straddling and not world.breaks("start-within-a-merged-file"):
        return  # its small files take its place first
    gone = {file for file in shown.of(partition) if file.end <= part.start}
    says_start = part.start > shown.start.get(partition, 0) and not world.breaks("gate-without-a-version")
    if not gone and not says_start:
        return
    end = shown.end.get(partition, 0)
    reaching = min((found[0] for found in part.small if found[1] > part.start), default=part.end)
    commit.removes |= gone
    commit.start[partition] = part.start
    commit.end[partition] = max(commit.end.get(partition, 0), end, reaching if part.start > end else 0)


def _draft_merge(world: World, commit: Commit, shown: Shown, partition: int, part: Part) -> None:
    """One merged file takes the place of exactly the files that the table names in its range, or its small files take
    its place, before the log start within it is said.
    """
    named, topic = shown.of(partition), commit.generation[0]
    is_lost = partition in world.lost_lists
    if is_lost and world.breaks("a-lost-list-holds-up-the-log-start"):
        return
    for file in named:
        if file.kind == "merged" and file.first < part.start:
            small = [found for found in part.small if file.first <= found[0] and found[1] <= file.end]
            commit.removes.add(file)
            commit.adds |= {File(topic, partition, "small", *found) for found in small}
            commit.changes_rows = False
            world.walk.saw("small files that were put back")
            return
    for merged in () if is_lost else part.merged:
        if merged[0] < max(part.start, part.front, shown.start.get(partition, 0)):
            continue
        small = [file for file in named if file.kind == "small" and merged[0] <= file.first and file.end <= merged[1]]
        if _is_run(small, merged) or (world.breaks("merged-over-a-part-of-its-range") and small):
            commit.removes |= set(small)
            commit.adds.add(File(topic, partition, "merged", *merged))
            commit.changes_rows = False
            world.walk.saw("merged files in a table")
            return


def _is_run(small: list[File], merged: Range) -> bool:
    """Return whether the files that the table names are all rows of a merged one."""
    is_gapless = all(one.end == other.first for one, other in pairwise(small))
    return bool(small) and is_gapless and (small[0].first, small[-1].end) == merged


def _draft_merge_too_early(commit: Commit, shown: Shown, partition: int, part: Part, end: int) -> bool:
    """Only under a mutant: a merged file that has rows which the table never had."""
    named = shown.of(partition)
    for merged in part.merged:
        if merged[0] <= end < merged[1]:
            if any(file.kind == "merged" and file.end > merged[0] for file in named):
                return False
            commit.adds = {File(commit.generation[0], partition, "merged", *merged)}
            commit.removes = {file for file in named if file.first >= merged[0]}
            commit.end = {partition: merged[1]}
            commit.changes_rows = False
            return True
    return False
