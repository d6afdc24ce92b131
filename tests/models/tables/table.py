"""A table of the model: where a commit lands, and what every version has to show."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tests.models.tables.state import HELD, PARTITIONS, Commit, File, Range, Shown
from tests.models.walk import Violation

if TYPE_CHECKING:
    from tests.models.tables.world import World


class Table:
    """Delta puts the next number if it is absent, and deletes old numbers. Iceberg compares and sets a
    pointer; each of its commits names a manifest that was put before.
    """

    def __init__(self, world: World, form: str) -> None:
        self.world = world
        self.form = form
        self.manifests: dict[float, int] = {}
        self.begin_again(0)

    def begin_again(self, now: int) -> None:
        self.log: dict[int, Commit] = {}
        self.shown: dict[int, Shown] = {0: Shown()}
        self.landed_at: dict[int, int] = {0: now}
        self.newest = 0
        self.streams: dict[int, int] = {}
        """By partition: the offset up to which a stream over the versions has the rows."""

    def held(self) -> list[int]:
        """Return the versions that a reader may have open: the age counts from the version after."""
        return [
            number
            for number in self.shown
            if number == self.newest or self.world.now - self.landed_at[number + 1] < HELD
        ]

    def land(self, commit: Commit) -> bool:
        """Return whether the commit won its number."""
        number = commit.base + 1
        if number in self.log or (self.form == "iceberg" and commit.base != self.newest):
            return False
        if self.form == "delta" and self.newest >= number:
            self.log[number] = commit
            self.world.walk.saw("commits that landed in a number that was free again")
            return True
        before = self.shown.get(commit.base)
        if before is None or commit.base != self.newest:
            raise Violation(f"{self.form}: version {number} lands in a log whose newest is {self.newest}")
        after = before.after(commit)
        if commit.generation != before.generation:
            self.streams = {}
        self.log[number] = commit
        self._check(before, after, commit)
        self.newest, self.shown[number], self.landed_at[number] = number, after, self.world.now
        self.world.walk.saw(f"versions of {self.form}")
        self.world.check_files()
        return True

    def _check(self, before: Shown, after: Shown, commit: Commit) -> None:
        if commit.generation < before.generation:
            raise Violation(f"{self.form}: generation {before.generation} is replaced by {commit.generation}")
        goes_on = commit.generation == before.generation
        if commit.adds and commit.removes and commit.changes_rows and goes_on:
            raise Violation(f"{self.form}: a stream cannot take a commit that adds and removes")
        if commit.generation[0] != self.world.topic:
            return  # of a topic that was deleted: nothing is promised
        if any(file.topic != self.world.topic for file in after.files):
            raise Violation(f"{self.form}: files of another topic")
        for partition in PARTITIONS:
            run = [(file.first, file.end) for file in after.of(partition)]
            self._check_run(partition, run, before.end.get(partition, 0) if goes_on else 0)
            self._check_stream(partition, [file for file in commit.adds if file.partition == partition], commit)

    def _check_run(self, partition: int, run: list[Range], before: int) -> None:
        log_start = self.world.log_start[partition]
        if any(end != first for (_, end), (first, _) in pairwise(run)):
            raise Violation(f"{self.form}: partition {partition} shows {run}")
        if run and run[0][0] > log_start:
            raise Violation(f"{self.form}: partition {partition} begins at {run[0][0]}, the log at {log_start}")
        if (run[-1][1] if run else 0) < before and before > log_start:
            raise Violation(f"{self.form}: partition {partition} shows less than {before}: {run}")

    def _check_stream(self, partition: int, added: list[File], commit: Commit) -> None:
        has = self.streams.get(partition)
        for file in sorted(added, key=lambda file: file.first):
            rows = (file.first, file.end)
            if commit.changes_rows:
                expected = has is None or file.first == has or has < file.first <= self.world.log_start[partition]
                if not expected:
                    raise Violation(f"{self.form}: a stream that has {has} gets {rows}")
                has = file.end
            elif has is None or file.end > has:
                raise Violation(f"{self.form}: a stream misses rows of {rows}, it has {has}")
        if has is not None:
            self.streams[partition] = has
