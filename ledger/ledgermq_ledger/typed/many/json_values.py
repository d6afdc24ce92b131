"""JSON values into columns, by pyarrow.

It must never see a value as it came: a value `null` ends the process, and two objects in one value, or none, shift all
rows behind them. So each value stands in an object with its number, which is checked afterwards.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ledgermq_ledger.schemas.fields import LIST, STRUCT
from ledgermq_ledger.typed.chunk import Columns, Work
from ledgermq_ledger.typed.many.layout import check_finite, laid_out
from ledgermq_ledger.typed.shape import Node

compute: Any = pc
_TYPES = {"long": pa.int64(), "double": pa.float64(), "string": pa.string(), "bool": pa.bool_()}


def columns_of(work: Work) -> Columns | None:
    """Return the decoder; None for schemas with maps, or with columns of JSON text, which pyarrow does not make."""
    kind = _read_as(work.root)
    if kind is None:
        return None
    schema = pa.schema([("i", pa.int64()), ("v", kind)])
    # A field that the schema does not name is left to the rows: if such fields were passed over, a value could close
    # its object and add one beside it.
    options = pj.ParseOptions(explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="error")

    def columns(values: pa.Array) -> pa.Array:
        numbers = pa.arange(0, len(values))
        texts = numbers.cast(pa.string()).cast(pa.binary())
        joined = compute.binary_join_element_wise(b'{"i":', texts, b',"v":', values, b"}\n", b"")
        _, offsets, data = joined.buffers()
        ends = pa.Array.from_buffers(pa.int32(), len(joined) + 1, [None, offsets], offset=joined.offset)
        first, last = ends[0].as_py(), ends[-1].as_py()
        read = pj.ReadOptions(use_threads=False, block_size=last - first + 1)
        table = pj.read_json(pa.BufferReader(data.slice(first, last - first)), read, options)
        if table.num_rows != len(values) or not table.column("i").equals(pa.chunked_array([numbers])):
            raise ValueError("the rows are not those of the values")
        table.validate(full=True)
        found = pa.concat_arrays(table.column("v").chunks)
        check_finite(found)
        return laid_out(found, work.root, work.wanted)

    return columns


def _read_as(node: Node) -> pa.DataType | None:
    """Return the type by which pyarrow reads a field; None if it cannot."""
    if node.type == STRUCT:
        fields = [(child.source, _read_as(child)) for child in node.children]
        return None if not fields or any(kind is None for _, kind in fields) else pa.struct(fields)
    if node.type == LIST:
        inner = _read_as(node.children[0]) if node.children else None
        return None if inner is None else pa.list_(inner)
    return _TYPES.get(node.type)
