"""Read the Delta log of a topic's table as a foreign reader does, by Delta's protocol, whenever anything in the
topic's folder comes or goes (design Z1 to Z7).

    gapless     each version follows the one before it; of each partition it names one run of files, from the log
                start or below it on, and never ends before an earlier version
    one kind    a version adds rows, or removes files below the log start; only a new generation does both
    there       each file that a held version names is in the store: a version is held while it is the newest, or
                the next one came less than the table's keeping time ago
    readable    each held version can be read: a checkpoint of the log, and each commit above it

Nothing of this uses the product's code for tables: a fault of that is none of the judge's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow.parquet as pq

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.parquet.merging.names import parse_merged
from tests.judges.violation import Violation
from tests.simulation.world import World

COMMIT, CHECKPOINT, HINT = ".json", ".checkpoint.parquet", "_last_checkpoint"
Generation = tuple[int, int]


class Named(NamedTuple):
    """A file that a version names. `end`: the offset after its last one."""

    partition: int
    first: int
    end: int


@dataclass(slots=True)
class Shown:
    """What a reader of a version sees. `put_ms`: by the store's clock."""

    number: int = -1
    put_ms: int = 0
    generation: Generation = (-1, -1)
    files: dict[str, Named] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)

    def runs(self) -> dict[int, list[Named]]:
        found: dict[int, list[Named]] = {}
        for file in sorted(self.files.values()):
            found.setdefault(file.partition, []).append(file)
        return found


class Promises:
    """`below`: of lower generations no file is kept, because a bundle knows that the table was unset, or the topic
    removed.
    """

    def __init__(self) -> None:
        self.below: Generation = (0, 0)

    def on_checkpoint(self, checkpoint: fmt.Checkpoint) -> None:
        for fact in checkpoint.topic_facts:
            if not fact.table:
                self.below = max(self.below, (fact.topic_id, fact.version))
        for note in checkpoint.removed_topics:
            self.below = max(self.below, (note.topic_id + 1, 0))


