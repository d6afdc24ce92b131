"""Find what decodes many values of a schema into columns at once."""

from __future__ import annotations

from ledgermq_ledger.typed.chunk import Columns, Work
from ledgermq_ledger.typed.many import avro, json_values, protobuf

MANY = {"avro": avro.columns_of, "json": json_values.columns_of, "protobuf": protobuf.columns_of}


def columns_of(work: Work) -> Columns | None:
    """Return the decoder of columns; None if there is none for such a schema, and its values go row by row."""
    return MANY[work.kind](work)
