"""The actions of a Delta table's log, and the bytes of a commit: one action a line, in JSON.

Only what a table over append-only files needs. Actions of others that are not listed here are
passed over when a log is read; a table that a reader of version 1 cannot read is refused
(`check_protocol`). Times are in milliseconds since 1970, sizes in bytes. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, unquote

import msgspec

from ledgermq.errors import DataDamaged, FormatNotSupported

READER_VERSION = 1
WRITER_VERSION = 7
LOCK = "ledgermq"
"""A feature that no other writer knows: it refuses to append, to delete and to optimize."""


class Protocol(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Format(msgspec.Struct, rename="camel", frozen=True):
    provider: str = "parquet"
    options: dict[str, str] = {}


class MetaData(msgspec.Struct, rename="camel", frozen=True):
    id: str
    schema_string: str
    partition_columns: list[str] = []
    configuration: dict[str, str] = {}
    format: Format = Format()
    name: str | None = None
    description: str | None = None
    created_time: int | None = None


class Add(msgspec.Struct, rename="camel", frozen=True):
    """`path`: percent-encoded, relative to the table's folder (`encode_path`). `stats`: JSON."""

    path: str
    size: int
    modification_time: int
    data_change: bool = True
    partition_values: dict[str, str | None] = {}
    stats: str | None = None


class Remove(msgspec.Struct, rename="camel", frozen=True):
    path: str
    deletion_timestamp: int | None = None
    data_change: bool = True
    extended_file_metadata: bool | None = None
    partition_values: dict[str, str | None] | None = None
    size: int | None = None


class Txn(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """How far an application has brought the table: here, how far a partition is registered."""

    app_id: str
    version: int
    last_updated: int | None = None


class CommitInfo(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """`txn_id`: the id of the put, by which a writer finds out whether a commit is its own."""

    timestamp: int
    operation: str
    engine_info: str = ""
    is_blind_append: bool = False
    txn_id: str = ""


Action = Protocol | MetaData | Add | Remove | Txn


class Line(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """One line of a commit: of these it has one. None of them: an action that is not listed here."""

    protocol: Protocol | None = None
    meta_data: MetaData | None = None
    add: Add | None = None
    remove: Remove | None = None
    txn: Txn | None = None
    commit_info: CommitInfo | None = None

    def action(self) -> Action | None:
        return self.protocol or self.meta_data or self.add or self.remove or self.txn


class Commit(msgspec.Struct, frozen=True):
    actions: list[Action]
    info: CommitInfo | None


_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Line)


def encode_commit(actions: Sequence[Action], info: CommitInfo) -> list[bytes]:
    """Return a commit as two buffers, of which the last holds the id of the put, as `settle_put` wants it."""
    if not info.txn_id:
        raise AssertionError("a commit without the id of its put could be that of another process")
    return [b"".join(_line(action) for action in actions), _encoder.encode(Line(commit_info=info)) + b"\n"]


def _line(action: Action) -> bytes:
    match action:
        case Protocol():
            line = Line(protocol=action)
        case MetaData():
            line = Line(meta_data=action)
        case Add():
            line = Line(add=action)
        case Remove():
            line = Line(remove=action)
        case Txn():
            line = Line(txn=action)
    return _encoder.encode(line) + b"\n"


def decode_commit(data: bytes, key: str) -> Commit:
    """Decode a commit of any writer. Raises DataDamaged, naming `key`."""
    actions: list[Action] = []
    info = None
    for number, text in enumerate(data.split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            line = _decoder.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise DataDamaged(f"{key}: line {number} is no action of a Delta log: {error}", object_key=key) from error
        if (action := line.action()) is not None:
            actions.append(action)
        info = line.commit_info or info
    return Commit(actions, info)


def check_protocol(protocol: Protocol, key: str) -> None:
    """Raise FormatNotSupported if this program could read the table wrongly."""
    if protocol.min_reader_version > READER_VERSION or protocol.reader_features:
        raise FormatNotSupported(
            f"{key}: the Delta table asks for readers of version {protocol.min_reader_version} with the features"
            f" {protocol.reader_features or []}; this program reads version {READER_VERSION} without any"
        )


def encode_path(path: str) -> str:
    """Return a path below the table's folder as an action names it."""
    return quote(path, safe="/=-_.~!$&'()*+,;:@")


def decode_path(path: str) -> str:
    return unquote(path)
