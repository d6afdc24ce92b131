"""Read the snapshots of a topic's Iceberg table as a foreign reader does, by PyIceberg, whenever its catalog takes one
(design Z1 to Z7). It judges what `table_watch` says, and that each snapshot follows the one before it, and stays in the
metadata with its manifests while it is held.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IntegerType, LongType

from ledgermq_ledger import keys
from tests.simulation.iceberg_lake import Lake, LakeIO
from tests.simulation.table_watch import Named, Shown, TableWatch

PARTITION, OFFSET = 4, 5
"""Field ids of columns."""


class IcebergWatch(TableWatch):
    lake: Lake

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self.ids: list[int] = []
        """Of the snapshot of each version."""
        self._objects: list[set[str]] = []
        """Manifests of each version."""

    def on_metadata(self, metadata: TableMetadata) -> None:
        current = metadata.current_snapshot()
        if current is not None and current.snapshot_id not in self.ids[-1:]:
            if (current.parent_snapshot_id or 0) != (self.ids[-1] if self.ids else 0):
                text = f"snapshot {current.sequence_number} does not follow the one before it"
                self._report("gap in a table's log", text)
            self._take_snapshot(current)
        elif current is not None:
            self._world.coverage.saw("the catalog took a change that is no snapshot")
        self._check_held({snapshot.snapshot_id for snapshot in metadata.snapshots})

    def _check_held(self, kept: set[int]) -> None:
        """Each held version can be read."""
        if kept and len(kept) < len(self.ids):
            self._world.coverage.saw("snapshots were let go of")
        for number in range(self.newest.number, -1, -1):
            if not self._is_held(number):
                return
            gone = [location for location in sorted(self._objects[number]) if not self.lake.has(location)]
            if self.ids[number] not in kept or gone:
                self._report("held version unreadable", f"version {number} of {self.newest.number}: {gone}")
                return

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        io, before, number = LakeIO(), self.newest, len(self.versions)
        assert snapshot.summary is not None
        said = {name: snapshot.summary[name] or "" for name in snapshot.summary.additional_properties}
        generation = int(said["ledgermq.topic.id"]), int(said["ledgermq.generation"])
        shown = Shown(number, self._now_ms(), generation, {}, {})
        for what in ("start", "end"):
            for partition, text in enumerate(said[f"ledgermq.{what}"].split(",")):
                shown.txns[f"ledgermq/{generation[0]}/{partition}/{what}"] = int(text)
        manifests = snapshot.manifests(io)
        where, adds, there = f"version {number}", dict[str, Named](), set[str]()
        for manifest in manifests:
            for entry in manifest.fetch_manifest_entry(io):
                path = entry.data_file.file_path.removeprefix(self.lake.root + self.folder)
                if path in there:
                    self._report("record doubled in a table", f"{where} names {path} twice")
                there.add(path)
                if path in before.files:
                    shown.files[path] = before.files[path]
                else:
                    adds[path] = self._named_in(path, entry.data_file)
        self.ids.append(snapshot.snapshot_id)
        self._objects.append({snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)})
        removes = before.files.keys() - there
        begins = generation != before.generation
        self._take_version(shown, adds, set(removes), begins=begins)
        self._cover(f"snapshot, {snapshot.summary.operation.value}", begins)

    def _named_in(self, path: str, file: DataFile) -> Named:
        """By the bounds in the manifest, which the file's name has to agree with."""
        least, most = file.lower_bounds, file.upper_bounds
        name = keys.parse_parquet(self.folder + path)
        named = Named(
            from_bytes(IntegerType(), least[PARTITION]),
            from_bytes(LongType(), least[OFFSET]),
            from_bytes(LongType(), most[OFFSET]) + 1,
        )
        if name is None or Named(name.partition, name.first_offset, name.last_offset + 1) != named:
            self._report("statistics differ", f"{path}: {named}")
        if file.record_count != named.end - named.first:
            self._report("statistics differ", f"{path}: {file.record_count} records, {named}")
        return named
