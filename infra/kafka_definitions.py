"""Read Kafka's definitions of its messages: JSON with comments, as it lies in kafka-clients' jar."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION_MAX = 1 << 15
FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
BYTES = {"?": 1, "b": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}
TYPES = {"bool": "bool", "float64": "float", "uuid": "bytes", "string": "str", "bytes": "Buffer", "records": "Records"}
"""Python's type of a value; `int` for all others."""

Versions = tuple[int, int]
ALWAYS: Versions = (0, VERSION_MAX)
NEVER: Versions = (1, 0)


@dataclass(frozen=True)
class Field:
    """`kind`: the type of the value, or of each element if `array`. `tagged`: from which version on it has `tag`."""

    name: str
    kind: str
    array: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: str
    flexible: Versions | None

    @property
    def fixed(self) -> bool:
        return self.kind in FIXED and not self.array and self.tagged == NEVER

    @property
    def is_structure(self) -> bool:
        return self.kind[0].isupper()

    @property
    def type(self) -> str:
        one = self.kind if self.is_structure else TYPES.get(self.kind, "int")
        found = f"list[{one}]" if self.array else one
        return f"{found} | None" if self.nullable != NEVER else found


@dataclass(frozen=True)
class Structure:
    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Message:
    """`key`: of its API; None for headers. `structures`: those that others hold come first."""

    name: str
    key: int | None
    valid: Versions
    flexible: Versions
    structures: tuple[Structure, ...]


def parse_versions(text: str) -> Versions:
    """Return the versions that `3`, `3-5`, `3+` or `none` means."""
    if text == "none":
        return NEVER
    if text.endswith("+"):
        return int(text[:-1]), VERSION_MAX
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def within(a: Versions, b: Versions) -> Versions:
    found = max(a[0], b[0]), min(a[1], b[1])
    return found if found[0] <= found[1] else NEVER


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def read_definition(path: Path) -> Message:
    lines = path.read_text(encoding="utf-8").splitlines()
    found: dict[str, Any] = json.loads("\n".join(line for line in lines if not line.lstrip().startswith("//")))
    valid = parse_versions(found["validVersions"])
    structures: list[Structure] = []
    for common in found.get("commonStructs", ()):
        _add_structure(structures, common["name"], common["fields"], ALWAYS)
    _add_structure(structures, found["name"], found["fields"], valid)
    return Message(
        found["name"], found.get("apiKey"), valid, parse_versions(found["flexibleVersions"]), tuple(structures)
    )


def _add_structure(out: list[Structure], name: str, fields: Sequence[Any], around: Versions) -> None:
    """Add a structure after those that it holds."""
    made = []
    for field in fields:
        versions = within(parse_versions(field["versions"]), around)
        kind = field["type"].removeprefix("[]")
        if "fields" in field:
            _add_structure(out, kind, field["fields"], versions)
        if versions != NEVER:
            made.append(_field(field, kind, versions))
    out.append(Structure(name, tuple(made)))


def _field(field: Any, kind: str, versions: Versions) -> Field:
    nullable = within(parse_versions(field.get("nullableVersions", "none")), versions)
    array = field["type"].startswith("[]")
    flexible = field.get("flexibleVersions")
    return Field(
        name=snake(field["name"]),
        kind=kind,
        array=array,
        versions=versions,
        nullable=nullable,
        tagged=parse_versions(field.get("taggedVersions", "none")),
        tag=field.get("tag", -1),
        default=_default(kind, array, field.get("default")),
        flexible=None if flexible is None else parse_versions(flexible),
    )


def _default(kind: str, array: bool, given: Any) -> str:
    """Return the default of a field, as Python."""
    if given == "null":
        return "None"
    if array:
        return "field(default_factory=list)"
    if kind[0].isupper():
        return f"field(default_factory=lambda: {kind}())"
    if given is not None and kind not in ("string", "bool"):
        return str(int(str(given), 0))
    plain = {"bool": "False", "uuid": "bytes(16)", "string": '""', "bytes": 'b""', "records": "None", "float64": "0.0"}
    if kind == "bool" and given is not None:
        return str(given).capitalize()
    return repr(given) if given is not None else plain.get(kind, "0")
