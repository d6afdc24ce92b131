"""Which schemas the files of a plan are typed by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from ledgermq.errors import FormatNotSupported
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.format.versioned import Unreadable
from ledgermq_ledger.schemas.records import SCHEMA_PREFIX, Schema, decode_schema
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.typed.children import Decoders
from ledgermq_ledger.typed.column import RULES, Subject, TypedColumns, check_rules

Schemas = Mapping[str, tuple[Schema, ...]]
"""By subject, all versions that it had."""
Records = Mapping[bytes, tuple[int, bytes]]


def schemas_of(records: Records, plan: fmt.CompactionPlan) -> Schemas:
    """Return the schemas of the subjects that a plan names, by the records below its offset. A schema is written once,
    and never deleted, so a later catalog has the same below this offset.

    Raises FormatNotSupported for a record of a later release.
    """
    return {
        name: versions_of(records, name, plan.metadata_offset)
        for name in sorted({file.schema.subject for file in plan.files if file.HasField("schema")})
    }


def versions_of(records: Records, subject: str, end: int) -> tuple[Schema, ...]:
    """Return the versions of a subject by the records below an offset. Raises as `schemas_of`."""
    prefix, found = SCHEMA_PREFIX + f"{subject}/".encode(), []
    for key, (offset, value) in records.items():
        if key.startswith(prefix) and offset < end:
            schema = decode_schema(key, value)
            if isinstance(schema, Unreadable):
                raise FormatNotSupported(f"a schema of subject {subject} cannot be read: {schema.why}")
            found.append(schema)
    return tuple(sorted(found, key=lambda each: each.version))


def name_schema(file: fmt.PlannedFile, topic: Topic) -> None:
    """Let a file have typed values, if the topic asks for them."""
    settings = topic.settings
    if file.key and settings.value_schema_subject and not topic.internal:
        file.schema.subject, file.schema.framing = settings.value_schema_subject, settings.value_schema_framing
        file.schema.version, file.schema.rules = settings.value_schema_version, RULES


def is_typed(plan: fmt.CompactionPlan) -> bool:
    """Return whether a file of the plan gets columns of typed values."""
    return any(file.HasField("schema") for file in plan.files)


class TypedFiles:
    """Those of one task, which share what decodes values."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._decoders = Decoders()
        self._columns: dict[bytes, TypedColumns] = {}

    def of(self, file: fmt.PlannedFile) -> TypedColumns | None:
        """Return what makes the columns of a file; None if it has none. Raises FormatNotSupported."""
        if not file.HasField("schema"):
            return None
        check_rules(file.schema.rules)
        key = file.schema.SerializeToString(deterministic=True)
        if key not in self._columns:
            said = file.schema
            versions = self._schemas.get(said.subject, ())
            subject = Subject(said.subject, said.framing, said.version, versions)
            self._columns[key] = TypedColumns(subject, self._decoders)
        return self._columns[key]

    def fields(self, file: fmt.PlannedFile) -> Sequence[pa.Field]:
        """Return the columns of typed values of a file."""
        columns = self.of(file)
        return () if columns is None else columns.fields
