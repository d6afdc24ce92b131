"""Give the fields of a subject their ids, and refuse what a table cannot follow.

A field id is given once in the cluster, and never to another field: Parquet readers find columns by
it, and one id for two columns would show values of one as the other. A table's column keeps its type, or
is widened; a removed field keeps its column. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ledgermq.errors import IncompatibleSchema, InvalidRequest

FIELDS_MAX = 2000
"""Of one subject, removed ones included."""
FIRST_ID = 101
"""Ids below it belong to the columns of all files."""
RECURSION_MAX = 3
"""A type within itself: deeper ones are one column of JSON text."""
JSON, LIST, MAP, STRUCT = "json", "list", "map", "struct"
ELEMENT, VALUE = "[]", "{}"
SHOWN = 80

_WIDER = {("int", "long"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)\Z")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a parsed schema. `path`: names with slashes between, as in JSON pointers; `[]` is the element of a
    list, `{}` the value of a map. `identity`: what the field keeps when it is renamed. `former`: identities under
    which it may be known.
    """

    path: str
    type: str
    identity: str
    former: tuple[str, ...] = ()

    def child(self, name: str, type_: str, own: str = "", former: Iterable[str] = ()) -> Field:
        """Return a field within this one. `own`: its part of the identity; its name, if not given."""
        part = escaped(name)
        parents = [self.identity, *self.former]
        parts = [own or part, *map(escaped, former)]
        known = [f"{parent}/{each}" for parent in parents for each in parts]
        return Field(f"{self.path}/{part}", type_, known[0], tuple(known[1:16]))


ROOT = Field("", STRUCT, "")


@dataclass(frozen=True, slots=True)
class NumberedField:
    """A field as the subject keeps it. `removed`: the newest version lacks it."""

    id: int
    path: str
    type: str
    identity: str
    removed: bool = False


def escaped(name: str) -> str:
    """Return a field's name as part of a path."""
    if name in (ELEMENT, VALUE):
        return name
    return name.replace("~", "~0").replace("/", "~1").replace("[", "~2").replace("{", "~3")


def check_count(found: Sequence[Field]) -> None:
    """Raise InvalidRequest before a schema whose types name one another has too many fields."""
    if len(found) >= FIELDS_MAX:
        raise InvalidRequest(f"a schema has at most {FIELDS_MAX} fields, those within others included: split it")


def numbered(
    before: Sequence[NumberedField], now: Sequence[Field], given: int
) -> tuple[tuple[NumberedField, ...], int]:
    """Return all fields of a subject with its next version, and the highest id that is given then. `before`: those of
    all versions so far; `given`: the highest id that was given in the cluster.

    Raises IncompatibleSchema if the table cannot follow, InvalidRequest for too many fields.
    """
    by_identity = {field.identity: field for field in before}
    present = {field.identity for field in now}
    kept: dict[int, NumberedField] = {}
    for field in now:
        known = by_identity.get(field.identity)
        if known is None:
            renamed = (by_identity[each] for each in field.former if each in by_identity and each not in present)
            known = next((each for each in renamed if each.id not in kept), None)
        if known is None:
            given = max(given + 1, FIRST_ID)
            known = NumberedField(given, field.path, field.type, field.identity)
        type_ = _followed(known, field)
        kept[known.id] = NumberedField(known.id, field.path, type_, field.identity)
    gone = [replace(field, removed=True) for field in before if field.id not in kept]
    if len(kept) + len(gone) > FIELDS_MAX:
        raise InvalidRequest(
            f"a subject has at most {FIELDS_MAX} fields, removed ones included, not {len(kept) + len(gone)}: use"
            " another subject"
        )
    return (*kept.values(), *gone), given


def _followed(known: NumberedField, field: Field) -> str:
    """Return the type of the column from now on. Raises IncompatibleSchema."""
    before, now = known.type, field.type
    if before == now or (now, before) in _WIDER:
        return before
    if (before, now) in _WIDER:
        return now
    old, new = _DECIMAL.match(before), _DECIMAL.match(now)
    if old and new and old[2] == new[2]:
        return max(before, now, key=lambda text: int(_DECIMAL.match(text)[1]))  # type: ignore[index]
    raise IncompatibleSchema(
        f"field {field.path[:SHOWN]} was {before}, and a table cannot make {now} of it: name the field otherwise, or"
        " use another subject"
    )
