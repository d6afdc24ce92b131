"""Encode and decode the records of schemas in `__metadata`.

    key                          value
    schema/<subject>/<version>   SchemaRecord    a schema; it is written once, and never deleted
    subject/<subject>            SubjectRecord   its compatibility, the highest version that was given, deleted ones
    schemas                      SchemasRecord   the highest ids that were given, nonces of deletions

A record of a later release is `Unreadable`; nothing is changed then that it may be about.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq_ledger.format.versioned import Unreadable, read_versioned
from ledgermq_ledger.schemas.fields import NumberedField
from ledgermq_ledger.schemas.format import ledgermq_schemas_pb2 as fmt

VERSION = 1
SCHEMA_PREFIX = b"schema/"
SUBJECT_PREFIX = b"subject/"
SCHEMAS_KEY = b"schemas"
PREFIXES = (SCHEMA_PREFIX, SUBJECT_PREFIX, SCHEMAS_KEY)


@dataclass(frozen=True, slots=True)
class Schema:
    """A version of a subject. `id`: of its text, in the whole cluster. `fields`: all that the subject had until it."""

    subject: str
    version: int
    id: int
    kind: str
    text: str
    digest: bytes
    fields: tuple[NumberedField, ...]
    created_ms: int = 0
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """`deleted`, `for_good`: versions, in no set both."""

    compatibility: str = ""
    newest: int = 0
    deleted: frozenset[int] = frozenset()
    for_good: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Counts:
    """`ids`, `field_ids`: the highest that were given. `nonces`: of the newest deletions, oldest first."""

    ids: int = 0
    field_ids: int = 0
    nonces: tuple[bytes, ...] = ()


def schema_key(subject: str, version: int) -> bytes:
    return SCHEMA_PREFIX + f"{subject}/{version}".encode()


def subject_key(subject: str) -> bytes:
    return SUBJECT_PREFIX + subject.encode()


def subject_of(key: bytes) -> str:
    """Return the subject that a record is about; "" for the one of all."""
    if key.startswith(SCHEMA_PREFIX):
        return key.removeprefix(SCHEMA_PREFIX).rpartition(b"/")[0].decode(errors="replace")
    return key.removeprefix(SUBJECT_PREFIX).decode(errors="replace") if key.startswith(SUBJECT_PREFIX) else ""


def encode_schema(schema: Schema) -> bytes:
    record = fmt.SchemaRecord(
        version=VERSION,
        id=schema.id,
        kind=schema.kind,
        text=schema.text,
        digest=schema.digest,
        fields=[
            fmt.SchemaField(
                id=field.id, path=field.path, type=field.type, identity=field.identity, removed=field.removed
            )
            for field in schema.fields
        ],
        created_ms=schema.created_ms,
        created_by=schema.created_by,
    )
    return record.SerializeToString(deterministic=True)


def decode_schema(key: bytes, value: bytes) -> Schema | Unreadable:
    try:
        subject, _, version = key.removeprefix(SCHEMA_PREFIX).decode().rpartition("/")
        number = int(version)
    except ValueError as error:
        return Unreadable(f"not a schema: {error}")
    record = read_versioned(fmt.SchemaRecord, value, VERSION, "a schema")
    if isinstance(record, Unreadable):
        return record
    return Schema(
        subject,
        number,
        record.id,
        record.kind,
        record.text,
        record.digest,
        tuple(
            NumberedField(field.id, field.path, field.type, field.identity, field.removed) for field in record.fields
        ),
        record.created_ms,
        record.created_by,
    )


def encode_subject(subject: Subject) -> bytes:
    record = fmt.SubjectRecord(
        version=VERSION,
        compatibility=subject.compatibility,
        newest=subject.newest,
        deleted=sorted(subject.deleted),
        for_good=sorted(subject.for_good),
    )
    return record.SerializeToString(deterministic=True)


def decode_subject(value: bytes) -> Subject | Unreadable:
    record = read_versioned(fmt.SubjectRecord, value, VERSION, "a subject")
    if isinstance(record, Unreadable):
        return record
    return Subject(record.compatibility, record.newest, frozenset(record.deleted), frozenset(record.for_good))


def encode_counts(counts: Counts) -> bytes:
    record = fmt.SchemasRecord(version=VERSION, ids=counts.ids, field_ids=counts.field_ids, nonces=counts.nonces)
    return record.SerializeToString(deterministic=True)


def decode_counts(value: bytes) -> Counts | Unreadable:
    record = read_versioned(fmt.SchemasRecord, value, VERSION, "the counts of schemas")
    if isinstance(record, Unreadable):
        return record
    return Counts(record.ids, record.field_ids, tuple(record.nonces))
