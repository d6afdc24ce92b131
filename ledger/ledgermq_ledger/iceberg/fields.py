"""The columns of an Iceberg table over the project's Parquet files: field ids decide, for a reader takes a column whose
id is another one for NULL, without an error. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema, promote
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, SetPropertiesUpdate, TableUpdate
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from ledgermq.errors import FormatNotSupported
from ledgermq_ledger.parquet.files.columns import SCHEMA

FIRST_ID_OF_VALUES = 100
"""Fields of typed values have ids from here on, and may be renamed."""
FULL = pyarrow_to_schema(SCHEMA)
CREATED = Schema(*(field for field in FULL.fields if field.field_id < 10))
"""What `create_table`, which numbers columns again, numbers as our files do: the first nine, and those inside of
`headers`. Others are added by their ids.
"""


def merged(table: Schema, file: pa.Schema) -> Schema:
    """Return the table's columns and those of a file, found by id; by name in a file of a former release, which has no
    ids. Raises ValueError if an id or a name stands for two things, or only some columns of a file have ids.
    """
    if _has_id(file.field(0)) and any(_lacks_ids(field.type) for field in file):
        raise ValueError("a file has a map among its typed values; its keys have no field id, so no reader finds them")
    columns = pyarrow_to_schema(file, create_mapping_from_schema(FULL))
    found = _struct(table.as_struct(), columns.as_struct(), "")
    return Schema(*found.fields)


def updates(metadata: TableMetadata, wanted: Schema) -> tuple[TableUpdate, ...]:
    """Return what gives a table these columns, also to readers of files without ids. Raises FormatNotSupported if the
    table has other ids.
    """
    now = metadata.schema()
    if now.as_struct() == wanted.as_struct():
        return ()
    ids = {field.name: (field.field_id, field.field_type) for field in now.fields}
    for field in CREATED.fields:
        if ids.get(field.name) != (field.field_id, field.field_type):
            raise FormatNotSupported(f"the catalog numbers the columns of a new table otherwise: {now}")
    schema_id = 1 + max(schema.schema_id for schema in metadata.schemas)
    return (
        AddSchemaUpdate(schema=Schema(*wanted.fields, schema_id=schema_id)),
        SetCurrentSchemaUpdate(),
        SetPropertiesUpdate(
            updates={TableProperties.DEFAULT_NAME_MAPPING: create_mapping_from_schema(FULL).model_dump_json()}
        ),
    )


def _struct(one: StructType, other: StructType, path: str) -> StructType:
    fields = {field.field_id: field for field in one.fields}
    for field in other.fields:
        at = f"{path}.{field.name}".lstrip(".")
        known, names = fields.get(field.field_id), {each.name: each.field_id for each in fields.values()}
        if names.get(field.name, field.field_id) != field.field_id:
            raise ValueError(f"the column {at} has id {field.field_id} in a file and {names[field.name]} in the table")
        if known is None:
            fields[field.field_id] = NestedField(field.field_id, field.name, field.field_type, required=False)
            continue
        if known.name != field.name and field.field_id < FIRST_ID_OF_VALUES:
            raise ValueError(f"id {field.field_id} is the column {at} in a file, and {known.name} in the table")
        kind = _type(known.field_type, field.field_type, at)
        fields[field.field_id] = NestedField(field.field_id, field.name, kind, required=False)
    return StructType(*fields.values())


def _type(one: IcebergType, other: IcebergType, path: str) -> IcebergType:
    match one, other:
        case StructType(), StructType():
            return _struct(one, other, path)
        case ListType(), ListType() if one.element_id == other.element_id:
            element = _type(one.element_type, other.element_type, f"{path}.element")
            return ListType(one.element_id, element, element_required=False)
        case MapType(), MapType() if (one.key_id, one.value_id) == (other.key_id, other.value_id):
            value = _type(one.value_type, other.value_type, f"{path}.value")
            return MapType(one.key_id, one.key_type, one.value_id, value, value_required=False)
    if one == other:
        return one
    for narrow, wide in ((one, other), (other, one)):
        try:
            return promote(narrow, wide)
        except ResolveError:
            continue
    raise ValueError(f"the column {path} has two types: {one} and {other}")


def file_columns(files: Sequence[pa.Schema], table: Schema) -> Schema:
    """Return the columns of a table that names these files, in their order. Raises as `merged`."""
    for file in dict.fromkeys(files):
        table = merged(table, file)
    return table


def _has_id(field: pa.Field) -> bool:
    return b"PARQUET:field_id" in (field.metadata or {})


def _lacks_ids(kind: pa.DataType) -> bool:
    """Return True if a map is in a type: the files of this release give its keys no id."""
    if pa.types.is_map(kind):
        return not _has_id(kind.key_field) or _lacks_ids(kind.item_type)
    return any(_lacks_ids(kind.field(number).type) for number in range(kind.num_fields))
