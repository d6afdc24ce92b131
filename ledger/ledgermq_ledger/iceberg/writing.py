"""Write the manifests of a snapshot by PyIceberg, and put it into its catalog: one compare and set with what was read.

Everything here blocks. Nothing that a snapshot may name is deleted: only manifests of snapshots that the catalog has
let go of.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, TableUpdate
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType, TimestamptzType
from pyiceberg.utils.datetime import timestamptz_to_micros

from ledgermq_ledger.delta.actions import Add
from ledgermq_ledger.delta.statistics import rows_of

PROPERTIES = {
    "gc.enabled": "false",  # other programs are to delete neither versions nor files
    "write.metadata.delete-after-commit.enabled": "true",
    "commit.manifest-merge.enabled": "true",
}
log = logging.getLogger(__name__)


class Files:
    """The data files that manifests name. A manifest never changes, so each is read once."""

    def __init__(self) -> None:
        self._known: dict[str, list[DataFile]] = {}
        self._manifests: dict[int, list[ManifestFile]] = {}

    def of(self, snapshot: Snapshot, io: FileIO) -> dict[str, DataFile]:
        """Return what a snapshot names, by URL."""
        if snapshot.snapshot_id not in self._manifests:
            self._manifests[snapshot.snapshot_id] = snapshot.manifests(io)
        found: dict[str, DataFile] = {}
        for manifest in self._manifests[snapshot.snapshot_id]:
            key = manifest.manifest_path
            if key not in self._known:
                entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
                self._known[key] = [entry.data_file for entry in entries]
            found |= {file.file_path: file for file in self._known[key]}
        return found

    def forget_but(self, chain: Sequence[Snapshot]) -> None:
        """Forget manifests that no snapshot of a chain has."""
        ids = {snapshot.snapshot_id for snapshot in chain}
        self._manifests = {id_: manifests for id_, manifests in self._manifests.items() if id_ in ids}
        paths = {manifest.manifest_path for manifests in self._manifests.values() for manifest in manifests}
        self._known = {path: files for path, files in self._known.items() if path in paths}


def data_file(url: str, add: Add, columns: Schema) -> DataFile:
    """Return the entry of a manifest for a file: the rows, the bytes, and the bounds that `add.stats` says."""
    stats = msgspec.json.decode(add.stats or "{}")
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows_of(add.stats),
        file_size_in_bytes=add.size,
        column_sizes=None,
        value_counts=None,
        null_value_counts=None,
        nan_value_counts=None,
        lower_bounds=_bounds(stats.get("minValues", {}), columns),
        upper_bounds=_bounds(stats.get("maxValues", {}), columns),
        split_offsets=None,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    file.spec_id = 0
    return file


def _bounds(said: Mapping[str, int | str], columns: Schema) -> dict[int, bytes]:
    found = {}
    for name, value in said.items():
        field = columns.find_field(name)
        assert isinstance(field.field_type, PrimitiveType)
        is_time = isinstance(field.field_type, TimestamptzType)
        # Delta writes UTC as Z, Iceberg as +00:00
        bound = timestamptz_to_micros(str(value).replace("Z", "+00:00")) if is_time else value
        found[field.field_id] = to_bytes(field.field_type, bound)
    return found


def staged(
    table: Table,
    changes: tuple[TableUpdate, ...],
    operation: str,
    adds: Iterable[DataFile],
    gone: Iterable[DataFile],
    summary: Mapping[str, str],
) -> tuple[TableUpdate, ...]:
    """Write the manifests of the next snapshot; return what puts it, behind `changes`."""
    transaction = Transaction(table)
    transaction._stage(changes)
    kind = _MergeAppendFiles if operation == "append" else _OverwriteFiles
    producer = kind(Operation(operation), transaction, table.io, snapshot_properties=dict(summary))
    for file in adds:
        producer.append_data_file(file)
    for file in gone:
        producer.delete_data_file(file)
    updates, _ = producer._commit()
    return (*changes, *updates)


def commit(catalog: Catalog, table: Table, updates: tuple[TableUpdate, ...]) -> None:
    """Put updates, if the current snapshot is still the one of `table`. Raises CommitFailedException if it is not, and
    anything else that a catalog's client raises: then the updates may be the table's, now or later.
    """
    current = {"ref": MAIN_BRANCH, "snapshot-id": table.metadata.current_snapshot_id}
    requirements = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId.model_validate(current),
    )
    answer = catalog.commit_table(table, requirements, updates)
    try:
        catalog._delete_old_metadata(table.io, table.metadata, answer.metadata)
    except Exception:  # what stays is a file that nothing names
        log.warning("old metadata of %s stays", table.name(), exc_info=True)


def drop_unused(table: Table, old: Sequence[Snapshot]) -> None:
    """Delete the manifests of snapshots that the catalog has let go of, but those that another one names."""
    ids = {snapshot.snapshot_id for snapshot in old}
    kept = {
        manifest.manifest_path
        for snapshot in table.metadata.snapshots
        if snapshot.snapshot_id not in ids
        for manifest in snapshot.manifests(table.io)
    }
    gone = {manifest.manifest_path for snapshot in old for manifest in snapshot.manifests(table.io)} - kept
    for path in sorted(gone | {snapshot.manifest_list for snapshot in old}):
        table.io.delete(path)
