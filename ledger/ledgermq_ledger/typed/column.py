"""Make the columns `value_typed` and `value_error` of a file's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.errors import FormatNotSupported
from ledgermq.protocol.naming.schema_ids import CONFLUENT, FIRST_MESSAGE, NONE
from ledgermq_ledger.schemas.records import Schema
from ledgermq_ledger.typed.children import Decoders
from ledgermq_ledger.typed.chunk import Work
from ledgermq_ledger.typed.framing import bodies_of, ids_of, without
from ledgermq_ledger.typed.shape import Shape, shape_of

RULES = 1
"""By which values become rows. A plan names them, and a runner that knows others refuses it: two runners of one plan
make the same rows.
"""
PROTOBUF = "protobuf"
compute: Any = pc
_Part = tuple[pa.Array, pa.Array | None, pa.Array]
"""Places of rows, their structs or None for NULL, their errors or NULL."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The schemas of a subject, as a plan of compaction sees them. `version`: of bare values; 0: the newest one."""

    name: str
    framing: str
    version: int
    versions: Sequence[Schema]
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", shape_of(self.versions))

    def of_bare_values(self) -> Schema | None:
        found = [each for each in self.versions if self.version in (0, each.version)]
        return max(found, key=lambda each: each.version, default=None)

    def of_id(self, id_: int) -> Schema | None:
        return max((each for each in self.versions if each.id == id_), key=lambda each: each.version, default=None)


def check_rules(rules: int) -> None:
    """Raise FormatNotSupported if values have to be decoded by other rules than this program's."""
    if rules != RULES:
        raise FormatNotSupported(
            f"a plan of compaction decodes values by rules {rules}, this program has rules {RULES}: use the later one"
        )


class TypedColumns:
    """Those of one topic, in one task. Blocking: it waits for child processes."""

    def __init__(self, subject: Subject, decoders: Decoders) -> None:
        self._subject, self._decoders = subject, decoders
        self._works: dict[int, Work] = {}

    @property
    def fields(self) -> list[pa.Field]:
        return self._subject.shape.fields

    def of(self, rows: pa.Table) -> list[pa.Array]:
        """Return an array for each of `fields`. Raises Unavailable."""
        values, headers = (_whole(rows.column(name)) for name in ("value", "headers"))
        typed, errors = self.decoded(values, headers)
        return [errors] if typed is None else [typed, errors]

    def decoded(self, values: pa.Array, headers: pa.Array) -> tuple[pa.Array | None, pa.Array]:
        """Return the structs, None if the subject has no columns, and the errors or NULL of all values. Raises
        Unavailable.
        """
        subject, is_value = self._subject, compute.is_valid(values)
        parts: list[_Part] = [_unread(compute.invert(is_value), pa.nulls(len(values), pa.string()))]
        if subject.framing == NONE:
            schema = subject.of_bare_values()
            if schema is None:
                parts.append(_unread(is_value, pa.array([self._no_schema()] * len(values), pa.string())))
            else:
                parts.append(self._of_schema(schema, values, is_value))
            return self._in_order(parts, len(values))
        ids = ids_of(subject.framing, values, headers)
        known = compute.is_in(ids, pa.array(sorted({each.id for each in subject.versions}), pa.int64()))
        numbers = ids.cast(pa.string())
        why = compute.binary_join_element_wise("schema ", numbers, f" is none of subject {subject.name}", "")
        why = compute.fill_null(why, "the value names no schema")
        parts.append(_unread(compute.and_not(is_value, known), why))
        for id_ in ids.filter(known).unique().to_pylist():
            schema = subject.of_id(id_)
            assert schema is not None
            is_mine = compute.fill_null(compute.equal(ids, id_), fill_value=False)
            parts.append(self._of_schema(schema, values, is_mine))
        return self._in_order(parts, len(values))

    def _no_schema(self) -> str:
        wanted = f"no version {self._subject.version}" if self._subject.version else "no schema"
        return f"subject {self._subject.name} has {wanted}"

    def _of_schema(self, schema: Schema, values: pa.Array, chosen: pa.Array) -> _Part:
        places = compute.indices_nonzero(chosen)
        values = values if len(places) == len(values) else values.take(places)
        work = self._work(schema)
        if work is None:
            why = f"schema {schema.id} has no columns: it is of no record"
            return places, None, pa.array([why] * len(values), pa.string())
        bodies = bodies_of(self._subject.framing, values)
        if schema.kind != PROTOBUF or self._subject.framing != CONFLUENT:
            return places, *self._decoders.decode(work, bodies)
        is_first, rest = compute.starts_with(bodies, FIRST_MESSAGE), without(bodies, len(FIRST_MESSAGE))
        typed, errors = self._decoders.decode(work, rest.filter(is_first))
        why = pa.array([f"it is another message than the first one of schema {schema.id}"] * len(values), pa.string())
        parts = [(compute.indices_nonzero(is_first), typed, errors), _unread(compute.invert(is_first), why)]
        return places, *self._in_order(parts, len(values))

    def _work(self, schema: Schema) -> Work | None:
        """Return what decodes values of a schema; the same object each time, by which a child knows it."""
        root, wanted = self._subject.shape.versions.get(schema.version), self._subject.shape.type
        if root is None or wanted is None:
            return None
        if schema.version not in self._works:
            self._works[schema.version] = Work(schema.kind, schema.text, root, wanted)
        return self._works[schema.version]

    def _in_order(self, parts: Sequence[_Part], rows: int) -> tuple[pa.Array | None, pa.Array]:
        """Put the rows of the parts back to their places."""
        wanted, filled = self._subject.shape.type, [part for part in parts if len(part[0])]
        if len(filled) == 1 and len(filled[0][0]) == rows:
            _, typed, errors = filled[0]
            return None if wanted is None else pa.nulls(rows, wanted) if typed is None else typed, errors
        if not filled:
            return None if wanted is None else pa.nulls(0, wanted), pa.nulls(0, pa.string())
        order = compute.array_sort_indices(pa.concat_arrays([places for places, _, _ in filled]))
        errors = pa.concat_arrays([part[2] for part in filled]).take(order)
        if wanted is None:
            return None, errors
        structs = [pa.nulls(len(places), wanted) if typed is None else typed for places, typed, _ in filled]
        return pa.concat_arrays(structs).take(order), errors


def _unread(chosen: pa.Array, why: pa.Array) -> _Part:
    return compute.indices_nonzero(chosen), None, why.filter(chosen)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found
