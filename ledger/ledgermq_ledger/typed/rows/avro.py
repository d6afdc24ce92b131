"""Rows of Avro values.

Own code, because fastavro does not tell which branch of a union a value has, and bounds nothing: ten bytes can say that
an array has 10⁹ items. Files go by columnar decoders; this is for what these refuse, and for the text of the error.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from ledgermq_ledger.schemas.avro_names import NamedTypes, branch_name
from ledgermq_ledger.schemas.fields import ELEMENT, JSON, VALUE
from ledgermq_ledger.typed.rows.bounds import (
    GROWTH_BASE,
    GROWTH_MAX,
    BadValue,
    ReadRow,
    check_int64,
    decimal_of,
    text_of,
)
from ledgermq_ledger.typed.shape import Node

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_MICROS = {
    ("int", "time-millis"): 1000,
    ("long", "timestamp-millis"): 1000,
    ("long", "local-timestamp-millis"): 1000,
}
"""What makes microseconds of a number; the other types of times are of microseconds."""
_NANOS = ("timestamp-nanos", "local-timestamp-nanos")


class _Cursor:
    def __init__(self) -> None:
        self.data, self.at, self.items = b"", 0, 0

    def begin(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.items = GROWTH_MAX * len(data) + GROWTH_BASE

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise BadValue("it ends too early")
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self) -> int:
        """Read a zigzag varint."""
        value = shift = 0
        while True:
            if self.at >= len(self.data):
                raise BadValue("it ends too early")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise BadValue("a number has too many bytes")
        return check_int64((value >> 1) ^ -(value & 1))

    def block(self) -> int:
        """Return the number of items of the next block; 0: there is none."""
        count = self.number()
        if count < 0:
            count = -count
            self.number()  # its size in bytes, by which it could be passed over
        self.items -= count
        if self.items < 0:
            raise BadValue(f"it would decode to more than {GROWTH_MAX} times its size")
        return count


Read = Callable[[], Any]


def reader_of(text: str, root: Node) -> ReadRow:
    """Return what reads a value of this schema. `root`: the fields of its values."""
    schema = json.loads(text) if text.lstrip()[:1] in ("{", "[", '"') else text.strip()
    made = _Maker()
    read = made.reader(schema, "", root)

    def row(data: bytes) -> dict[str, Any] | None:
        made.cursor.begin(data)
        found: dict[str, Any] | None = read()
        if made.cursor.at != len(data):
            raise BadValue(f"{len(data) - made.cursor.at} bytes follow the value")
        return found

    return row


class _Maker:
    """Makes a function for each type of a schema, which reads a value at the cursor."""

    def __init__(self) -> None:
        self.cursor = _Cursor()
        self._types = NamedTypes()
        self._plain: dict[str, Read] = {}

    def reader(self, node: Any, namespace: str, place: Node | None) -> Read:
        """`place`: the field that the values go to; None or one of JSON: they become what JSON can say."""
        if place is not None and place.type == JSON:
            plain = self.reader(node, namespace, None)
            return lambda: None if (value := plain()) is None else text_of(value)
        if isinstance(node, list):
            return self._union(node, namespace, place)
        node, namespace = self._types.resolved(node, namespace)
        kind = node["type"] if isinstance(node, dict) else node
        if isinstance(kind, (dict, list)):
            return self.reader(kind, namespace, place)
        if kind in ("record", "error"):
            return self._record(node, namespace, place)
        if kind == "array":
            return self._array(node, namespace, place)
        if kind == "map":
            return self._map(node, namespace, place)
        return self._scalar(node, kind, place)

    def _union(self, branches: list[Any], namespace: str, place: Node | None) -> Read:
        number, real = self.cursor.number, [branch for branch in branches if branch != "null"]
        reads: list[Read] = []
        for branch in branches:
            if branch == "null":
                reads.append(lambda: None)
            elif place is None or len(real) == 1:
                reads.append(self.reader(branch, namespace, place))
            else:
                name = branch_name(self._types.resolved(branch, namespace)[0])
                inner = place.child(name)
                reads.append(_named(self.reader(branch, namespace, inner), inner))

        def read() -> Any:
            index = number()
            if not 0 <= index < len(reads):
                raise BadValue(f"there is no branch {index} of the union")
            return reads[index]()

        return read

    def _record(self, node: Any, namespace: str, place: Node | None) -> Read:
        if place is None:
            name = f"{namespace}.{node['name']}"
            if name in self._plain:  # a record within itself
                return self._later(name)
            self._plain[name] = lambda: None
        fields: list[tuple[str, str, Read]] = []
        for each in node["fields"]:
            inner = None if place is None else place.child(each["name"])
            read = self.reader(each["type"], namespace, inner)
            fields.append((each["name"], each["name"] if place is None else inner.name if inner else "", read))

        def record() -> dict[str, Any]:
            found = {}
            for source, name, read in fields:
                try:
                    value = read()
                except BadValue as error:
                    raise error.within(source) from None
                if name:
                    found[name] = value
            return found

        if place is None:
            self._plain[name] = record
        return record

    def _later(self, name: str) -> Read:
        def read() -> Any:
            return self._plain[name]()

        return read

    def _array(self, node: Any, namespace: str, place: Node | None) -> Read:
        block = self.cursor.block
        item = self.reader(node["items"], namespace, None if place is None else place.child(ELEMENT))

        def array() -> list[Any]:
            found: list[Any] = []
            while count := block():
                found.extend(item() for _ in range(count))
            return found

        return array

    def _map(self, node: Any, namespace: str, place: Node | None) -> Read:
        block, text = self.cursor.block, self._text()
        value = self.reader(node["values"], namespace, None if place is None else place.child(VALUE))

        def entries() -> Any:
            found: dict[str, Any] = {}
            while count := block():
                for _ in range(count):
                    key = text()
                    found[key] = value()
            return found if place is None else list(found.items())

        return entries

    def _text(self) -> Read:
        cursor = self.cursor

        def text() -> str:
            try:
                return cursor.take(cursor.number()).decode()
            except UnicodeDecodeError:
                raise BadValue("the string is not UTF-8") from None

        return text

    def _scalar(self, node: Any, kind: str, place: Node | None) -> Read:
        cursor = self.cursor
        logical = str(node.get("logicalType") or "") if isinstance(node, dict) else ""
        if kind == "null":
            return lambda: None
        if kind == "boolean":
            return self._boolean
        if kind in ("int", "long"):
            return self._integer(kind, logical)
        if kind == "float":
            return lambda: _FLOAT.unpack(cursor.take(4))[0]
        if kind == "double":
            return lambda: _DOUBLE.unpack(cursor.take(8))[0]
        if kind == "string":
            return self._text()
        if kind == "enum":
            return self._enum(node["symbols"])
        data: Read = lambda: cursor.take(cursor.number())  # noqa: E731
        if kind == "fixed":
            size = int(node["size"])
            data = lambda: cursor.take(size)  # noqa: E731
        if place is not None and place.type.startswith("decimal"):
            scale = int(node.get("scale", 0))
            return lambda: decimal_of(int.from_bytes(data(), "big", signed=True), scale)
        return data if place is not None else lambda: data().decode("latin-1")

    def _boolean(self) -> bool:
        byte = self.cursor.take(1)[0]
        if byte > 1:
            raise BadValue(f"the byte {byte} is neither true nor false")
        return byte == 1

    def _integer(self, kind: str, logical: str) -> Read:
        number, by = self.cursor.number, _MICROS.get((kind, logical), 0)
        if by:
            return lambda: check_int64(number() * by)
        if kind == "long" and logical in _NANOS:
            return lambda: number() // 1000
        if kind == "long":
            return number

        def small() -> int:
            value = number()
            if not -(2**31) <= value < 2**31:
                raise BadValue("the number does not fit into 32 bits")
            return value

        return small

    def _enum(self, symbols: list[str]) -> Read:
        number = self.cursor.number

        def symbol() -> str:
            index = number()
            if not 0 <= index < len(symbols):
                raise BadValue(f"there is no symbol {index} of the enum")
            return symbols[index]

        return symbol


def _named(read: Read, place: Node | None) -> Read:
    """Return what reads a branch of a union as a struct with this one field."""
    name = "" if place is None else place.name

    def branch() -> dict[str, Any]:
        value = read()
        return {name: value} if name else {}

    return branch
