"""Check what a plain reader of a keyed partition would find, whenever an object of its versions or
a file of its log is added or deleted.

The check reads the JSON of the highest version and exactly the files that it names. Each record is
the latest of its key below the version's end; each key with a value is there exactly once; and the
log continues from the version's end, or from below it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from ledgermq.protocol.batches.records import decode_batch
from ledgermq_ledger import keys
from ledgermq_ledger.keys import KeyedName, PartitionId
from tests.judges.violation import Violation
from tests.simulation.rounds_processes import bundle_of
from tests.simulation.world import World


class Row(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


class KeyedWatch:
    """`topic_id`: of the keyed topic, once it is there. `bundles_of`: those that may have records of a partition."""

    def __init__(
        self,
        world: World,
        topic: str,
        bundles_of: Callable[[int], Iterable[int]] = lambda partition: [bundle_of(partition)],
    ) -> None:
        self._world = world
        self._topic = topic
        self._bundles_of = bundles_of
        self.topic_id = -1
        self._truth: defaultdict[int, dict[int, Row]] = defaultdict(dict)
        self._slots: defaultdict[int, int] = defaultdict(int)
        self._rows: dict[str, list[Row]] = {}
        self._seen = 0

    def on_keyed(self, changed: KeyedName) -> None:
        if changed.place.topic_id != self.topic_id:
            return
        coverage, store = self._world.coverage, self._world.store
        if not changed.is_file:
            there = store.has(keys.keyed_version(changed.place, changed.number))
            coverage.saw("a version was published" if there else "a version was deleted")
        elif len(store.keys_now(keys.keyed_files(changed.place))) < self._seen:
            coverage.saw("a file of versions was deleted")
        self._seen = len(store.keys_now(keys.keyed_files(changed.place)))
        self.look(changed.place)

    def on_parquet(self, changed: keys.ParquetName) -> None:
        if changed.topic_id == self.topic_id:
            self.look(PartitionId(changed.topic_id, changed.partition))

    def look(self, place: PartitionId) -> None:
        store = self._world.store
        self._world.coverage.saw("a plain reader looked")
        found = store.keys_now(keys.keyed_versions(place))
        version: Any = json.loads(store.read_now(found[-1])) if found else {"end": 0, "files": []}
        end: int = version["end"]
        where = f"partition {place.partition}, version {len(found) and version['number']}"
        rows: list[Row] = []
        for file in version["files"]:
            if not store.has(file["key"]):
                self._report("a file of a version is missing", f"{where}: {file['key']}")
                return
            rows += self._read(file["key"])
        self._judge(place.partition, end, rows, where)
        self._judge_log(place, end, where)

    def _read(self, key: str) -> list[Row]:
        if key not in self._rows:
            table = pq.ParquetFile(self._world.store.reader(key)).read(
                columns=["offset", "key", "value"], use_threads=False
            )
            columns = [table[name].to_pylist() for name in ("offset", "key", "value")]
            self._rows[key] = [Row(*row) for row in zip(*columns, strict=True)]
        return self._rows[key]

    def _judge(self, partition: int, end: int, rows: list[Row], where: str) -> None:
        truth = self._written(partition)
        if end > len(truth):
            self._report("a version ends beyond the log", f"{where}: {end}, the log ends at {len(truth)}")
            return
        latest = {row.key: row for row in truth[:end]}
        names = [row.key for row in rows]
        if len(set(names)) < len(names):
            self._report("key doubled", f"{where}: {sorted(name for name in set(names) if names.count(name) > 1)}")
        for row in rows:
            if latest.get(row.key) != row:
                self._report("not the latest record", f"{where}: {row}, the log says {latest.get(row.key)}")
        missing = {row.key for row in latest.values() if row.value is not None} - set(names)
        if missing:
            self._report("key missing", f"{where}: {sorted(missing)}")
        coverage = self._world.coverage
        if len(rows) < end:
            coverage.saw("a version holds fewer records than its end says")
        if any(row.value is None and row.key not in names for row in latest.values()):
            coverage.saw("a tombstone has gone")

    def _judge_log(self, place: PartitionId, end: int, where: str) -> None:
        names = [
            keys.parse_parquet(key)
            for key in self._world.store.keys_now(keys.parquet_partition(self._topic, place.partition))
        ]
        first = min((name.first_offset for name in names if name is not None), default=None)
        if first is not None and first > end:
            self._report(
                "log begins above the version", f"{where}: the log begins at {first}, the version ends at {end}"
            )
        if first:
            self._world.coverage.saw("the log begins above the log start")
        reached = first or 0
        for name in sorted((name for name in names if name is not None), key=lambda name: name.first_offset):
            if name.first_offset > reached:
                self._report("gap in the log", f"{where}: nothing holds {reached} to {name.first_offset - 1}")
            reached = max(reached, name.last_offset + 1)

    def _written(self, partition: int) -> list[Row]:
        """Every record of the partition in valid segments, by offset."""
        for bundle in self._bundles_of(partition):
            self._read_segments(bundle)
        truth = self._truth[partition]
        return [truth[offset] for offset in range(len(truth))]

    def _read_segments(self, bundle: int) -> None:
        store = self._world.store
        while self._slots[bundle] + 1 in store.segments[bundle]:
            self._slots[bundle] += 1
            slot = self._slots[bundle]
            index, data = store.segments[bundle][slot]
            if not store.is_valid(bundle, slot):
                continue
            for entry in index.batches:
                if entry.topic_id == self.topic_id:
                    batch = decode_batch(data[entry.position : entry.position + entry.length])
                    pairs = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
                    rows = [Row(entry.base_offset + i, key, value) for i, (key, value) in enumerate(pairs)]
                    self._truth[entry.partition].update((row.offset, row) for row in rows)

    def _report(self, kind: str, text: str) -> None:
        self._world.violations.append(Violation(kind, text))
