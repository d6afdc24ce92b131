"""The store of the model of tables: two bundles' checkpoints, the files, a table of each format."""

from __future__ import annotations

from collections.abc import Callable

from tests.models.tables.state import FORMATS, Checkpoint, Commit, File, Generation, Part
from tests.models.tables.table import Table
from tests.models.walk import Process, Violation, Walk


class World:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.now = 0
        self.is_calm = False
        """No failures, no sleep, no late commits from now on."""
        self.is_still = False
        """No new records either: the table may catch up."""
        self.refuses_rows = False
        """The tables take no new rows any longer: a column has two types."""
        self.lost_lists = set[int]()
        """Partitions whose list of merged files cannot be read: what it names is known to the table alone."""
        self.topic = self.setting = self.promised_from = 1
        self.is_set, self.is_removed = True, False
        self.checkpoints = [Checkpoint(), Checkpoint()]
        self.stored: set[File] = set()
        self.late: list[tuple[int, Table, Commit]] = []
        self.moves = 0
        self.home = {0: 0, 1: 1}
        self.log_start = {0: 0, 1: 0}
        self.sealed: dict[int, int] = {}
        """By partition: the bundle that a move takes it from."""
        for bundle, checkpoint in enumerate(self.checkpoints):
            checkpoint.parts[bundle] = Part(self.topic)
        self.tables = [Table(self, form) for form in FORMATS]

    @property
    def generation(self) -> Generation:
        return self.topic, self.setting

    def breaks(self, *rules: str) -> bool:
        return not self.walk.broken.isdisjoint(rules)

    def all_know(self, generation: Generation) -> bool:
        return all(checkpoint.generation == generation and checkpoint.is_set for checkpoint in self.checkpoints)

    def put(self, bundle: int, seen: Checkpoint, new: Checkpoint) -> bool:
        """Put the checkpoint after `seen`, if it is absent."""
        if self.checkpoints[bundle].number != seen.number:
            return False
        for partition, part in self.checkpoints[bundle].parts.items():
            if part.frozen and partition in new.parts and new.parts[partition] != part:
                raise Violation(f"the frozen list of partition {partition} changes")
        new.number = seen.number + 1
        self.checkpoints[bundle] = new
        for partition, part in new.parts.items():
            if part.topic == self.topic:
                self.log_start[partition] = max(self.log_start[partition], part.start)
        return True

    def change(self, bundle: int, edit: Callable[[Checkpoint], bool]) -> Process:
        """Compare and set until it wins, or `edit` declines; returns whether it won."""
        while True:
            yield
            seen = self.checkpoints[bundle].copy()
            yield
            new = seen.copy()
            if not edit(new):
                return False
            if self.put(bundle, seen, new):
                return True

    def in_charge(self, partition: int) -> Process:
        """Find the bundle that has the partition: from one to the next, each read later than the one
        before. None: the partition is between two bundles.
        """
        bundle = self.walk.random.randrange(2)
        for _ in range(6):
            yield
            checkpoint = self.checkpoints[bundle].copy()
            part = checkpoint.parts.get(partition)
            if (part and not part.frozen) or self.breaks("absence-taken-as-removal"):
                return bundle, checkpoint
            if part:
                return None
            bundle = checkpoint.moved_to.get(partition, 1 - bundle)
        return None

    def land(self) -> None:
        """Let those commits arrive whose time has come."""
        for sent in [sent for sent in self.late if sent[0] <= self.now]:
            self.late.remove(sent)
            sent[1].land(sent[2])

    def delete(self, file: File) -> None:
        self.stored.discard(file)
        self.walk.saw("files deleted")
        self.check_files()

    def check_files(self) -> None:
        """Every held version names only what is there."""
        for table in self.tables:
            for number in table.held():
                shown = table.shown[number]
                topic, setting = shown.generation
                if topic != self.topic or self.is_removed or not self.is_set or setting < self.promised_from:
                    continue  # nothing is promised
                if lost := shown.files - self.stored:
                    raise Violation(f"{table.form}: version {number} of {table.newest} names {min(lost)}, it is gone")
                if table.form == "iceberg" and number and table.log[number].put not in table.manifests:
                    raise Violation(f"the manifest of version {number} is gone")

    def check_end(self) -> None:
        """All was calm for long: the table has what Parquet has, and nothing is held forever."""
        for table in self.tables:
            shown = table.shown[table.newest]
            for partition, home in self.home.items():
                part = self.checkpoints[home].parts[partition]
                if shown.end.get(partition, 0) < part.end and not self.refuses_rows:
                    raise Violation(f"{table.form}: at the end it has {shown.end.get(partition)}, Parquet {part.end}")
                left = [file for file in self.stored if file.partition == partition and file.end <= part.start]
                left += [
                    file
                    for file in self.stored
                    if file.partition == partition and file.kind == "merged" and file.first < part.front
                ]
                if left:
                    raise Violation(f"held forever: {left}, gates {part.gate}")
