"""Lay the columns that a decoder has made out as a file wants them: names, fields of other versions, widths."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq_ledger.typed.shape import Node

compute: Any = pc


def laid_out(found: pa.Array, node: Node, wanted: pa.DataType) -> pa.Array:
    """Return `found`, whose fields have the names that `node` has in values, as `wanted`. Raises ArrowException,
    KeyError.
    """
    if pa.types.is_struct(wanted):
        return _struct(found, node, wanted)
    if pa.types.is_list(wanted):
        found = _from_zero(found)
        items = laid_out(found.values, node.children[0], wanted.value_type)
        return pa.ListArray.from_arrays(found.offsets, items, type=wanted, mask=found.is_null())
    return found if found.type == wanted else found.cast(wanted)


def _struct(found: pa.Array, node: Node, wanted: pa.DataType) -> pa.Array:
    places = {field.name: at for at, field in enumerate(found.type)}
    children = {child.name: child for child in node.children}
    arrays = []
    for field in wanted:
        child = children.get(field.name)
        if child is None:
            arrays.append(pa.nulls(len(found), field.type))
        else:
            arrays.append(laid_out(found.field(places[child.source]), child, field.type))
    return pa.StructArray.from_arrays(arrays, fields=list(wanted), mask=found.is_null())


def _from_zero(found: pa.Array) -> pa.Array:
    """Return an array that is no part of a larger one: lists are taken apart by their offsets."""
    return found if found.offset == 0 else pa.concat_arrays([found, found[:0]])


def check_finite(found: pa.Array) -> None:
    """Raise ValueError if a number is infinite or none."""
    kind = found.type
    if pa.types.is_floating(kind):
        if compute.all(compute.is_finite(found)).as_py() is False:
            raise ValueError("a number is not finite")
    elif pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            check_finite(found.field(at))
    elif pa.types.is_list(kind):
        check_finite(found.values)
