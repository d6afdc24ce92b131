"""Check in the driver, before any task runs, which columns a frame has.

value            binary or string; null is a tombstone
key              the same
topic            string; needed where the option is not given
partition        whole number; null: by the key, as every producer does
headers          array<struct<key: string, value: binary>>
timestamp        timestamp; null: the time of writing
tag              string
offset, timestampType, appended    ignored, so that what the source and plain reads of Parquet give fits
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from ledgermq.errors import InvalidRecord
from ledgermq.hints import did_you_mean

_BYTES = (BinaryType, StringType)
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": (StringType,),
    "partition": (IntegerType, ShortType, ByteType, LongType),
    "headers": (ArrayType,),
    "timestamp": (TimestampType,),
    "tag": (StringType,),
}
PASSED_OVER = ("offset", "timestampType", "appended")
_WANTED = {
    "key": "binary or string",
    "value": "binary or string",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
    "tag": "string",
}


def check_columns(schema: StructType, topic: str) -> None:
    """Check the columns. `topic`: the option, empty if not given.

    Raises InvalidRecord, naming the column and its type.
    """
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name in PASSED_OVER:
            continue
        if field.name not in _TYPES:
            raise InvalidRecord(f"column {field.name!r} ({field.dataType.simpleString()}): {_hint(field.name)}")
        if not isinstance(field.dataType, _TYPES[field.name]) or (
            field.name == "headers" and not _is_headers(field.dataType)
        ):
            raise InvalidRecord(
                f"column {field.name} is {field.dataType.simpleString()}; {_WANTED[field.name]} is needed"
            )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidRecord(f"there are two columns {twice[0]!r}")
    if "value" not in names:
        raise InvalidRecord(f"there is no column value; there are {', '.join(names) or 'none'}")
    if not topic and "topic" not in names:
        raise InvalidRecord('no topic: give the option topic, or a column topic, as .option("topic", "flights")')


def _hint(name: str) -> str:
    known = (
        f"columns are {', '.join(_TYPES)}; select those to be written, and put the others into value (to_json, struct)"
        " or headers"
    )
    return did_you_mean(name, _TYPES, f"records have no such column; {known}")


def _is_headers(given: DataType) -> bool:
    if not isinstance(given, ArrayType) or not isinstance(given.elementType, StructType):
        return False
    fields = given.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, _BYTES)
    )
