"""A Delta table as its log says it: replayed from a log checkpoint and the commits after it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from ledgermq.errors import DataDamaged
from ledgermq_ledger.delta.actions import (
    LOCK,
    READER_VERSION,
    WRITER_VERSION,
    Action,
    Add,
    Commit,
    MetaData,
    Protocol,
    Remove,
    Txn,
    check_protocol,
)

OPTIONS = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.deletedFileRetentionDuration": "interval 5000 weeks",
}
"""No other program is to delete versions or files: VACUUM refuses shorter times by default."""


@dataclass(slots=True)
class Table:
    """`files`: what a reader of this version reads, by path as it is encoded in the log. `removed`: what
    readers of former versions may read yet. `commits`: how many were taken in since the log checkpoint.
    """

    version: int = -1
    protocol: Protocol | None = None
    metadata: MetaData | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    files: dict[str, Add] = field(default_factory=dict)
    removed: dict[str, Remove] = field(default_factory=dict)
    commits: int = 0

    def apply(self, version: int, commit: Commit, key: str) -> None:
        """Take in the commit of the next version. Raises DataDamaged (version 0 makes no table),
        FormatNotSupported.
        """
        if version != self.version + 1:
            raise AssertionError(f"{key}: version {version} does not follow version {self.version}")
        self.take(commit.actions, key)
        self.version = version
        self.commits += 1
        self.check(key)

    def take(self, actions: Iterable[Action], key: str) -> None:
        """Take in actions in their order. Raises FormatNotSupported."""
        for action in actions:
            match action:
                case Protocol():
                    check_protocol(action, key)
                    self.protocol = action
                case MetaData():
                    self.metadata = action
                case Txn():
                    self.txns[action.app_id] = action
                case Add():
                    self.removed.pop(action.path, None)
                    self.files[action.path] = action
                case Remove():
                    self.files.pop(action.path, None)
                    self.removed[action.path] = action

    def check(self, key: str) -> None:
        """Raise DataDamaged if no reader could read the table."""
        if self.protocol is None or self.metadata is None:
            raise DataDamaged(f"{key}: the Delta log up to it names no protocol or no metadata", object_key=key)


def new_table(
    schema: pa.Schema, *, cluster: str, topic: str, topic_id: int, generation: int, created_ms: int
) -> list[Action]:
    """Return the actions with which a table of a topic begins. `generation`: the offset in `__metadata` of the
    record that set the table.
    """
    named = {"ledgermq.cluster": cluster, "ledgermq.topic.id": str(topic_id), "ledgermq.generation": str(generation)}
    return [
        Protocol(READER_VERSION, WRITER_VERSION, writer_features=[LOCK]),
        MetaData(
            id=_table_id(f"{cluster}/{topic_id}/{generation}"),
            schema_string=_schema_string(schema),
            configuration={**OPTIONS, **named},
            name=topic,
            created_time=created_ms,
        ),
    ]


def merged(table: Sequence[Action], files: Iterable[pa.Schema]) -> list[Action]:
    """Return actions whose metadata has the columns of files, too. Raises ValueError if one name has two types."""
    return [_with_columns(action, files) if isinstance(action, MetaData) else action for action in table]


def grown(metadata: MetaData, files: Iterable[pa.Schema]) -> MetaData | None:
    """Return a table's metadata with the columns of these files as well; None if it has them all. Raises ValueError if
    one name has two types.
    """
    found = _with_columns(metadata, files)
    return None if found.schema_string == metadata.schema_string else found


def _with_columns(metadata: MetaData, files: Iterable[pa.Schema]) -> MetaData:
    whole = json.loads(metadata.schema_string)
    for schema in files:
        whole = _union(whole, _struct(list(schema)), "")
    return msgspec.structs.replace(metadata, schema_string=json.dumps(whole, separators=(",", ":")))


def _union(one: Any, other: Any, path: str) -> Any:
    """Return a type with the fields of both, those of `one` first."""
    if one == other:
        return one
    kind = one.get("type") if isinstance(one, dict) else None
    if kind is None or not isinstance(other, dict) or other.get("type") != kind:
        raise ValueError(f"the column {path} has two types: {_named(one)} and {_named(other)}")
    if kind == "array":
        return {**one, "elementType": _union(one["elementType"], other["elementType"], f"{path}.element")}
    if kind == "map":
        return {**one, "valueType": _union(one["valueType"], other["valueType"], f"{path}.value")}
    fields = {each["name"]: each for each in one["fields"]}
    for each in other["fields"]:
        name = each["name"]
        at = f"{path}.{name}".lstrip(".")
        fields[name] = {**each, "type": _union(fields[name]["type"], each["type"], at)} if name in fields else each
    return {**one, "fields": list(fields.values())}


def _named(kind: Any) -> str:
    return str(kind["type"] if isinstance(kind, dict) else kind)


def _table_id(name: str) -> str:
    """Return the UUID, of the version for ids that are made in another way, that follows from a name."""
    digest = bytearray(hashlib.sha256(name.encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    found = digest.hex()
    return "-".join((found[:8], found[8:12], found[12:16], found[16:20], found[20:]))


_PRIMITIVES = {
    pa.binary(): "binary",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.date32(): "date",
}


def _schema_string(schema: pa.Schema) -> str:
    """Return the schema as the table's metadata names it: all columns may be NULL, because files of former
    releases lack some. Raises AssertionError for a type that no file of LedgerMQ has.
    """
    return json.dumps(_struct(list(schema)), separators=(",", ":"))


def _struct(fields: list[pa.Field]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": field.name, "type": _type(field.type), "nullable": True, "metadata": {}} for field in fields
        ],
    }


def _type(kind: pa.DataType) -> str | dict[str, Any]:
    if pa.types.is_struct(kind):
        return _struct([kind.field(i) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        return {"type": "map", "keyType": "string", "valueType": _type(kind.item_type), "valueContainsNull": True}
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if kind not in _PRIMITIVES:
        raise AssertionError(f"Delta has no type for {kind}")
    return _PRIMITIVES[kind]
