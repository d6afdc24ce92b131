"""Convert columns of Arrow data to the types of the record schema, and say beforehand how large they become.

The record schema has 32-bit offsets: a column of one batch holds at most 2 GiB. Views, dictionaries and
types with 64-bit offsets may stand for more than they occupy, and Arrow's conversion of views does
not notice when offsets overflow. So `plain_bytes` comes first, and `column_of` is called for rows that fit.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.errors import InvalidRecord
from ledgermq.protocol.batches.records import HEADERS, SCHEMA

OFFSET_END = 2**31
VIEW_BYTES = 16
_VIEW_WORDS = 4
"""A view has four words of four bytes; the first is its length."""
_types: Any = pa.types


def plain_bytes(given: pa.Array) -> int:
    """Return about how many bytes the rows have once they are converted, at least as many as their data.

    `given`: valid Arrow data.
    """
    given = _storage(given)
    kind = given.type
    if _is_view(kind) or _types.is_dictionary(kind):
        return int(pc.sum(_lengths(given), min_count=0).as_py())
    if _types.is_list(kind) or _types.is_large_list(kind) or _types.is_map(kind):
        return plain_bytes(_elements(given)) + 4 * len(given)
    if _types.is_struct(kind):
        return sum(map(plain_bytes, given.flatten()))
    return int(given.nbytes)


def column_of(given: pa.Array, name: str) -> pa.Array:
    """Return a column in the type of the record schema, fully validated. Raises InvalidRecord, naming the column.

    `given`: valid Arrow data of at most 2 GiB by `plain_bytes`.
    """
    wanted = SCHEMA.field(name).type
    given = _storage(given)
    if given.type == wanted:
        return given
    _check_type(given.type, name)
    try:
        made = _headers(given) if name == "headers" else _plain(given).cast(wanted)
        made.validate(full=True)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidRecord(
            f"the column {name} has type {given.type}, which cannot be converted to {wanted} without loss: {error}"
        ) from error
    return made


def _check_type(given: pa.DataType, name: str) -> None:
    if _types.is_null(given):
        return
    if name == "timestamp":
        _check_timestamps(given)
    elif name == "headers":
        if not _are_headers(given):
            raise InvalidRecord(
                f"the column headers has type {given}; it must be a map, or a list of structs with the fields key and"
                " value, like [{'key': 'region', 'value': b'eu'}]"
            )
    elif not _is_text(given):
        raise InvalidRecord(
            f"the column {name} has type {given}; it must be text{'' if name == 'tag' else ' or binary'}"
        )


def _check_timestamps(given: pa.DataType) -> None:
    if not _types.is_timestamp(given):
        raise InvalidRecord(
            f"the column timestamp has type {given}; it must be a timestamp with time zone. For milliseconds since"
            " the epoch cast it, as by column.cast(pa.timestamp('ms', tz='UTC'))"
        )
    if given.tz is None:
        raise InvalidRecord("the column timestamp has no time zone; cast it to a type with one")


def _is_text(given: pa.DataType) -> bool:
    """Return True for text and binary, whichever way it is laid out."""
    if isinstance(given, pa.BaseExtensionType):
        return _is_text(given.storage_type)
    if _types.is_dictionary(given):
        return _is_text(given.value_type)
    return _is_view(given) or any(
        is_kind(given)
        for is_kind in (
            _types.is_string,
            _types.is_binary,
            _types.is_large_string,
            _types.is_large_binary,
            _types.is_fixed_size_binary,
            _types.is_null,
        )
    )


def _are_headers(given: pa.DataType) -> bool:
    if _types.is_map(given):
        return _is_text(given.key_type) and _is_text(given.item_type)
    if not (_types.is_list(given) or _types.is_large_list(given)):
        return False
    pair = given.value_type
    if not _types.is_struct(pair) or sorted(field.name for field in pair) != sorted(f.name for f in HEADERS.value_type):
        return False
    return all(_is_text(field.type) for field in pair)


def _headers(given: pa.Array) -> pa.Array:
    """Convert names and values by themselves, and only those that the rows refer to."""
    if _types.is_null(given.type):
        return pa.nulls(len(given), HEADERS)
    pairs = _elements(given)
    if _types.is_map(given.type):
        names, values = pairs.flatten()
    else:
        names, values = (pairs.flatten()[pairs.type.get_field_index(field.name)] for field in HEADERS.value_type)
    fields = list(HEADERS.value_type)
    made = [_plain(_storage(part)).cast(field.type) for part, field in zip((names, values), fields, strict=True)]
    offsets = given.offsets.cast(pa.int64())
    offsets = pc.subtract(offsets, offsets[0]).cast(pa.int32())
    return pa.ListArray.from_arrays(
        offsets, pa.StructArray.from_arrays(made, fields=fields), type=HEADERS, mask=given.is_null()
    )


def _elements(given: pa.Array) -> pa.Array:
    """Return the elements between the first and the last row of a list or map."""
    first, last = given.offsets[0].as_py(), given.offsets[len(given)].as_py()
    return given.values.slice(first, last - first)


def _storage(given: pa.Array) -> pa.Array:
    return given.storage if isinstance(given.type, pa.BaseExtensionType) else given


def _plain(given: pa.Array) -> pa.Array:
    """Return categories and views as the texts that they stand for, in a layout that Arrow casts rightly."""
    given = _storage(given)
    if _types.is_dictionary(given.type):
        return _plain(_taken(_storage(given.dictionary), given.indices))
    if _types.is_string_view(given.type):
        return given.cast(pa.large_string())
    if _types.is_binary_view(given.type):
        return given.cast(pa.large_binary())
    if (_types.is_large_string(given.type) or _types.is_large_binary(given.type)) and _end(given) >= OFFSET_END:
        return given.take(pa.arange(0, len(given)))  # so that the offsets begin with 0
    return given


def _taken(values: pa.Array, indices: pa.Array) -> pa.Array:
    """Return the values at indices. Arrow cannot take elements of views, but views are values of 16 bytes."""
    if not _is_view(values.type):
        return values.take(indices)
    buffers = values.buffers()
    views = pa.Array.from_buffers(pa.binary(VIEW_BYTES), len(values), buffers[:2], offset=values.offset).take(indices)
    return pa.Array.from_buffers(values.type, len(views), [*views.buffers(), *buffers[2:]], offset=views.offset)


def _end(given: pa.Array) -> int:
    """Return where the data of a column with 64-bit offsets ends in its buffer."""
    ends = pa.Array.from_buffers(pa.int64(), 1, [None, given.buffers()[1]], offset=given.offset + len(given))
    return int(ends[0].as_py())


def _is_view(kind: pa.DataType) -> bool:
    return bool(_types.is_string_view(kind) or _types.is_binary_view(kind))


def _lengths(given: pa.Array) -> pa.Array:
    """Return the bytes of each row (int64), 0 for null. Only for text and binary; others count 16."""
    given = _storage(given)
    if _types.is_dictionary(given.type):
        lengths = _lengths(given.dictionary).take(given.indices)
    elif _is_view(given.type):
        lengths = _view_lengths(given)
    elif _is_text(given.type) and not _types.is_null(given.type):
        lengths = pc.binary_length(given).cast(pa.int64())
    else:
        return pa.repeat(pa.scalar(16, pa.int64()), len(given))
    return pc.fill_null(lengths, 0) if lengths.null_count else lengths


def _view_lengths(views: pa.Array) -> pa.Array:
    if not len(views):
        return pa.array([], pa.int64())
    end = views.offset + len(views)
    words = pa.Array.from_buffers(pa.int32(), _VIEW_WORDS * end, [None, views.buffers()[1]])
    found = words.take(pa.arange(_VIEW_WORDS * views.offset, _VIEW_WORDS * end, _VIEW_WORDS)).cast(pa.int64())
    return pc.if_else(views.is_valid(), found, 0) if views.null_count else found