class TableWatch:
    """`folder`: the table's; topics come and go under the name of one below parquet/."""

    def __init__(self, world: World, folder: str, keep_ms: int, bundles: int, promises: Promises) -> None:
        self._world = world
        self.folder = folder
        self._log = f"{self.folder}_delta_log/"
        self._keep_ms = keep_ms
        self._bundles = bundles
        self.versions: list[Shown] = []
        """Each one that was ever the newest, by number."""
        self._gone_at: dict[str, int] = {}
        """By path: the number of the version that last removed the file."""
        self._ends: dict[tuple[int, int], int] = {}
        """(topic id, partition) → the furthest end that a version has shown."""
        self._checkpoints: set[int] = set()
        """Versions with a checkpoint of the log, of any time."""
        self._promises = promises

    @property
    def newest(self) -> Shown:
        return self.versions[-1] if self.versions else Shown()

    def on_parquet(self, changed: keys.ParquetName) -> None:
        """A file that a held version names must not go."""
        self.on_merged(changed.key)

    def on_merged(self, key: str) -> None:
        """As `on_parquet`, of a file that may be a merged one."""
        path = key.removeprefix(self.folder)
        if self._world.store.has(key) or path == key:
            return
        last = self.newest.number if path in self.newest.files else self._gone_at.get(path, 0) - 1
        if last < 0:
            return
        self._world.coverage.saw("a file that was in a table was deleted")
        if self._is_held(last) and self.is_promised(self.versions[last]):
            self._report("file deleted while named", f"{path}: version {last} of {self.newest.number} names it")

    def is_removed(self, topic_id: int) -> bool:
        """Return whether a bundle has told that the topic is removed, or one after it."""
        return self._promises.below >= (topic_id + 1, 0)

    def is_promised(self, shown: Shown) -> bool:
        return shown.generation >= self._promises.below

    def _is_held(self, number: int) -> bool:
        return number == self.newest.number or self._now_ms() - self.versions[number + 1].put_ms < self._keep_ms

    def _now_ms(self) -> int:
        return self._world.store.now_ms()

    def on_table(self, key: str) -> None:
        name = key.removeprefix(self._log)
        if name == key:
            self._report("foreign log", key)
        elif not self._world.store.has(key):
            self._world.coverage.saw("an object of a table's log was cleaned")
            self._check_readable(name)
        elif name == HINT:
            self._check_hint(json.loads(self._world.store.read_now(key)))
        elif name.endswith(CHECKPOINT):
            self._take_checkpoint(int(name.removesuffix(CHECKPOINT)), key)
        else:
            self._take_commit(int(name.removesuffix(COMMIT)), self._world.store.read_now(key))

    def _check_hint(self, hint: dict[str, Any]) -> None:
        if hint["version"] not in self._checkpoints:
            self._report("hint to nothing", f"there was never a checkpoint of version {hint['version']}")

    @property
    def is_over(self) -> bool:
        """The log may go as a whole. One below parquet/ stays: the next topic of the name goes on with it."""
        return False

    def _check_readable(self, gone: str) -> None:
        """As a reader lists it now: of each held version, and of the newest."""
        if self.is_over:
            self._world.coverage.saw("an object of a removed topic's table was deleted")
            return
        names = [key.removeprefix(self._log) for key in self._world.store.keys_now(self._log)]
        commits = {int(name.removesuffix(COMMIT)) for name in names if name.endswith(COMMIT)}
        checkpoints = [int(name.removesuffix(CHECKPOINT)) for name in names if name.endswith(CHECKPOINT)]
        lowest = self.newest.number
        while lowest > 0 and self._is_held(lowest - 1):
            lowest -= 1
        for version in range(lowest, self.newest.number + 1):
            base = max((number for number in checkpoints if number <= version), default=-1)
            missing = [number for number in range(base + 1, version + 1) if number not in commits]
            if missing:
                self._report("held version unreadable", f"{gone} is gone: version {version} needs {missing[0]}")
                return

    def _take_checkpoint(self, number: int, key: str) -> None:
        """One Parquet file that has all of a version."""
        self._world.coverage.saw("a checkpoint of a table's log was put")
        self._checkpoints.add(number)
        if number > self.newest.number:
            self._report("log checkpoint differs", f"of version {number}, the newest is {self.newest.number}")
            return
        rows = pq.read_table(self._world.store.reader(key), use_threads=False).to_pylist()
        files = {unquote(row["add"]["path"]) for row in rows if row["add"] is not None}
        txns = {row["txn"]["appId"]: row["txn"]["version"] for row in rows if row["txn"] is not None}
        ids = [row["metaData"]["id"] for row in rows if row["metaData"] is not None]
        protocols = [row["protocol"] for row in rows if row["protocol"] is not None]
        there = self.versions[number]
        if files != set(there.files) or txns != there.txns or len(ids) != 1 or len(protocols) != 1:
            self._report("log checkpoint differs", f"of version {number}: {sorted(files)}, {txns}")

    def _take_commit(self, number: int, data: bytes) -> None:
        if number <= self.newest.number:
            self._world.coverage.saw("a commit landed in a number that was free again")
            self._check_readable("nothing")
            return
        if number > self.newest.number + 1:
            self._report("gap in a table's log", f"version {number} follows version {self.newest.number}")
            return
        before = self.newest
        shown = Shown(number, self._now_ms(), before.generation, dict(before.files), dict(before.txns))
        actions = [next(iter(json.loads(line).items())) for line in data.splitlines()]
        begins, adds, removes, changes = False, dict[str, Named](), set[str](), set[bool]()
        for kind, said in actions:
            match kind:
                case "metaData":
                    said = said["configuration"]
                    shown.generation = int(said["ledgermq.topic.id"]), int(said["ledgermq.generation"])
                    begins = shown.generation != before.generation  # otherwise it has more columns
                case "txn":
                    shown.txns[said["appId"]] = said["version"]
                case "remove":
                    removes.add(unquote(said["path"]))
                    changes.add(said["dataChange"])
                case "add":
                    adds[unquote(said["path"])] = self._named(said)
                    changes.add(said["dataChange"])
        if actions[-1][0] != "commitInfo":
            self._report("no commit info", f"version {number}")
        if len(changes) > 1:
            self._report("rows beside an exchange", f"version {number}")
        self._take_version(shown, adds, removes, begins=begins, exchanges=changes == {False})
        self._cover(actions[-1][1].get("operation", ""), begins)

    def _take_version(
        self, shown: Shown, adds: dict[str, Named], removes: set[str], *, begins: bool, exchanges: bool = False
    ) -> None:
        """Judge a version that follows the newest one. `shown`: it, with the files that it keeps at least; `removes`:
        what it removes; `begins`: it is the first one of a generation; `exchanges`: it says that no row changes.
        """
        before, where = self.newest, f"version {shown.number}"
        if unknown := removes - before.files.keys():
            self._report("removed what was not there", f"{where}: {sorted(unknown)[0]}")
        if not begins and (doubled := adds.keys() & before.files.keys()):
            self._report("file named twice", f"{where}: {sorted(doubled)[0]}")
        if exchanges:
            self._judge_exchange(before, adds, removes, where)
        else:
            self._judge_kinds(adds, removes, begins=begins, where=where)
        for path in removes - adds.keys():
            shown.files.pop(path, None)
            self._gone_at[path] = shown.number
        shown.files |= adds
        self.versions.append(shown)
        is_empty = not shown.files and bool(removes) and not begins
        self._judge(before, shown, begins or is_empty, where)
        if not exchanges:
            self._check_removals(before, removes - adds.keys(), where, is_empty=is_empty)
        if self.is_promised(shown):
            for path in adds:
                if not self._world.store.has(self.folder + path):
                    self._report("file deleted while named", f"{where} names {path}, which is gone")

    def _judge_exchange(self, before: Shown, adds: dict[str, Named], removes: set[str], where: str) -> None:
        """A stream passes over such a version, so it has exactly the rows that it removes."""
        gone = Counter((f.partition, o) for p in removes if (f := before.files.get(p)) for o in range(f.first, f.end))
        come = Counter((f.partition, offset) for f in adds.values() for offset in range(f.first, f.end))
        if gone != come:
            self._report("an exchange changes rows", f"{where}: {sorted((gone - come) + (come - gone))[:3]}")
        self._world.coverage.saw("merged files and small ones were exchanged")

    def _judge_kinds(self, adds: dict[str, Named], removes: set[str], *, begins: bool, where: str) -> None:
        if not begins and adds and removes:
            self._report("adds beside removals", f"{where}: {len(adds)} and {len(removes)}")

    def _cover(self, operation: str, begins: bool) -> None:
        coverage = self._world.coverage
        coverage.saw(f"a version was put: {operation}")
        if begins and self.newest.number:
            coverage.saw("a table began a new generation")

    def _named(self, add: dict[str, Any]) -> Named:
        """By the file's statistics, which its name has to agree with."""
        stats = json.loads(add["stats"])
        least, most = stats["minValues"], stats["maxValues"]
        named = Named(least["partition"], least["offset"], most["offset"] + 1)
        key = self.folder + unquote(add["path"])
        name, merged = keys.parse_parquet(key), parse_merged(key)
        says = None if name is None else Named(name.partition, name.first_offset, name.last_offset + 1)
        if merged is not None and merged.offsets is not None:
            says = Named(merged.place.partition, merged.offsets[0], merged.offsets[1] + 1)
        if says != named:
            self._report("statistics differ", f"{add['path']}: {named}")
        if stats["numRecords"] != named.end - named.first:
            self._report("statistics differ", f"{add['path']}: {stats['numRecords']} records, {named}")
        return named

    def _judge(self, before: Shown, shown: Shown, may_show_less: bool, where: str) -> None:
        self._judge_progress(before, shown, where)
        topic_id, runs = shown.generation[0], shown.runs()
        for partition, run in runs.items():
            of = topic_id, partition
            for left, right in pairwise(run):
                if left.end != right.first:
                    kind = "gap in a table" if left.end < right.first else "record doubled in a table"
                    self._report(kind, f"{where}, partition {partition}: {left} and {right}")
            if run[0].first > self.log_start(*of):
                text = f"partition {partition} begins at {run[0].first}, the log at {self.log_start(*of)}"
                self._report("a table lost its front", f"{where}: {text}")
            if run[-1].end < self._ends.get(of, 0):
                text = f"partition {partition} ends at {run[-1].end}, after {self._ends[of]}"
                self._report("a table shows less", f"{where}: {text}")
            self._ends[of] = max(self._ends.get(of, 0), run[-1].end)
        for partition in before.runs().keys() - runs.keys():
            end = self._ends.get((topic_id, partition), 0)
            if not may_show_less and end > self.log_start(topic_id, partition):
                self._report("a table shows less", f"{where}: nothing of partition {partition}, which ended at {end}")

    def _judge_progress(self, before: Shown, shown: Shown, where: str) -> None:
        if shown.generation < before.generation:
            self._report("a table went back", f"{where} is of {shown.generation} after {before.generation}")
        for name, value in shown.txns.items():
            if value < before.txns.get(name, 0):
                self._report("a table went back", f"{where}: {name} is {value} after {before.txns[name]}")

    def _check_removals(self, before: Shown, removed: set[str], where: str, *, is_empty: bool) -> None:
        """Only what is wholly below the log start may go: of a table that goes on, and by a rebuild of the topic, which
        may name a merged file with the same rows.
        """
        same_topic, runs = self.newest.generation[0] == before.generation[0], self.newest.runs()
        for path in sorted(removed & before.files.keys()) if same_topic and not is_empty else ():
            file = before.files[path]
            run = runs.get(file.partition)
            is_shown = run is not None and run[0].first <= file.first and file.end <= run[-1].end
            if file.end > self.log_start(before.generation[0], file.partition) and not is_shown:
                self._report("a table shows less", f"{where} removes {path}, which the log has")

    def log_start(self, topic_id: int, partition: int) -> int:
        """Return the highest log start that the newest checkpoint of any bundle says."""
        return max((part.log_start for part in self._counters(topic_id, partition)), default=0)

    def _counters(self, topic_id: int, partition: int) -> Iterator[fmt.PartitionCheckpoint]:
        for bundle in range(1, self._bundles):
            for part in self._world.store.newest_checkpoint(bundle).partitions:
                if (part.topic_id, part.partition) == (topic_id, partition):
                    yield part

    def check_complete(self, generation: Generation, partitions: int) -> None:
        """All is calm: the table has exactly the files of Parquet above the log start, and nothing is held for ever."""
        newest, runs = self.newest, self.newest.runs()
        if newest.generation != generation:
            self._report("table incomplete", f"it is of generation {newest.generation}, not {generation}")
            return
        for partition in range(partitions):
            start = self.log_start(generation[0], partition)
            end = max((part.parquet_end for part in self._counters(generation[0], partition)), default=0)
            run = runs.get(partition, [])
            if (run[-1].end if run else start) < end or (run and run[0].end <= start):
                text = f"partition {partition} has {run}, the log {start} to {end}"
                self._report("table incomplete", text)
            for key in self._world.store.keys_now(f"{self.folder}partition={partition}/"):
                name = keys.parse_parquet(key)
                if name is not None and name.last_offset < start:
                    self._report("held for ever", f"{key}, the log starts at {start}")

    def _report(self, kind: str, text: str) -> None:
        self._world.violations.append(Violation(kind, text))
