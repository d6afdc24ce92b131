"""Log checkpoints of a Delta table: one Parquet file that has all of the table at a version, so that a
reader need not read the commits before it. Pure.

A reader that finds half of one cannot read the table, with an older one or without: it is put whole,
if absent. It names every `txn`, or a writer would begin again and name each file a second time. It has
the checksums of every Parquet file of LedgerMQ, because a damaged one can end the process that reads it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ledgermq.errors import DataDamaged
from ledgermq_ledger.delta.actions import Action, Add, Line, MetaData, Protocol, Remove, Txn
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.parquet.files.footer_checksum import BLANK, check_whole
from ledgermq_ledger.parquet.files.new_file import FileSink, NewFile

_TEXTS = pa.map_(pa.string(), pa.string())
_COLUMNS: dict[str, list[tuple[str, pa.DataType]]] = {
    "txn": [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())],
    "add": [
        ("path", pa.string()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
    ],
    "remove": [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
    ],
    "metaData": [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", _TEXTS),
        ("createdTime", pa.int64()),
    ],
    "protocol": [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ],
}
_SCHEMA = pa.schema([pa.field(name, pa.struct(fields)) for name, fields in _COLUMNS.items()])
_MAPS = frozenset({"partitionValues", "options", "configuration"})


class LastCheckpoint(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """`size`: number of actions."""

    version: int
    size: int
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None


def encode_log_checkpoint(
    table: Table, *, removed_after_ms: int, put_id: str, key: str
) -> tuple[NewFile, LastCheckpoint]:
    """Return the log checkpoint of a table's version, and the hint that goes with it. Files that were removed
    before `removed_after_ms`, or at an unknown time, are left out: no reader reads them any longer.

    Raises DataDamaged if the table has no protocol or no metadata.
    """
    table.check(key)
    assert table.protocol is not None
    assert table.metadata is not None
    removed = [gone for gone in table.removed.values() if (gone.deletion_timestamp or 0) >= removed_after_ms]
    actions: list[Action] = [
        table.protocol,
        table.metadata,
        *table.txns.values(),
        *(msgspec.structs.replace(file, data_change=False) for file in table.files.values()),
        *(msgspec.structs.replace(gone, data_change=False) for gone in removed),
    ]
    rows = pa.Table.from_pylist([_row(action) for action in actions], _SCHEMA)
    sink = FileSink()
    note = {"format": 1, "checksum": BLANK, "body_checksum": BLANK, "put_id": put_id}
    with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), _SCHEMA, compression="snappy") as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({b"ledgermq": json.dumps(note, sort_keys=True).encode()})
    found = sink.whole()
    return found, LastCheckpoint(table.version, len(actions), found.size, len(table.files))


def _row(action: Action) -> dict[str, Any]:
    names: dict[type[Any], str] = {
        Protocol: "protocol",
        MetaData: "metaData",
        Add: "add",
        Remove: "remove",
        Txn: "txn",
    }
    return {names[type(action)]: msgspec.to_builtins(action)}


def decode_log_checkpoint(data: bytes, version: int, key: str) -> Table:
    """Return the table at the version of a log checkpoint that LedgerMQ put. Raises DataDamaged,
    FormatNotSupported, naming `key`.
    """
    check_whole(data, key)
    try:
        columns = [name for name in _COLUMNS if name in pq.read_schema(pa.BufferReader(data)).names]
        rows = pq.read_table(pa.BufferReader(data), columns=columns).to_pylist()
        lines = [msgspec.convert(_without_nulls(row), Line) for row in rows]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise DataDamaged(f"{key}: it is no log checkpoint of a Delta table: {error}", object_key=key) from error
    table = Table(version)
    table.take((action for line in lines if (action := line.action()) is not None), key)
    table.check(key)
    return table


def _without_nulls(found: dict[str, Any]) -> dict[str, Any]:
    """Return a row with maps as such, without what is NULL outside of them."""
    return {name: _plain(name, value) for name, value in found.items() if value is not None}


def _plain(name: str, value: Any) -> Any:
    if name in _MAPS:
        return dict(value)
    return _without_nulls(value) if isinstance(value, dict) else value


def encode_hint(hint: LastCheckpoint) -> bytes:
    """Return the bytes of `_last_checkpoint`."""
    return msgspec.json.encode(hint)


def decode_hint(data: bytes) -> LastCheckpoint | None:
    """Return the hint; None if it says nothing that can be used. It is never more than a hint."""
    try:
        return msgspec.json.decode(data, type=LastCheckpoint)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
